"""Odd environments end no command with a fault: circular links, closed or full streams, variables, Ctrl-C."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ckptplan
from ckptplan.planning.request import Request
from ckptplan.planning.suggestions import add_suggestions
from tests.security.program import run_all
from tests.support import run_process, small_plan, started

COMMAND = f"{sys.executable} -m ckptplan"
PLAN = "optimize --T 64 --strategies base,standard -o made.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ckptplan.save_plan(small_plan(), tmp_path / "plan.json")
    return tmp_path


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of the shell; 'ckptplan' in it is the program."""
    return subprocess.run(
        ["/bin/sh", "-c", line.replace("ckptplan", COMMAND)],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
    )


def test_links_in_circles_are_no_files(folder: Path) -> None:
    for name in ("circle", "circle.csv", "circle.svg"):
        (folder / name).symlink_to(folder / name)
    runs = run_all(
        ("simulate", "circle"),
        ("optimize", "--T", "64", "-o", "circle"),
        ("simulate", "plan.json", "-o", "circle"),
        ("simulate", "plan.json", "--trace", "circle"),
        ("simulate", "plan.json", "--gantt", "circle.svg"),
        ("schedule", "plan.json", "-o", "circle"),
        ("sweep", "--over", "T=1,2", "-o", "circle.csv"),
        folder=folder,
    )
    for done in runs.done:
        assert done.code == 2, done.err
        assert "Too many levels of symbolic links" in done.err


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("ckptplan simulate - <&-", 2, "standard input: is closed"),
        ("ckptplan simulate plan.json --schedule - <&-", 2, "standard input: is closed"),
        (f"ckptplan {PLAN} 2>&-", 0, ""),
        ("ckptplan optimize --T 0 2>&-", 2, ""),
        (f"ckptplan {PLAN} 2>/dev/full", 0, ""),
        ("ckptplan optimize --T 0 2>/dev/full", 2, ""),
        ("ckptplan optimize --T 64 >/dev/full", 2, "standard output cannot be written: No space left"),
        ("ckptplan optimize --T 64 >/dev/full 2>/dev/full", 2, ""),
        (f"ckptplan {PLAN} <&- >&- 2>&-", 0, ""),
        ("ulimit -f 0; ckptplan schedule plan.json -o s.jsonl", 2, "cannot be written: File too large"),
    ],
)
def test_closed_and_full_streams(line: str, code: int, said: str, folder: Path) -> None:
    done = shell(line, folder)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "fault" not in done.stderr
    if code == 0:
        assert ckptplan.load_plan(folder / "made.json").steps == 64
    else:
        assert {path.name for path in folder.iterdir()} == {"plan.json"}


@pytest.mark.parametrize(
    ("size", "epoch", "other"),
    [("\u00b2", "x", "bash_source"), ("999999999999", "1e9", "nonsense"), ("-5", str(10**20), "module://os")],
)
def test_odd_variables_change_nothing(size: str, epoch: str, other: str, folder: Path) -> None:
    """Those of the terminal, of reproducible builds, and of another program's completion."""
    odd: dict[str, Any] = {
        **dict.fromkeys(("COLUMNS", "LINES", "TERMINAL_WIDTH"), size),
        **dict.fromkeys(("_CKPTPLAN_COMPLETE", "TYPER_USE_RICH"), other),
        "SOURCE_DATE_EPOCH": epoch,
    }
    done = run_process("simulate", "plan.json", "--gantt", "g.pdf", cwd=folder, **odd)
    assert (done.returncode, done.stderr) == (0, "picture written to g.pdf\n")
    assert max(map(len, done.stdout.splitlines())) <= 100
    done = run_process("--help", **odd)
    assert (done.returncode, done.stderr) == (0, "")
    assert "optimize" in done.stdout


@pytest.mark.parametrize("strategy", ["optimal", "periodic"])
def test_no_suggestion_asks_for_no_steps(strategy: str) -> None:
    times: dict[str, Any] = dict.fromkeys(("forward_seconds", "backward_seconds", "recompute_seconds"), 1)
    workload = ckptplan.Workload(name="w", steps=8, state_bytes=4, tape_bytes=8, **times)
    rates: dict[str, Any] = dict.fromkeys(("write_bytes_per_second", "read_bytes_per_second"), 1)
    profile = ckptplan.HardwareProfile(name="p", local_bytes=17, overlaps_compute=True, **rates)
    with pytest.raises(ckptplan.Infeasible) as caught:
        ckptplan.optimize(workload, profile, strategies=[strategy], max_overhead=0.5)
    assert caught.value.suggestions
    request = Request.of(workload, profile, strategies=[strategy], max_overhead=0.5, command="")
    unsolvable = ckptplan.Infeasible(binding="steps", need=0, have=8, subject=strategy)
    assert all(one["value"] != 0 for one in add_suggestions(unsolvable, request=request).suggestions)


@pytest.mark.parametrize("after", [1, 5, 20, 60, 120, 200, 300])
def test_ctrl_c_while_the_program_starts_leaves_no_traceback(after: int) -> None:
    """After so many imports; the first is that of the package, before which Python itself starts.

    They are read line by line from a short pipe, so that the program waits where this process does.
    """
    ours, theirs = os.pipe()
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
    command = ("-X", "importtime", "-m", "ckptplan", "optimize")
    with (
        os.fdopen(ours, "rb", buffering=0) as told,
        started(*command, stdout=subprocess.DEVNULL, stderr=theirs) as process,
    ):
        os.close(theirs)
        lines = iter(told.readline, b"")
        while not next(lines).strip().endswith(b"| ckptplan"):
            pass
        for _ in range(after):
            assert b"import time" in next(lines)
        process.send_signal(signal.SIGINT)
        said = b"".join(line for line in lines if not line.startswith(b"import time"))
        process.wait()
    assert (process.returncode, said) == (130, b"interrupted\n")


def test_ctrl_c_in_text_that_an_import_runs_ends_with_its_exit_code(folder: Path) -> None:
    """As dataclasses run it. Python alone would end by the signal instead."""
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'ckptplan.cli.options': exec('raise KeyboardInterrupt')\n"
        "sys.meta_path.insert(0, Interrupts())\n"
    )
    path = os.pathsep.join([str(folder), *sys.path])
    done = run_process("optimize", "--T", "64", cwd=folder, PYTHONPATH=path)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_a_signal_that_the_parent_ignores_stays_ignored(folder: Path) -> None:
    """As that of a program in the background."""
    line = "trap '' INT; ckptplan optimize --T 64 -o made.json & pid=$!; kill -INT $pid; wait $pid"
    assert shell(line, folder).returncode == 0
    assert (folder / "made.json").exists()


def test_too_little_memory_is_no_fault(folder: Path) -> None:
    """Where the system grants a process 50 MB, libraries cannot even be loaded."""
    done = shell("ulimit -v 50000; ckptplan optimize --T 64", folder)
    assert done.returncode == 2, done.stderr
    assert "there is not enough memory for this command" in done.stderr
    assert "Traceback" not in done.stderr
    assert "fault in ckptplan" not in done.stderr


def test_an_interruption_in_a_finaliser_is_not_lost() -> None:
    """There Python prints exceptions and goes on."""
    program = (
        "import os, signal, time\n"
        "from ckptplan.cli.main import listen\n"
        "listen()\n"
        "class Last:\n"
        "    def __del__(self): os.kill(os.getpid(), signal.SIGINT); [0 for _ in range(10**6)]\n"
        "try:\n"
        "    Last(); time.sleep(20)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
