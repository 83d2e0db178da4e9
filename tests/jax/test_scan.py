"""``ckptplan.jax.scan`` and ``bptt`` are ``jax.lax.scan`` under a plan: results, gradients, transformations."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ckptplan
import ckptplan.jax
from ckptplan.jax.tapes import TAPES
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier
from tests.jax.support import STEPS, data, difference, limited, noisy_loss, remote, standard, under


@pytest.mark.parametrize("tape", TAPES)
def test_integers_booleans_empty_arrays_and_keys_are_part_of_a_state(tape: str) -> None:
    """Random numbers are the same when a step runs again."""
    theirs = jax.jit(jax.value_and_grad(lambda *given: noisy_loss(jax.lax.scan, *given), (0, 1, 2)))(*data())
    ours = jax.jit(
        jax.value_and_grad(lambda *given: noisy_loss(under(standard(), tape=tape), *given), (0, 1, 2))
    )
    assert difference(ours(*data()), theirs) <= 1e-13


@pytest.mark.parametrize("schedule", [standard, remote])
def test_a_program_may_be_compiled_before_or_after_it_is_differentiated(schedule: Any) -> None:
    theirs = jax.jit(jax.grad(lambda *given: noisy_loss(jax.lax.scan, *given), (0, 1, 2)))(*data())

    def loss(*given: Any) -> Any:
        return noisy_loss(under(schedule()), *given)

    for ours in (jax.jit(jax.grad(loss, (0, 1, 2))), jax.grad(jax.jit(loss), (0, 1, 2))):
        assert difference(ours(*data()), theirs) <= 1e-13


def test_ordered_callbacks_are_called_in_order_without_a_gradient() -> None:
    seen: list[float] = []

    def cell(h: Any, x: Any) -> Any:
        jax.debug.callback(lambda x: seen.append(float(x)), x, ordered=True)
        return h + x, None

    assert jax.jit(lambda xs: under(standard())(cell, 0.0, xs)[0])(jnp.arange(20.0)) == 190
    jax.effects_barrier()
    assert seen == list(range(20))


@pytest.mark.parametrize("kind", [jnp.float8_e4m3fn, jnp.float4_e2m1fn])
def test_states_of_few_bits(kind: Any) -> None:
    def loss(scan: Any, xs: Any) -> Any:
        def cell(state: Any, x: Any) -> Any:
            h = jnp.tanh(state[0] + x + state[1].astype(jnp.float64))
            return (h, h.astype(kind)), h

        return (scan(cell, (xs[0], xs[0].astype(kind)), xs)[1] ** 2).sum()

    xs = jnp.linspace(-1, 1, 40).reshape(20, 2)
    theirs = jax.grad(lambda xs: loss(jax.lax.scan, xs))(xs)
    for scan in (under(standard()), limited("1 MB")):
        assert difference(jax.grad(lambda xs, scan=scan: loss(scan, xs))(xs), theirs) < 1e-12


def test_batches_of_losses_and_of_gradients() -> None:
    weights, state, xs = data()
    some = jnp.stack([weights, 2 * weights])

    def batch(scan: Any) -> Any:
        one = jax.grad(lambda one: noisy_loss(scan, one, state, xs))
        every = jax.grad(lambda some: jnp.sum(jax.vmap(lambda one: noisy_loss(scan, one, state, xs))(some)))
        return jax.jit(lambda some: (jax.vmap(one)(some), every(some)))(some)

    assert difference(batch(under(standard())), batch(jax.lax.scan)) <= 1e-13


@pytest.mark.parametrize("checked", ["checked", "unchecked"])
def test_devices_that_add_up_within_a_step(checked: str) -> None:
    """``shard_map`` and its collectives on two devices, with and without its check of what varies over them."""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.jax.shards", checked],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) <= 1e-12


def test_a_cell_may_checkpoint_inside_and_the_call_outside() -> None:
    weights, state, xs = data()

    def loss(scan: Any, weights: Any, wrap: Any) -> Any:
        cell = wrap(lambda h, x: (jnp.tanh(h @ weights + x),) * 2)
        return jnp.sum(scan(cell, state, xs)[1] ** 3)

    theirs = jax.grad(lambda one: loss(jax.lax.scan, one, lambda f: f))(weights)
    inside = jax.grad(lambda one: loss(under(standard()), one, jax.checkpoint))(weights)
    outside = jax.grad(jax.checkpoint(lambda one: loss(under(standard()), one, lambda f: f)))(weights)
    assert difference([inside, outside], [theirs, theirs]) <= 1e-13


def test_arguments_are_those_of_scan() -> None:
    """``length``, ``reverse`` and ``unroll``, numbers as states, and no inputs at all."""
    _, state, xs = data()

    def cell(total: Any, x: Any) -> Any:
        return total * 0.9 + jnp.sum(x), total

    for given in ({"reverse": True}, {"unroll": True}, {"unroll": 5}, {"length": STEPS}):
        theirs = jax.value_and_grad(lambda xs: jnp.sum(jax.lax.scan(cell, 0.0, xs, **given)[1] ** 2))  # noqa: B023
        ours = jax.value_and_grad(lambda xs: jnp.sum(under(standard())(cell, 0, xs, **given)[1] ** 2))  # noqa: B023
        assert difference(ours(xs), theirs(xs)) <= 1e-13
    halves = ckptplan.jax.scan(lambda h, _: (h / 2, h), state + 1, None, STEPS, plan=standard())
    assert difference(halves, jax.lax.scan(lambda h, _: (h / 2, h), state + 1, None, STEPS)) == 0
    final, none = ckptplan.jax.scan(cell, 1.0, xs[:0], memory="1 MB")
    assert (final, none.shape) == (1.0, (0,))


@pytest.mark.parametrize("tape", TAPES)
def test_complex_states_have_the_gradients_of_scan(tape: str) -> None:
    weights, state, xs = data()

    def loss(scan: Any, weights: Any) -> Any:
        mixed = (weights + 1j * weights.T) / 3
        final, waves = scan(lambda z, x: (jnp.tanh(z @ mixed * 1j + x),) * 2, state + 0j, xs)
        return jnp.sum(jnp.abs(waves) ** 2) + jnp.sum(jnp.real(final))

    ours = jax.grad(lambda one: loss(under(standard(), tape=tape), one))(weights)
    assert difference(ours, jax.grad(lambda one: loss(jax.lax.scan, one))(weights)) <= 1e-12


@pytest.mark.parametrize("tape", TAPES)
def test_the_loss_is_summed_beside_the_steps(tape: Any) -> None:
    """Terms may depend on t; steps that run twice before the first Backward count once."""
    weights, state, xs = data()

    def cell(weights: Any, h: Any, x: Any) -> Any:
        return (jnp.tanh(h @ weights + x),) * 2

    def plain(weights: Any) -> Any:
        _, hs = jax.lax.scan(lambda h, x: cell(weights, h, x), state, xs)
        return jnp.sum(jnp.arange(STEPS) * jnp.mean(hs**2, axis=(1, 2)))

    local = Tier.LOCAL
    twice: list[Action] = [
        Save(0, local),
        Advance(0, 5),
        Load(0, local),
        Advance(0, 8),
        Save(8, local),
        Record(8, STEPS),
    ]
    twice += [Backward(8, STEPS), Free(8, local), Load(0, local), Free(0, local), Record(0, 8), Backward(0, 8)]
    for plan in (standard(), ckptplan.Schedule(steps=STEPS, actions=twice)):

        def ours(weights: Any) -> Any:
            total, _ = ckptplan.jax.bptt(
                lambda h, x: cell(weights, h, x),
                state,
                xs,
                lambda t, h: t * jnp.mean(h**2),
                plan=plan,  # noqa: B023
                tape=tape,
            )
            return total

        assert difference(jax.value_and_grad(ours)(weights), jax.value_and_grad(plain)(weights)) <= 1e-13


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
        compiled = jax.jit(jax.grad(loss, places)).lower(weights, xs).compile()
        analysis: Any = compiled.memory_analysis()
        return int(analysis.temp_size_in_bytes + analysis.output_size_in_bytes)

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


@pytest.mark.parametrize("memory", ["8 MB", "900 kB", 700_000])
def test_a_limit_of_memory_is_kept(memory: int | str) -> None:
    """By the compiled program: its temporary arrays and its results."""
    random = np.random.default_rng(0)
    weights = jnp.asarray(random.standard_normal((32, 32)) / 6)
    xs = jnp.asarray(random.standard_normal((400, 8, 32)))

    def loss(scan: Any, weights: Any) -> Any:
        return jnp.sum(scan(lambda h, x: (jnp.tanh(h @ weights + x), None), jnp.zeros((8, 32)), xs)[0])

    def ours(weights: Any) -> Any:
        return loss(lambda *given: ckptplan.jax.scan(*given, memory=memory), weights)

    compiled = jax.jit(jax.grad(ours)).lower(weights).compile()
    analysis: Any = compiled.memory_analysis()
    limit = ckptplan.units.parse_bytes(memory)
    assert analysis.temp_size_in_bytes + analysis.output_size_in_bytes <= limit
    assert difference(compiled(weights), jax.grad(lambda one: loss(jax.lax.scan, one))(weights)) <= 1e-12


@pytest.mark.parametrize("plan", [standard(), None])
def test_outputs_and_states_may_be_plain_numbers(plan: Any) -> None:
    """A step that returns a Python number returns it as an array of each step."""
    xs = jnp.linspace(0.0, 1.0, STEPS)

    def loss(scan: Any, xs: Any) -> Any:
        state, outputs = scan(lambda h, x: ((jnp.sin(h[0] * x), 2), (h[0], 3, True, 1.5)), (0.5, 2), xs)
        return state[0] * state[1] + sum(jnp.sum(one * xs) for one in outputs)

    ours: Any = under(plan) if plan is not None else limited("1 MB")
    for run in (jax.grad, jax.value_and_grad):
        assert difference(run(partial(loss, ours))(xs), run(partial(loss, jax.lax.scan))(xs)) <= 1e-12
