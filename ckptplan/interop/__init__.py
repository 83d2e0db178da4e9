"""Translates plans for other packages; the extra ``interop`` is needed, and imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptplan.errors import MissingExtra

if TYPE_CHECKING:
    from checkpoint_schedules import CheckpointSchedule

    from ckptplan.model.plan import Plan


def to_checkpoint_schedule(plan: Plan) -> CheckpointSchedule:
    """Return a plan as a schedule of the package ``checkpoint_schedules`` (docs/schedule-format.md).

    Adjoint codes that execute schedules of that package can then execute plans of ckptplan. Local memory
    becomes RAM, remote memory becomes DISK. Raises InputError, and MissingExtra without the package.
    """
    try:
        from ckptplan.interop.adjoint import PlannedSchedule
    except ModuleNotFoundError as error:
        if error.name != "checkpoint_schedules":
            raise
        raise MissingExtra("interop", package="checkpoint_schedules") from None
    return PlannedSchedule(plan)
