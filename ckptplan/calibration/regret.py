"""Decision regret: the time of the chosen plan over the best that could have been chosen, both measured."""

from __future__ import annotations

import ckptplan
from ckptplan.calibration.samples import Sample
from ckptplan.calibration.validation import Contender, Regret
from ckptplan.errors import InputError
from ckptplan.model.plan import Plan


def contenders(plan: Plan) -> list[Plan]:
    """Return the best plan of each other strategy that was compared when ``plan`` was chosen.

    Raises InputError where none was: there was no decision to regret.
    """
    goal = plan.goal
    others = tuple(name for name in goal.strategies if name != plan.strategy)
    if not others:
        raise InputError(
            f"{plan.strategy} was the only strategy asked for, so that nothing was decided",
            field="--regret",
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
    return [one for one in found.values() if isinstance(one, Plan)]


def measured_regret(plan: Plan, chosen: Sample, rivals: list[Plan], times: list[list[float]]) -> Regret:
    """Return the regret of ``plan``, whose time is ``chosen``."""
    return Regret(
        chosen=plan.strategy,
        contenders=(
            _contender(plan, chosen),
            *(_contender(one, Sample(values=tuple(found))) for one, found in zip(rivals, times, strict=True)),
        ),
    )


def _contender(plan: Plan, seconds: Sample) -> Contender:
    return Contender(
        strategy=plan.strategy,
        parameters=dict(plan.parameters),
        predicted_seconds=plan.predicted.seconds,
        seconds=seconds,
    )
