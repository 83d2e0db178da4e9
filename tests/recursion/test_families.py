"""Families of schedules, as Disk-Revolve and Periodic: each is executed at its price, and the best is found."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptplan.cost.exact import overhead
from ckptplan.model.budget import Budget
from ckptplan.model.goal import ObjectiveName
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.problem import Family
from ckptplan.recursion.revolve import make_revolve_tree
from ckptplan.recursion.segments import deal_steps, find_periods, find_segments, make_period_tree
from ckptplan.recursion.tree import Tree
from ckptplan.schedule.simulator import play
from ckptplan.strategies.optimal import find_reread
from tests.support import ask, plain_costs, step_costs

#: Seconds, local bytes and remote bytes.
Point = tuple[float, int, int]


def list_families(costs: StepCosts, budget: Budget) -> tuple[Family, ...]:
    return find_segments(costs, budget), find_periods(costs, budget, front=True), find_reread(costs, budget)


@st.composite
def budgets(draw: st.DrawFn, costs: StepCosts) -> Budget:
    """Between nothing fits and nothing binds."""
    most = costs.resident_bytes + costs.steps * (costs.state_bytes + costs.tape_bytes)
    return Budget(
        local_bytes=draw(st.none() | st.integers(costs.resident_bytes, most)),
        remote_bytes=draw(st.none() | st.integers(0, costs.steps * costs.remote_state_bytes)),
    )


@given(data=st.data(), costs=step_costs(steps=st.one_of(st.integers(1, 12), st.integers(13, 300))))
def test_a_schedule_of_a_family_is_executed_at_its_price_and_within_the_budget(
    data: st.DataObject, costs: StepCosts
) -> None:
    """Costs of actions and transfers beside compute included."""
    budget = data.draw(budgets(costs), label="budget")
    for family in list_families(costs, budget):
        if not len(family):
            continue
        place = data.draw(st.integers(0, len(family) - 1), label="place")
        trace = play(family.build(place).actions(), costs=costs, budget=budget)
        assert trace.seconds == pytest.approx(family.cost.seconds[place], rel=1e-12)
        assert trace.local_peak_bytes == family.cost.local_peak_bytes[place]
        assert trace.remote_peak_bytes == family.cost.remote_peak_bytes[place]


def list_segments(steps: int) -> Iterator[Tree]:
    """Every number of slots with every number of segments."""
    yield make_revolve_tree(0, [(1, steps - 1)], steps=steps)
    for slots in range(1, steps):
        for number in range(steps):
            dealt = deal_steps(steps, slots=np.array([slots]), number=np.array([number]))
            length, longer = int(dealt.length[0]), int(dealt.longer[0])
            yield make_revolve_tree(slots, [(length, number - longer), (length + 1, longer)], steps=steps)


def list_periods(steps: int) -> Iterator[Tree]:
    """Every chunk with every period and every number of slots."""
    for chunk in range(1, steps + 1):
        for period in range(1, -(-steps // chunk) + 1):
            for slots in range(1, max(2, period)):
                yield make_period_tree(chunk, period, slots, steps=steps)


def find_best(points: list[Point], objective: ObjectiveName) -> Point:
    """The best point by its key: the knee is that of these points alone."""
    by_time, by_memory = min(points), min((local, seconds, remote) for seconds, local, remote in points)
    if objective == "memory":
        return by_memory[1], by_memory[0], by_memory[2]
    if objective == "time" or by_time[1] <= by_memory[0] or by_time[0] >= by_memory[1] * (1 - 1e-12):
        return by_time
    high, wide = by_memory[1] - by_time[0], by_time[1] - by_memory[0]
    return min(points, key=lambda one: ((one[1] - by_memory[0]) / wide + (one[0] - by_time[0]) / high, *one))


@pytest.mark.parametrize("name", ["disk-revolve", "periodic"])
@given(
    data=st.data(), costs=step_costs(steps=st.integers(1, 9)),
    objective=st.sampled_from(["time", "memory", "balanced"]), most=st.none() | st.floats(0, 2),
)  # fmt: skip
def test_the_answer_is_the_best_of_every_setting_by_every_objective_within_every_limit(
    name: str, data: st.DataObject, costs: StepCosts, objective: ObjectiveName, most: float | None
) -> None:
    """Brute force: each schedule of the form is built and played."""
    budget = data.draw(budgets(costs), label="budget")
    list_trees = {"disk-revolve": list_segments, "periodic": list_periods}[name]
    traces = [play(tree.actions(), costs=costs) for tree in list_trees(costs.steps)]
    points = [
        (trace.seconds, trace.local_peak_bytes, trace.remote_peak_bytes)
        for trace in traces
        if (budget.local_bytes is None or trace.local_peak_bytes <= budget.local_bytes)
        and (budget.remote_bytes is None or trace.remote_peak_bytes <= budget.remote_bytes)
        and (most is None or overhead(trace.seconds, costs.base_seconds) <= most)
    ]
    answer = ask(costs=costs, budget=budget, strategies=(name,), objective=objective, max_overhead=most).best()
    assert (answer is None) == (not points)
    if answer is not None:
        found, best = answer.totals(costs), find_best(points, objective)
        assert found.seconds == pytest.approx(best[0], rel=1e-9)
        assert (found.local_peak_bytes, found.remote_peak_bytes) == best[1:]


def test_the_least_memory_of_periodic_within_a_small_remote_memory_is_the_least() -> None:
    """One slot is enough: only the quickest setting of each chunk was known, which fills the memory."""
    costs = plain_costs(
        7, state_bytes=181, tape_bytes=1448, remote_state_bytes=1448, recompute_seconds=0.1,
        write_seconds=0.5, read_seconds=20.0, message_seconds=0.0,
    )  # fmt: skip
    least = ask(
        costs=costs, budget=Budget(remote_bytes=2896), strategies=("periodic",), objective="memory"
    ).best()
    assert least is not None
    assert least.key[0] == 181 + 1448


@pytest.mark.parametrize("name", ["disk-revolve", "periodic"])
@given(
    data=st.data(), costs=step_costs(steps=st.integers(1, 256)),
    more=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
)  # fmt: skip
def test_more_memory_of_either_tier_is_never_slower(
    name: str, data: st.DataObject, costs: StepCosts, more: tuple[int, int]
) -> None:
    """Where a save costs something, fewer slots can be quicker; beside compute, fewer segments can."""
    less = data.draw(budgets(costs), label="budget")
    grown = [
        None if limit is None else limit + extra for limit, extra in zip(vars(less).values(), more, strict=True)
    ]
    answers = [
        ask(costs=costs, budget=budget, strategies=(name,)).best()
        for budget in (less, Budget(local_bytes=grown[0], remote_bytes=grown[1]))
    ]
    if answers[0] is not None:
        assert answers[1] is not None
        assert answers[1].key[0] <= answers[0].key[0] * (1 + 1e-12)


def test_every_number_of_slots_is_tried_for_long_sequences_too() -> None:
    """No power of two: 4,096 steps within twice base's time take 27 slots, and 26 are too few."""
    costs = plain_costs(4096, message_seconds=0.0, write_seconds=1e9, read_seconds=1e9)
    asked = ask(costs=costs, strategies=("disk-revolve",), objective="memory", max_overhead=1.0)
    least = asked.best()
    assert least is not None
    assert least.key[0] == costs.tape_bytes + 27 * costs.state_bytes
    assert asked.replace(local_bytes=int(least.key[0]) - 1).best() is None
