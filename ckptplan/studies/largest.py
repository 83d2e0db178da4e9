"""Implements ``largest``: finds the longest sequence, or the largest batch or network, that fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ckptplan.errors import InputError, did_you_mean
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.progress import Progress, StagedProgress
from ckptplan.model.workload import Workload
from ckptplan.planning.request import Request
from ckptplan.strategies.registry import strategy_of
from ckptplan.studies.reach import (
    QUANTITIES,
    ClosedFormReachSearch,
    Reach,
    ReachSearch,
    SolvedReachSearch,
    make_empty_reach,
)


def largest(
    quantity: str,
    workload: Workload,
    profile: HardwareProfile,
    *,
    strategies: Iterable[str] | str | None = None,
    max_overhead: float | str | None = None,
    local_bytes: int | str | None = None,
    headroom: float | str | None = None,
    remote_bytes: int | str | None = None,
    effort: str = "quick",
    progress: Progress | None = None,
    command: str = "ckptplan.largest",
) -> dict[str, Reach]:
    """Return the largest ``quantity`` that fits for each strategy, with the plan for it, largest first.

    Arguments:
        quantity: 'T' (time steps), 'batch' or 'neurons'. The last two need a workload with a ``network``; its
            times stay the same.
        workload: the training job.
        profile: the hardware.
        strategies: names or groups; None means 'closed', for which the value is proved to be the largest
            (docs/trade-offs.md).
        max_overhead: limit on the time over base's, as 0.1 or '10%'; without it, plans may be very slow.
        local_bytes: replaces the profile's local memory of one unit.
        headroom: share of local memory to leave free, as 0.1 or '10%'; replaces the profile's. A budget that
            ``local_bytes`` names has none unless it is given here.
        remote_bytes: replaces the profile's remote memory in total.
        effort: 'quick' or 'thorough', as in ``optimize``.
        progress: called with the work done and the total work.
        command: recorded in the provenance of the plans.

    Raises InputError.
    """
    if quantity not in QUANTITIES:
        raise InputError(
            f"{quantity!r} is not a quantity.{did_you_mean(quantity, QUANTITIES)}",
            field="quantity",
            value=quantity,
            accepted=", ".join(QUANTITIES),
        )
    request = Request.of(
        workload,
        profile,
        command=command,
        unless_named="closed",
        strategies=strategies,
        local_bytes=local_bytes,
        headroom=headroom,
        remote_bytes=remote_bytes,
        max_overhead=max_overhead,
        effort=effort,
    )
    names = request.goal.strategies
    stages = StagedProgress(progress, stages=len(names))
    watched = dataclasses.replace(request, progress=None if progress is None else stages.report_solve)
    reaches: list[Reach] = []
    searches: list[ReachSearch] = []
    try:
        for place, name in enumerate(names):
            stages.begin(place, name)
            strategy = strategy_of(name)
            kind = ClosedFormReachSearch if strategy.is_closed_form else SolvedReachSearch
            searches.append(kind(quantity=quantity, strategy=strategy, request=watched, progress=stages))
            reaches.append(searches[-1].reach())
    except KeyboardInterrupt:
        reaches += [search.so_far() for search in searches[len(reaches) :]]
        reaches += [make_empty_reach(name) for name in names[len(reaches) :]]
        if all(reach.plan is None for reach in reaches):
            raise
    stages.end()
    return {reach.strategy: reach for reach in sorted(reaches, key=lambda reach: -reach.value)}
