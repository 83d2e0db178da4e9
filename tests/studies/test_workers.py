"""Work on executors: real ones of every kind, in order, and what a worker costs that ends in the middle."""

import json
import os
import pickle
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import ckptplan
from ckptplan.errors import CkptplanError, InputError
from ckptplan.strategies.registry import all_strategies
from ckptplan.studies import workers
from ckptplan.studies.workers import WorkerPool, count_workers, map_in_order
from tests.support import HAS_MPI, dask_cluster, is_alive, run_mpi, started, wait_until

SNN = ckptplan.load_workload("paper-snn")
IPU = ckptplan.load_profile("ipu-mk2")
#: Base, regular and irregular plans, and points where nothing fits. Long optimal schedules take seconds.
GRID = {"T": "64:512:x2", "local-bytes": "100KiB,230KiB,300KiB"}


@contextmanager
def _dask() -> Iterator[Executor]:
    import distributed

    with dask_cluster() as address, distributed.Client(address, timeout=120) as client:
        client.wait_for_workers(2, timeout=120)
        yield client.get_executor()


def _loky() -> Executor:
    import loky

    executor: Executor = loky.ProcessPoolExecutor(2)
    return executor


EXECUTORS: dict[str, Callable[[], object]] = {
    "processes of this machine": lambda: WorkerPool(2),
    "threads": lambda: ThreadPoolExecutor(2),
    "a process pool": lambda: ProcessPoolExecutor(2, mp_context=get_context("spawn")),
    "loky": _loky,
    "Dask": _dask,
}


#: Those that are quick to start, and those that take seconds or are packages of their own.
KINDS = [
    pytest.param(kind, marks=[] if kind in ("threads", "processes of this machine") else pytest.mark.slow)
    for kind in EXECUTORS
]


@pytest.fixture(scope="module", params=KINDS)
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    with EXECUTORS[request.param]() as made:  # type: ignore[attr-defined]
        yield made


def _square(number: int) -> int:
    return number * number


def _refuse(number: int) -> int:
    if number == 3:
        raise InputError("is three", field="number", value=number)
    return number


def test_results_come_in_order(executor: Executor) -> None:
    assert list(map_in_order(_square, range(40), executor=executor)) == [_square(i) for i in range(40)]


def test_an_executor_tells_how_many_workers_it_has(executor: Executor) -> None:
    assert count_workers(executor) == 2


def test_items_are_taken_as_there_is_room_for_them(executor: Executor) -> None:
    """Three for each worker are in flight, and as many again were not asked for."""
    numbers = iter(range(1000))
    results = map_in_order(_square, numbers, executor=executor)
    assert list(islice(results, 2)) == [0, 1]
    assert next(numbers) == 2 + 5
    results.close()  # type: ignore[attr-defined]


def test_an_error_of_the_work_is_raised_as_it_is(executor: Executor) -> None:
    with pytest.raises(InputError, match="number: is three") as caught:
        list(map_in_order(_refuse, range(9), executor=executor))
    assert (caught.value.field, caught.value.value) == ("number", 3)


@cache
def _sweep_here(strategies: str | None) -> list[Any]:
    return list(ckptplan.sweep(GRID, workloads=SNN, profiles=IPU, strategies=strategies))


@pytest.mark.parametrize("strategies", [None, "optimal,disk-revolve,double"], ids=["closed forms", "solved"])
def test_an_executor_plans_the_rows_that_this_process_plans(executor: Executor, strategies: str | None) -> None:
    here = _sweep_here(strategies)
    assert (
        list(ckptplan.sweep(GRID, workloads=SNN, profiles=IPU, strategies=strategies, executor=executor))
        == here
    )
    best = {row["strategy"] for row in here}
    assert best >= ({None, "base", "optimal"} if strategies else {None, "base", "standard"})


def test_a_strategy_that_was_pickled_is_the_same() -> None:
    """Searches tell strategies apart by identity."""
    for strategy in all_strategies().values():
        assert pickle.loads(pickle.dumps(strategy)) is strategy  # noqa: S301


def test_studies_on_an_executor_find_what_they_find_here(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of closed forms and of strategies that are solved; progress is told, and by this process."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    job, chosen = SNN.with_steps(60), "double,disk-revolve,periodic,optimal"
    watched: dict[str, Any] = {"executor": executor, "progress": lambda done, _: told.append(done)}
    told: list[int] = []
    here, there = (
        (
            ckptplan.largest("T", SNN, IPU, strategies="double,disk-revolve", max_overhead=0.1, **more),
            ckptplan.sensitivity(job, IPU, strategies="double,disk-revolve", uncertainty=0.1, **more),
            ckptplan.pareto(job, IPU, strategies=chosen, **more),
        )
        for more in ({}, watched)
    )
    assert there[:2] == here[:2]
    assert list(there[2]) == list(here[2])
    assert told


def _fail_once(item: tuple[str, int]) -> int:
    """Return the number; fail the first time that 5 comes, as where memory is short for a moment."""
    folder, number = item
    if number == 5 and not (flag := Path(folder) / "failed").exists():
        flag.touch()
        raise MemoryError
    return number


def test_what_fails_once_is_tried_again(executor: Executor, tmp_path: Path) -> None:
    items = [(str(tmp_path), number) for number in range(9)]
    assert list(map_in_order(_fail_once, items, executor=executor)) == list(range(9))
    assert (tmp_path / "failed").exists()


def _become_older() -> None:
    workers.__version__ = "0.0.9"  # type: ignore[attr-defined]


def test_workers_with_another_version_are_refused() -> None:
    """They may find other rows."""
    message = f"a worker has version 0.0.9 of ckptplan, and this program has {ckptplan.__version__}"
    spawned = get_context("spawn")
    with (
        ProcessPoolExecutor(1, mp_context=spawned, initializer=_become_older) as executor,
        pytest.raises(CkptplanError, match=re.escape(message)),
    ):
        list(ckptplan.sweep(GRID, workloads=SNN, profiles=IPU, executor=executor))


@pytest.mark.slow
def test_a_cluster_without_workers_is_told_and_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The scheduler is named, so that one sees where to start workers."""
    import distributed

    monkeypatch.setattr(workers, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(workers, "_ALONE_SECONDS", 0.5)
    with dask_cluster(workers=0) as address, distributed.Client(address, timeout=120) as client:
        results = map_in_order(_square, range(9), executor=client.get_executor())
        with pytest.raises(CkptplanError, match=f"^the scheduler {re.escape(address)} has had no worker for"):
            next(results)
    told = [one.getMessage() for one in caplog.records if one.name.startswith("ckptplan")]
    assert told == [f"the scheduler {address} has no worker; waiting for one"]


def _end_once(item: tuple[str, int]) -> int:
    """Return the number; end the process the first time that 5 comes."""
    folder, number = item
    if number == 5 and not (flag := Path(folder) / "ended").exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def _end(number: int) -> int:
    """Return the number; end the process whenever 5 comes."""
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[-1]])
def test_a_worker_that_is_killed_in_the_middle_costs_its_item_again(kind: str, tmp_path: Path) -> None:
    with EXECUTORS[kind]() as executor:  # type: ignore[attr-defined]
        items = [(str(tmp_path), number) for number in range(30)]
        assert list(map_in_order(_end_once, items, executor=executor)) == list(range(30))
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("processes of this machine", "BrokenProcess"),
        pytest.param("Dask", "KilledWorker", marks=pytest.mark.slow),
    ],
)
def test_what_ends_its_worker_each_time_is_named(kind: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beside it are not, and what came before it is there."""
    # By default Dask starts four workers for each try, which takes a minute.
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "0")
    found: list[int] = []
    with EXECUTORS[kind]() as executor:  # type: ignore[attr-defined]
        results = map_in_order(_end, range(30), executor=executor, name="item {}".format)
        with pytest.raises(CkptplanError, match=f"^item 5 failed 3 times .*, the last time with {told}"):
            found += results
    assert found == [0, 1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a process pool", "loky"])
def test_a_pool_that_breaks_for_good_is_told_with_the_item(kind: str) -> None:
    with (
        EXECUTORS[kind]() as executor,  # type: ignore[attr-defined]
        pytest.raises(CkptplanError, match=r"^item \d+ failed 3 times"),
    ):
        list(map_in_order(_end, range(30), executor=executor, name="item {}".format))


def test_rows_of_a_block_that_fails_are_named() -> None:
    """An executor that takes nothing any more."""
    executor = ThreadPoolExecutor(2)
    executor.shutdown()
    with pytest.raises(CkptplanError, match=r"^rows 1 to 1 failed 3 times \(out of"):
        list(ckptplan.sweep(GRID, workloads=SNN, profiles=IPU, executor=executor))


def _sleep(seconds: float) -> int:
    time.sleep(seconds)
    return 0


def test_programs_that_the_caller_starts_keep_their_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only workers start without the current folder on theirs."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with WorkerPool(2) as executor:
        results = map_in_order(_sleep, [0.01] * 9, executor=executor)
        assert {os.environ.get("PYTHONSAFEPATH") for _ in results} == {None}


def test_workers_end_at_once_when_nobody_wants_their_results() -> None:
    """And not after hours, for which no test has the time."""
    with WorkerPool(2) as executor:
        results = map_in_order(_sleep, [0.0, 1e4, 1e4, 1e4], executor=executor)
        assert next(results) == 0
        results.close()  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.skipif(
    not HAS_MPI,
    # A library of the system, which no package index has. The gate installs it, and skips nothing.
    reason="MPI or mpi4py is not installed",
)
def test_mpi_plans_the_rows_that_this_process_plans(tmp_path: Path) -> None:
    """Three processes that mpiexec starts: one takes the rows, two plan them."""
    (tmp_path / "rows.py").write_text(
        "import json, ckptplan\n"
        "from mpi4py.futures import MPIPoolExecutor\n"
        "if __name__ == '__main__':\n"
        "    snn, ipu = ckptplan.load_workload('paper-snn'), ckptplan.load_profile('ipu-mk2')\n"
        "    with MPIPoolExecutor() as executor:\n"
        "        assert executor.num_workers == 2\n"
        f"        rows = ckptplan.sweep({GRID}, workloads=snn, profiles=ipu, executor=executor)\n"
        "        print(json.dumps(list(rows)))\n"
    )
    assert json.loads(run_mpi("rows.py", cwd=tmp_path)) == list(
        ckptplan.sweep(GRID, workloads=SNN, profiles=IPU)
    )


def test_workers_end_with_their_parent_while_they_are_still_starting(tmp_path: Path) -> None:
    """Data that takes hours to arrive, as imports on a slow disk do; the parent is killed meanwhile."""
    (tmp_path / "slow.py").write_text(
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from ckptplan.studies.workers import WorkerPool, map_in_order\n"
        "class Slow:\n"
        "    def __getstate__(self): return {'slow': 1}\n"
        "    def __setstate__(self, state):\n"
        "        Path(f'{os.getpid()}.worker').touch()\n"
        "        time.sleep(10_000)\n"
        "def work(item):\n"
        "    return 0\n"
        "if __name__ == '__main__':\n"
        "    list(map_in_order(work, [Slow(), Slow()], executor=WorkerPool(2)))\n"
    )
    with started("slow.py", cwd=tmp_path, stderr=subprocess.DEVNULL):
        wait_until(lambda: len(list(tmp_path.glob("*.worker"))) == 2, what="two workers that start")
        workers = [int(path.stem) for path in tmp_path.glob("*.worker")]
    wait_until(lambda: not any(map(is_alive, workers)), what="the end of both workers")
