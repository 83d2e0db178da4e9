"""Maps a function over items on any executor, with results in order; and processes of this machine as one.

The executor may be any of ``concurrent.futures``, Dask's, mpi4py's or loky's. What runs there is pickled: a
function of a module, and items of plain data.
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
#: How often an item is tried whose worker ends.
_TRIES = 3
#: Seconds between two looks whether a scheduler is still there.
_LOOK_SECONDS = 10.0
#: Seconds that a scheduler may be without a worker: as long as clusters take that start machines on demand.
_ALONE_SECONDS = 300.0
_log = logging.getLogger("ckptplan.studies")
#: The signals that request one process to end, and whether this system can block them.
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
    """Return how many tasks an executor runs at once, for which executors have no common name.

    An executor that does not tell counts as one with as many workers as this machine has cores. Raises
    CkptplanError if nobody is there any more.
    """
    client: Any = getattr(executor, "_client", None)
    if client is not None:
        # Dask's. Its workers come and go; without any, tasks wait for the first.
        return max(1, _count_threads(client))
    # mpi4py's; the standard library's and loky's.
    count = getattr(executor, "num_workers", None) or getattr(executor, "_max_workers", None)
    return count if isinstance(count, int) else count_cores()


def _count_threads(client: Any) -> int:
    """Return how many threads the workers of a client of Dask have. Raises CkptplanError."""
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
    """Yield ``work(item)`` for each item, in order; items are taken when there is room for them.

    Arguments:
        work: what is done with an item; picklable, as the items are.
        items: what it is done with.
        executor: where it is done; None is here.
        name: names an item in an error.

    Raises the errors of ckptplan that ``work`` raises, and CkptplanError if a cluster is gone, has no worker
    for minutes, or has another version of this package. Whatever else happens to an item, such as the end of
    its worker, costs another try, twice; then CkptplanError names the item.
    """
    if executor is None:
        yield from map(work, items)
        return
    source, waiting = iter(items), deque[tuple[Item, Future[Result | CkptplanError]]]()
    workers, looked = 0, -math.inf
    try:
        while True:
            # Asking a scheduler takes as long as some rows.
            if time.monotonic() - looked > _LOOK_SECONDS:
                workers, looked = count_workers(executor), time.monotonic()
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
                    # Each executor has its own errors.
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
    """Wait until a future is done, which never happens where nobody works. Raises CkptplanError then."""
    client: Any = getattr(executor, "_client", None)
    alone: float | None = None
    while not wait([future], timeout=_LOOK_SECONDS).done:
        if client is None or _count_threads(client):
            alone = None
            continue
        now, scheduler = time.monotonic(), client.scheduler.address
        if alone is None:
            alone = now
            _log.warning("the scheduler %s has no worker; waiting for one", scheduler)
        elif now - alone >= _ALONE_SECONDS:
            raise CkptplanError(
                f"the scheduler {scheduler} has had no worker for {now - alone:.0f} s; "
                f"`dask worker {scheduler}` starts one"
            )


def _submit(executor: Executor, work: Callable[[Item], Result], item: Item) -> Future[Result | CkptplanError]:
    """Return the future of an item; one that fails if the executor takes no more."""
    try:
        # As bytes: Dask would hash an object part by part. It answers a call that it had before with the result
        # that it had, also with an error.
        return executor.submit(_run, pickle.dumps((work, item)), __version__, uuid4().hex)
    except Exception as error:
        future = Future[Result | CkptplanError]()
        future.set_exception(error)
        return future


def _run(task: bytes, version: str, _try: str) -> Any:
    """Return what a task returns, or its error: what an executor raises is then not the task's.

    Another version may find other results. ``_try`` makes each try a call of its own.
    """
    if version != __version__:
        return CkptplanError(
            f"a worker has version {__version__} of ckptplan, and this program has {version}: "
            "install the same one on both"
        )
    work, item = pickle.loads(task)  # noqa: S301 - the caller's
    try:
        return work(item)
    except CkptplanError as error:
        return error


class WorkerPool(Executor):
    """Processes of this machine, which end with this one for whatever reason.

    They are started with 'spawn', so that they behave the same on every system. Where one dies, others are
    started with the next task.
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
            # Its queues start a process of their own, which keeps track of semaphores.
            self._pool = ProcessPoolExecutor(
                self._max_workers,
                mp_context=get_context("spawn"),
                initializer=_begin,
                initargs=(self._watched,),
            )
            return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - see below
        """End the workers whatever they are doing: who wants results has waited for them."""
        self._held.close()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._watched.close()


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


def _begin(watched: Connection) -> None:
    """Begin a worker, which ends when the other end of a pipe is closed, or its process ends."""
    threading.Thread(target=lambda: (watched.poll(None), os._exit(0)), daemon=True).start()
    if _HAS_MASKS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _REQUESTS)


def processor_name() -> str:
    """Return the name of the processor with the number of usable cores."""
    return f"{_read_processor()}, {count_cores()} cores"


def _read_processor() -> str:
    """Return the model of the processor, which Python itself knows only on some systems."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.is_file() else ():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
