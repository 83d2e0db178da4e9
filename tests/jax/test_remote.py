"""States in remote memory, which are arrays in host memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import ckptplan
from ckptplan.jax.remote import rehearse_host
from ckptplan.planning.playback import make_schedule
from tests.jax.support import STEPS, data, difference, noisy_loss, remote, under

HIERARCHICAL = make_schedule("hierarchical", steps=STEPS, chunk_size=2, nb_local=3)


def backward_passes(loss: Any, weights: Any) -> Any:
    """Two backward passes of one forward pass, a scan and ``jax.checkpoint`` around the call."""
    value, backward = jax.vjp(loss, weights)
    twice = lambda total, _: (total + loss(weights * (1 + total / 9)), None)  # noqa: E731
    return (
        [backward(jnp.ones_like(value)) for _ in range(2)],
        jax.lax.scan(twice, 0.0, None, 2)[0],
        jax.grad(jax.checkpoint(loss))(weights),
    )


@pytest.mark.parametrize("plan", [remote(), HIERARCHICAL], ids=["double", "hierarchical"])
@pytest.mark.parametrize("jitted", [False, True])
def test_states_come_back_as_they_went(plan: ckptplan.Schedule, jitted: bool) -> None:
    """Two runs of one program, with several transfers at a time and without."""
    wrap: Any = jax.jit if jitted else lambda function: function
    ours = wrap(jax.grad(lambda *given: noisy_loss(under(plan), *given), (0, 1, 2)))
    for seed in (0, 1):
        theirs = jax.jit(jax.grad(lambda *given: noisy_loss(jax.lax.scan, *given), (0, 1, 2)))(*data(seed))
        assert difference(ours(*data(seed)), theirs) <= 1e-13


def test_a_batch_is_part_of_the_states() -> None:
    weights, state, xs = data()
    some = jnp.stack([weights, 2 * weights])

    def of_all(scan: Any) -> Any:
        every: Any = jax.vmap(lambda one: noisy_loss(scan, one, state, xs))
        return jax.jit(jax.grad(lambda some: jnp.sum(every(some))))(some)

    assert difference(of_all(under(remote())), of_all(jax.lax.scan)) <= 1e-13


def test_types_of_jax_keep_their_bits() -> None:
    def loss(scan: Any, x: Any) -> Any:
        final, _ = scan(lambda h, x: ((h * x).astype(h.dtype), None), jnp.bfloat16(1.5), x)
        return final.astype(jnp.float32)

    xs = jnp.linspace(0.9, 1.1, STEPS)
    ours = jax.grad(lambda x: loss(under(remote()), x))(xs)
    assert difference(ours, jax.grad(lambda x: loss(jax.lax.scan, x))(xs)) == 0


def test_states_in_host_memory_are_arrays_like_any() -> None:
    weights, state, xs = data()
    ours, theirs = (
        backward_passes(lambda one, scan=scan: noisy_loss(scan, one, state, xs), weights)
        for scan in (under(remote()), jax.lax.scan)
    )
    assert difference(ours, theirs) <= 1e-12


def test_a_loop_with_states_in_host_memory_within_a_step_is_refused_by_name() -> None:
    """A tape is in device memory; ``jax.checkpoint`` around the loop keeps no states of it."""
    weights, state, xs = data()

    def loss(outer: Any, one: Any, wrap: Any = lambda function: function) -> Any:
        def cell(h: Any, _: Any) -> Any:
            return wrap(lambda one: noisy_loss(under(remote()), one, state, xs))(one * (1 + h / 9)), None

        return outer(cell, 0.0, jnp.arange(4.0))[0]

    plan = under(make_schedule("standard", steps=4, chunk_size=2))
    with pytest.raises(
        ckptplan.InputError, match=r"^f: keeps arrays in host memory .*jax.checkpoint around it"
    ):
        jax.grad(lambda one: loss(plan, one))(weights)
    ours = jax.grad(lambda one: loss(plan, one, jax.checkpoint))(weights)
    assert difference(ours, jax.grad(lambda one: loss(jax.lax.scan, one))(weights)) <= 1e-10


def test_a_device_that_changes_numbers_on_their_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything runs, with the alternative; also a device that has no such memory."""

    def fail(*_: Any) -> Any:
        raise ValueError("no memory space of this name")

    weights, state, xs = data()
    failures = ((lambda leaf, _: leaf / 2, "numbers came back changed"), (fail, "no memory space of this name"))
    for move, why in failures:
        monkeypatch.setattr("ckptplan.jax.remote._move", move)
        rehearse_host.cache_clear()
        with pytest.raises(
            ckptplan.InputError, match=rf"plan: .* host memory: {why} \(accepted: a plan with local"
        ):
            jax.grad(lambda one: noisy_loss(under(remote()), one, state, xs))(weights)
    rehearse_host.cache_clear()
