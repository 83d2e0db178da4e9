"""``simulate`` and ``schedule``: schedules go out and come back, and are played, traced and judged."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

import ckptplan
from ckptplan.storage.schemas import file_schema
from tests.support import run, small_plan

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a plan."""
    ckptplan.save_plan(small_plan(), tmp_path / "plan.json")
    return tmp_path


@pytest.mark.parametrize("name", ["s.jsonl", "s.csv"])
def test_a_schedule_goes_out_and_comes_back(name: str, folder: Path) -> None:
    done = run("schedule", "plan.json", "-o", name, cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"62 actions written to {name}\n")
    printed = run("schedule", "plan.json", "--format", name[2:], cwd=folder).stdout
    # The first line names the command.
    assert printed.splitlines()[1:] == (folder / name).read_text().splitlines()[1:]
    done = run("simulate", "plan.json", "--schedule", name, "--format", "json", cwd=folder)
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert (document["agrees"], document["schedule"], document["simulated"]["actions"]) == (True, name, 62)
    for number, value in document["predicted"].items():
        assert document["simulated"][number] == pytest.approx(value, rel=1e-12)


def test_lines_keep_the_published_schema(folder: Path) -> None:
    schema = json.loads(run("schema", "schedule").stdout)
    assert schema == file_schema("schedule")
    for line in run("schedule", "plan.json", cwd=folder).stdout.splitlines():
        jsonschema.validate(json.loads(line), schema)


def test_a_prediction_that_does_not_hold_exits_4(folder: Path) -> None:
    """Somebody changed what the plan predicts."""
    plan = folder / "plan.json"
    plan.write_text(plan.read_text().replace('"recomputed_steps": 86', '"recomputed_steps": 87'))
    done = run("simulate", "plan.json", "--format", "csv", cwd=folder)
    assert done.returncode == 4
    assert "recomputed_steps,87,86,false\n" in done.stdout
    assert "does not cost what the plan predicts" in done.stderr
    assert "-1.1 %" in run("simulate", "plan.json", cwd=folder).stdout


def test_another_schedule_may_cost_something_else(folder: Path) -> None:
    """The same segments with chunks of another length: no fault, but shown."""
    ckptplan.save_schedule(small_plan("double", local_bytes="231 kB"), folder / "other.csv")
    plan = folder / "plan.json"
    plan.write_text(plan.read_text().replace('"local_bytes": 230000', '"local_bytes": 231000'))
    done = run("simulate", "plan.json", "--schedule", "other.csv", "--format", "csv", cwd=folder)
    assert done.returncode == 0
    assert {line.rpartition(",")[2] for line in done.stdout.splitlines()} == {"agrees", "true", "false"}


def test_a_schedule_that_breaks_a_law_is_data_for_programs(folder: Path) -> None:
    lines = run("schedule", "plan.json", "--format", "csv", cwd=folder).stdout.splitlines(keepends=True)
    (folder / "s.csv").write_text("".join(lines[:-1]))
    done = run("simulate", "plan.json", "--schedule", "s.csv", "--format", "json", cwd=folder)
    document = json.loads(done.stdout)
    assert (document["error"], document["line"], document["action"]) == ("illegal", 63, None)
    assert document["law"] == "every step is reversed: steps 0 to 3 are not"


def test_a_trace_has_the_events_of_the_golden_file(folder: Path) -> None:
    """A trace of another schedule than the plan's is named after the file of that schedule."""
    done = run("simulate", "plan.json", "--trace", "trace.json", cwd=folder)
    assert done.returncode == 0
    assert "trace written to trace.json" in done.stderr
    document = json.loads((folder / "trace.json").read_text())
    assert document["traceEvents"] == json.loads((GOLDEN / "trace.json").read_text())["traceEvents"]
    assert document["otherData"]["kind"] == "ckptplan.trace"
    assert document["otherData"]["command"].startswith("ckptplan simulate")
    # Dollar signs and underscores are text in a picture, not a formula.
    name = "a$b$c_{d}.csv"
    ckptplan.save_schedule(small_plan(), folder / name)
    run("simulate", "plan.json", "--schedule", name, "--trace", "t.json", "--gantt", "p.svg", cwd=folder)
    document = json.loads((folder / "t.json").read_text())
    assert document["otherData"]["schedule"] == name
    assert document["traceEvents"][0]["args"]["name"] == f"{name} on ipu-mk2, simulated"
    assert name in (folder / "p.svg").read_text()
