"""Translates plans for other packages, and networks of other packages into workloads.

The extras ``interop`` and ``nir`` are needed, and imported on first use.
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
    """Return a plan as a schedule of the package ``checkpoint_schedules`` (docs/schedule-format.md).

    Adjoint codes that execute schedules of that package can then execute plans of ckptplan. Local memory
    becomes RAM, remote memory becomes DISK. Before the end of the first forward sweep there are forward actions
    only: a state that is due to move to DISK is stored there at once.

    Arguments:
        plan: a plan, or a schedule, or that of ``ckptplan.online``, whose sequence ends with ``finalize(n)``
            after n steps.

    Raises InputError, and MissingExtra without the package.
    """
    try:
        from ckptplan.interop.adjoint import make_schedule
    except ModuleNotFoundError as error:
        if error.name != "checkpoint_schedules":
            raise
        raise MissingExtra("interop", package="checkpoint_schedules") from None
    return make_schedule(plan)
