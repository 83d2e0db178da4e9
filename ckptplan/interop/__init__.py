"""Plans in other packages' vocabularies. Each needs the extra ``interop``, and is imported when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptplan.errors import MissingExtra

if TYPE_CHECKING:
    from checkpoint_schedules import CheckpointSchedule

    from ckptplan.model.plan import Plan


def to_checkpoint_schedule(plan: Plan) -> CheckpointSchedule:
    """Return a plan as a schedule of the package ``checkpoint_schedules`` (docs/schedule-format.md).

    Adjoint codes that execute that package's schedules can then execute our plans: local memory is its
    RAM, remote memory its DISK. Raises MissingExtra if the package is not installed, and InputError.
    """
    try:
        from ckptplan.interop.adjoint import PlannedSchedule
    except ModuleNotFoundError as error:
        if error.name != "checkpoint_schedules":
            raise
        raise MissingExtra("interop", package="checkpoint_schedules") from None
    return PlannedSchedule(plan)
