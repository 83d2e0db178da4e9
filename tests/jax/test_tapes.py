"""Kinds of tapes: what each keeps of a step, and which kind runs; and sums over steps, formed in groups."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ckptplan
from ckptplan.jax import api, bptt, plan_for
from ckptplan.jax.footprint import StepFootprint, choose_footprint, measure_step
from ckptplan.jax.program import ScanPasses, choose_block
from ckptplan.jax.sums import STEPS_PER_MATMUL
from ckptplan.jax.tapes import Recording
from tests.jax import programs
from tests.jax.support import bytes_of, difference, standard, trace_step
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
    return {one.sums.kind: one for one in measure_step(traced) if one.sums.steps_per_matmul == 1}


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
    return str(Recording(traced, kind).reversing).count(name)


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
    assert [one.sums.kind for one in found if one.tape_bytes == 2 * LEAF] == ["products", "states"]
    assert choose_footprint(plan.model_copy(update={"workload": workload}), found).sums.kind == "products"
    measured = calibration(0.01).model_copy(update={"jax": "0.10", "tape": "states"})
    calibrated = workload.model_copy(update={"calibration": measured})
    assert choose_footprint(plan.model_copy(update={"workload": calibrated}), found).sums.kind == "states"
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


#: Sizes of cells with sums.
ROWS, WIDTH = 3, 5


def plain(weights: Any, h: Any, x: Any) -> Any:
    return jnp.tanh(h @ weights["h"] + x @ weights["x"] + weights["b"])


def transposed(weights: Any, h: Any, x: Any) -> Any:
    """Ends of sums: a transposition, a new shape and a sign."""
    return jnp.tanh(h @ -weights["h"].T + x @ weights["x"].reshape(WIDTH, WIDTH))


def used_twice(weights: Any, h: Any, x: Any) -> Any:
    return jnp.tanh(jnp.tanh(h @ weights["h"] + x) @ weights["h"])


def in_batches(weights: Any, h: Any, x: Any) -> Any:
    """A product with an axis of a batch, and one that contracts another axis than the first."""
    parts = jnp.einsum("bn,nm->mb", h, weights["h"])
    each = jnp.einsum("bn,bm->bnm", x, h)
    return jnp.tanh(parts.T + jnp.einsum("bnm,bm->bn", each, weights["each"]) + x * weights["b"])


def of_constants(weights: Any, h: Any, x: Any) -> Any:
    """A product whose one factor is of no step."""
    return jnp.tanh(h * (jnp.ones((1, WIDTH)) @ weights["h"]) + x @ weights["x"])


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
    shapes = {"h": (WIDTH, WIDTH), "x": (WIDTH, WIDTH), "b": (WIDTH,), "each": (ROWS, WIDTH)}
    weights = {name: jnp.asarray(random.standard_normal(shape) / 2) for name, shape in shapes.items()}
    return weights, jnp.zeros((ROWS, WIDTH)), jnp.asarray(random.standard_normal((steps, ROWS, WIDTH)))


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

    def watch(**options: Any) -> Any:
        passes = ScanPasses(**options)
        counted.append(passes.counted)
        return passes

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(api, "ScanPasses", watch)
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
    return {one.sums.steps_per_matmul: one for one in footprints if one.sums.kind == "residuals"}


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
    factors = f"f64[{STEPS_PER_MATMUL},{ROWS},{WIDTH}]"
    assert factors in text["large"]
    assert factors not in text["small"]
