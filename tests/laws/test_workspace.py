"""Law: the workspace that recording several steps at once needs is charged to schedules that do so alone."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptplan.model.budget import Budget
from ckptplan.model.step_costs import StepCosts
from ckptplan.schedule.actions import Backward, Record
from ckptplan.schedule.simulator import play
from ckptplan.search.trace_solved import trace_solved_front
from ckptplan.strategies.registry import all_strategies
from tests.support import CLOSED, ask, changed, plain_costs, step_costs

#: Problems of at most 24 steps whose chunks of several steps need a workspace.
problems = st.builds(
    lambda costs, chunk: changed(costs, chunk_bytes=chunk),
    step_costs(steps=st.integers(1, 24)),
    st.integers(1, 3000),
)
ALL = tuple(all_strategies())


@given(costs=problems, local=st.integers(0, 20_000))
def test_a_schedule_takes_the_workspace_if_a_chunk_has_several_steps(costs: StepCosts, local: int) -> None:
    """By each strategy, in the simulator as in its closed form or its decisions, within the same budget.

    A plan is no quicker than without the workspace, and no slower than if all schedules pay for it. The bound
    holds for schedules of single steps, too, which need less than the optimum was searched with.
    """
    budget = Budget(local_bytes=costs.resident_bytes + local)
    without = changed(costs, chunk_bytes=0)
    free, answers, charged = (
        ask(costs=priced, budget=budget, strategies=ALL).rank()
        for priced in (without, costs, costs.with_chunk_workspace)
    )
    rankings = (free, answers, charged)
    times = [{answer.strategy.name: answer.key[0] for answer in ranked} for ranked in rankings]
    for fewer, more in pairwise(times):
        closed = [name for name in more if name in CLOSED]
        assert all(fewer[name] <= more[name] * (1 + 1e-12) for name in closed)
        assert not more or min(fewer.values()) <= min(more.values()) * (1 + 1e-12)
    least = max((answer.least_seconds or 0.0 for answer in answers), default=0.0)
    for answer in answers:
        assert least <= answer.key[0] * (1 + 1e-12)
        assert not answer.proved or answer.key[0] <= min(times[1].values()) * (1 + 1e-12)
        actions = list(answer.strategy.actions(answer.parameters, steps=costs.steps, splits=answer.splits))
        several = any(isinstance(one, Record) and one.stop - one.start > 1 for one in actions)
        peak = play(actions, costs=costs, budget=budget).local_peak_bytes
        assert peak == answer.totals(costs).local_peak_bytes
        assert peak == play(actions, costs=without).local_peak_bytes + several * costs.chunk_bytes


@given(costs=problems, local=st.integers(0, 20_000))
def test_the_optimum_alone_is_no_slower_than_disk_revolve(costs: StepCosts, local: int) -> None:
    """Which records each step by itself, and pays for no longer chunk."""
    budget = Budget(local_bytes=costs.resident_bytes + local)
    optimum, other = (
        ask(costs=costs, budget=budget, strategies=(name,)).best() for name in ("optimal", "disk-revolve")
    )
    assert other is None or (optimum is not None and optimum.key[0] <= other.key[0] * (1 + 1e-12))


@given(costs=problems, local=st.integers(0, 20_000))
def test_the_optimum_alone_needs_no_more_memory_than_any_other(costs: StepCosts, local: int) -> None:
    """Though it is solved apart for schedules of single steps."""
    budget = Budget(local_bytes=costs.resident_bytes + local)
    optimum, *others = (
        ask(costs=costs, budget=budget, strategies=(name,), objective="memory").best()
        for name in ("optimal", "disk-revolve", "periodic")
    )
    least = min((one.key[0] for one in others if one is not None), default=np.inf)
    assert least == np.inf or (optimum is not None and optimum.key[0] <= least)


def test_time_does_not_decide_what_needs_least_memory() -> None:
    """Recording one by one takes longer than all steps together, and needs a fraction of the memory."""
    costs = plain_costs(
        9, state_bytes=2, tape_bytes=1, chunk_bytes=40, recompute_seconds=0.1, chunk_seconds=2.5
    )
    budget = Budget(local_bytes=61, remote_bytes=0)
    for objective in ("memory", "time"):
        answer = ask(costs=costs, budget=budget, strategies=("optimal",), objective=objective).best()
        assert answer is not None
        totals = answer.totals(costs)
        assert totals.local_peak_bytes == (3 if objective == "memory" else 49)


@settings(max_examples=25)
@given(costs=problems, spare=st.lists(st.integers(0, 5_000), min_size=1, max_size=3))
def test_fronts_hold_the_schedules_of_single_steps(costs: StepCosts, spare: list[int]) -> None:
    """No plan within a budget is quicker than the front there, nor quicker than its bound."""
    asked = ask(costs=costs, strategies=("optimal",))
    found = trace_solved_front(asked)
    for more in spare:
        local = costs.resident_bytes + more
        plan = asked.replace(local_bytes=local).best()
        place = int(np.searchsorted(found.front.local_peak_bytes, local, side="right")) - 1
        if plan is not None:
            assert found.front.seconds[place] <= plan.key[0] * (1 + 1e-12)
            assert place >= 0
            assert found.bounds.within(np.array([local]))[0] <= plan.key[0] * (1 + 1e-12)


@given(costs=problems, more=st.integers(0, 5_000))
def test_no_bound_is_above_the_schedule_that_records_each_step_by_itself(costs: StepCosts, more: int) -> None:
    """It holds all tapes and pays for no longer chunk: neither a plan nor a front may deny it."""
    steps = range(costs.steps)
    actions = [Record(i, i + 1) for i in steps] + [Backward(i, i + 1) for i in reversed(steps)]
    played = play(actions, costs=costs)
    local = played.local_peak_bytes + more
    answer = ask(costs=costs, budget=Budget(local_bytes=local), strategies=("optimal",)).best()
    assert answer is not None
    assert (answer.least_seconds or 0.0) <= played.seconds * (1 + 1e-12)
    assert not answer.proved or answer.key[0] <= played.seconds * (1 + 1e-12)
    front = trace_solved_front(ask(costs=costs, strategies=("optimal",)))
    assert front.bounds.within(np.array([played.local_peak_bytes]))[0] <= played.seconds * (1 + 1e-12)


def test_disk_revolve_does_not_pay_for_what_only_longer_chunks_need() -> None:
    costs = plain_costs(40, chunk_bytes=500)
    least = ask(costs=costs, strategies=("disk-revolve",)).replace(local_bytes=40).best()
    assert least is not None
    assert least.totals(costs).local_peak_bytes <= 40
    # Plain backpropagation records all steps at once.
    base = ask(costs=costs, strategies=("base",)).best()
    assert base is not None
    assert base.totals(costs).local_peak_bytes == 40 * 10 + 500
