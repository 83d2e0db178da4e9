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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tests.fuzz import arguments
from tests.fuzz.case import Case, Verdict
from tests.fuzz.execute import execute, prepare
from tests.fuzz.judge import judge, signature
from tests.fuzz.makers import make_file_case
from tests.fuzz.shrink import shrink

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
#: Classes of failures whose first case is reduced, the most frequent ones.
_REDUCED = 12


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A class of failing cases: how many there were, the first of them, and a shorter one like it."""

    verdict: Verdict
    count: int
    first: Case
    shortest: Case


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


def run_cases(seed: int, first: int, stop: int, *, jobs: int, seconds: float | None) -> Iterator[list[Verdict]]:
    """Yield verdicts on cases first to stop - 1 in order, a chunk at a time; fewer if the time ends before."""
    deadline = None if seconds is None else time.monotonic() + seconds
    with _pool(jobs) as pool:
        waiting: list[Future[list[Verdict]]] = []
        places = iter(range(first, stop, _CHUNK))
        for place in places:
            waiting.append(pool.submit(_try_several, seed, place, min(stop, place + _CHUNK)))
            if len(waiting) > 2 * jobs:
                yield waiting.pop(0).result()
            if deadline is not None and time.monotonic() > deadline:
                break
        for one in waiting:
            yield one.result()


def reduce_failures(verdicts: list[Verdict], *, jobs: int) -> list[Failure]:
    """Return a failure for each class of failing verdicts, the most frequent first, each with a short case."""
    classes: dict[tuple[str, ...], list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.problems:
            classes.setdefault(signature(verdict), []).append(verdict)
    several = sorted(classes.values(), key=len, reverse=True)
    firsts = [make_case(found[0].name) for found in several]
    with _pool(jobs) as pool:
        shortest = list(pool.map(_reduce, [found[0] for found in several[:_REDUCED]]))
    return [
        Failure(verdict=found[0], count=len(found), first=first, shortest=short)
        for found, first, short in zip(several, firsts, [*shortest, *firsts[_REDUCED:]], strict=True)
    ]


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=prepare)


def _try_several(seed: int, start: int, stop: int) -> list[Verdict]:
    return [try_case(make_case(f"{seed}:{index}")) for index in range(start, stop)]


def _reduce(verdict: Verdict) -> Case:
    case = make_case(verdict.name)
    if verdict.problems[0][0] == "too slow":
        return case
    return shrink(case, partial(_fails_alike, reason=signature(verdict)))


def _fails_alike(case: Case, *, reason: tuple[str, ...]) -> bool:
    return signature(try_case(case)) == reason
