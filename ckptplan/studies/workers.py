"""Maps a function over items on any executor, with results in order. Has an executor for this machine, too.

The executor may be any of ``concurrent.futures``, Dask's, mpi4py's or loky's. The function and the items are
pickled: a function at the top level of a module, and items of plain data.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import platform
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from ckptplan.errors import CkptplanError, InputError, MissingExtra
from ckptplan.version import __version__

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Items in flight for each worker, so that none waits for the next.
_AHEAD = 3
#: How often an item is tried if its worker ends.
_TRIES = 3
#: Seconds between two checks whether a scheduler still answers.
_LOOK_SECONDS = 10.0
#: Seconds to wait for a scheduler without a worker. Clusters that start machines on demand take that long.
_ALONE_SECONDS = 300.0
_log = logging.getLogger("ckptplan.studies")
#: The signals that ask one process to end, and whether this system can block signals.
_REQUESTS = {getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)}
_HAS_MASKS = hasattr(signal, "pthread_sigmask")


def count_cores() -> int:
    """Return the number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def connect_to_dask(address: str) -> Iterator[Executor]:
    """Connect to the scheduler at HOST:PORT. Raises InputError if none answers, and MissingExtra."""
    try:
        from distributed import Client

        client = Client(f"tcp://{address}")
    except ImportError:
        raise MissingExtra("dask", package="distributed") from None
    except OSError:
        accepted = "the address that `dask scheduler` prints"
        problem = "no scheduler of Dask answers"
        raise InputError(problem, field="engine", value=address, accepted=accepted) from None
    with client:
        yield client.get_executor()


def count_workers(executor: Executor) -> int:
    """Return how many tasks an executor runs at once. Each library stores this number under another name.

    If an executor does not give the number, it counts as the number of cores of this machine. Raises
    CkptplanError if the scheduler of a cluster no longer answers.
    """
    client: Any = getattr(executor, "_client", None)
    if client is not None:
        # An executor of Dask. Its workers come and go. While it has none, tasks wait for the first one.
        return max(1, _count_threads(client))
    # mpi4py has num_workers; the standard library and loky have _max_workers.
    count = getattr(executor, "num_workers", None) or getattr(executor, "_max_workers", None)
    return count if isinstance(count, int) else count_cores()


def _count_threads(client: Any) -> int:
    """Return the number of threads of all workers of a Dask client. Raises CkptplanError."""
    try:
        return int(sum(client.nthreads().values()))
    except OSError as error:
        raise CkptplanError(f"the scheduler of the cluster is gone: {error}") from error


def map_in_order(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    executor: Executor | None,
    name: Callable[[Item], str] = str,
) -> Iterator[Result]:
    """Yield ``work(item)`` for each item, in order. Items are taken only as workers can take them.

    Arguments:
        work: a picklable function of an item.
        items: picklable items.
        executor: runs the function; None runs it in this process.
        name: returns the name of an item for error messages.

    Raises the errors of ckptplan that ``work`` raises, and CkptplanError if a cluster is gone, has no worker
    for minutes, or has another version of this package. After any other failure, such as the end of a worker,
    the item is tried again, twice. Then CkptplanError names the item.
    """
    if executor is None:
        yield from map(work, items)
        return
    source, waiting = iter(items), deque[tuple[Item, Future[Result | CkptplanError]]]()
    workers, checked_at = 0, -math.inf
    try:
        while True:
            # A request to a scheduler takes as long as several rows.
            if time.monotonic() - checked_at > _LOOK_SECONDS:
                workers, checked_at = count_workers(executor), time.monotonic()
            room = _AHEAD * workers - len(waiting)
            waiting += ((item, _submit(executor, work, item)) for item in islice(source, max(0, room)))
            if not waiting:
                return
            item, future = waiting.popleft()
            for tries in range(1, _TRIES + 1):
                _wait_for(future, executor)
                try:
                    result = future.result()
                    break
                except Exception as error:
                    # Each executor raises its own types of error.
                    if tries == _TRIES:
                        raise CkptplanError(
                            f"{name(item)} failed {tries} times (out of memory?), the last time with "
                            f"{type(error).__name__}: {error}"
                        ) from error
                future = _submit(executor, work, item)
            if isinstance(result, CkptplanError):
                raise result
            yield result
    finally:
        for _, future in waiting:
            future.cancel()


def _wait_for(future: Future[Any], executor: Executor) -> None:
    """Wait until a future is done. Raises CkptplanError if the cluster has no worker for minutes."""
    client: Any = getattr(executor, "_client", None)
    alone_since: float | None = None
    while not wait([future], timeout=_LOOK_SECONDS).done:
        if client is None or _count_threads(client):
            alone_since = None
            continue
        now, scheduler = time.monotonic(), client.scheduler.address
        if alone_since is None:
            alone_since = now
            _log.warning("the scheduler %s has no worker; waiting for one", scheduler)
        elif now - alone_since >= _ALONE_SECONDS:
            raise CkptplanError(
                f"the scheduler {scheduler} has had no worker for {now - alone_since:.0f} s; "
                f"`dask worker {scheduler}` starts one"
            )


def _submit(executor: Executor, work: Callable[[Item], Result], item: Item) -> Future[Result | CkptplanError]:
    """Submit an item and return its future. If the executor refuses the item, the future has the error."""
    try:
        # Pickled here, since Dask would hash an object part by part. The UUID makes each call new: Dask answers
        # a call that it had before with the old result, even with an old error.
        return executor.submit(_run, pickle.dumps((work, item)), __version__, uuid4().hex)
    except Exception as error:
        future = Future[Result | CkptplanError]()
        future.set_exception(error)
        return future


def _run(task: bytes, version: str, _try: str) -> Any:
    """Run a task and return its result. Return a CkptplanError, so that raised errors are the executor's.

    Another version may compute other results, so it is refused. ``_try`` makes each try a new call.
    """
    if version != __version__:
        return CkptplanError(
            f"a worker has version {__version__} of ckptplan, and this program has {version}: "
            "install the same one on both"
        )
    work, item = pickle.loads(task)  # noqa: S301 - pickled by _submit
    try:
        return work(item)
    except CkptplanError as error:
        return error


class WorkerPool(Executor):
    """An executor of worker processes on this machine, which always end when this process ends.

    They are started with 'spawn', so that they behave the same on every system. If a worker dies, new workers
    start with the next task.
    """

    def __init__(self, workers: int) -> None:
        self._max_workers = workers
        self._watched, self._held = get_context("spawn").Pipe(duplex=False)
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """Run a function in a worker."""
        with _start_safely():
            if self._pool is not None:
                try:
                    return self._pool.submit(fn, *args, **kwargs)
                except BrokenProcessPool:
                    self._pool.shutdown()
            # Inside _start_safely, since the pool's queues start a process of their own to track semaphores.
            self._pool = ProcessPoolExecutor(
                self._max_workers,
                mp_context=get_context("spawn"),
                initializer=_begin,
                initargs=(self._watched,),
            )
            return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - see below
        """End the workers, even in the middle of a task. Callers have waited for the results they need."""
        self._held.close()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._watched.close()


@contextmanager
def _start_safely() -> Iterator[None]:
    """Start processes without the current folder on their path, and with SIGINT, SIGTERM and SIGHUP blocked.

    `python -c` would put the current folder before the parent's path. If a signal ended the parent before a
    worker got its task, the worker would print a traceback. Workers inherit the mask, so that only the parent
    handles Ctrl-C, which a terminal sends to all. Other programs that this process starts are not affected.
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


def _begin(watched: Connection) -> None:
    """Initialize a worker: it exits when the parent closes its end of a pipe or ends. Unblock its signals."""
    threading.Thread(target=lambda: (watched.poll(None), os._exit(0)), daemon=True).start()
    if _HAS_MASKS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _REQUESTS)


def processor_name() -> str:
    """Return the model of the processor and the number of usable cores."""
    return f"{_read_processor()}, {count_cores()} cores"


def _read_processor() -> str:
    """Return the model of the processor, which Python itself knows only on some systems."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.is_file() else ():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
