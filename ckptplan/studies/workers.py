"""Maps a function over many indices in several processes, with results in order.

Workers are started with 'spawn', so that they behave the same on every system. They exit when the parent
process ends, for whatever reason.
"""

from __future__ import annotations

import gc
import os
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
#: Takes the data that all calls share, ``start`` and ``stop``; returns the results for start..stop-1.
Task: TypeAlias = Callable[[Any, int, int], list[Result]]

#: Seconds of work in this process before others are started, which does not pay for less.
_ALONE_SECONDS = 0.25
#: Seconds of work for a worker at a time, which is the most that an interruption loses.
_CHUNK_SECONDS = 0.1
_MOST_AT_ONCE = 512


def count_cores() -> int:
    """Return the number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_order(
    task: Task[Result], shared: Any, *, start: int, stop: int, jobs: int
) -> Iterator[list[Result]]:
    """Yield lists of results for start..stop-1, in order.

    ``task`` must be a module-level function, and ``shared`` must be picklable. This process does the first
    quarter of a second of work and, with one job, all of it. Raises what ``task`` raises, and CkptplanError if
    a worker dies.
    """
    began = time.perf_counter()
    done = start
    while done < stop and (jobs < 2 or time.perf_counter() - began < _ALONE_SECONDS):
        yield task(shared, done, done + 1)
        done += 1
    if done < stop:
        each = (time.perf_counter() - began) / max(1, done - start)
        yield from _spread(task, shared, done, stop, jobs=jobs, each=each)


def _spread(
    task: Task[Result], shared: Any, start: int, stop: int, *, jobs: int, each: float
) -> Iterator[list[Result]]:
    """Yield results of a pool; ``each`` is an estimate of the seconds per index."""
    waiting: deque[Future[tuple[list[Result], float]]] = deque()
    with _pool(task, shared, jobs) as pool:
        while start < stop or waiting:
            while start < stop and len(waiting) < 3 * jobs:
                end = min(stop, start + max(1, min(_MOST_AT_ONCE, int(_CHUNK_SECONDS / max(each, 1e-9)))))
                with _hold_interrupts(), _safe_path():
                    waiting.append(pool.submit(_work, start, end))
                start = end
            try:
                results, seconds = waiting.popleft().result()
            except BrokenProcessPool:
                raise CkptplanError("a worker process ended unexpectedly (out of memory?)") from None
            each = seconds / max(1, len(results))
            yield results


@contextmanager
def _pool(task: Task[Result], shared: Any, jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Start workers, and end them on exit whatever they are doing."""
    context = get_context("spawn")
    watched, held = context.Pipe(duplex=False)
    # Arguments are unpickled in order: a worker watches its parent before it imports what the others need.
    with _safe_path():
        # Its queues start a process of their own, which keeps track of semaphores.
        pool = ProcessPoolExecutor(
            jobs, mp_context=context, initializer=_begin, initargs=(_Watch(watched), task, shared)
        )
    try:
        yield pool
        pool.shutdown()
    finally:
        held.close()
        pool.shutdown(cancel_futures=True)
        watched.close()


@contextmanager
def _safe_path() -> Iterator[None]:
    """Start processes without the current folder on their path, where `python -c` has it first.

    The parent's path follows. Other programs that this process starts are not affected.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = before or "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


@contextmanager
def _hold_interrupts() -> Iterator[None]:
    """Block signals that end the program while processes start.

    A worker whose parent left it before it got its task would print a traceback. Workers inherit the mask;
    Ctrl-C, which a terminal sends to all of them, is for the parent alone.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *_list_requests()})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _list_requests() -> set[signal.Signals]:
    """Return the signals that request one process to end."""
    return {signal.SIGTERM, signal.SIGHUP} if hasattr(signal, "SIGHUP") else {signal.SIGTERM}


#: In a worker: the task, the data that its calls share, and what watches the parent.
_job: list[Any] = []


class _Watch:
    """The worker's end of a pipe to its parent. To unpickle it starts the thread that watches the pipe."""

    def __init__(self, watched: Connection) -> None:
        self.watched = watched

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        threading.Thread(target=self._end_with_parent, daemon=True).start()

    def _end_with_parent(self) -> None:
        """Exit when the other end of the pipe is closed, or its process ends."""
        self.watched.poll(None)
        os._exit(0)


def _begin(watch: _Watch, task: Task[Any], shared: Any) -> None:
    _job[:] = [task, shared, watch]
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _list_requests())
    # Exclude the objects loaded so far from garbage collection.
    gc.freeze()


def _work(start: int, stop: int) -> tuple[list[Any], float]:
    task, shared, _ = _job
    began = time.perf_counter()
    results = task(shared, start, stop)
    return results, time.perf_counter() - began
