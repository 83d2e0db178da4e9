"""Runs a case: in a fork of this process, which has the program loaded, or in a process of its own.

A fork calls the same function as the program, with its own streams, folder, variables and limits; whatever a
case does to it ends with it. It costs some milliseconds, a new process some tenths of a second.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TextIO

from tests.fuzz.case import Case, Outcome

#: Seconds of processor time and of the clock after which a case is ended; both are more than it may take.
CPU_LIMIT, CLOCK_LIMIT = 30, 60
#: Bytes of addresses beyond what this process has, and of a file that is written.
_ADDRESSES, _FILE = 4 * 2**30, 2**28
_HOME = Path(__file__).parent.parent.parent
#: The environment of every case: as wide as by default.
_KEPT = ("PATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "CKPTPLAN_CACHE")
_PLAIN = {
    **{name: value for name, value in os.environ.items() if name in _KEPT},
    "PYTHONPATH": str(_HOME),
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class _Ended:
    code: int
    seconds: float
    cpu_seconds: float
    peak: int


def prepare() -> None:
    """Load what most cases need, so that forks share it."""
    import gc

    import typer

    import ckptplan.planning.optimize
    import ckptplan.planning.playback
    import ckptplan.report.inputs
    import ckptplan.report.plan
    import ckptplan.report.simulation
    import ckptplan.report.sweep
    import ckptplan.studies.largest
    import ckptplan.studies.sweep  # noqa: F401 - loaded for the forks
    from ckptplan.cli.app import make_app
    from tests.fuzz.makers import documents

    for kind in ("profile", "workload", "plan", "schedule"):
        documents(kind)
    # typer makes the commands from the application anew for each call, which takes longer than most cases.
    command = typer.main.get_command(make_app())
    typer.main.get_command = lambda _: command  # type: ignore[assignment]
    gc.collect()
    gc.freeze()


def execute(case: Case, folder: Path) -> Outcome:
    """Run a case in a folder that is made for it, and removed afterwards."""
    inside, aside = folder / "inside", folder / "aside"
    shutil.rmtree(folder, ignore_errors=True)
    (inside / "sub").mkdir(parents=True)
    aside.mkdir()
    (inside / "loop").symlink_to("loop")
    (inside / "link.json").symlink_to("sub/linked.json")
    # Code that no file may run.
    (inside / "planted.py").write_text("open('executed', 'w').close()\ndef factory(*a, **k): return 1\n")
    for name, content in case.files.items():
        (inside / name).write_bytes(content)
    (aside / "stdin").write_bytes(case.stdin)
    before = _read_all(inside)
    ended = _run_process(case, inside, aside) if case.process else _run_fork(case, inside, aside)
    loaded = (aside / "loaded").read_text() if (aside / "loaded").exists() else ""
    after, fault = _read_all(inside), aside / "fault"
    outcome = Outcome(
        code=ended.code,
        seconds=ended.seconds,
        cpu_seconds=ended.cpu_seconds,
        memory=max(0, ended.peak - _baseline(process=case.process)),
        stdout=(aside / "stdout").read_bytes(),
        stderr=(aside / "stderr").read_bytes() + (fault.read_bytes() if fault.exists() else b""),
        written={name: content for name, content in after.items() if before.get(name) != content},
        loaded=int(loaded) if loaded.isdecimal() else None,
        loader_fault="" if loaded.isdecimal() else loaded,
    )
    shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _read_all(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in files if "__pycache__" not in path.parts
    }


@cache
def _baseline(*, process: bool) -> int:
    """Return the peak of a program that prints its version, in bytes."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        case = Case(name="", kind="", arguments=("--version",), process=process)
        inside = Path(folder)
        (inside / "stdin").write_bytes(b"")
        run = _run_process if process else _run_fork
        return run(case, inside, inside).peak


def _run_fork(case: Case, inside: Path, aside: Path) -> _Ended:
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _be_child(lambda: _call_program(case, aside), case, inside, aside)
    return _wait(child, began)


def _run_process(case: Case, inside: Path, aside: Path) -> _Ended:
    if case.loads is not None:
        child = os.fork()
        if child == 0:
            _be_child(
                lambda: _ask_library(case, aside), replace(case, environment={}, streams=""), inside, aside
            )
        _wait(child, time.monotonic())
    began = time.monotonic()
    with (
        (aside / "stdin").open("rb") as given,
        (aside / "stdout").open("wb") as printed,
        (aside / "stderr").open("wb") as told,
        Path("/dev/full").open("wb") as full,
    ):
        process = subprocess.Popen(
            [sys.executable, "-m", "ckptplan", *case.arguments],
            stdin=given,
            stdout=full if case.streams == "output full" else printed,
            stderr=full if case.streams == "errors full" else told,
            cwd=inside,
            env={**_PLAIN, **case.environment},
            preexec_fn=lambda: _limit(case),
        )
        ended = _wait(process.pid, began)
        process.returncode = ended.code
    return ended


def _limit(case: Case | None = None) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT, CPU_LIMIT + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE, _FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(CLOCK_LIMIT)
    closed = {"input closed": 0, "output closed": 1, "errors closed": 2}
    if case is not None and case.streams in closed:
        os.close(closed[case.streams])


def _wait(child: int, began: float) -> _Ended:
    _, status, used = os.wait4(child, 0)
    seconds = time.monotonic() - began
    # Linux counts in KiB.
    return _Ended(
        os.waitstatus_to_exitcode(status), seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
    )


def _be_child(call: Callable[[], int], case: Case, inside: Path, aside: Path) -> NoReturn:
    """Become a program of its own, and end with the code that ``call`` returns."""
    code = 1
    try:
        for descriptor, name, flags in (
            (0, "stdin", os.O_RDONLY),
            (1, "stdout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            (2, "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        ):
            os.dup2(os.open(aside / name, flags), descriptor)
        if case.streams.endswith("full"):
            os.dup2(os.open("/dev/full", os.O_WRONLY), 1 if case.streams == "output full" else 2)
        sys.stdin = os.fdopen(0, "r", encoding="utf-8", closefd=False)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
        _limit(case)
        _lose_closed(case)
        space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (space + _ADDRESSES, space + _ADDRESSES))
        os.environ.clear()
        os.environ.update({**_PLAIN, **case.environment})
        os.chdir(inside)
        code = call()
        # What Python does at its end: it reports what is lost of standard output, and nothing of errors.
        code = 120 if _fails_to_flush(sys.stdout) else code
        _fails_to_flush(sys.stderr)
    except BaseException:
        import traceback

        # Beside the streams, which may be closed or full.
        (aside / "fault").write_text(traceback.format_exc())
    finally:
        os._exit(code)


def _fails_to_flush(stream: TextIO | None) -> bool:
    try:
        if stream is not None:
            stream.flush()
    except OSError:
        return True
    return False


def _lose_closed(case: Case) -> None:
    """Do what Python does at its start with streams that are closed."""
    names = {"input closed": "stdin", "output closed": "stdout", "errors closed": "stderr"}
    if case.streams in names:
        setattr(sys, names[case.streams], None)


def _call_program(case: Case, aside: Path) -> int:
    from ckptplan.cli.main import main

    _ask_library(case, aside)
    sys.argv = ["ckptplan", *case.arguments]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1


def _ask_library(case: Case, aside: Path) -> int:
    """Write down the exit code that the library's own loader implies, or its fault."""
    if case.loads is not None:
        (aside / "loaded").write_text(_load(*case.loads))
    return 0


def _load(kind: str, name: str, plan: str = "") -> str:
    import ckptplan

    loaders: dict[str, Callable[[], Any]] = {
        "profile": lambda: ckptplan.load_profile(f"./{name}"),
        "workload": lambda: ckptplan.load_workload(f"./{name}"),
        "plan": lambda: ckptplan.load_plan(name),
        "schedule": lambda: ckptplan.simulate(ckptplan.load_plan(plan), schedule=name),
    }
    try:
        loaders[kind]()
    except ckptplan.CkptplanError as error:
        return str(error.exit_code)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return "0"
