"""What a plan changes of a scan and what ``bptt`` adds: memory, the loss of a sequence, devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import ckptplan
import ckptplan.jax
from ckptplan.jax.tapes import TAPES
from tests.jax.support import STEPS, bytes_of, data, difference, run_python, standard


@pytest.mark.parametrize("checked", ["checked", "unchecked"])
def test_devices_that_add_up_within_a_step(checked: str) -> None:
    """``shard_map`` and its collectives on two devices, with and without its check of what varies over them."""
    assert float(run_python("-m", "tests.jax.shards", checked)) <= 1e-12


@pytest.mark.parametrize("tape", TAPES)
def test_the_loss_is_summed_in_the_state(tape: Any) -> None:
    """Terms may depend on t."""
    weights, state, xs = data()

    def cell(weights: Any, h: Any, x: Any) -> Any:
        return (jnp.tanh(h @ weights + x),) * 2

    def theirs(weights: Any) -> Any:
        _, hs = jax.lax.scan(lambda h, x: cell(weights, h, x), state, xs)
        return jnp.sum(jnp.arange(STEPS) * jnp.mean(hs**2, axis=(1, 2)))

    def ours(weights: Any) -> Any:
        step = lambda h, x: cell(weights, h, x)  # noqa: E731
        how: dict[str, Any] = {"plan": standard(), "tape": tape}
        return ckptplan.jax.bptt(step, state, xs, lambda t, h: t * jnp.mean(h**2), **how)[0]

    assert difference(jax.value_and_grad(ours)(weights), jax.value_and_grad(theirs)(weights)) <= 1e-13


def test_terms_in_half_precision_are_added_up_in_fp32() -> None:
    """4,096 terms of 1 would stop at 256 in bfloat16."""
    steps = 4096
    ones = jnp.ones((steps, 1), jnp.bfloat16)

    def loss(scale: Any) -> Any:
        return ckptplan.jax.bptt(
            lambda h, x: (h, x * scale), scale, ones, lambda _, y: y[0], plan=standard(steps)
        )[0]

    total, gradient = jax.jit(jax.value_and_grad(loss))(jnp.bfloat16(1))
    assert (total, total.dtype) == (steps, jnp.float32)
    assert gradient.dtype == jnp.bfloat16


def test_what_nobody_wants_the_gradient_of_has_no_buffer() -> None:
    """Gradients of inputs take as many bytes as inputs; they are written only if they are wanted."""
    weights, state, _ = data()
    xs = jnp.ones((4096, 2, 4))
    shape = f"{xs.dtype}[4096,2,4]".replace("float", "f")

    def loss(weights: Any, xs: Any) -> Any:
        return ckptplan.jax.bptt(
            lambda h, x: (jnp.tanh(h @ weights + x),) * 2,
            state,
            xs,
            lambda _, h: jnp.sum(h),
            plan=standard(4096),
        )[0]

    def buffers(places: Any) -> int:
        return bytes_of(jax.jit(jax.grad(loss, places)).lower(weights, xs))

    assert shape in str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(weights, xs))
    assert buffers((0, 1)) - buffers(0) >= xs.nbytes


def test_what_depends_on_parameters_only_is_not_part_of_a_tape() -> None:
    """``W.T`` would be a residual of every step."""
    weights = jnp.ones((64, 64))

    def plan_of(transposed: bool) -> ckptplan.Plan:
        def cell(h: Any, x: Any) -> Any:
            h = jnp.tanh(h @ (weights.T if transposed else weights) + x)
            return h, None

        return ckptplan.jax.plan_for(cell, jnp.zeros((2, 64)), jnp.ones((50, 2, 64)), memory="1 MB")

    # The kind of tape may differ: what products leave out, or residuals.
    for transposed in (True, False):
        assert plan_of(transposed).workload.tape_bytes < weights.nbytes / 4
