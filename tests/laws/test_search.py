"""Law 3: the search equals brute force over all parameters, for every T up to 64 and random costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptplan.model.budget import Budget
from ckptplan.model.step_costs import StepCosts
from ckptplan.search.box import Limits, best_setting
from ckptplan.search.objective import Knee, Objective, least_memory, least_remote_memory, least_time
from ckptplan.strategies.protocol import Model
from ckptplan.strategies.registry import all_strategies
from tests.support import brute_force, plain_costs, step_costs


@st.composite
def limits(draw: st.DrawFn, costs: StepCosts) -> Limits:
    """Limits between nothing fits and nothing binds."""
    largest = costs.resident_bytes + costs.steps * (costs.tape_bytes + costs.state_bytes)
    time = costs.base_seconds + 3 * costs.steps * costs.recompute_seconds
    return Limits(
        budget=Budget(
            local_bytes=draw(st.none() | st.integers(1, largest)),
            remote_bytes=draw(st.none() | st.integers(0, costs.steps * costs.remote_state_bytes)),
        ),
        seconds=draw(st.none() | st.floats(costs.base_seconds, time)),
    )


objectives = st.one_of(
    st.sampled_from([least_time, least_memory, least_remote_memory]),
    st.just(Knee(fast_seconds=1.0, fast_bytes=900, small_seconds=70.0, small_bytes=10)),
)


@pytest.mark.parametrize("few_points", [1, 20, 10**6])
@given(data=st.data(), costs=step_costs(), name=st.sampled_from(sorted(all_strategies())), objective=objectives)
def test_search_equals_brute_force(
    few_points: int, data: st.DataObject, costs: StepCosts, name: str, objective: Objective
) -> None:
    """By cutting boxes down to points, by cutting few, and by evaluating all: the same setting and key."""
    strategy = all_strategies()[name]
    within = data.draw(limits(costs), label="limits")
    models: tuple[Model, ...] = ("exact", "paper") if strategy.printed else ("exact",)
    for model in models:
        expected = brute_force(strategy, costs=costs, limits=within, objective=objective, model=model)
        found = best_setting(
            strategy, costs=costs, limits=within, objective=objective, model=model, few_points=few_points
        )
        assert (None if found is None else (*found.key, *found.parameters.values())) == expected


@pytest.mark.parametrize("steps", range(1, 65))
def test_every_sequence_length_up_to_64(steps: int) -> None:
    """No length is skipped: each strategy under a tight, a middling and a loose budget."""
    costs = plain_costs(steps, tape_bytes=30, message_seconds=2.5)
    for strategy in all_strategies().values():
        for local_bytes in (40 + steps // 4, 90 + 5 * steps, 31 * steps):
            within = Limits(budget=Budget(local_bytes=local_bytes))
            for objective in (least_time, least_memory):
                expected = brute_force(strategy, costs=costs, limits=within, objective=objective, model="exact")
                found = best_setting(strategy, costs=costs, limits=within, objective=objective, few_points=1)
                assert (None if found is None else (*found.key, *found.parameters.values())) == expected


@pytest.mark.parametrize("steps", [10**6, 10**9, 10**12])
@pytest.mark.parametrize("units", [31, 10**4])
def test_long_sequences_are_answered_and_kept_within_the_budget(steps: int, units: int) -> None:
    costs = plain_costs(steps, recompute_seconds=0.1, write_seconds=20.0, read_seconds=20.0)
    within = Limits(budget=Budget(local_bytes=units * 10))
    for strategy in all_strategies().values():
        found = best_setting(strategy, costs=costs, limits=within, objective=least_time)
        if found is not None:
            cost = strategy.cost(found.parameters, costs=costs)
            assert cost.local_peak_bytes[0] <= units * 10
            assert (cost.seconds[0], cost.local_peak_bytes[0]) == found.key[:2]
    best = best_setting(all_strategies()["remote"], costs=costs, limits=within, objective=least_time)
    assert best is not None
    assert best.parameters.chunk_size == units
