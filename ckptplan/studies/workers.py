"""One function over many indices on several processes, results in order.

Workers are started afresh ('spawn'), so that they work alike on every system. They end by themselves when
whoever started them is gone, however it went.
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
#: Returns the results for the indices from one up to before another; takes what all calls share.
Task: TypeAlias = Callable[[Any, int, int], list[Result]]

#: Work shorter than this does not pay for starting processes.
_ALONE_SECONDS = 0.25
#: A worker takes about so much at a time: what an interruption loses at most.
_CHUNK_SECONDS = 0.1
_MOST_AT_ONCE = 512


def count_cores() -> int:
    """Return how many processes can run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_order(
    task: Task[Result], shared: Any, *, start: int, stop: int, jobs: int
) -> Iterator[list[Result]]:
    """Yield the results for ``start`` up to ``stop``, some at a time and in order.

    ``task`` is a function of a module, and ``shared`` can be pickled. The first quarter of a second of
    work, and all of it with one job, is done here. Raises what ``task`` raises, and CkptplanError where a
    worker dies.
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
    """Yield results of a pool; ``each`` is about what an index takes, in seconds."""
    waiting: deque[Future[tuple[list[Result], float]]] = deque()
    with _pool(task, shared, jobs) as pool:
        while start < stop or waiting:
            while start < stop and len(waiting) < 3 * jobs:
                end = min(stop, start + max(1, min(_MOST_AT_ONCE, int(_CHUNK_SECONDS / max(each, 1e-9)))))
                with _hold_interrupts():
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
    """Start workers that are gone at the end, whatever they are at."""
    context = get_context("spawn")
    watched, held = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(task, shared, watched))
    try:
        yield pool
        pool.shutdown()
    finally:
        held.close()
        pool.shutdown(cancel_futures=True)
        watched.close()


@contextmanager
def _hold_interrupts() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach: it is for whoever started them to tell."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


#: In a worker: the task, and what its calls share.
_job: list[Any] = []


def _begin(task: Task[Any], shared: Any, watched: Connection) -> None:
    _job[:] = [task, shared]
    # What is loaded by now stays: collecting garbage need not look at it time and again.
    gc.freeze()
    threading.Thread(target=_end_with, args=(watched,), daemon=True).start()


def _end_with(watched: Connection) -> None:
    """End when the other end is closed, or gone with its process."""
    watched.poll(None)
    os._exit(0)


def _work(start: int, stop: int) -> tuple[list[Any], float]:
    task, shared = _job
    began = time.perf_counter()
    results = task(shared, start, stop)
    return results, time.perf_counter() - began
