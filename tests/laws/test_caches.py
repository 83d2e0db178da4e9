"""Laws of jobs whose steps have caches: every closed form, with the caches of all steps or of some.

A schedule costs what the closed form says when it is played. The search finds the best setting and the best
number of caches, and a front the best of each budget, as brute force does.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ckptplan.cost.exact import Cost, join_costs
from ckptplan.model.budget import Budget
from ckptplan.model.goal import CacheName
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.tree import OFFLOADED_STEPS
from ckptplan.search.boxes import Limits
from ckptplan.search.objective import Knee
from ckptplan.search.trace_closed import FrontProblem, trace_front
from ckptplan.strategies.closed_form import CacheRule, ClosedForm
from ckptplan.strategies.protocol import CACHED_STEPS
from tests.laws.test_settings import check_hidden, check_overlapped, check_played
from tests.support import CLOSED, ask, changed, plain_costs, seconds, setting_of, settings_of, step_costs

#: Strategies that may keep the caches of some steps only.
VARYING = sorted(name for name, strategy in CLOSED.items() if strategy.varies_caches(None))
#: Those that may move caches to remote memory.
OFFLOADING = sorted(name for name, strategy in CLOSED.items() if OFFLOADED_STEPS in strategy.cache_names)
#: Those whose peak rises with the number of caches: chunks that grow by released caches are fewer with more.
EQUAL = [name for name in VARYING if "cache_units" not in CLOSED[name].cache_names]
#: A share by which times may differ that are summed in another order.
ROUNDING = 1e-9


@st.composite
def cached_costs(draw: st.DrawFn, *, steps: st.SearchStrategy[int]) -> StepCosts:
    """Any problem with caches from far smaller to larger than tapes; a replay is no slower than a first run.

    In half of the problems, moving a cache takes less time than a replay saves.
    """
    costs = draw(step_costs(steps=steps))
    recompute_seconds = draw(st.floats(0, 1)) * costs.forward_seconds
    quick = st.floats(0, 0.4).map(lambda share: share * (costs.forward_seconds - recompute_seconds))
    return changed(
        costs,
        cache_bytes=draw(st.integers(1, 30) | st.integers(1, 2 * costs.tape_bytes)),
        recompute_seconds=recompute_seconds,
        remote_cache_bytes=draw(st.integers(1, 50)),
        cache_write_seconds=draw(quick | seconds),
        cache_read_seconds=draw(quick | seconds),
    )


class Setting(NamedTuple):
    """A setting of a strategy with K, and its cost."""

    parameters: Parameters
    cached: int
    cost: Cost


def list_settings(strategy: ClosedForm, costs: StepCosts) -> Iterator[Setting]:
    """Every legal setting with every number of caches, and with those of all segments but the last moved."""
    sizes = {name: getattr(costs, name) for name in ("state_bytes", "tape_bytes", "cache_bytes")}
    for setting in settings_of(strategy, costs.steps, **sizes):
        point = strategy.point(Parameters(setting), steps=costs.steps)
        admitted = strategy.admits(low=point, high=point, steps=costs.steps)
        if admitted is not None and not admitted[0]:
            continue
        varies = CACHED_STEPS in strategy.cache_names
        least = int(strategy.least_cached(point, steps=costs.steps)[0]) if varies else costs.steps
        for cached in range(least, costs.steps + 1):
            given_ = {**setting, CACHED_STEPS: cached} if varies else setting
            parameters = strategy.clamp(Parameters(given_), steps=costs.steps)
            yield Setting(parameters, cached, strategy.cost(parameters, costs=costs))
        if OFFLOADED_STEPS in strategy.cache_names:
            parameters = strategy.clamp(Parameters({**setting, OFFLOADED_STEPS: 1}), steps=costs.steps)
            if OFFLOADED_STEPS in parameters:
                cost = strategy.cost(parameters, costs=costs)
                yield Setting(parameters, costs.steps - parameters[OFFLOADED_STEPS], cost)


def allows(choice: CacheName | None, setting: Setting, strategy: ClosedForm, steps: int) -> bool:
    """Whether a setting keeps the caches that a caller asks for."""
    if choice is None or strategy.name == "base":
        return True
    moves = OFFLOADED_STEPS in setting.parameters
    if choice == "offloaded":
        # The last segment keeps its caches, as do those whose checkpoints never move: here, all of them.
        segment = setting.parameters.get(strategy.segment, 1)  # type: ignore[attr-defined]
        keeps_all = (1 + setting.parameters.get("nb_local", 0)) * segment >= steps
        return moves or (keeps_all and setting.cached == steps)
    if moves:
        return False
    if choice == "none":
        return setting.cached == setting.parameters["chunk_size"]
    return choice != "all" or setting.cached == steps


def find_fastest(costs: Iterable[Cost]) -> Cost:
    """The cost of the least time, and of equal times that of the least memory."""
    return min(costs, key=lambda cost: (cost.seconds[0], cost.local_peak_bytes[0]))


def find_smallest(costs: Iterable[Cost]) -> Cost:
    """The cost of the least memory, and of equal memories that of the least time."""
    return min(costs, key=lambda cost: (cost.local_peak_bytes[0], cost.seconds[0]))


@pytest.mark.parametrize("name", VARYING)
@given(
    costs=cached_costs(steps=st.integers(1, 64)),
    numbers=st.tuples(*[st.integers(1, 6) | st.integers(1, 64)] * 3),
    cached=st.integers(1, 64),
)
@example(costs=plain_costs(12, cache_bytes=3), numbers=(1, 3, 3), cached=5)
@example(costs=plain_costs(40, cache_bytes=3, recompute_seconds=0.1), numbers=(2, 7, 2), cached=9)
def test_a_schedule_with_some_caches_costs_what_its_closed_form_says(
    name: str, costs: StepCosts, numbers: tuple[int, ...], cached: int
) -> None:
    strategy = CLOSED[name]
    setting = setting_of(strategy, numbers, costs)
    parameters = strategy.clamp(Parameters({**setting, CACHED_STEPS: cached}), steps=costs.steps)
    for law in (check_played, check_overlapped, check_hidden):
        law(strategy, parameters, costs)
    serial = changed(costs, overlaps_compute=False)
    assert strategy.totals(parameters, costs=serial).recomputed_without_cache == costs.steps - parameters.get(
        CACHED_STEPS, costs.steps
    )


@pytest.mark.parametrize("name", OFFLOADING)
@given(costs=cached_costs(steps=st.integers(1, 64)), numbers=st.tuples(*[st.integers(1, 64)] * 3))
@example(costs=plain_costs(12, cache_bytes=3), numbers=(2, 5, 5))
def test_a_schedule_that_moves_caches_costs_what_its_closed_form_says(
    name: str, costs: StepCosts, numbers: tuple[int, ...]
) -> None:
    strategy = CLOSED[name]
    setting = setting_of(strategy, numbers, costs)
    parameters = strategy.clamp(Parameters({**setting, OFFLOADED_STEPS: 1}), steps=costs.steps)
    for law in (check_played, check_overlapped, check_hidden):
        law(strategy, parameters, costs)
    totals = strategy.totals(parameters, costs=changed(costs, overlaps_compute=False))
    assert totals.offloaded_caches == parameters.get(OFFLOADED_STEPS, 0)
    assert totals.recomputed_without_cache == 0


@pytest.mark.parametrize("name", sorted(CLOSED))
@given(
    costs=cached_costs(steps=st.integers(1, 9)),
    room=st.floats(0, 1.2),
    choice=st.sampled_from([None, None, "all", "last", "segment", "none", "offloaded"]),
    objective=st.sampled_from(["time", "memory", "balanced"]),
)
def test_the_search_chooses_the_caches_as_brute_force_does(
    name: str, costs: StepCosts, room: float, choice: CacheName | None, objective: str
) -> None:
    strategy = CLOSED[name]
    # A search for the least memory keeps the fewest caches; chunks that grow by caches may need less with more.
    assume(not (objective != "time" and "cache_units" in strategy.cache_names))
    assume(not (objective == "balanced" and costs.overlaps_compute))
    recorded = costs.tape_bytes + costs.cache_bytes
    budget = costs.resident_bytes + int(room * costs.steps * recorded)
    question = ask(
        costs=costs,
        budget=Budget(local_bytes=max(1, budget), remote_bytes=None),
        strategies=(name,),
        objective=objective,
        cache=choice,
    )
    found = question.best()
    if not strategy.allows(choice):
        assert found is None
        return
    fitting = [
        setting
        for setting in list_settings(strategy, costs)
        if allows(choice, setting, strategy, costs.steps) and question.limits.keeps(setting.cost)[0]
    ]
    assert (found is None) == (not fitting)
    if found is None:
        return
    totals = found.totals(costs)
    if objective == "time":
        least_seconds = min(setting.cost.seconds[0] for setting in fitting)
        assert totals.seconds == pytest.approx(least_seconds, rel=ROUNDING)
    elif objective == "memory":
        assert totals.local_peak_bytes == min(setting.cost.local_peak_bytes[0] for setting in fitting)
    else:
        fast, small = (choose(setting.cost for setting in fitting) for choose in (find_fastest, find_smallest))
        if fast.local_peak_bytes[0] > small.local_peak_bytes[0]:
            knee = Knee(
                fast_seconds=float(fast.seconds[0]), fast_bytes=int(fast.local_peak_bytes[0]),
                small_seconds=float(small.seconds[0]), small_bytes=int(small.local_peak_bytes[0]),
            )  # fmt: skip
            least = min(knee(setting.cost)[0][0] for setting in fitting)
            assert knee(found.cost(costs))[0][0] == pytest.approx(least, abs=1e-8)


@pytest.mark.parametrize("name", EQUAL)
@given(costs=cached_costs(steps=st.integers(1, 9)), most=st.floats(0.0, 2.0))
def test_the_least_memory_within_a_time_keeps_the_caches_that_are_needed(
    name: str, costs: StepCosts, most: float
) -> None:
    strategy = CLOSED[name]
    assume(not costs.overlaps_compute)
    question = ask(costs=costs, strategies=(name,), objective="memory", max_overhead=most)
    found = question.best()
    fitting = [one for one in list_settings(strategy, costs) if question.limits.keeps(one.cost)[0]]
    assert (found is None) == (not fitting)
    if found is not None:
        least = min(one.cost.local_peak_bytes[0] for one in fitting)
        # A cache more where the time is at the limit but for rounding.
        assert least <= found.totals(costs).local_peak_bytes <= least + costs.cache_bytes


@pytest.mark.parametrize("name", VARYING)
@given(
    costs=cached_costs(steps=st.integers(1, 9)),
    shares=st.lists(st.floats(0, 1.2), min_size=1, max_size=6, unique=True),
)
def test_a_front_has_the_best_plan_of_each_budget(name: str, costs: StepCosts, shares: list[float]) -> None:
    strategy = CLOSED[name]
    costs = changed(costs, overlaps_compute=False)
    most = costs.steps * (costs.tape_bytes + costs.cache_bytes)
    budgets = np.unique([costs.resident_bytes + int(share * most) for share in shares])
    limits = Limits(budget=Budget(local_bytes=int(budgets[-1])))
    front = trace_front(FrontProblem(strategy=strategy, costs=costs, limits=limits, budgets=budgets))
    everything = join_costs([setting.cost for setting in list_settings(strategy, costs)])
    for budget in budgets.tolist():
        within = everything.seconds[everything.local_peak_bytes <= budget]
        listed = front.seconds[front.local_peak_bytes <= budget]
        assert len(listed) > 0 or not len(within)
        if len(within):
            assert listed.min() == pytest.approx(within.min(), rel=ROUNDING)
    for place in range(len(front)):
        point = Parameters(
            {name: int(column[place]) for name, column in front.parameters.items() if column[place]}
        )
        cost = strategy.cost(strategy.clamp(point, steps=costs.steps), costs=costs)
        assert cost.local_peak_bytes[0] == front.local_peak_bytes[place]
        assert cost.seconds[0] == pytest.approx(front.seconds[place], rel=ROUNDING)


@pytest.mark.parametrize("name", VARYING)
@given(costs=cached_costs(steps=st.integers(1, 12)), room=st.floats(0, 1.0), data=st.data())
def test_bounds_of_a_box_hold_at_its_settings(
    name: str, costs: StepCosts, room: float, data: st.DataObject
) -> None:
    """With K chosen by the budget, at each setting and for the box as a whole."""
    strategy = CLOSED[name]
    budget = costs.resident_bytes + int(room * costs.steps * (costs.tape_bytes + costs.cache_bytes))
    rule = CacheRule(local_bytes=budget, keeps_fewest=data.draw(st.booleans()))
    sizes = {one: getattr(costs, one) for one in ("state_bytes", "tape_bytes", "cache_bytes")}
    settings = list(settings_of(strategy, costs.steps, **sizes))
    ends = data.draw(st.tuples(st.sampled_from(settings), st.sampled_from(settings)))
    low = {one: np.array([min(end[one] for end in ends)]) for one in settings[0]}
    high = {one: np.array([max(end[one] for end in ends)]) for one in settings[0]}
    bound = evaluate(strategy, low, high, costs, rule)
    for setting in settings:
        if all(low[one][0] <= value <= high[one][0] for one, value in setting.items()):
            point = {one: np.array([value]) for one, value in setting.items()}
            cost = evaluate(strategy, point, point, costs, rule)
            if cost.local_peak_bytes[0] > budget:
                continue
            assert cost.seconds[0] >= bound.seconds[0] * (1 - ROUNDING)
            assert cost.local_peak_bytes[0] >= bound.local_peak_bytes[0]


@pytest.mark.parametrize("name", OFFLOADING)
@given(costs=cached_costs(steps=st.integers(1, 12)), data=st.data())
def test_bounds_of_a_box_hold_where_caches_move(name: str, costs: StepCosts, data: st.DataObject) -> None:
    strategy = CLOSED[name]
    sizes = {one: getattr(costs, one) for one in ("state_bytes", "tape_bytes", "cache_bytes")}
    settings = list(settings_of(strategy, costs.steps, **sizes))
    ends = data.draw(st.tuples(st.sampled_from(settings), st.sampled_from(settings)))
    low, high = (
        {one: np.array([choose(end[one] for end in ends)]) for one in settings[0]} for choose in (min, max)
    )
    bound = move_caches(strategy, low, high, costs)
    for setting in settings:
        if all(low[one][0] <= value <= high[one][0] for one, value in setting.items()):
            point = {one: np.array([value]) for one, value in setting.items()}
            cost = move_caches(strategy, point, point, costs)
            assert cost.seconds[0] >= bound.seconds[0] * (1 - ROUNDING)
            assert cost.local_peak_bytes[0] >= bound.local_peak_bytes[0]
            assert cost.remote_peak_bytes[0] >= bound.remote_peak_bytes[0]


def move_caches(strategy: ClosedForm, low: dict, high: dict, costs: StepCosts) -> Cost:  # type: ignore[type-arg]
    """The bounds of a box in which the caches of all segments but the last one move."""
    fewest, most = strategy.bound_offloaded(low, high, steps=costs.steps)
    return strategy.evaluate(
        low={**low, OFFLOADED_STEPS: fewest}, high={**high, OFFLOADED_STEPS: most}, costs=costs, model="exact"
    )


def evaluate(strategy: ClosedForm, low: dict, high: dict, costs: StepCosts, rule: CacheRule) -> Cost:  # type: ignore[type-arg]
    """The bounds of a box whose K follows from a rule."""
    fewest, most, _ = strategy.count_cached(low=low, high=high, costs=costs, rule=rule)
    ends = {**low, CACHED_STEPS: fewest}, {**high, CACHED_STEPS: most}
    return strategy.evaluate(low=ends[0], high=ends[1], costs=costs, model="exact")


def test_the_choices_of_the_paper_s_network_are_those_of_the_theory() -> None:
    """Counts on ipu-mk2 (422,976 B beside the resident bytes), from a program of its own."""
    costs = plain_costs(
        10_000, state_bytes=960, tape_bytes=960, cache_bytes=96, resident_bytes=0, forward_seconds=3.6e-6,
        backward_seconds=3.6e-6, recompute_seconds=0.36e-6, write_seconds=70.656e-6, read_seconds=70.656e-6,
        message_seconds=1.5e-6, remote_state_bytes=1_413_120, cache_write_seconds=7.07e-6,
        cache_read_seconds=7.07e-6,
    )  # fmt: skip
    expected = {
        (4_096, "standard"): (3_136, 0.1547), (4_096, "nested"): (3_946, 0.1102),
        (4_096, "growing"): (4_006, 0.0598), (10_000, "standard"): (2_416, 0.3908),
        (10_000, "nested"): (3_776, 0.3751), (10_000, "growing"): (3_856, 0.3265),
        (100_000, "nested"): (486, 0.5285), (100_000, "double-growing"): (4_006, 0.5347),
        (1_000_000, "double"): (406, 0.5499),
    }  # fmt: skip
    for (steps, name), (cached, over_base) in expected.items():
        job = changed(costs, steps=steps)
        best = ask(costs=job, budget=Budget(local_bytes=422_976), strategies=(name,)).best()
        assert best is not None
        assert best.parameters[CACHED_STEPS] == cached
        assert best.totals(job).seconds / job.base_seconds - 1 == pytest.approx(over_base, abs=5e-5)


def test_more_memory_keeps_more_caches() -> None:
    costs = plain_costs(1000, cache_bytes=2, recompute_seconds=0.1)
    plans = [
        ask(costs=costs, budget=Budget(local_bytes=size), strategies=("standard",)).best()
        for size in (1200, 1600, 2000, 4000)
    ]
    kept = [plan.parameters.get(CACHED_STEPS, 1000) for plan in plans if plan is not None]
    assert len(kept) == len(plans)
    assert all(fewer < more for fewer, more in pairwise(kept))
