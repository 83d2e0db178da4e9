"""Decision regret: the time of the chosen plan over the best that could have been chosen, both measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ckptplan
from ckptplan.calibration.samples import Sample
from ckptplan.calibration.validation import Contender, Regret
from ckptplan.errors import InputError
from ckptplan.model.plan import Plan


@dataclass(frozen=True, kw_only=True)
class RivalPlan:
    """A plan that could have been chosen, and strategies whose best plan has the same schedule."""

    plan: Plan
    same: tuple[str, ...] = ()


def find_rivals(plan: Plan) -> list[RivalPlan]:
    """Return the best plan of each other strategy that was compared when ``plan`` was chosen.

    Those with the same schedule come once, and not at all if it is that of ``plan``. Raises InputError where
    there was no other strategy, so no decision to regret.
    """
    goal = plan.goal
    others = tuple(name for name in goal.strategies if name != plan.strategy)
    if not others:
        raise InputError(
            f"{plan.strategy} was the only strategy asked for, so that nothing was decided",
            field="regret",
            accepted="a plan chosen among several strategies",
        )
    found = ckptplan.compare(
        plan.workload,
        plan.profile,
        strategies=others,
        objective=goal.objective,
        model=goal.model,
        max_overhead=goal.max_overhead,
        local_bytes=goal.local_bytes,
        remote_bytes="unbounded" if goal.remote_bytes is None else goal.remote_bytes,
        effort=goal.effort,
    )
    first, *rest = drop_same_schedules([plan, *(one for one in found.values() if isinstance(one, Plan))])
    return [RivalPlan(plan=plan, same=first.same), *rest]


def drop_same_schedules(plans: Sequence[Plan]) -> list[RivalPlan]:
    """Return plans of which no two have the same schedule, each with the strategies of those that do."""
    groups: dict[tuple[object, ...], list[Plan]] = {}
    for plan in plans:
        groups.setdefault(tuple(ckptplan.actions(plan)), []).append(plan)
    return [RivalPlan(plan=first, same=tuple(one.strategy for one in same)) for first, *same in groups.values()]


def compute_regret(chosen: Sample, rivals: Sequence[RivalPlan], times: Sequence[Sample]) -> Regret:
    """Return the regret of the first rival, which is the chosen plan itself and took ``chosen``."""
    return Regret(
        chosen=rivals[0].plan.strategy,
        contenders=tuple(
            Contender(
                strategy=one.plan.strategy,
                parameters=dict(one.plan.parameters),
                predicted_seconds=one.plan.predicted.seconds,
                seconds=seconds,
                same=one.same,
            )
            for one, seconds in zip(rivals, (chosen, *times), strict=True)
        ),
    )
