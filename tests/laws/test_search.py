"""Law 3: the search equals brute force over all parameters, for every T up to 64 and random costs."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ckptplan.model.budget import Budget
from ckptplan.model.goal import Model, ObjectiveName
from ckptplan.model.step_costs import StepCosts
from ckptplan.search import best_setting
from ckptplan.search.best_setting import find_best_setting
from ckptplan.search.boxes import BoxProblem, Limits
from ckptplan.search.objective import Knee, Objective, least_memory, least_remote_memory, least_time
from tests.support import CLOSED, ask, brute_force, changed, plain_costs, step_costs

#: The most points that are evaluated one by one, and the boxes that are cut at a time.
EFFORTS = [(1, 1), (1, 5), (20, 3), (10**6, 2_048)]


@contextmanager
def searched_with(few_points: int, at_once: int = 2_048, *, exact_boxes: int = 40_000) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(best_setting, "_FEW_POINTS", few_points)
        patch.setattr(best_setting, "_AT_ONCE", at_once)
        patch.setattr(best_setting, "_EXACT_BOXES", exact_boxes)
        yield


@st.composite
def limits(draw: st.DrawFn, costs: StepCosts) -> Limits:
    """Limits between nothing fits and nothing binds."""
    largest = costs.resident_bytes + costs.steps * (costs.tape_bytes + costs.state_bytes)
    return Limits(
        budget=Budget(
            local_bytes=draw(st.none() | st.integers(1, largest)),
            remote_bytes=draw(st.none() | st.integers(0, costs.steps * costs.remote_state_bytes)),
        ),
        max_overhead=draw(st.none() | st.floats(0, 3)),
        base_seconds=costs.base_seconds,
    )


objectives = st.one_of(
    st.sampled_from([least_time, least_memory, least_remote_memory]),
    st.just(Knee(fast_seconds=1.0, fast_bytes=900, small_seconds=70.0, small_bytes=10)),
)


@pytest.mark.parametrize("effort", EFFORTS, ids=str)
@given(data=st.data(), costs=step_costs(), name=st.sampled_from(sorted(CLOSED)), objective=objectives)
def test_search_equals_brute_force(
    effort: tuple[int, int], data: st.DataObject, costs: StepCosts, name: str, objective: Objective
) -> None:
    """Cutting boxes down to points, one or many at a time, and evaluating all give the same answer."""
    strategy = CLOSED[name]
    within = data.draw(limits(costs), label="limits")
    models: tuple[Model, ...] = ("exact", "paper") if strategy.printed else ("exact",)
    for model in models:
        expected = brute_force(strategy, costs=costs, limits=within, objective=objective, model=model)
        problem = BoxProblem(strategy=strategy, costs=costs, limits=within, objective=objective, model=model)
        with searched_with(*effort):
            found = find_best_setting(problem)
        assert (None if found is None else (*found.key, *found.parameters.values())) == expected


@pytest.mark.parametrize("steps", range(1, 65))
def test_every_sequence_length_up_to_64(steps: int) -> None:
    """No length is skipped: each strategy under a tight, a middling and a loose budget."""
    costs = plain_costs(steps, tape_bytes=30, message_seconds=2.5)
    for strategy in CLOSED.values():
        for local_bytes in (40 + steps // 4, 90 + 5 * steps, 31 * steps):
            within = Limits(budget=Budget(local_bytes=local_bytes))
            for objective in (least_time, least_memory):
                expected = brute_force(strategy, costs=costs, limits=within, objective=objective, model="exact")
                problem = BoxProblem(strategy=strategy, costs=costs, limits=within, objective=objective)
                with searched_with(1):
                    found = find_best_setting(problem)
                assert (None if found is None else (*found.key, *found.parameters.values())) == expected


@pytest.mark.parametrize("steps", [10**6, 10**9, 10**12])
@pytest.mark.parametrize("units", [31, 10**4])
def test_long_sequences_are_answered_and_kept_within_the_budget(steps: int, units: int) -> None:
    costs = plain_costs(steps, recompute_seconds=0.1, write_seconds=20.0, read_seconds=20.0)
    within = Limits(budget=Budget(local_bytes=units * 10))
    for strategy in CLOSED.values():
        problem = BoxProblem(strategy=strategy, costs=costs, limits=within, objective=least_time)
        found = find_best_setting(problem)
        if found is not None:
            cost = strategy.cost(found.parameters, costs=costs)
            assert cost.local_peak_bytes[0] <= units * 10
            assert (cost.seconds[0], cost.local_peak_bytes[0]) == found.key[:2]
    remote = BoxProblem(strategy=CLOSED["remote"], costs=costs, limits=within, objective=least_time)
    best = find_best_setting(remote)
    assert best is not None
    assert best.parameters.chunk_size == units


@given(data=st.data(), costs=step_costs(), name=st.sampled_from(sorted(CLOSED)), objective=objectives)
def test_a_search_that_gives_up_tells_by_how_much_it_may_be_wrong(
    data: st.DataObject, costs: StepCosts, name: str, objective: Objective
) -> None:
    """After 5 cuts near ties are dropped; no setting is better by more than the gap reported."""
    strategy = CLOSED[name]
    within = data.draw(limits(costs), label="limits")
    expected = brute_force(strategy, costs=costs, limits=within, objective=objective, model="exact")
    problem = BoxProblem(strategy=strategy, costs=costs, limits=within, objective=objective)
    with searched_with(1, 1, exact_boxes=5):
        found = find_best_setting(problem)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert found.key[0] - expected[0] <= found.gap * abs(found.key[0]) * (1 + 1e-9)


@pytest.mark.parametrize("steps", [4096, 10**5, 10**9])
@pytest.mark.parametrize("overlaps", [False, True])
def test_flat_fronts_are_answered(steps: int, overlaps: bool) -> None:
    """Free transfers lay the whole front on its chord, where every setting is as good a knee."""
    costs = plain_costs(
        steps, write_seconds=1e-9, read_seconds=1e-9, message_seconds=0.0, overlaps_compute=overlaps
    )
    strategies = tuple(CLOSED.values())
    asked = ask(costs=costs, budget=Budget(), strategies=strategies, objective="balanced")
    for answer in asked.rank():
        # The front of revolve is flat in both of its parameters.
        assert answer.gap < (2e-2 if answer.strategy.name == "revolve" else 2e-3)


#: Strategies that price every setting, and the costs that are times.
PRICED = (*CLOSED, "disk-revolve", "periodic")
TIMES = tuple(name for name in StepCosts.model_fields if name.endswith("_seconds"))


@given(
    costs=step_costs(steps=st.integers(1, 40)),
    strategies=st.just(PRICED) | st.sampled_from([(name,) for name in PRICED]),
    objective=st.sampled_from(["time", "memory", "balanced"]),
    most=st.sampled_from([None, 0.0]),
    unit=st.sampled_from([0.1, 3.0, 7.0]),
)
@example(
    costs=plain_costs(
        39,
        state_bytes=397,
        tape_bytes=2382,
        forward_seconds=0.0,
        backward_seconds=3.131067117239687,
        recompute_seconds=0.0,
        write_seconds=0.0,
        read_seconds=5.0,
        message_seconds=0.0,
        overlaps_compute=True,
    ),
    strategies=PRICED,
    objective="time",
    most=None,
    unit=3.0,
)
@example(
    costs=plain_costs(5, forward_seconds=0.1, backward_seconds=0.2, recompute_seconds=0.1),
    strategies=("double",), objective="balanced", most=None, unit=3.0,
)  # fmt: skip
def test_times_in_another_unit_change_no_choice(
    costs: StepCosts, strategies: tuple[str, ...], objective: ObjectiveName, most: float | None, unit: float
) -> None:
    """What is rounded otherwise is not another plan: hidden transfers, and fronts along their own chord."""
    asked = ask(costs=costs, strategies=strategies, objective=objective, max_overhead=most)
    other = changed(costs, **{name: unit * getattr(costs, name) for name in TIMES})
    here, there = asked.best(), asked.replace(costs=other).best()
    assert (here is None) == (there is None)
    if here is not None and there is not None:
        assert here.totals(costs).local_peak_bytes == there.totals(costs).local_peak_bytes
        assert here.totals(costs).seconds == pytest.approx(there.totals(costs).seconds, rel=1e-9)
