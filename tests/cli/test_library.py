"""``ckptplan profiles``, ``workloads`` and ``schema``: files that are shown, checked and begun.

What they print of built-in files is in tests/golden, which lines they refuse in test_refusals.py.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import jsonschema
import pytest

import ckptplan
from ckptplan.model.network import Operations
from ckptplan.model.workload import Basis, Measured
from tests.support import calibration, run, started

LSTM = ("--kind", "lstm", "--inputs", "16", "--neurons", "64", "--layers", "2", "--batch", "8", "--T", "128")
RATES = "write_bytes_per_second = 1\nread_bytes_per_second = 1\n"


@pytest.mark.parametrize("kind", ["plan", "profile", "workload"])
def test_schemas_are_valid_json_schemas(kind: str) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(run("schema", kind).stdout))


def test_a_check_lists_what_has_no_source_and_what_estimates_need() -> None:
    done = run("profiles", "check", "-", stdin=f'name = "p"\nlocal_bytes = "5 kB"\n{RATES}')
    text = " ".join(done.stdout.split())
    assert "local_bytes, write_bytes_per_second, read_bytes_per_second" in text
    assert "float32_flops_per_second, local_bytes_per_second, launch_seconds" in text
    checked = json.loads(run("profiles", "check", "--format", "json").stdout)["profiles"]
    listed = json.loads(run("profiles", "list", "--format", "json").stdout)["profiles"]
    assert [profile["name"] for profile in checked] == [profile["name"] for profile in listed]
    assert all(profile["valid"] for profile in checked)


def test_numbers_of_a_calibrated_workload_are_shown_one_by_one_within_80_columns(tmp_path: Path) -> None:
    """Each number of a table is a row, with its unit; the interval of a time begins how it was measured."""
    interval = Measured(repeats=16, spread=0.3, low=0.9, high=1.5)
    work = Operations(forward_flops=1.32e6, backward_flops=2e6, forward_bytes=1e6, backward_bytes=1e6)
    workload = ckptplan.load_workload("paper-snn").replace(
        calibration=calibration(0.5).model_copy(update={"measured": {"forward_seconds": interval}}),
        operations=work,
        forward_seconds=1e-4,
        basis={
            "forward_seconds": Basis(kind="measured", why="fit over chunks"),
            "operations": Basis(kind="measured", why="counted"),
        },
    )
    ckptplan.save_workload(workload, tmp_path / "w.toml")
    text = run("workloads", "show", "./w.toml", cwd=tmp_path, COLUMNS="80").stdout
    assert max(map(len, text.splitlines())) <= 80
    rows = [" ".join(line.split()) for line in text.splitlines()]
    for row in (
        "forward_seconds 100 us, measured: 90 us to 150 us",
        "operations.dtype float32, measured",
        "operations.forward_flops 1.32 MFLOP",
        "calibration.uncertainty 50 %",
    ):
        assert any(row in shown for shown in rows), (row, rows)


# Files to start from


def test_a_kind_of_network_becomes_a_commented_workload_to_plan_with(tmp_path: Path) -> None:
    done = run("workloads", "new", *LSTM, "-o", "mine.toml", cwd=tmp_path)
    assert done.returncode == 0
    assert "estimated for nvidia-a100-80gb" in done.stderr
    text = (tmp_path / "mine.toml").read_text()
    assert "steps = 128  # T, the number of time steps" in text
    assert "inputs = 16  # input values" in text
    workload = ckptplan.load_workload(tmp_path / "mine.toml")
    assert (workload.name, workload.steps, workload.batch) == ("mine", 128, 8)
    assert workload.is_estimated
    plan = ckptplan.optimize(workload, ckptplan.load_profile("nvidia-h200"), strategies=["base"])
    assert plan.workload.timed_on == "nvidia-h200"


def test_times_that_are_given_are_taken(tmp_path: Path) -> None:
    """Also with a machine that no time can be estimated for."""
    (tmp_path / "bare.toml").write_text('name = "bare"\nlocal_bytes = "1 GB"\nremote_bytes = 0\n')
    given = ("--forward-seconds", "80 us", "--profile", "./bare.toml")
    assert run("workloads", "new", *LSTM, *given, "-o", "mine.toml", cwd=tmp_path).returncode == 0
    workload = ckptplan.load_workload(tmp_path / "mine.toml")
    assert (workload.forward_seconds, workload.backward_seconds) == (80e-6, 160e-6)
    assert workload.basis["forward_seconds"].kind == "assumed"


def test_a_profile_is_made_from_another_one(tmp_path: Path) -> None:
    given = ("--price-per-hour", "3.5", "--local-bytes", "70 GB")
    done = run("profiles", "new", "--like", "nvidia-h200", *given, "-o", "mine.toml", cwd=tmp_path)
    assert done.returncode == 0
    mine, like = ckptplan.load_profile(tmp_path / "mine.toml"), ckptplan.load_profile("nvidia-h200")
    assert (mine.name, mine.price_per_hour, mine.local_bytes) == ("mine", 3.5, 70 * 10**9)
    assert mine.float32_flops_per_second == like.float32_flops_per_second
    # A number that was replaced no longer has the source of the other one.
    assert set(mine.sources) == set(like.sources) - {"local_bytes"}
    assert "# price of an hour" in (tmp_path / "mine.toml").read_text()


def test_a_profile_has_the_rates_of_a_folder(tmp_path: Path) -> None:
    """A rate that is given stays."""
    made = ("profiles", "new", "--like", "nvidia-h200", "--measure", ".", "--state-bytes", "64 KiB")
    done = run(*made, "--read-bytes-per-second", "2 GB/s", "-o", "p.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    profile = ckptplan.load_profile(tmp_path / "p.toml")
    assert profile.read_bytes_per_second == 2e9
    assert profile.write_bytes_per_second > 0
    assert (profile.sources["write_bytes_per_second"].grade, profile.latency_seconds) == ("M", 0)
    assert "64 KiB" in str(profile.sources["write_bytes_per_second"].source)
    assert "read_bytes_per_second" not in profile.sources


def test_questions_are_asked_on_a_terminal(tmp_path: Path) -> None:
    """An empty answer takes what is proposed."""
    mine, theirs = pty.openpty()
    command = ("-m", "ckptplan", "workloads", "new", "-o", "asked.toml")
    streams = {"stdin": theirs, "stdout": subprocess.PIPE, "stderr": theirs}
    with started(*command, **streams, cwd=tmp_path) as process:
        os.close(theirs)
        os.write(mine, b"lstm\n32\n\n\n256\n2\n\n")
        assert process.communicate()[0]
    os.close(mine)
    assert process.returncode == 0
    workload = ckptplan.load_workload(tmp_path / "asked.toml")
    assert workload.network is not None
    assert (workload.network.kind, workload.network.inputs, workload.network.layers) == ("lstm", 32, 2)
    assert (workload.batch, workload.steps) == (32, 256)
