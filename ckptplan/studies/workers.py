"""Maps a function over many indices in several processes, with results in order.

Workers are started with 'spawn', so that they behave the same on every system. They exit when the parent
process ends, for whatever reason.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeAlias, TypeVar

from ckptplan.errors import CkptplanError

Result = TypeVar("Result")
#: Takes ``start`` and ``stop``; returns the results for start..stop-1.
Task: TypeAlias = Callable[[int, int], list[Result]]

#: Seconds of work in this process before others are started, which does not pay for less.
_ALONE_SECONDS = 0.25
#: Seconds of work for a worker at a time, which is the most that an interruption loses.
_CHUNK_SECONDS = 0.1
_MOST_AT_ONCE = 512
#: The signals that request one process to end, and whether this system can block them.
_REQUESTS = {getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)}
_HAS_MASKS = hasattr(signal, "pthread_sigmask")


def count_cores() -> int:
    """Return the number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_order(task: Task[Result], *, start: int, stop: int, jobs: int) -> Iterator[list[Result]]:
    """Yield lists of results for start..stop-1, in order.

    ``task`` must be picklable. This process does the first quarter of a second of work and, with one job, all
    of it. Raises what ``task`` raises, and CkptplanError if a worker dies.
    """
    began = time.perf_counter()
    done = start
    while done < stop and (jobs < 2 or time.perf_counter() - began < _ALONE_SECONDS):
        yield task(done, done + 1)
        done += 1
    if done < stop:
        each = (time.perf_counter() - began) / max(1, done - start)
        yield from _spread(task, done, stop, jobs=jobs, each=each)


def _spread(task: Task[Result], start: int, stop: int, *, jobs: int, each: float) -> Iterator[list[Result]]:
    """Yield results of a pool; ``each`` is an estimate of the seconds per index."""
    waiting: deque[Future[tuple[list[Result], float]]] = deque()
    with _pool(task, jobs) as pool:
        while start < stop or waiting:
            while start < stop and len(waiting) < 3 * jobs:
                end = min(stop, start + max(1, min(_MOST_AT_ONCE, int(_CHUNK_SECONDS / max(each, 1e-9)))))
                with _start_safely():
                    waiting.append(pool.submit(_work, start, end))
                start = end
            try:
                results, seconds = waiting.popleft().result()
            except BrokenProcessPool:
                raise CkptplanError("a worker process ended unexpectedly (out of memory?)") from None
            each = seconds / max(1, len(results))
            yield results


@contextmanager
def _pool(task: Task[Result], jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Start workers, and end them on exit whatever they are doing."""
    context = get_context("spawn")
    watched, held = context.Pipe(duplex=False)
    with _start_safely():
        # Its queues start a process of their own, which keeps track of semaphores.
        pool = ProcessPoolExecutor(
            jobs,
            mp_context=context,
            initializer=_begin,
            # As bytes: a worker watches its parent before it imports what the task needs.
            initargs=(watched, pickle.dumps(task)),
        )
    try:
        yield pool
        pool.shutdown()
    finally:
        held.close()
        pool.shutdown(cancel_futures=True)
        watched.close()


@contextmanager
def _start_safely() -> Iterator[None]:
    """Start processes without the current folder on their path, with signals that end the program blocked.

    `python -c` has the folder first; the parent's path follows. A worker whose parent left it before it got its
    task would print a traceback. Workers inherit the mask; Ctrl-C, which a terminal sends to all of them, is
    for the parent alone. Other programs that this process starts are not affected.
    """
    folder = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = folder or "1"
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *_REQUESTS}) if _HAS_MASKS else None
    try:
        yield
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if folder is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = folder


#: In a worker: its task.
_tasks: list[Task[Any]] = []


def _begin(watched: Connection, task: bytes) -> None:
    threading.Thread(target=_end_with_parent, args=(watched,), daemon=True).start()
    _tasks.append(pickle.loads(task))  # noqa: S301 - the parent's
    if _HAS_MASKS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _REQUESTS)
    # Exclude the objects loaded so far from garbage collection.
    gc.freeze()


def _end_with_parent(watched: Connection) -> None:
    """Exit when the other end of a pipe is closed, or its process ends."""
    watched.poll(None)
    os._exit(0)


def _work(start: int, stop: int) -> tuple[list[Any], float]:
    began = time.perf_counter()
    results = _tasks[0](start, stop)
    return results, time.perf_counter() - began
