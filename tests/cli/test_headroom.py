"""``--headroom`` as a real process: what is printed, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import run

WORKLOAD = """
name = "job"
steps = 100
state_bytes = 1000
tape_bytes = 3000
forward_seconds = 1
backward_seconds = 1
recompute_seconds = 0.5
"""
PROFILE = """
name = "gpu"
local_bytes = "100 kB"
headroom = "10%"
remote_bytes = "1 GB"
write_bytes_per_second = "1 MB/s"
read_bytes_per_second = "1 MB/s"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.toml").write_text(WORKLOAD)
    (tmp_path / "gpu.toml").write_text(PROFILE)
    return tmp_path


def planned(folder: Path, command: str, *options: str) -> str:
    """What a command prints on that job and machine."""
    words = (*command.split(), "--workload", "./job.toml", "--profile", "./gpu.toml", *options)
    done = run(*words, cwd=folder, COLUMNS="200")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_table_shows_the_budget_and_what_it_was_taken_from(folder: Path) -> None:
    assert "of 87.89 KiB in all: " in planned(folder, "optimize")
    assert "free; 97.66 KiB less 10 % headroom)" in planned(folder, "optimize")
    assert "free; 97.66 KiB less 25 % headroom)" in planned(folder, "optimize", "--headroom", "25%")
    named = planned(folder, "optimize", "--local-bytes", "90000")
    assert "of 87.89 KiB in all: " in named
    assert "less" not in named


@pytest.mark.parametrize("command", ["compare", "largest T", "pareto", "sensitivity"])
def test_every_table_names_the_headroom_of_its_budget(command: str, folder: Path) -> None:
    assert "local budget: 87.89 KiB, 97.66 KiB less 10 % headroom" in planned(folder, command)
    assert "local budget" not in planned(folder, command, "--headroom", "0")


def test_a_budget_of_a_front_has_the_headroom_that_is_named_with_it(folder: Path) -> None:
    found = json.loads(planned(folder, "pareto --at 90000 --headroom 10% --format json"))
    wish = "optimize --local-bytes 90000 --headroom 10% --format json"
    same = json.loads(planned(folder, wish))
    assert found["goal"] == same["goal"]
    assert found["predicted"] == same["predicted"]
    assert (found["goal"]["local_bytes"], found["goal"]["headroom"]) == (81_000, 0.1)


def test_profiles_show_their_headroom(folder: Path) -> None:
    done = run("profiles", "show", "./gpu.toml", cwd=folder)
    assert any(line.split()[:3] == ["headroom", "10", "%"] for line in done.stdout.splitlines())


def test_what_does_not_fit_has_what_the_headroom_leaves(folder: Path) -> None:
    job = folder / "job.toml"
    job.write_text(f"resident_bytes = 88000\n{job.read_text()}")
    done = run("optimize", "--workload", "./job.toml", "--profile", "./gpu.toml", cwd=folder)
    assert done.returncode == 3
    assert "has            90 kB (90,000 bytes): 100 kB less 10 % headroom" in done.stderr
    assert "--headroom 0 " in done.stderr


def test_a_full_memory_in_which_nothing_else_is_counted_is_warned_of_once(folder: Path) -> None:
    warning = "resident_bytes, resident_bytes_per_step and workspace_bytes are 0"
    for command in ("optimize", "compare", "largest T", "pareto"):
        full = planned(folder, command, "--headroom", "0")
        assert full.count(warning) == 1
        assert "let calibrate measure them, or leave room with --headroom 20%" in " ".join(full.split())
        assert warning not in planned(folder, command)
    # A budget that is named leaves the rest of the machine free.
    assert warning not in planned(folder, "optimize", "--local-bytes", "90 kB")
    (folder / "job.toml").write_text(f"resident_bytes = 1\n{WORKLOAD}")
    assert warning not in planned(folder, "optimize", "--headroom", "0")


@pytest.mark.parametrize("value", ["100%", "-1", "10", "much"])
def test_a_headroom_that_is_no_share_is_refused_with_the_option(value: str) -> None:
    done = run("optimize", f"--headroom={value}")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--headroom: '{value}' is " in done.stderr
    assert "(accepted: a share of local memory from 0 to below 1, as 0.1 or '10%')" in done.stderr
