"""Standard streams, pipes and signals: results stay whole, and each way to end has its exit status.

Closed and full streams are in tests/security/test_odd_machines.py.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
from array import array
from pathlib import Path
from typing import IO, Any

import pytest

import ckptplan
from tests.support import (
    leave_progress_out,
    long_plan,
    run,
    run_on_terminal,
    run_process,
    small_plan,
    started,
    wait_until,
)

PIPES: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
PROFILE = 'name = "piped"\nlocal_bytes = 5\nwrite_bytes_per_second = 1\nread_bytes_per_second = 1\n'
WORKLOAD = """
name = "without-network"
steps = 3
state_bytes = 1
tape_bytes = 1
forward_seconds = 1
backward_seconds = 1
recompute_seconds = 1
"""


def test_a_reader_that_leaves_ends_a_command_quietly(tmp_path: Path) -> None:
    """Before the first line, and as ``head -1`` does, with more lines to come than a pipe holds."""
    ckptplan.save_plan(long_plan(200_000), tmp_path / "long.json")
    for arguments, lines in ((("profiles", "list"), 0), (("schedule", str(tmp_path / "long.json")), 1)):
        with started("-m", "ckptplan", *arguments, **PIPES) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            for _ in range(lines):
                assert json.loads(process.stdout.readline())["steps"] == 200_000
            process.stdout.close()
            assert process.wait() == 141
            assert process.stderr.read() == b""


def count_unread(pipe: IO[bytes]) -> int:
    """Return how many bytes of a pipe its reader has not taken yet."""
    count = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def test_ctrl_c_exits_130_without_a_traceback() -> None:
    """Interrupted while it waits for the rest of its input, of which it has taken what there was."""
    with started("-m", "ckptplan", "profiles", "show", "-", **PIPES) as process:
        assert process.stdin is not None
        process.stdin.write(b"name")
        process.stdin.flush()
        pipe = process.stdin
        wait_until(lambda: count_unread(pipe) == 0, what="a program that reads its input")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert (process.returncode, errors) == (130, b"interrupted\n")


@pytest.mark.parametrize(
    ("sent", "status", "message"),
    [(signal.SIGINT, 130, "interrupted\n"), (signal.SIGTERM, 143, ""), (signal.SIGHUP, 143, "")],
)
def test_a_stopped_export_leaves_no_half_file(
    sent: signal.Signals, status: int, message: str, tmp_path: Path
) -> None:
    ckptplan.save_plan(long_plan(50_000_000), tmp_path / "long.json")
    target = tmp_path / "s.jsonl"
    target.write_text("old")
    command = ["-m", "ckptplan", "schedule", str(tmp_path / "long.json"), "-o", str(target)]
    with started(*command, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: list(tmp_path.glob(".ckptplan-*")), what="a schedule that is written")
        process.send_signal(sent)
        errors = process.communicate()[1]
    assert (process.returncode, leave_progress_out(errors)) == (status, message)
    assert target.read_text() == "old"
    assert not list(tmp_path.glob(".ckptplan-*"))


def test_an_internal_fault_exits_1_and_says_how_to_see_more(tmp_path: Path) -> None:
    """A fault is provoked from outside: a numpy that cannot be imported."""
    (tmp_path / "numpy.py").write_text("raise RuntimeError('broken numpy')")
    done = run_process("optimize", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("ckptplan: RuntimeError: broken numpy (a fault in ckptplan")
    assert "Traceback" not in done.stderr
    assert "Traceback" in run_process("optimize", PYTHONPATH=str(tmp_path), CKPTPLAN_DEBUG="1").stderr


def test_plans_schedules_profiles_and_workloads_can_come_from_standard_input(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    ckptplan.save_plan(small_plan(), plan)
    schedule = run("schedule", "plan.json", cwd=tmp_path).stdout
    for arguments, text, shown in (
        ("simulate - --format csv", plan.read_text(), "recomputed_steps,86,86"),
        ("simulate plan.json --schedule - --format csv", schedule, "seconds,0.00092"),
        ("profiles show -", PROFILE, "piped"),
        ("profiles check -", PROFILE, "piped"),
        ("workloads show -", WORKLOAD, "without-network"),
    ):
        done = run(*arguments.split(), stdin=text, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert shown in done.stdout


def test_results_go_to_standard_output_if_a_dash_is_the_file() -> None:
    assert json.loads(run("optimize", "--T", "64", "-o", "-").stdout)["strategy"] == "base"


def test_a_pipe_may_be_named_as_a_file(tmp_path: Path) -> None:
    """``ckptplan schedule plan.json -o >(gzip > s.gz)``."""
    ckptplan.save_plan(small_plan(), tmp_path / "plan.json")
    read, write = os.pipe()
    command = [sys.executable, "-m", "ckptplan", "schedule", "plan.json", "-o", f"/dev/fd/{write}"]
    done = subprocess.run(command, check=False, capture_output=True, pass_fds=[write], cwd=tmp_path)
    os.close(write)
    with os.fdopen(read) as file:
        assert len(file.read().splitlines()) == 63
    assert done.returncode == 0


@pytest.mark.parametrize("command", ["optimize --T 4096", "compare --profiles ipu-mk2,nvidia-h200 --T 512"])
def test_a_stream_that_cannot_encode_blocks_and_signs_gets_ascii(command: str) -> None:
    done = run_process(*command.split(), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "?" not in done.stdout


@pytest.mark.slow
def test_only_a_terminal_gets_colours_unless_no_color_is_set() -> None:
    """On a pseudo-terminal, as script(1) would make one."""

    def shown(**environment: str) -> str:
        how: dict[str, Any] = {"TERM": "xterm-256color", "COLUMNS": "120", **environment}
        status, _, text = run_on_terminal("optimize", shows_output=True, columns=120, **how)
        assert status == 0
        return text

    assert "\x1b[1;32moptimal" in shown()
    assert "32m" not in shown(NO_COLOR="1")
    assert "\x1b" not in run("optimize", FORCE_COLOR="").stdout


def test_a_terminal_shows_progress_and_pipes_do_not(tmp_path: Path) -> None:
    """A bar on standard error; the result on standard output stays what it is."""
    ckptplan.save_plan(long_plan(20_000), tmp_path / "long.json")
    status, output, seen = run_on_terminal("simulate", str(tmp_path / "long.json"), "--format", "csv")
    assert status == 0
    assert "playing the schedule" in seen
    assert output.startswith("quantity,predicted,simulated,agrees\n")
    assert "playing" not in output


@pytest.mark.parametrize(("columns", "is_piped"), [(80, True), (80, False), (60, True)])
def test_a_pager_gets_lines_as_wide_as_the_terminal_behind_it(columns: int, is_piped: bool) -> None:
    how: dict[str, Any] = {"columns": columns, "shows_output": not is_piped, "TERM": "dumb"}
    _, output, shown = run_on_terminal("profiles", "list", **how)
    lines = (output or shown).splitlines()
    assert any(line.startswith("tenstorrent-wormhole-n300") for line in lines)
    assert max(map(len, lines)) <= columns


def test_messages_are_wrapped_between_words_on_a_terminal() -> None:
    _, _, shown = run_on_terminal("optimize", "--profile", "h100", TERM="dumb")
    lines = shown.splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 80
    assert "'nvidia-h100-sxm'?" in shown
    assert run("optimize", "--profile", "h100").stderr.count("\n") == 1
