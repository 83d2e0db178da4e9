"""The use case ``largest``: the longest sequence, the largest batch or network that fits at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ckptplan.errors import InputError, did_you_mean
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.progress import Progress
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
from ckptplan.studies.stages import StagedProgress


def largest(
    quantity: str,
    workload: Workload,
    profile: HardwareProfile,
    *,
    strategies: Iterable[str] | str | None = None,
    max_overhead: float | str | None = None,
    local_bytes: int | str | None = None,
    remote_bytes: int | str | None = None,
    effort: str = "quick",
    progress: Progress | None = None,
    command: str = "ckptplan.largest",
) -> dict[str, Reach]:
    """Return for each strategy the largest ``quantity`` that fits and the plan at that value, farthest first.

    ``quantity`` is 'T' (time steps), 'batch' or 'neurons'; the last two need a workload with a ``network``,
    and its times are carried over. ``max_overhead`` bounds the time over base's, as 0.1 or '10%': what fits at
    twenty times base's time helps few. ``strategies`` are names or groups, None for 'closed', for which
    the value is proved to be the largest (docs/trade-offs.md says how). The others are as for ``optimize``.

    Raises InputError.
    """
    if quantity not in QUANTITIES:
        raise InputError(
            f"{quantity!r} cannot be looked for.{did_you_mean(quantity, QUANTITIES)}",
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
        remote_bytes=remote_bytes,
        max_overhead=max_overhead,
        effort=effort,
    )
    names = request.goal.strategies
    stages = StagedProgress(progress, stages=len(names))
    found: list[Reach] = []
    searches: list[ReachSearch] = []
    try:
        for place, name in enumerate(names):
            stages.begin(place)
            alone = dataclasses.replace(
                request.replace(strategies=(name,)), progress=None if progress is None else stages.report_solve
            )
            kind = ClosedFormReachSearch if strategy_of(name).is_closed_form else SolvedReachSearch
            searches.append(kind(quantity=quantity, request=alone, progress=stages))
            found.append(searches[-1].reach())
    except KeyboardInterrupt:
        found += [search.so_far() for search in searches[len(found) :]]
        found += [make_empty_reach(name) for name in names[len(found) :]]
        if all(reach.plan is None for reach in found):
            raise
    stages.end()
    return {reach.strategy: reach for reach in sorted(found, key=lambda one: -one.value)}
