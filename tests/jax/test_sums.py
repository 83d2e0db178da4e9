"""Gradients of constants are sums over steps, whose products are formed for several steps at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ckptplan.jax import bptt, plan_for, planned_scan
from ckptplan.jax.footprint import measure_step
from ckptplan.jax.program import choose_block, make_passes
from ckptplan.jax.sums import STEPS_PER_MATMUL
from tests.jax.support import bytes_of, difference, standard, trace_step

BATCH, NEURONS = 3, 5


def plain(weights: Any, h: Any, x: Any) -> Any:
    return jnp.tanh(h @ weights["h"] + x @ weights["x"] + weights["b"])


def transposed(weights: Any, h: Any, x: Any) -> Any:
    """Ends of sums: a transposition, a new shape and a sign."""
    return jnp.tanh(h @ -weights["h"].T + x @ weights["x"].reshape(NEURONS, NEURONS))


def used_twice(weights: Any, h: Any, x: Any) -> Any:
    return jnp.tanh(jnp.tanh(h @ weights["h"] + x) @ weights["h"])


def in_batches(weights: Any, h: Any, x: Any) -> Any:
    """A product with an axis of a batch, and one that contracts another axis than the first."""
    parts = jnp.einsum("bn,nm->mb", h, weights["h"])
    each = jnp.einsum("bn,bm->bnm", x, h)
    return jnp.tanh(parts.T + jnp.einsum("bnm,bm->bn", each, weights["each"]) + x * weights["b"])


def of_constants(weights: Any, h: Any, x: Any) -> Any:
    """A product whose one factor is of no step."""
    return jnp.tanh(h * (jnp.ones((1, NEURONS)) @ weights["h"]) + x @ weights["x"])


def unused(weights: Any, h: Any, x: Any) -> Any:
    return jnp.tanh(h + x @ jax.lax.stop_gradient(weights["x"])) * weights["b"]


def compared_only(weights: Any, h: Any, x: Any) -> Any:
    """A threshold, whose gradient is zero, and factors without numbers."""
    spikes = (h > weights["b"][0]).astype(h.dtype)
    return jnp.tanh(h @ weights["h"] + spikes * x + x[:, :0] @ weights["x"][:0])


def single_row(weights: Any, h: Any, x: Any) -> Any:
    """A product of one row, which compilers add to its sum as they form it."""
    return jnp.tanh(h + h[:1] @ weights["h"] + x)


CELLS = (single_row, plain, transposed, used_twice, in_batches, of_constants, unused, compared_only)


def arrays(steps: int) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(steps)
    shapes = {"h": (NEURONS, NEURONS), "x": (NEURONS, NEURONS), "b": (NEURONS,), "each": (BATCH, NEURONS)}
    weights = {name: jnp.asarray(random.standard_normal(shape) / 2) for name, shape in shapes.items()}
    return weights, jnp.zeros((BATCH, NEURONS)), jnp.asarray(random.standard_normal((steps, BATCH, NEURONS)))


def gradient(cell: Callable[..., Any], given: Any, **how: Any) -> Any:
    def loss(weights: Any, state: Any, xs: Any) -> Any:
        if how:
            step = lambda h, x: (cell(weights, h, x),) * 2  # noqa: E731
            return bptt(step, state, xs, lambda _, h: jnp.sum(h**2), **how)[0]
        return jnp.sum(jax.lax.scan(lambda h, x: (cell(weights, h, x),) * 2, state, xs)[1] ** 2)

    return jax.jit(jax.grad(loss, (0, 1, 2)))(*given)


@pytest.mark.parametrize("steps", [1, STEPS_PER_MATMUL - 1, STEPS_PER_MATMUL, 3 * STEPS_PER_MATMUL + 5])
@pytest.mark.parametrize("cell", CELLS)
def test_sums_are_those_of_scan(cell: Any, steps: int) -> None:
    """Whatever the number of steps in the first group, and the lengths of the rows of a schedule."""
    given = arrays(steps)
    theirs = gradient(cell, given)
    for memory in ("14 kB", "1 MB"):
        assert difference(gradient(cell, given, memory=memory), theirs) <= 1e-12


@pytest.mark.parametrize("steps", [1, STEPS_PER_MATMUL, 3 * STEPS_PER_MATMUL + 5])
def test_sums_are_those_of_scan_where_xla_knows_the_numbers_of_steps(
    monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """As on a GPU: whole groups in loops of known lengths, and the rest step by step."""
    counted: list[bool] = []

    def watch(*given: Any, **options: Any) -> Any:
        passes = make_passes(*given, **options)
        counted.append(passes.counted)
        return passes

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(planned_scan, "make_passes", watch)
    given = arrays(steps)
    theirs = gradient(transposed, given)
    limits: list[dict[str, Any]] = [{"memory": "14 kB"}, {"memory": "1 MB"}]
    for how in [*limits, *([{"plan": standard(steps)}] if steps > 1 else [])]:
        assert difference(gradient(transposed, given, **how), theirs) <= 1e-12
    assert counted
    assert all(counted)


@pytest.mark.parametrize(
    ("lengths", "group", "block"),
    [
        ([64] * 63 + [37], 1, 64),
        ([64] * 63 + [37], 8, 64),
        ([*range(100)], 1, 10),
        ([*range(8, 104, 8)], 8, 8),
        ([5], 1, 5),
        ([5], 8, 8),
        ([1, 2, 0, 1], 1, 1),
        ([0], 1, 1),
    ],
)
def test_loops_go_round_seldom(lengths: list[int], group: int, block: int) -> None:
    """With what is left of each length run step by step."""
    assert choose_block(np.array(lengths, np.int32), group=group) == block


def products_of(cell: Any) -> dict[int, Any]:
    weights, state, xs = arrays(20)
    footprints = measure_step(trace_step(lambda h, x: (cell(weights, h, x), None), state, xs))
    return {one.steps_per_matmul: one for one in footprints if one.tape == "residuals"}


@pytest.mark.parametrize("cell", [unused, used_twice, single_row])
def test_without_such_products_there_are_no_groups(cell: Any) -> None:
    """Of the sum of two uses of a weight, neither is the end."""
    assert list(products_of(cell)) == [1]


def test_a_plan_is_kept_to_if_fewer_gradients_are_wanted() -> None:
    """Groups need the workspace that was planned for them, not what other gradients leave of it."""
    state, xs = jnp.zeros((256, 16)), jax.ShapeDtypeStruct((40, 256, 16), jnp.float64)
    wide = jnp.eye(16), jnp.ones((160, 160))

    def loss(weights: Any, other: Any, xs: Any, how: Any) -> Any:
        step = lambda h, x: (jnp.tanh(h @ weights + x) * other[0, 0],) * 2  # noqa: E731
        return bptt(step, state, xs, lambda _, h: jnp.sum(h), **how)[0]

    def step(h: Any, x: Any) -> Any:
        return (jnp.tanh(h @ wide[0] + x) * wide[1][0, 0],) * 2

    for memory in range(900_000, 1_500_000, 100_000):
        plan = plan_for(step, state, xs, lambda _, h: jnp.sum(h), memory=memory)
        for wanted in (0, (0, 1)):
            run = jax.jit(jax.grad(lambda w, c, xs: loss(w, c, xs, {"plan": plan}), wanted))  # noqa: B023
            assert bytes_of(run.lower(*wide, xs)) <= memory


def test_groups_are_planned_where_memory_allows_them() -> None:
    """A plan's name says whether its steps are in groups, and the program keeps to it."""
    weights, state, xs = arrays(200)

    def plan(memory: Any) -> Any:
        return plan_for(
            lambda h, x: (plain(weights, h, x),) * 2, state, xs, lambda _, h: jnp.sum(h), memory=memory
        )

    small, large = plan("9 kB"), plan("1 MB")
    assert [one.workload.name.endswith(f"-{STEPS_PER_MATMUL}") for one in (small, large)] == [False, True]
    text = {
        name: str(jax.make_jaxpr(lambda *given, how=how: gradient(plain, given, plan=how))(weights, state, xs))
        for name, how in (("small", small), ("large", large))
    }
    factors = f"f64[{STEPS_PER_MATMUL},{BATCH},{NEURONS}]"
    assert factors in text["large"]
    assert factors not in text["small"]
