"""The commands besides the main job, as real processes."""

import csv
import io
import json
import subprocess
import sys
from typing import Any

import jsonschema
import pytest

import ckptplan
from ckptplan.model.network import Operations
from ckptplan.model.workload import Basis, Measured
from ckptplan.report.inputs import view_workload
from tests.support import calibration, run, run_on_terminal, told


def test_version() -> None:
    assert run("--version").stdout == f"ckptplan {ckptplan.__version__}\n"


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys\nfrom ckptplan.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print(sorted({'scipy', 'vl_convert', 'torch', 'numpy'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert "optimize" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_optimize_loads_no_scipy_and_no_vl_convert() -> None:
    script = (
        "import sys\nfrom ckptplan.cli.main import main\n"
        "try: main(['optimize'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print(sorted({'scipy', 'vl_convert', 'torch'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("arguments", [[], ["profiles"], ["optimize", "--help"], ["-h"]])
def test_help_is_there_at_every_level(arguments: list[str]) -> None:
    done = run(*arguments)
    assert "Usage" in done.stdout + done.stderr


def test_an_unknown_command_exits_2() -> None:
    done = run("optimise")
    assert done.returncode == 2
    assert "optimize" in done.stderr


def test_profiles_list() -> None:
    text = run("profiles", "list").stdout
    assert "ipu-mk2" in text
    assert "624 KiB" in text
    document = json.loads(run("profiles", "list", "--format", "json").stdout)
    assert (document["kind"], document["schema_version"]) == ("ckptplan.profiles", 1)
    assert document["profiles"][0]["name"] == "amd-mi300x"
    rows = list(csv.DictReader(io.StringIO(run("profiles", "list", "--format", "csv").stdout)))
    assert {row["name"] for row in rows} >= {"ipu-mk2", "nvidia-h200"}


def test_profiles_show_every_number_with_its_source() -> None:
    text = run("profiles", "show", "ipu-mk2").stdout
    assert "1.5 us: T_s is not published" in text
    assert "A vendor, B measured by others" in text
    document = json.loads(run("profiles", "show", "ipu-mk2", "--format", "json").stdout)
    assert document["profile"]["sources"]["local_bytes"]["grade"] == "D"
    rows = list(csv.DictReader(io.StringIO(run("profiles", "show", "nvidia-h200", "--format", "csv").stdout)))
    assert {row["number"]: row["grade"] for row in rows}["write_bytes_per_second"] == "X"


def test_a_profile_can_come_from_standard_input() -> None:
    text = 'name = "piped"\nlocal_bytes = 5\nwrite_bytes_per_second = 1\nread_bytes_per_second = 1\n'
    done = run("profiles", "show", "-", stdin=text)
    assert "piped" in done.stdout
    assert "stated without a source" in done.stdout


def test_profiles_check() -> None:
    done = run("profiles", "check")
    assert done.returncode == 0
    assert done.stdout.count(": valid, ") == 14
    text = 'name = "p"\nlocal_bytes = "5 KB"\nwrite_bytes_per_second = 1\nread_bytes_per_second = 1\n'
    assert run("profiles", "check", "-", stdin=text).returncode == 2
    plain = run("profiles", "check", "-", stdin=text.replace("5 KB", "5 kB"))
    told = " ".join(plain.stdout.split())
    assert "without either: local_bytes, write_bytes_per_second, read_bytes_per_second" in told
    peaks = "float32_flops_per_second, local_bytes_per_second, launch_seconds"
    assert f"for estimates of step times in float32 it lacks {peaks}" in told
    document = json.loads(run("profiles", "check", "ipu-mk2", "--format", "json").stdout)
    assert document["profiles"][0]["valid"] is True
    assert "ipu-mk2" in run("profiles", "check", "ipu-mk2", "--format", "csv").stdout


def test_workloads() -> None:
    assert "paper-snn" in run("workloads", "list").stdout
    text = run("workloads", "show", "paper-snn").stdout
    assert "network.neurons" in text
    assert "only ratios are published" in text
    for arguments in (["list"], ["show", "paper-snn"]):
        assert json.loads(run("workloads", *arguments, "--format", "json").stdout)["schema_version"] == 1
        assert "960" in run("workloads", *arguments, "--format", "csv").stdout


def test_parts_of_a_calibrated_workload_are_shown_one_by_one_within_80_columns() -> None:
    """Each number of a table is a row, with its unit; the interval of a time begins how it was measured."""
    interval = Measured(repeats=16, spread=0.3, low=0.9, high=1.5)
    known = calibration(0.5).model_copy(update={"measured": {"forward_seconds": interval}})
    work = Operations(forward_flops=1.32e6, backward_flops=2e6, forward_bytes=1e6, backward_bytes=1e6)
    workload = ckptplan.load_workload("paper-snn").replace(
        calibration=known,
        operations=work,
        forward_seconds=1e-4,
        basis={
            "forward_seconds": Basis(kind="measured", why="fit over chunks"),
            "operations": Basis(kind="measured", why="counted"),
        },
    )
    text = told(view_workload(workload).blocks(), width=80)
    assert max(map(len, text.splitlines())) <= 80
    rows = [" ".join(line.split()) for line in text.splitlines()]
    for row in (
        "90 us to 150 us by 16 rounds; fit over chunks",
        "operations.dtype float32 measured",
        "operations.forward_flops 1.32 MFLOP",
        "calibration.uncertainty 50 %",
    ):
        assert any(row in one for one in rows), (row, rows)


def test_a_workload_without_network_is_shown_as_well() -> None:
    text = (
        'name = "w"\nsteps = 3\nstate_bytes = 1\ntape_bytes = 1\nforward_seconds = 1\n'
        "backward_seconds = 1\nrecompute_seconds = 1\n"
    )
    done = run("workloads", "show", "-", stdin=text)
    assert done.returncode == 0
    assert "network" not in done.stdout


@pytest.mark.parametrize("kind", ["plan", "profile", "workload"])
def test_schemas_are_valid_json_schemas(kind: str) -> None:
    schema = json.loads(run("schema", kind).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)


def test_a_terminal_gets_colours_unless_no_color_is_set() -> None:
    """On a pseudo-terminal, as script(1) would make one."""

    def shown(**environment: str) -> str:
        how: dict[str, Any] = {"TERM": "xterm-256color", "COLUMNS": "120", **environment}
        code, _, text = run_on_terminal("optimize", shows_output=True, columns=120, **how)
        assert code == 0
        return text

    assert "\x1b[1;32moptimal" in shown()
    assert "32m" not in shown(NO_COLOR="1")
