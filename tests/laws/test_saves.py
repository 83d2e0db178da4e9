"""Law: what is saved is kept for a later action; and without such saves a schedule costs what is predicted."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import ckptplan
from ckptplan.model.budget import Budget
from ckptplan.model.goal import ObjectiveName
from ckptplan.model.step_costs import StepCosts
from ckptplan.schedule.actions import Action, Free, Save
from ckptplan.schedule.simulator import play
from ckptplan.strategies.answer import Answer
from ckptplan.strategies.registry import all_strategies
from tests.support import ask, plain_costs, step_costs

lengths = st.one_of(st.integers(1, 12), st.integers(13, 64))


def freed_at_once(schedule: Iterable[Action]) -> list[Action]:
    """The saves whose state the next action frees from the same tier."""
    return [
        action
        for action, following in pairwise(schedule)
        if isinstance(action, Save) and following == Free(action.state, action.tier)
    ]


def schedule_of(answer: Answer, *, steps: int) -> list[Action]:
    return list(answer.strategy.actions(answer.parameters, steps=steps, splits=answer.splits))


@pytest.mark.parametrize("name", sorted(all_strategies()))
@given(
    costs=step_costs(steps=lengths), local=st.integers(0, 40_000), remote=st.none() | st.integers(0, 40_000),
    objective=st.sampled_from(["time", "memory", "balanced"]),
)  # fmt: skip
@example(costs=plain_costs(9, tape_bytes=50), local=120, remote=0, objective="time")
@example(costs=plain_costs(3, state_bytes=90, message_seconds=0.0), local=105, remote=0, objective="time")
def test_no_strategy_saves_what_the_next_action_frees(
    name: str, costs: StepCosts, local: int, remote: int | None, objective: ObjectiveName
) -> None:
    """Neither tier; and the schedule, played under its budget, costs what the strategy predicts."""
    budget = Budget(local_bytes=costs.resident_bytes + local, remote_bytes=remote)
    strategies = (all_strategies()[name],)
    for answer in ask(costs=costs, budget=budget, strategies=strategies, objective=objective).rank():
        schedule = schedule_of(answer, steps=costs.steps)
        assert freed_at_once(schedule) == []
        trace = play(schedule, costs=costs, budget=budget)
        totals = answer.totals(costs)
        assert trace.seconds == pytest.approx(totals.seconds, rel=1e-9)
        assert trace.local_peak_bytes == totals.local_peak_bytes
        assert trace.remote_peak_bytes == totals.remote_peak_bytes


def test_the_optimum_of_the_papers_job_saves_no_state_in_vain() -> None:
    """T = 4,096: 21 of its 238 saves were freed at once. What it costs is what it was with them."""
    workload = ckptplan.load_workload("paper-snn").with_steps(4096)
    plan = ckptplan.optimize(workload, ckptplan.load_profile("ipu-mk2"), strategies=["optimal"])
    schedule = list(ckptplan.actions(plan))
    assert freed_at_once(schedule) == []
    assert sum(isinstance(action, Save) for action in schedule) == 217
    trace = ckptplan.simulate(plan)
    assert (trace.recomputed_steps, trace.messages, trace.local_peak_bytes) == (7902, 0, 638_976)
    assert (plan.predicted.recomputed_steps, plan.predicted.local_peak_bytes) == (7902, 638_976)
    assert trace.seconds == plan.predicted.seconds == pytest.approx(0.03233592)
