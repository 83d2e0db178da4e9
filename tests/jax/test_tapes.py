"""Kinds of tapes: what each keeps of a step, and which kind runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import ckptplan
from ckptplan.jax import plan_for
from ckptplan.jax.footprint import StepFootprint, choose_footprint, measure_step
from ckptplan.jax.tapes import Recording
from tests.jax import programs
from tests.jax.support import bytes_of, trace_step
from tests.support import calibration

BATCH, NEURONS = programs.BATCH, programs.NEURONS
LEAF = BATCH * NEURONS * 8
Cell = Callable[[Any, Any], tuple[Any, Any]]


def gru() -> Cell:
    return partial(programs.gru, programs.gates(3))


def leaky() -> Cell:
    return partial(programs.leaky, programs.square())


def noisy() -> Cell:
    of_h = programs.square()["h"]

    def cell(h: Any, x: Any) -> Any:
        seed = jnp.sum(h > 0).astype(jnp.uint32)
        key = jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32).at[0].set(seed))
        h = jnp.tanh(h @ of_h + x) * jax.random.normal(key, h.shape)
        return h, h

    return cell


def zeros() -> Any:
    return jnp.zeros((BATCH, NEURONS))


def footprints(cell: Callable[..., Any], state: Any) -> dict[str, StepFootprint]:
    traced = trace_step(cell, state, jnp.zeros((3, BATCH, NEURONS)))
    return {one.tape: one for one in measure_step(traced) if one.steps_per_matmul == 1}


@pytest.mark.parametrize(
    ("cell", "state", "leaves"),
    [
        # The sums before both gates, the two summands of the new state, and the old state.
        (gru, zeros, 5),
        # The membrane and the old spikes: the derivative of the spike comes from the membrane.
        (leaky, lambda: (zeros(), zeros()), 2),
    ],
)
def test_a_tape_of_products_keeps_the_smallest_cut(cell: Any, state: Any, leaves: int) -> None:
    found = footprints(cell(), state())
    assert found["products"].tape_bytes == leaves * LEAF
    assert found["products"].tape_bytes <= found["residuals"].tape_bytes


def count_operations(cell: Cell, state: Any, kind: Any, name: str) -> int:
    """The number of operations of a name in the reverse of a step."""
    traced = trace_step(cell, state, jnp.zeros((3, BATCH, NEURONS)))
    return str(Recording(traced, kind).reverse).count(name)


def test_a_cell_under_jit_has_the_tapes_of_the_cell() -> None:
    found = footprints(jax.jit(gru()), zeros())
    assert {kind: one.tape_bytes for kind, one in found.items()} == {
        kind: one.tape_bytes for kind, one in footprints(gru(), zeros()).items()
    }


def test_solving_is_not_done_again() -> None:
    """What is not known to be cheap is costly: the result of a solve is kept."""
    matrix = jnp.eye(NEURONS) * 2

    def solve(h: Any, x: Any) -> Any:
        lower = matrix + jnp.tril(jnp.outer(h[0], h[0]))
        h = jnp.tanh(jax.scipy.linalg.solve_triangular(lower, (h + x).T, lower=True).T)
        return h, h

    assert count_operations(solve, zeros(), "products", "triangular_solve[") == count_operations(
        solve, zeros(), "residuals", "triangular_solve["
    )


@pytest.mark.parametrize(("cell", "state"), [(gru, zeros), (leaky, lambda: (zeros(), zeros())), (noisy, zeros)])
def test_products_and_random_numbers_are_not_computed_again(cell: Any, state: Any) -> None:
    """The reverse of a step from its cut has the products of the reverse from residuals."""
    run = cell()
    for name in ("dot_general[", "random_bits", "threefry"):
        counts = [count_operations(run, state(), kind, name) for kind in ("products", "residuals")]
        assert counts[0] == counts[1], name


def test_of_kinds_of_one_size_the_calibrated_one_runs() -> None:
    """A state of leaky neurons has as many bytes as what spares their products."""
    state, xs = (zeros(), zeros()), jnp.zeros((30, BATCH, NEURONS))
    plan, found = plan_for(leaky(), state, xs, memory="1 MB"), list(footprints(leaky(), state).values())[1:]
    workload = plan.workload.model_copy(update={"tape_bytes": 2 * LEAF, "name": "mine"})
    assert [one.tape for one in found if one.tape_bytes == 2 * LEAF] == ["products", "states"]
    assert choose_footprint(plan.model_copy(update={"workload": workload}), found).tape == "products"
    measured = calibration(0.01).model_copy(update={"jax": "0.10", "tape": "states"})
    calibrated = workload.model_copy(update={"calibration": measured})
    assert choose_footprint(plan.model_copy(update={"workload": calibrated}), found).tape == "states"
    assert ckptplan.Workload.model_validate_json(calibrated.model_dump_json()).calibration == measured


def test_a_kind_that_is_named_is_the_one_that_is_planned() -> None:
    """Its tapes count for the limit, not those of the quickest kind."""
    xs, cell = jnp.zeros((400, BATCH, NEURONS)), gru()

    def loss(weights: Any, xs: Any, tape: Any) -> Any:
        step = lambda h, x: (cell(h @ weights, x)[0], None)  # noqa: E731
        return jnp.sum(ckptplan.jax.scan(step, zeros(), xs, memory="1 MB", tape=tape)[0])

    gradient = jax.jit(jax.grad(loss), static_argnums=2)
    for tape in ("residuals", "products", "states"):
        assert bytes_of(gradient.lower(jnp.eye(NEURONS), xs, tape)) <= 1_000_000, tape
