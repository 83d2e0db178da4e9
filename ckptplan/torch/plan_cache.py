"""Keeps the plans of ``memory=`` in files, so that another process need not search for them.

A file is named by its problem: sizes, steps, limit, rounded times, and the version of ckptplan. It is a plan as
``ckptplan.save_plan`` writes it. Of what it says, only the strategy and its parameters are taken: whether they
keep the limit, and what they cost, is computed anew from what this process has measured.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from pathlib import Path

from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.model.workload import Workload
from ckptplan.planning.ranking import rank_strategies
from ckptplan.planning.request import Request
from ckptplan.search.answer import ClosedFormAnswer
from ckptplan.storage.cache import find_cache
from ckptplan.storage.plans import load_plan, save_plan
from ckptplan.strategies.closed_form import ClosedForm
from ckptplan.strategies.registry import strategy_of
from ckptplan.version import __version__

#: Files that are kept, and the bytes of the largest that is read.
_MOST_FILES, _MOST_BYTES = 512, 2**18
#: Times are measured anew by each process: those within the same step of so much are taken for equal.
_STEP = math.sqrt(2)
#: What the bytes of a plan depend on.
_SIZES = ("state_bytes", "tape_bytes", "resident_bytes_per_step", "resident_bytes", "workspace_bytes")
_log = logging.getLogger("ckptplan.torch")


def search_plan(request: Request) -> Plan:
    """Return the best plan for a request of closed forms, from a file if one fits. Raises Infeasible."""
    folder = find_cache("plans")
    path = None if folder is None else folder / f"{_name_problem(request)}.json"
    plan = None if path is None else _read(path, request)
    if plan is None:
        plan = rank_strategies(request).best()
        if path is not None:
            _write(path, plan)
    return plan


def _name_problem(request: Request) -> str:
    workload = request.case.workload
    problem = {
        "version": __version__,
        "steps": workload.steps,
        "sizes": [getattr(workload, name) for name in _SIZES],
        "limit": request.goal.local_bytes,
        "strategies": request.goal.strategies,
        "times": _round_times(workload),
    }
    return hashlib.sha256(json.dumps(problem, sort_keys=True).encode()).hexdigest()[:32]


def _round_times(workload: Workload) -> list[int | None]:
    """Return the times as shares of the forward time, in logarithmic steps; a small one counts as none."""
    forward = workload.forward_seconds
    times = (workload.backward_seconds, workload.record_overhead_seconds)
    return [round(math.log(one / forward, _STEP)) if one > forward / 16 > 0 else None for one in times]


def _read(path: Path, request: Request) -> Plan | None:
    """Return the plan of a file for this request; None if there is none, or one that does not fit."""
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        found = load_plan(path)
    except (InputError, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        _log.debug("the file %s holds no plan, and is replaced: %s", path, error)
        return None
    asked, workload = request.case.workload, found.workload
    same = found.steps == asked.steps and found.goal.local_bytes == request.goal.local_bytes
    strategy = strategy_of(found.strategy)
    if not (same and all(getattr(asked, name) == getattr(workload, name) for name in _SIZES)):
        return None
    if not isinstance(strategy, ClosedForm) or strategy.name not in request.goal.strategies:
        return None
    answer = ClosedFormAnswer(
        strategy=strategy, parameters=found.parameters, key=(), steps=asked.steps, gap=0.0
    )
    plan = request.plan(answer)
    limit = request.goal.local_bytes
    fits = limit is None or plan.predicted.local_peak_bytes <= limit
    return plan if fits and plan.predicted.remote_peak_bytes == 0 else None


def _write(path: Path, plan: Plan) -> None:
    """Write a plan, if the folder can be written to, and delete the oldest files if there are many."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_plan(plan, path)
        files = sorted(path.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)
        for old in files[: max(0, len(files) - _MOST_FILES)]:
            old.unlink(missing_ok=True)
    except (InputError, OSError) as error:
        _log.debug("the plan is not kept in a file: %s", error)
