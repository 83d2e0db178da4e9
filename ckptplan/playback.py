"""Use cases around schedules: a plan's actions, and what playing them shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ckptplan.cost.derive import step_costs
from ckptplan.model.budget import Budget
from ckptplan.model.plan import Plan
from ckptplan.schedule.actions import Action
from ckptplan.schedule.simulator import Sink, Trace, play
from ckptplan.strategies.registry import strategy_of


def actions(plan: Plan) -> Iterator[Action]:
    """Return the schedule of a plan, one action at a time (docs/schedule-format.md).

    Raises InputError for a strategy, or parameters, that this version does not have.
    """
    strategy = strategy_of(plan.strategy)
    # Checks the names, so that the error comes now and not with the first action.
    strategy.point(plan.parameters, steps=plan.steps)
    return strategy.actions(strategy.clamp(plan.parameters, steps=plan.steps), steps=plan.steps)


def simulate(plan: Plan, *, schedule: Iterable[Action] | None = None, sink: Sink | None = None) -> Trace:
    """Play a plan's schedule, or another one at the plan's costs, and return what it costs.

    Memory stays flat however long the schedule is; ``sink`` is handed the timeline as it streams.
    Raises IllegalAction for the first action that breaks a law or the budget that the plan was made
    for, and InputError.
    """
    budget = Budget(local_bytes=plan.goal.local_bytes, remote_bytes=plan.goal.remote_bytes)
    return play(
        actions(plan) if schedule is None else schedule,
        costs=step_costs(plan.workload, plan.profile),
        budget=budget if plan.goal.model == "exact" else None,
        sink=sink,
    )
