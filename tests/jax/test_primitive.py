"""Calls of loops that count as the same: only those that compute the same with the same arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import ckptplan.jax
from ckptplan.jax.limit import LoopCall
from ckptplan.jax.step import trace_step
from ckptplan.storage.place import OffloadPlace
from tests.jax.support import difference, limited

WEIGHTS = jnp.array([1.0, 2.0, 3.0])
START = jnp.array([0.1, 0.2, 0.3])
XS = jnp.arange(9.0).reshape(3, 3)


def of_input(state: Any, x: Any) -> Any:
    return jnp.tanh(state + x), state * x


def of_constant(state: Any, _: Any) -> Any:
    return jnp.tanh(WEIGHTS + state), WEIGHTS * state


def with_outputs(state: Any, x: Any) -> Any:
    return jnp.tanh(state + x), jnp.sum(state * x)


def total_of(scan: Any, start: Any) -> Any:
    return scan(of_constant, start, None, length=3)[1].sum()


def total_of_squares(scan: Any, start: Any) -> Any:
    return (scan(with_outputs, start, XS)[1] ** 2).sum()


def test_an_input_is_no_constant() -> None:
    """Two steps with the same operations: one takes its second array from a sequence, one keeps it."""
    ours, theirs = limited("1 MiB"), jax.lax.scan
    assert difference(ours(of_input, START, XS), theirs(of_input, START, XS)) <= 1e-13
    found = ours(of_constant, START, None, length=3)
    assert difference(found, theirs(of_constant, START, None, length=3)) <= 1e-13


def test_an_output_is_no_term_of_a_loss() -> None:
    ours = limited("1 MiB")
    _, outputs = ours(with_outputs, START, XS)
    loss, _ = ckptplan.jax.bptt(of_input, START, XS, lambda _, out: jnp.sum(out), memory="1 MiB")
    assert loss.shape == ()
    assert difference(loss, outputs.sum()) <= 1e-13


def test_neither_are_they_in_gradients() -> None:
    """Loops that were made for one call are not taken for the other one."""
    ours = limited("1 MiB")
    jax.grad(lambda start: ours(of_input, start, XS)[1].sum())(START)
    jax.grad(lambda s: ckptplan.jax.bptt(with_outputs, s, XS, lambda _, out: out, memory="1 MiB")[0])(START)
    losses: tuple[Callable[..., Any], ...] = (total_of, total_of_squares)
    for loss in losses:
        found, expected = (
            jax.grad(lambda start, loss=loss, scan=scan: loss(scan, start))(START)
            for scan in (ours, jax.lax.scan)
        )
        assert difference(found, expected) <= 1e-13


def make_call(**change: Any) -> LoopCall:
    start, xs = change.pop("start", START), change.pop("xs", XS)
    step = change.pop("step", of_input)
    traced, _, _ = trace_step(lambda _, state, x: (*step(state, x), ()), start, xs)
    return LoopCall(step=traced, **{"steps": 3, "memory": "1 MiB", **change})


CHANGES: dict[str, dict[str, Any]] = {
    "types": {"start": START.astype(jnp.float16), "xs": XS.astype(jnp.float16)},
    "shapes": {"start": START[:2], "xs": XS[:, :2]},
    "numbers": {"step": lambda state, x: (jnp.tanh(2 * state + x), state * x)},
    "constants": {"step": of_constant},
    "order": {"step": lambda state, x: (state * x, jnp.tanh(state + x))},
    "steps": {"steps": 4},
    "direction": {"reverse": True},
    "limit": {"memory": "2 MiB"},
    "tape": {"tape": "states"},
    "place": {"place": OffloadPlace(folder=None)},
}


@pytest.mark.parametrize("change", CHANGES)
def test_calls_are_equal_only_if_nothing_differs(change: str) -> None:
    assert make_call() == make_call()
    assert make_call() != make_call(**CHANGES[change])


def test_products_of_another_precision_are_another_call() -> None:
    def calls() -> LoopCall:
        return make_call(step=lambda state, x: (jnp.outer(state, x) @ x, state))

    plain = calls()
    with jax.default_matmul_precision("highest"):
        assert calls() != plain


def test_calls_of_another_mesh_are_others() -> None:
    """Also of a step without operations."""
    found = [make_call(step=lambda state, x: (state, x))]

    def shard(x: Any) -> Any:
        found.append(make_call(step=lambda state, x: (state, x), start=START[0] + x[0], xs=XS[:, 0]))
        return x

    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec: Any = jax.sharding.PartitionSpec
    for axis in ("i", None):
        sharded: Any = jax.shard_map(shard, mesh=mesh, in_specs=spec(axis), out_specs=spec(axis))
        sharded(jnp.ones(1))
    scalar = make_call(step=lambda state, x: (state, x), start=START[0], xs=XS[:, 0])
    assert len({*found, scalar}) == 4
