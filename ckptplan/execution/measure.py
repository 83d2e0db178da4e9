"""Measures sizes and times of steps that ``execute`` calls, on the first steps of a sequence."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

from ckptplan.errors import InputError, quote_value
from ckptplan.execution.backend import Report, measure_rounds
from ckptplan.execution.execute import Run, State, check_functions, check_state
from ckptplan.model.workload import Basis, Workload
from ckptplan.schedule.schedule import check_count

#: No object of Python is smaller.
_LEAST_OBJECT = 16
#: Rounds, of which times are the medians. The run that sees the tape, if there is one, warms up.
_ROUNDS = 5
#: How many times the tape is watched.
_TAPES = 3


def measure(
    advance: Run,
    record: Run,
    backward: Run,
    *,
    state: State,
    steps: int,
    sample: int = 8,
    state_bytes: int | None = None,
    tape_bytes: int | None = None,
    name: str = "measured",
) -> Workload:
    """Return a workload with the sizes and times of the functions of ``execute``, measured on the first steps.

    The steps run 13 times forward, five of them by ``advance``, and eight times backward; with ``tape_bytes``
    three times less each. The working state is put back afterwards. What ``backward`` changes besides, as the
    gradient, is the caller's to reset.

    Arguments:
        advance: as for ``execute``.
        record: as for ``execute``.
        backward: as for ``execute``; it frees the tapes.
        state: as for ``execute``.
        steps: T of the workload.
        sample: how many steps run, at most T.
        state_bytes: the bytes of a state; by default counted in arrays (what has ``nbytes``), also in lists,
            tuples and dictionaries of these.
        tape_bytes: the bytes of the tape of a step; by default what ``record`` allocates in Python and NumPy
            and keeps.
        name: the name of the workload.

    Raises InputError for arguments that are not accepted, and if sizes cannot be found and are not given.
    """
    check_functions(advance=advance, record=record, backward=backward)
    get, put = check_state(state)
    check_count("steps", steps)
    check_count("sample", sample)
    count = min(sample, steps)
    first = deepcopy(get())
    kept = _count_bytes(first) if state_bytes is None else state_bytes
    if not kept:
        raise InputError(
            f"cannot be counted: {quote_value(type(first).__name__)} has no nbytes",
            field="state_bytes",
            accepted="the bytes of a state",
        )

    def time(run: Run, *, begins: bool) -> Report:
        if begins:
            put(deepcopy(first))
        began = perf_counter()
        run(0, count)
        return Report(seconds=(perf_counter() - began) / count)

    runs = [
        partial(time, advance, begins=True),
        partial(time, record, begins=True),
        partial(time, backward, begins=False),
    ]
    try:
        tape = _watch_tape(record, backward, put, first, count) if tape_bytes is None else tape_bytes
        rounds = list(measure_rounds(runs, rounds=_ROUNDS))
    finally:
        put(first)
    forward, recorded, reversal = (
        max(median(report.seconds for report in reports), 1e-9) for reports in zip(*rounds, strict=True)
    )
    timed = _describe(None, f"median of {_ROUNDS} runs of the first {count} steps")
    times_of_steps = ("forward_seconds", "backward_seconds", "recompute_seconds", "record_overhead_seconds")
    basis = {
        "state_bytes": _describe(state_bytes, "bytes of the first state"),
        "tape_bytes": _describe(tape_bytes, f"what record keeps, a step of the first {count}"),
        **dict.fromkeys(times_of_steps, timed),
    }
    return Workload(
        name=name,
        steps=steps,
        state_bytes=kept,
        tape_bytes=tape,
        forward_seconds=forward,
        backward_seconds=reversal,
        recompute_seconds=forward,
        record_overhead_seconds=max(0.0, recorded - forward),
        basis=basis,
    )


def _watch_tape(record: Run, backward: Run, put: Callable[[Any], object], first: object, count: int) -> int:
    """Return the bytes that a recorded step keeps. Raises InputError if nothing is seen."""
    seen = []
    tracks = tracemalloc.is_tracing()
    if not tracks:
        tracemalloc.start()
    try:
        # Threads beside, and callbacks of the collector, allocate and free when they like: the median of three.
        for _ in range(_TAPES):
            put(deepcopy(first))
            begun, before = _collect_and_read(), _collect_and_read()
            record(0, count)
            after = _collect_and_read()
            backward(0, count)
            # What a collection itself leaves, as by callbacks of other libraries, is no tape.
            seen.append(after - before - max(0, before - begun))
    finally:
        if not tracks:
            tracemalloc.stop()
    tape = -(-int(median(seen)) // count)
    if tape < _LEAST_OBJECT:
        raise InputError(
            "cannot be seen: record keeps nothing that Python or NumPy allocates",
            field="tape_bytes",
            accepted="the bytes of the tape of a step",
        )
    return tape


def _collect_and_read() -> int:
    """Return the bytes that Python and NumPy hold without garbage."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _describe(given: int | None, measured: str) -> Basis:
    """Return where a number comes from."""
    return Basis(kind="measured", why=measured) if given is None else Basis(kind="assumed", why="as given")


def _count_bytes(value: object) -> int:
    if isinstance(value, Mapping):
        return sum(map(_count_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_count_bytes, value))
    return int(getattr(value, "nbytes", 0))
