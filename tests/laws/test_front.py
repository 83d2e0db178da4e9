"""The front holds every setting that no other one beats in memory and time, and no other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptplan.cost.exact import Cost, join_costs
from ckptplan.model.budget import Budget
from ckptplan.model.goal import Model
from ckptplan.model.step_costs import StepCosts
from ckptplan.search import trace_closed as searched
from ckptplan.search.boxes import Limits
from ckptplan.search.trace_closed import Front, FrontProblem, merge_fronts, trace_front
from ckptplan.strategies.closed_form import ClosedForm
from tests.support import CLOSED, columns_of, plain_costs, setting_of, settings_of, step_costs

EVERY = pytest.mark.parametrize("strategy", CLOSED.values(), ids=CLOSED)
FREE = Limits(budget=Budget())


def all_settings(strategy: ClosedForm, costs: StepCosts, model: Model = "exact") -> Cost:
    sizes = {"state_bytes": costs.state_bytes, "tape_bytes": costs.tape_bytes}
    points = columns_of(list(settings_of(strategy, costs.steps, **sizes)))
    return strategy.evaluate(low=points, high=points, costs=costs, model=model)


def undominated(cost: Cost) -> list[tuple[int, float]]:
    """One by one, from the least memory up: each point that is quicker than all before it."""
    points = sorted(zip(cost.local_peak_bytes.tolist(), cost.seconds.tolist(), strict=True))
    found: list[tuple[int, float]] = []
    for local, seconds in points:
        if not found or seconds < found[-1][1]:
            found.append((local, seconds))
    return found


def told_apart(points: list[tuple[int, float]], costs: StepCosts) -> list[tuple[int, float]]:
    """Overlapped times are summed in several orders; a point that is faster only by rounding is dropped."""
    if not costs.overlaps_compute:
        return points
    kept: list[tuple[int, float]] = []
    for local, seconds in points:
        if not kept or seconds < kept[-1][1] * (1 - 1e-10):
            kept.append((local, seconds))
    return [(local, float(f"{seconds:.8g}")) for local, seconds in kept]


def points_of(front: Front) -> list[tuple[int, float]]:
    return list(zip(front.local_peak_bytes.tolist(), front.seconds.tolist(), strict=True))


@EVERY
@given(costs=step_costs(), share=st.floats(0, 1.5), overhead=st.none() | st.floats(0, 5))
def test_a_front_equals_brute_force(
    strategy: ClosedForm, costs: StepCosts, share: float, overhead: float | None
) -> None:
    """For every T up to 64, with and without limits; small problems are also cut down to single points."""
    budget = Budget(
        local_bytes=costs.resident_bytes + int(share * costs.steps * costs.tape_bytes) if share < 1 else None,
        remote_bytes=int(share * costs.steps) * costs.remote_state_bytes if share > 0.5 else None,
    )
    limits = Limits(budget=budget, max_overhead=overhead, base_seconds=costs.base_seconds)
    everything = all_settings(strategy, costs)
    for within, few_points, leaf in ((limits, 65_536, 48), (limits, 0, 1), (FREE, 0, 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(searched, "_FEW_POINTS", few_points)
            patch.setattr(searched, "_LEAF", leaf)
            front = trace_front(FrontProblem(strategy=strategy, costs=costs, limits=within))
        expected = undominated(everything.take(within.keeps(everything)))
        assert told_apart(points_of(front), costs) == told_apart(expected, costs)


@EVERY
@given(costs=step_costs(), shares=st.lists(st.floats(0, 1.2), min_size=1, max_size=9), cut=st.booleans())
def test_a_front_at_budgets_has_the_best_of_each_and_nothing_else(
    strategy: ClosedForm, costs: StepCosts, shares: list[float], cut: bool
) -> None:
    """The fastest setting within each budget, and of equally fast ones the smallest."""
    most = costs.steps * costs.tape_bytes
    budgets = np.unique([costs.resident_bytes + int(share * most) for share in shares])
    with pytest.MonkeyPatch.context() as patch:
        if cut:
            patch.setattr(searched, "_FEW_POINTS", 0)
        found = trace_front(FrontProblem(strategy=strategy, costs=costs, limits=FREE, budgets=budgets))
    points = undominated(all_settings(strategy, costs))
    best = [max((point for point in points if point[0] <= budget), default=None) for budget in budgets.tolist()]
    expected = sorted({point for point in best if point is not None})
    if costs.overlaps_compute:
        # Of settings that differ by rounding alone, any may be listed.
        assert all(
            any(local <= budget for local, _ in points_of(found)) == any(local <= budget for local, _ in points)
            for budget in budgets.tolist()
        )
        for budget in budgets.tolist():
            times = [
                min((s for m, s in some if m <= budget), default=0.0) for some in (points_of(found), points)
            ]
            assert times[0] == pytest.approx(times[1], rel=1e-9)
    else:
        assert points_of(found) == expected


@given(costs=step_costs())
def test_the_front_of_all_holds_what_no_strategy_beats(costs: StepCosts) -> None:
    problems = [FrontProblem(strategy=strategy, costs=costs, limits=FREE) for strategy in CLOSED.values()]
    fronts = list(map(trace_front, problems))
    together, origins = merge_fronts(fronts)
    every = [all_settings(strategy, costs) for strategy in CLOSED.values()]
    assert told_apart(points_of(together), costs) == told_apart(undominated(join_costs(every)), costs)
    for place, (which, index) in enumerate(origins.T):
        one = fronts[which]
        assert one.seconds[index] == together.seconds[place]
        assert one.local_peak_bytes[index] == together.local_peak_bytes[place]


@EVERY
@settings(max_examples=max(6, settings().max_examples // 4))
@given(costs=step_costs(steps=st.integers(65, 10**7)), resolution=st.sampled_from([0.01, 0.1]))
def test_a_coarse_front_is_near_every_point_of_the_exact_one(
    strategy: ClosedForm, costs: StepCosts, resolution: float
) -> None:
    """No random setting needs less than (1 - resolution) of memory and time of all that are listed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searched, "_FEW_POINTS", 1000)
        patch.setattr(searched, "_MOST_EVALUATED", 2**17)
        coarse = trace_front(FrontProblem(strategy=strategy, costs=costs, limits=FREE, resolution=resolution))
    resolution = coarse.resolution
    drawn = np.random.default_rng(1).uniform(0, np.log(costs.steps), (200, 2))
    numbers = (np.exp(drawn).astype(np.int64) + 1).tolist()
    points = columns_of([dict(setting_of(strategy, one, costs)) for one in numbers])
    cost = strategy.evaluate(low=points, high=points, costs=costs, model="exact")
    near = (coarse.local_peak_bytes * (1 - resolution) < cost.local_peak_bytes[:, None]) & (
        coarse.seconds * (1 - resolution) <= cost.seconds[:, None]
    )
    assert near.any(axis=1).all()


def test_a_front_that_is_too_fine_for_memory_is_coarse() -> None:
    costs = plain_costs(3000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searched, "_MOST_BOXES", 40)
        coarse = trace_front(FrontProblem(strategy=CLOSED["double"], costs=costs, limits=FREE))
    exact = trace_front(FrontProblem(strategy=CLOSED["double"], costs=costs, limits=FREE))
    assert (coarse.resolution, exact.resolution) == (0.001 * 4**2, 0.0)
    assert 0 < len(coarse) < len(exact)


@pytest.mark.parametrize("slow", ["write_seconds", "read_seconds"])
def test_bounds_are_close_if_only_writes_or_only_reads_are_hidden(slow: str) -> None:
    """Transfers beside compute, most of which is behind the last write: few boxes are left at any time."""
    times = {
        "forward_seconds": 0.0,
        "backward_seconds": 0.15,
        "recompute_seconds": 0.0006,
        "message_seconds": 5.0,
    }
    if slow == "read_seconds":
        times |= {"forward_seconds": 0.15, "backward_seconds": 0.0006}
    costs = plain_costs(
        4_133_655,
        state_bytes=678,
        tape_bytes=2034,
        **{**times, "write_seconds": 5.0, "read_seconds": 5.0, slow: 579.0},
        overlaps_compute=True,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searched, "_MOST_BOXES", 10_000)
        front = trace_front(FrontProblem(strategy=CLOSED["double"], costs=costs, limits=FREE, resolution=0.01))
    assert front.resolution == 0.01
    assert len(front) > 100


def test_of_equal_points_the_one_with_less_remote_memory_stays() -> None:
    costs = plain_costs(8)
    one = trace_front(FrontProblem(strategy=CLOSED["base"], costs=costs, limits=FREE))
    other = Front(
        local_peak_bytes=one.local_peak_bytes,
        seconds=one.seconds,
        remote_peak_bytes=one.remote_peak_bytes + 1,
        parameters={},
    )
    _, origins = merge_fronts([other, one])
    assert origins.tolist() == [[1], [0]]
