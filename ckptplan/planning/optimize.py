"""Implements ``optimize``, which returns the best plan, and ``compare``, which plans every strategy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from ckptplan.model.plan import Plan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.progress import Progress
from ckptplan.model.workload import Workload
from ckptplan.planning.ranking import Compared, rank_strategies
from ckptplan.planning.request import Request, Wishes


def optimize(
    workload: Workload,
    profile: HardwareProfile,
    *,
    strategies: Iterable[str] | None = None,
    objective: str = "time",
    model: str = "exact",
    max_overhead: float | str | None = None,
    local_bytes: int | str | None = None,
    headroom: float | str | None = None,
    remote_bytes: int | str | None = None,
    effort: str = "quick",
    progress: Progress | None = None,
    command: str = "ckptplan.optimize",
) -> Plan:
    """Return the best plan for ``workload`` on ``profile``.

    Arguments:
        workload: the training job.
        profile: the hardware.
        strategies: names or groups ('all', 'paper', 'regular', 'closed'); None searches all but those that
            another strategy always equals or beats.
        objective: 'time', 'memory' or 'balanced' (the knee of the front within the budget).
        model: 'exact', or 'paper' for the printed equations.
        max_overhead: limit on the time over base's, as 0.1 or '10%'.
        local_bytes: replaces the profile's local memory of one unit, in bytes or as text.
        headroom: share of local memory to leave free, as 0.1 or '10%'; replaces the profile's. A budget that
            ``local_bytes`` names has none unless it is given here.
        remote_bytes: replaces the profile's remote memory in total, in bytes or as text.
        effort: 'quick' or 'thorough', how much work the search for optimal schedules may do
            (docs/optimality.md).
        progress: called with the work done and the total work.
        command: recorded in the plan's provenance.

    Of plans whose times cannot be told apart (0.1 %, or the uncertainty of a calibration up to 1 %), it is the
    simplest; its ``estimate_basis`` then says which one is predicted to be quicker (docs/finding-optima.md).

    Raises InputError, and Infeasible (need, have, binding limit, verified suggestions).
    """
    request = Request.of(
        workload,
        profile,
        command=command,
        progress=progress,
        strategies=strategies,
        objective=objective,
        model=model,
        max_overhead=max_overhead,
        local_bytes=local_bytes,
        headroom=headroom,
        remote_bytes=remote_bytes,
        effort=effort,
    )
    return rank_strategies(request).best()


def compare(
    workload: Workload,
    profile: HardwareProfile,
    *,
    command: str = "ckptplan.compare",
    progress: Progress | None = None,
    **wishes: Unpack[Wishes],
) -> Compared:
    """Return the best plan of each strategy, or the reason why it has none; the plan of ``optimize`` first.

    The result is a dict, which a notebook shows as a table.

    The other plans follow by prediction. Keyword arguments are those of ``optimize``. With the objective
    'balanced', the knee of all strategies together ranks each of them. Raises InputError.
    """
    request = Request.of(workload, profile, command=command, progress=progress, **wishes)
    return rank_strategies(request, every=True).by_strategy()
