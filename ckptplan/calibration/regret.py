"""Measures decision regret: the time of the chosen plan over that of the best alternative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ckptplan
from ckptplan.calibration.samples import Sample
from ckptplan.calibration.validation import Contender, Regret
from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import group_same_schedules


@dataclass(frozen=True, kw_only=True)
class RivalPlan:
    """A plan that could have been chosen, and other strategies whose best plan has the same schedule."""

    plan: Plan
    same: tuple[str, ...] = ()


def list_others(plan: Plan) -> tuple[str, ...]:
    """Return the other strategies among which a plan was chosen. Raises InputError if there was none."""
    others = tuple(name for name in plan.goal.strategies if name != plan.strategy)
    if not others:
        raise InputError(
            f"{plan.strategy} was the only strategy requested, so there was no choice",
            field="regret",
            accepted="a plan chosen among several strategies",
        )
    return others


def find_rivals(plan: Plan) -> list[RivalPlan]:
    """Return ``plan`` and the best plan of each other strategy that was compared when it was chosen.

    Of plans with equal schedules, only the first is returned. Raises InputError if there was no other strategy.
    """
    goal, others = plan.goal, list_others(plan)
    compared = ckptplan.compare(
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
    first, *rest = drop_same_schedules(
        [plan, *(other for other in compared.values() if isinstance(other, Plan))]
    )
    return [RivalPlan(plan=plan, same=first.same), *rest]


def drop_same_schedules(plans: Sequence[Plan]) -> list[RivalPlan]:
    """Return plans with distinct schedules, each with the strategies of the plans that it stands for."""
    groups = group_same_schedules(plans)
    return [RivalPlan(plan=first, same=tuple(one.strategy for one in same)) for first, *same in groups]


def compute_regret(
    chosen: Sample, rivals: Sequence[RivalPlan], times: Sequence[Sample], *, tolerance: float
) -> Regret:
    """Return the regret of the first rival, which is the chosen plan, with the times ``chosen``.

    ``tolerance`` is the share by which each time may be off.
    """
    return Regret(
        chosen=rivals[0].plan.strategy,
        contenders=tuple(
            Contender(
                strategy=one.plan.strategy,
                parameters=dict(one.plan.parameters),
                predicted_seconds=one.plan.predicted.seconds,
                seconds=seconds,
                tolerance=tolerance,
                same=one.same,
            )
            for one, seconds in zip(rivals, (chosen, *times), strict=True)
        ),
    )
