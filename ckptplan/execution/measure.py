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

#: The least bytes of a Python object. A smaller tape was not seen.
_LEAST_OBJECT = 16
#: The number of rounds. Times are medians of rounds. Runs that count tape bytes come first and warm up.
_ROUNDS = 5
#: The number of runs that count the bytes of the tape.
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
    """Measure the functions of ``execute`` on the first steps, and return a workload with sizes and times.

    The steps run forward 13 times (five times by ``advance``) and backward eight times. If ``tape_bytes`` is
    given, they run three times fewer each way. The working state is restored afterwards. Reset everything else
    that ``backward`` changes, such as gradients, yourself.

    Arguments:
        advance: as for ``execute``.
        record: as for ``execute``.
        backward: as for ``execute``; it frees the tapes.
        state: as for ``execute``.
        steps: T of the workload.
        sample: the number of steps that run, at most T.
        state_bytes: the bytes of a state; by default counted in arrays (objects with ``nbytes``), also in
            lists, tuples and dictionaries of arrays.
        tape_bytes: the bytes of the tape of a step; by default the bytes that ``record`` allocates in Python
            and NumPy and keeps.
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

    runs = [partial(time, run, begins=run is not backward) for run in (advance, record, backward)]
    try:
        tape = _count_tape(record, backward, put, first, count) if tape_bytes is None else tape_bytes
        rounds = list(measure_rounds(runs, rounds=_ROUNDS))
    finally:
        put(first)
    forward, record_time, backward_time = (
        max(median(report.seconds for report in reports), 1e-9) for reports in zip(*rounds, strict=True)
    )
    timed = _describe(None, f"median of {_ROUNDS} runs of the first {count} steps")
    step_times = ("forward_seconds", "backward_seconds", "recompute_seconds", "record_overhead_seconds")
    basis = {
        "state_bytes": _describe(state_bytes, "bytes of the first state"),
        "tape_bytes": _describe(tape_bytes, f"what record keeps, a step of the first {count}"),
        **dict.fromkeys(step_times, timed),
    }
    return Workload(
        name=name,
        steps=steps,
        state_bytes=kept,
        tape_bytes=tape,
        forward_seconds=forward,
        backward_seconds=backward_time,
        recompute_seconds=forward,
        record_overhead_seconds=max(0.0, record_time - forward),
        basis=basis,
    )


def _count_tape(record: Run, backward: Run, put: Callable[[Any], object], first: object, count: int) -> int:
    """Return the bytes of the tape of a step. Raises InputError if record allocates nothing that is traced."""
    tape_sizes = []
    tracks = tracemalloc.is_tracing()
    if not tracks:
        tracemalloc.start()
    try:
        # Take the median, since other threads and callbacks of the collector allocate and free at any time.
        for _ in range(_TAPES):
            put(deepcopy(first))
            earlier, before = _collect_and_read(), _collect_and_read()
            record(0, count)
            after = _collect_and_read()
            backward(0, count)
            # Subtract the bytes that a collection itself leaves, as by callbacks of other libraries.
            tape_sizes.append(after - before - max(0, before - earlier))
    finally:
        if not tracks:
            tracemalloc.stop()
    tape = -(-int(median(tape_sizes)) // count)
    if tape < _LEAST_OBJECT:
        raise InputError(
            "cannot be seen: record keeps nothing that Python or NumPy allocates",
            field="tape_bytes",
            accepted="the bytes of the tape of a step",
        )
    return tape


def _collect_and_read() -> int:
    """Collect garbage, and return the bytes that Python and NumPy hold."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _describe(given: int | None, measured: str) -> Basis:
    """Return the basis of a number: ``measured`` says how it was measured, unless the caller gave it."""
    return Basis(kind="measured", why=measured) if given is None else Basis(kind="assumed", why="as given")


def _count_bytes(value: object) -> int:
    if isinstance(value, Mapping):
        return sum(map(_count_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_count_bytes, value))
    return int(getattr(value, "nbytes", 0))
