"""Makes cases from seeds, runs them in worker processes, and collects the verdicts."""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.fuzz import arguments
from tests.fuzz.case import Case, Verdict
from tests.fuzz.execute import execute, prepare
from tests.fuzz.judge import judge
from tests.fuzz.makers import make_file_case

#: Kinds of cases, and how many of a hundred there are.
KINDS = {
    "profile": 20,
    "workload": 18,
    "plan": 20,
    "schedule": 12,
    "arguments": 17,
    "sweep": 6,
    "surroundings": 5,
    "streams": 2,
}
_OTHERS = {
    "arguments": arguments.make_arguments_case,
    "sweep": arguments.make_sweep_case,
    "surroundings": arguments.make_surroundings_case,
    "streams": arguments.make_streams_case,
}
#: The share of forked cases that run as processes of their own instead.
_PROCESSES = 0.005
#: Cases that a worker runs at a time.
_CHUNK = 25


def make_case(name: str) -> Case:
    """Return the case of a SEED:INDEX; the same on every machine."""
    chance = random.Random(f"case {name}")  # noqa: S311 - no secret
    kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
    make = _OTHERS.get(kind)
    # Nested values may be nested again, deeper than libraries go by default.
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        case = make(name, chance) if make else make_file_case(name, kind, chance)
    finally:
        sys.setrecursionlimit(limit)
    return replace(case, process=case.process or chance.random() < _PROCESSES)


def try_case(case: Case) -> Verdict:
    """Run a case and judge it."""
    folder = Path(tempfile.gettempdir()) / f"ckptplan-fuzz-{os.getpid()}"
    return judge(case, execute(case, folder))


def run_cases(seed: int, stop: int, *, jobs: int, seconds: float | None) -> Iterator[list[Verdict]]:
    """Yield verdicts on cases 0 to stop - 1 in order, a chunk at a time; fewer if the time ends before."""
    deadline = None if seconds is None else time.monotonic() + seconds
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=prepare) as pool:
        waiting: list[Future[list[Verdict]]] = []
        for place in range(0, stop, _CHUNK):
            waiting.append(pool.submit(_try_several, seed, place, min(stop, place + _CHUNK)))
            if len(waiting) > 2 * jobs:
                yield waiting.pop(0).result()
            if deadline is not None and time.monotonic() > deadline:
                break
        for one in waiting:
            yield one.result()


def _try_several(seed: int, start: int, stop: int) -> list[Verdict]:
    return [try_case(make_case(f"{seed}:{index}")) for index in range(start, stop)]
