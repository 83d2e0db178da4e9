"""Under transformations of JAX and on several devices, scans under a plan are those of ``jax.lax.scan``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ckptplan.jax
from ckptplan import InputError
from ckptplan.jax.tapes import TAPES
from ckptplan.planning.playback import make_schedule
from tests.jax.support import STEPS, bytes_of, data, difference, limited, run_python, standard, under

#: Arrays of numpy, which are in double precision whatever JAX is told when this module is imported.
RANDOM = np.random.default_rng(0)
WEIGHTS, START, XS = RANDOM.normal(size=(4, 4)) / 2, np.zeros((2, 4)), RANDOM.normal(size=(STEPS, 2, 4))
STARTS = np.stack([START, START + 1])


def loss(scan: Any, weights: Any, start: Any = START, xs: Any = XS) -> Any:
    final, outputs = scan(lambda h, x: (jnp.tanh(h @ weights + x), jnp.sin(h)), start, xs)
    return jnp.sum(outputs**2) + jnp.sum(final)


def of_mean(scan: Any, start: Any) -> Any:
    """A loss whose steps take the mean over the examples of ``jax.vmap``."""
    step = lambda h, x: (jnp.tanh(h @ WEIGHTS + x - jax.lax.pmean(h, "i")), h)  # noqa: E731
    return jnp.sum(scan(step, start, XS)[1] ** 2)


@jax.custom_vjp
def steep(x: Any) -> Any:
    return jnp.sin(x)


steep.defvjp(lambda x: (jnp.sin(x), x), lambda x, gradient: (2 * gradient * jnp.cos(x),))


def in_cond(scan: Any, weights: Any) -> Any:
    return jax.lax.cond(weights[0, 0] > -9, lambda one: loss(scan, one), jnp.sum, weights)


def in_scan(scan: Any, weights: Any) -> Any:
    step = lambda total, _: (total + loss(scan, weights * (1 + total / 1e3)), None)  # noqa: E731
    return jax.lax.scan(step, 0.0, None, 2)[0]


def with_zero_tangents(scan: Any, weights: Any) -> Any:
    numbers = jnp.arange(STEPS), np.zeros(STEPS, jax.dtypes.float0)
    run = lambda one, count: scan(lambda h, n: (h @ one * n / 9, None), START + 1, count)[0]  # noqa: E731
    return jax.jvp(run, (weights, numbers[0]), (weights, numbers[1]))


def backward_passes(scan: Any, weights: Any) -> Any:
    """Two calls of one backward pass, and backward passes that leave ``jax.vmap``."""
    _, backward = jax.vjp(lambda one: loss(scan, one), weights)
    many = jax.vmap(lambda start: jax.vjp(lambda one: loss(scan, one, start), weights)[1])(STARTS)
    return backward(1.0), backward(2.0), jax.vmap(lambda one: one(1.0))(many)


USES: dict[str, Callable[[Any, Any], Any]] = {
    "value": loss,
    "grad of jit": lambda scan, w: jax.grad(jax.jit(lambda one: loss(scan, one)))(w),
    "jvp": lambda scan, w: jax.jvp(lambda one: loss(scan, one), (w,), (w,)),
    "linearize": lambda scan, w: jax.linearize(lambda one: loss(scan, one), w)[1](w),
    "jacfwd": lambda scan, w: jax.jacfwd(lambda one: loss(scan, w, one))(START),
    "jacrev": lambda scan, w: jax.jacrev(lambda one: scan(lambda h, x: (h @ w + x, None), one, XS)[0])(START),
    "jvp of grad": lambda scan, w: jax.jvp(jax.grad(lambda one: loss(scan, one)), (w,), (w,)),
    "jvp of grad of a rule in a step": lambda scan, w: jax.jvp(
        jax.grad(lambda one: jnp.sum(scan(lambda h, x: (steep(h @ one + x), h), START, XS)[1] ** 2)),
        (w,),
        (w,),
    ),
    "grad of a value beside its grad": lambda scan, w: jax.grad(
        lambda one: jax.value_and_grad(lambda other: loss(scan, other))(one)[0]
    )(w),
    "grad of jvp": lambda scan, w: jax.grad(
        lambda one: jax.jvp(lambda other: loss(scan, other), (one,), (w,))[1]
    )(w),
    "hessian": lambda scan, w: jax.hessian(lambda one: loss(scan, w + one))(jnp.ones(4)),
    "jvp of jvp": lambda scan, w: jax.jvp(
        lambda one: jax.jvp(lambda other: loss(scan, other), (one,), (w,)), (w,), (w,)
    ),
    "vmap of grad": lambda scan, w: jax.vmap(
        jax.grad(lambda one, start: loss(scan, one, start), (0, 1)), (None, 0)
    )(w, STARTS),
    "vmap of vmap of grad": lambda scan, w: jax.vmap(
        jax.vmap(jax.grad(lambda one, start: loss(scan, one, start)), (None, 0)), (0, None), 1
    )(jnp.stack([w, 2 * w]), STARTS),
    "jvp of vmap of grad": lambda scan, w: jax.jvp(
        jax.vmap(jax.grad(lambda start: loss(scan, w, start))), (STARTS,), (STARTS,)
    ),
    "grad of vmap of jvp": lambda scan, w: jax.grad(
        lambda one: jnp.sum(
            jax.vmap(lambda start: jax.jvp(lambda other: loss(scan, other, start), (one,), (w,))[1])(STARTS)
        )
    )(w),
    "means over a batch": lambda scan, _: jax.grad(
        lambda starts: jnp.sum(jax.vmap(lambda one: of_mean(scan, one), axis_name="i")(starts))
    )(STARTS),
    "means over a batch of grad": lambda scan, _: jax.vmap(
        jax.grad(lambda one: of_mean(scan, one)), axis_name="i"
    )(STARTS),
    "cond": lambda scan, w: jax.grad(lambda one: in_cond(scan, one))(w),
    "scan": lambda scan, w: jax.grad(lambda one: in_scan(scan, one))(w),
    "checkpoint": lambda scan, w: jax.grad(jax.checkpoint(lambda one: loss(scan, one)))(w),
    "scan in scan": lambda scan, w: jax.grad(
        lambda one: jnp.sum(scan(lambda h, x: (h * 0.9 + loss(scan, one) * x, None), START, XS)[0])
    )(w),
    "float0": with_zero_tangents,
    "backward passes": backward_passes,
}
#: Uses of a loop whose length is not known that are refused: by name, or by JAX.
SUMS, REVERSE = "body: calls psum.* over the axis 'i' of jax.vmap", "Reverse-mode differentiation does not work"
NOT_WHILE = {
    "means over a batch": SUMS,
    "means over a batch of grad": SUMS,
    "grad of jvp": REVERSE,
    "grad of vmap of jvp": REVERSE,
}


def by_while(f: Callable[..., Any], init: Any, xs: Any) -> Any:
    """``ckptplan.jax.while_loop`` in place of ``jax.lax.scan``, with the outputs in its state."""

    def body(state: Any) -> Any:
        t, carry, outputs = state
        carry, output = f(carry, jax.tree.map(lambda leaf: jnp.asarray(leaf)[t], xs))
        return t + 1, carry, jax.tree.map(lambda held, leaf: held.at[t].set(leaf), outputs, output)

    steps, one = len(jax.tree.leaves(xs)[0]), jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], xs)
    outputs = jax.tree.map(
        lambda leaf: jnp.zeros((steps, *leaf.shape), leaf.dtype), jax.eval_shape(f, init, one)[1]
    )
    return ckptplan.jax.while_loop(lambda state: state[0] < steps, body, (0, init, outputs), slots=5)[1:]


WAYS = {"plan": under(standard()), "memory": limited("1 MB"), "while": by_while}


def run_compiled(use: str, scan: Any) -> Any:
    return jax.jit(lambda weights: USES[use](scan, weights))(WEIGHTS)


@cache
def find_reference(use: str) -> Any:
    """Return what a use gives with ``jax.lax.scan``: compiled once for all ways."""
    return run_compiled(use, jax.lax.scan)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("use", USES)
def test_values_and_derivatives_are_those_of_scan(use: str, way: str) -> None:
    if way == "while" and use in NOT_WHILE:
        with pytest.raises((InputError, ValueError), match=NOT_WHILE[use]):
            run_compiled(use, WAYS[way])
        return
    assert difference(run_compiled(use, WAYS[way]), find_reference(use)) <= 1e-12


def test_forward_mode_of_gradients_in_half_precision_is_right_or_refused() -> None:
    """Buffers hold such numbers as integers unless forward mode is seen when the gradient is traced."""
    half = [one.astype(jnp.bfloat16) for one in (WEIGHTS, START, XS)]

    def gradient(scan: Any) -> Any:
        return jax.grad(lambda one: loss(scan, one, *half[1:]).astype(jnp.float32))

    ours, theirs = (jax.jvp(gradient(scan), half[:1], half[:1])[1] for scan in (WAYS["plan"], jax.lax.scan))
    assert difference(ours.astype(jnp.float32), theirs.astype(jnp.float32)) <= 0.1
    with pytest.raises(InputError, match="forward mode of a gradient in half precision"):
        jax.jvp(jax.jit(gradient(WAYS["plan"])), half[:1], half[:1])


@pytest.mark.parametrize("devices", [2, 4])
def test_meshes_of_several_devices(devices: int) -> None:
    """Gradients, bytes on each device, and the places where weights' gradients are reduced."""
    printed = run_python("-m", "tests.jax.shards", "meshes", devices=devices)
    found = {line.split()[0]: line.split()[1:] for line in printed.splitlines()}
    assert found.keys() == {"explicit", "auto", "placed", "auto_twice", "shard_map", "twice"}
    for error, share, inside in found.values():
        assert float(error) <= 1e-10
        assert float(share) <= 1
        # All steps reduce once, after the loop.
        assert inside == "0"


def test_forward_mode_keeps_no_checkpoints() -> None:
    """``jvp`` takes the bytes that it takes with ``jax.lax.scan``."""
    xs = np.zeros((2000, 2, 4))

    def count_bytes(scan: Any) -> int:
        def final(weights: Any) -> Any:
            return scan(lambda h, x: (jnp.tanh(h @ weights + x), None), START, xs)[0]

        return bytes_of(jax.jit(lambda one: jax.jvp(final, (one,), (one,))).lower(WEIGHTS))

    planned = under(make_schedule("standard", steps=len(xs), chunk_size=2))
    assert count_bytes(planned) <= count_bytes(jax.lax.scan) + 1024


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
