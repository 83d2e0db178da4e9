"""Translates plans for other packages, and networks of other packages into workloads.

The functions need the extras ``interop`` and ``nir``, which are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptplan.errors import MissingExtra
from ckptplan.interop.nir_graph import workload_from_nir as workload_from_nir

if TYPE_CHECKING:
    from checkpoint_schedules import CheckpointSchedule

    from ckptplan.execution.online import OnlineSchedule
    from ckptplan.model.plan import Plan
    from ckptplan.schedule.schedule import Schedule


def to_checkpoint_schedule(plan: Plan | Schedule | OnlineSchedule) -> CheckpointSchedule:
    """Convert a plan to a schedule of the package ``checkpoint_schedules`` (docs/schedule-format.md).

    Adjoint codes that execute schedules of that package can then execute plans of ckptplan. Local memory
    becomes RAM, remote memory becomes DISK. The first forward sweep has only forward actions: a state that the
    plan moves to DISK during the sweep is stored there at once.

    Arguments:
        plan: a plan, a schedule, or a schedule of ``ckptplan.online``, whose sequence ends when
            ``finalize(n)`` is called after n steps.

    Raises InputError, and MissingExtra without the package.
    """
    try:
        from ckptplan.interop.adjoint import make_schedule
    except ModuleNotFoundError as error:
        if error.name != "checkpoint_schedules":
            raise
        raise MissingExtra("interop", package="checkpoint_schedules") from None
    return make_schedule(plan)
