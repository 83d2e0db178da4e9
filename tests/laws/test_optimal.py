"""Law 4: no strategy beats the optimum, no schedule its bound; and every solved schedule costs what it says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptplan.model.budget import Budget
from ckptplan.model.step_costs import StepCosts
from ckptplan.schedule.simulator import play
from ckptplan.search.question import ObjectiveName, Question
from ckptplan.strategies.registry import named
from ckptplan.strategies.solved import tree_of
from tests.support import SOLVED, changed, step_costs

ALL = tuple(named(["all"]))
lengths = st.one_of(st.integers(1, 12), st.integers(13, 64))
objectives = st.sampled_from(["time", "memory", "balanced"])


@given(costs=step_costs(steps=lengths), local=st.integers(0, 40_000))
def test_law_4_no_strategy_beats_the_optimum(costs: StepCosts, local: int) -> None:
    """Without synchronisation and without overlap, remote memory unbounded, all fifteen strategies."""
    costs = changed(costs, overlaps_compute=False, message_seconds=0.0)
    question = Question(costs=costs, budget=Budget(local_bytes=costs.resident_bytes + local), strategies=ALL)
    answers = question.answers()
    if not answers:
        return
    best = next(answer for answer in answers if answer.strategy.name == "optimal")
    assert best.best.solution is not None
    assert best.best.solution.least_seconds == pytest.approx(best.best.key[0], rel=1e-12)
    for answer in answers:
        assert best.best.key[0] <= answer.best.key[0] * (1 + 1e-12)


@given(costs=step_costs(steps=lengths), local=st.integers(0, 40_000), remote=st.none() | st.integers(0, 40_000))
def test_no_schedule_beats_the_bound(costs: StepCosts, local: int, remote: int | None) -> None:
    """Messages that carry several states, overlap and a limit of remote memory included."""
    budget = Budget(local_bytes=costs.resident_bytes + local, remote_bytes=remote)
    answers = Question(costs=costs, budget=budget, strategies=ALL).answers()
    bounds = [one.best.solution.least_seconds for one in answers if one.best.solution]
    for answer in answers:
        for bound in bounds:
            assert bound is None or bound <= answer.best.key[0] * (1 + 1e-12)


@pytest.mark.parametrize("name", sorted(SOLVED))
@given(
    costs=step_costs(steps=lengths), local=st.integers(0, 40_000), remote=st.none() | st.integers(0, 40_000),
    objective=objectives,
)  # fmt: skip
def test_solved_schedules_are_played_at_their_cost_and_within_their_budget(
    name: str, costs: StepCosts, local: int, remote: int | None, objective: ObjectiveName
) -> None:
    """Laws 1 and 2 for schedules of decisions, which are read back from the data of a plan."""
    budget = Budget(local_bytes=costs.resident_bytes + local, remote_bytes=remote)
    question = Question(costs=costs, budget=budget, strategies=(SOLVED[name],), objective=objective)
    winner = question.winner()
    if winner is None:
        return
    solution = winner.best.solution
    assert solution is not None
    tree = tree_of(solution.parameters, solution.splits, steps=costs.steps)
    trace = play(tree.actions(), costs=costs, budget=budget)
    assert trace.seconds == pytest.approx(solution.trace.seconds, rel=1e-12)
    assert trace.local_peak_bytes == solution.trace.local_peak_bytes
    assert trace.remote_peak_bytes == solution.trace.remote_peak_bytes
    for field in ("recomputed_steps", "remote_writes", "remote_reads", "messages"):
        assert getattr(trace, field) == getattr(solution.trace, field)


@given(costs=step_costs(steps=lengths), less=st.integers(0, 20_000), more=st.integers(0, 20_000))
def test_more_memory_never_makes_the_optimum_slower(costs: StepCosts, less: int, more: int) -> None:
    """Law 6, where the recursion covers the problem."""
    costs = changed(costs, overlaps_compute=False, message_seconds=0.0)
    seconds = []
    for local in (less, less + more):
        budget = Budget(local_bytes=costs.resident_bytes + local)
        winner = Question(costs=costs, budget=budget, strategies=(SOLVED["optimal"],)).winner()
        seconds.append(float("inf") if winner is None else winner.best.key[0])
    assert seconds[1] <= seconds[0] * (1 + 1e-12)
