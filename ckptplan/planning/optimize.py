"""The use cases ``optimize`` and ``compare``: one plan, and all strategies side by side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from ckptplan.errors import Infeasible
from ckptplan.model.plan import Plan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.progress import Progress
from ckptplan.model.workload import Workload
from ckptplan.planning.ranking import rank_strategies
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
    remote_bytes: int | str | None = None,
    effort: str = "quick",
    progress: Progress | None = None,
    command: str = "ckptplan.optimize",
) -> Plan:
    """Return the best plan for ``workload`` on ``profile``.

    ``strategies`` are names or groups ('all', 'paper', 'regular', 'closed'), None for all. ``objective``
    is 'time', 'memory' or 'balanced' (the knee of the front within the budget). ``model`` is 'exact', or
    'paper' for the printed equations. ``local_bytes`` (one unit) and ``remote_bytes`` (in all) replace the
    profile's; ``max_overhead`` bounds the time over base's, as 0.1 or '10%'. ``effort`` is 'quick' or
    'thorough': how much work the search for optimal schedules may be (docs/optimality.md); ``progress`` is
    told the work done and the work in all. ``command`` is noted in the plan's provenance.

    A calibrated workload has times known within an uncertainty. Where least time is asked for, and the model
    is 'exact', the quickest regular plan that it cannot tell from the quickest is then returned instead, and
    its ``estimate_basis`` says so (docs/search.md).

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
) -> dict[str, Plan | Infeasible]:
    """Return the best plan of each strategy, or why it has none; the best first.

    Keyword arguments are those of ``optimize``. With the objective 'balanced', each strategy is judged
    by the knee of all. The order is that of the predictions, whatever a calibration says of their
    uncertainty. Raises InputError.
    """
    request = Request.of(workload, profile, command=command, progress=progress, **wishes)
    return rank_strategies(request).by_strategy()
