"""``simulate`` and ``schedule`` as real processes, and what they leave behind."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

import ckptplan
from ckptplan.storage.schemas import file_schema
from tests.support import leave_progress_out, long_plan, run, run_on_terminal, small_plan, started, wait_until

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.fixture
def plan(tmp_path: Path) -> str:
    file = tmp_path / "plan.json"
    ckptplan.save_plan(small_plan(), file)
    return str(file)


def without_command(text: str) -> list[str]:
    """Lines of a file, less the head, which holds the version and the command."""
    return text.splitlines()[1:]


def test_simulate_shows_both_numbers_side_by_side(plan: str) -> None:
    done = run("simulate", plan)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (GOLDEN / "simulate.txt").read_text()


def test_simulate_as_json(plan: str) -> None:
    document = json.loads(run("simulate", plan, "--format", "json").stdout)
    assert document["kind"] == "ckptplan.simulation"
    assert document["agrees"] is True
    assert document["schedule"] is None
    assert document["simulated"]["actions"] == 62
    for name, value in document["predicted"].items():
        assert document["simulated"][name] == pytest.approx(value, rel=1e-12)
    assert {entry["kind"] for entry in document["estimate_basis"]} >= {"assumed", "sourced"}


def test_simulate_as_csv(plan: str) -> None:
    rows = list(csv.DictReader(io.StringIO(run("simulate", plan, "--format", "csv").stdout)))
    assert {row["agrees"] for row in rows} == {"true"}
    assert rows[3] == {"quantity": "recomputed_steps", "predicted": "86", "simulated": "86", "agrees": "true"}


def test_a_plan_can_come_from_standard_input(plan: str) -> None:
    done = run("simulate", "-", "--format", "csv", stdin=Path(plan).read_text())
    assert done.returncode == 0
    assert "recomputed_steps,86,86" in done.stdout


def test_a_prediction_that_does_not_hold_exits_4(plan: str) -> None:
    """Somebody changed what the plan predicts."""
    text = Path(plan).read_text().replace('"recomputed_steps": 86', '"recomputed_steps": 87')
    Path(plan).write_text(text)
    done = run("simulate", plan)
    assert done.returncode == 4
    assert "steps run again         87         86  -1 (-1.1 %)" in done.stdout
    assert "does not cost what the plan predicts" in done.stderr


@pytest.mark.parametrize("name", ["s.jsonl", "s.csv"])
def test_a_schedule_goes_out_and_comes_back(name: str, plan: str, tmp_path: Path) -> None:
    file = tmp_path / name
    done = run("schedule", plan, "-o", str(file))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"62 actions written to {file}\n")
    golden = GOLDEN / f"schedule.{name[2:]}"
    assert without_command(file.read_text()) == without_command(golden.read_text())
    printed = run("schedule", plan, "--format", name[2:]).stdout
    assert without_command(printed) == without_command(file.read_text())
    done = run("simulate", plan, "--schedule", str(file))
    assert done.returncode == 0
    assert f"{file}: 62 actions, every law kept" in " ".join(done.stdout.split())
    piped = run("simulate", plan, "--schedule", "-", "--format", "csv", stdin=file.read_text())
    assert "seconds,0.00092" in piped.stdout


def test_lines_keep_the_published_schema(plan: str) -> None:
    schema = json.loads(run("schema", "schedule").stdout)
    assert schema == file_schema("schedule")
    for line in run("schedule", plan).stdout.splitlines():
        jsonschema.validate(json.loads(line), schema)


def test_another_schedule_may_cost_something_else(plan: str, tmp_path: Path) -> None:
    """The same segments with chunks of another length: no fault, but shown."""
    file = tmp_path / "other.csv"
    other = small_plan("double", local_bytes="231 kB")
    ckptplan.save_schedule(other, file)
    Path(plan).write_text(Path(plan).read_text().replace('"local_bytes": 230000', '"local_bytes": 231000'))
    done = run("simulate", plan, "--schedule", str(file))
    assert done.returncode == 0
    assert "equal" in done.stdout
    assert "%)" in done.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("stop", "end"), "line 3: end: is not a field of advance (accepted: start, stop)"),
        (('"advance"', '"advanse"'), "line 3: action: 'advanse' is not an action. Did you mean 'advance'?"),
        (
            ('"stop":10', '"stop":11'),
            "line 4: save(state=10, tier=remote): a save stores the working state",
        ),
        (('"steps":64', '"steps":65'), "line 1: steps: the schedule is for 65 steps, the plan for 64"),
    ],
)
def test_a_wrong_schedule_exits_2_with_the_line(
    change: tuple[str, str], message: str, plan: str, tmp_path: Path
) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text(run("schedule", plan).stdout.replace(*change))
    done = run("simulate", plan, "--schedule", str(file), "--trace", str(tmp_path / "t.json"))
    assert done.returncode == 2
    assert f"ckptplan: {file}: {message}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "t.json").exists()


def test_a_wrong_schedule_is_json_for_programs(plan: str, tmp_path: Path) -> None:
    file = tmp_path / "s.csv"
    lines = run("schedule", plan, "--format", "csv").stdout.splitlines(keepends=True)
    file.write_text("".join(lines[:-1]))
    document = json.loads(run("simulate", plan, "--schedule", str(file), "--format", "json").stdout)
    assert (document["error"], document["line"], document["action"]) == ("illegal", 63, None)
    assert document["law"] == "every step is reversed: steps 0 to 3 are not"


def test_a_schedule_over_the_budget_is_refused(plan: str, tmp_path: Path) -> None:
    file = tmp_path / "base.csv"
    file.write_text("action,start,stop,state,tier,states,source,target\nrecord,0,64,,,,,\nbackward,0,64,,,,,\n")
    done = run("simulate", plan, "--schedule", str(file))
    assert done.returncode == 2
    assert (
        "line 2: record(start=0, stop=64): 283,584 bytes are needed of a local budget of 230,000" in done.stderr
    )


def test_a_reader_that_leaves_ends_the_export_quietly(tmp_path: Path) -> None:
    """``ckptplan schedule plan.json | head -3``, with more lines than a pipe holds."""
    ckptplan.save_plan(long_plan(200_000), tmp_path / "long.json")
    command = ["-m", "ckptplan", "schedule", str(tmp_path / "long.json")]
    with started(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        process.stdout.close()
        assert json.loads(first)["steps"] == 200_000
        assert process.wait() == 141
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("sent", "code", "said"),
    [(signal.SIGINT, 130, "interrupted\n"), (signal.SIGTERM, 143, ""), (signal.SIGHUP, 143, "")],
)
def test_a_stopped_export_leaves_no_half_file(
    sent: signal.Signals, code: int, said: str, tmp_path: Path
) -> None:
    ckptplan.save_plan(long_plan(50_000_000), tmp_path / "long.json")
    target = tmp_path / "s.jsonl"
    target.write_text("old")
    command = ["-m", "ckptplan", "schedule", str(tmp_path / "long.json"), "-o", str(target)]
    with started(*command, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: list(tmp_path.glob(".ckptplan-*")), what="a schedule that is written")
        process.send_signal(sent)
        told = process.communicate()[1]
    assert process.returncode == code
    assert leave_progress_out(told) == said
    assert target.read_text() == "old"
    assert not list(tmp_path.glob(".ckptplan-*"))


def test_a_pipe_may_be_named_as_a_file(plan: str) -> None:
    """``ckptplan schedule plan.json -o >(gzip > s.gz)``."""
    read, write = os.pipe()
    done = subprocess.run(
        [sys.executable, "-m", "ckptplan", "schedule", plan, "-o", f"/dev/fd/{write}"],
        check=False,
        capture_output=True,
        text=True,
        pass_fds=[write],
    )
    os.close(write)
    with os.fdopen(read) as file:
        assert len(file.read().splitlines()) == 63
    assert done.returncode == 0


def test_another_schedule_is_called_by_its_name(plan: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    ckptplan.save_schedule(small_plan(), file)
    trace, picture = tmp_path / "t.json", tmp_path / "p.svg"
    run("simulate", plan, "--schedule", str(file), "--trace", str(trace), "--gantt", str(picture))
    document = json.loads(trace.read_text())
    assert document["otherData"]["schedule"] == str(file)
    assert document["traceEvents"][0]["args"]["name"] == f"{file} on ipu-mk2, simulated"
    assert f"{file}: 924.7 us" in picture.read_text()


def test_a_wait_for_transfers_is_told(tmp_path: Path) -> None:
    slow = {"write_bytes_per_second": 1e8, "read_bytes_per_second": 1e8, "sources": {}}
    profile = ckptplan.HardwareProfile(**{**dict(ckptplan.load_profile("nvidia-h200")), **slow})
    workload = ckptplan.load_workload("paper-snn").with_steps(64)
    plan = ckptplan.optimize(workload, profile, strategies=["remote"], local_bytes="345 MB")
    ckptplan.save_plan(plan, tmp_path / "plan.json")
    assert "for transfers" in run("simulate", str(tmp_path / "plan.json")).stdout


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["simulate", "schedule.csv"], "schedule.csv: is not valid JSON"),
        (["simulate", "schedule.jsonl"], "schedule.jsonl: is a schedule; give the plan that it was made from"),
        (["simulate", ""], "plan: an empty name is no file"),
        (["schedule", "plan.json", "-o", ""], "--output: an empty name is no file"),
    ],
)
def test_what_is_no_plan_or_file_is_told(command: list[str], message: str) -> None:
    done = run(*(str(GOLDEN / word) if "." in word else word for word in command))
    assert done.returncode == 2
    assert message in done.stderr


def test_trace_and_picture_are_written_beside_the_result(plan: str, tmp_path: Path) -> None:
    trace, picture = tmp_path / "trace.json", tmp_path / "picture.svg"
    done = run("simulate", plan, "--trace", str(trace), "--gantt", str(picture))
    assert done.returncode == 0
    assert f"trace written to {trace}; open it at ui.perfetto.dev" in done.stderr
    assert f"picture written to {picture}" in done.stderr
    document = json.loads(trace.read_text())
    golden = json.loads((GOLDEN / "trace.json").read_text())
    assert document["traceEvents"] == golden["traceEvents"]
    assert document["otherData"]["kind"] == "ckptplan.trace"
    assert document["otherData"]["command"].startswith("ckptplan simulate")
    assert "remote checkpoint" in picture.read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gantt", "p.gif"], "--gantt: 'p.gif' does not say which kind of picture"),
        (["--gantt", "no/p.png"], "--gantt: cannot be written: the folder of 'no/p.png' does not exist"),
        (["--trace", "no/t.json"], "--trace: cannot be written: the folder of 'no/t.json' does not exist"),
        (["--trace", "-"], "--trace: standard output carries the result"),
        (["--trace", "-", "-o", "x"], "--trace: standard output carries the result"),
        (["--trace", ""], "--trace: an empty name is no file"),
        (["--gantt", ""], "--gantt: an empty name is no file"),
        (
            ["--trace", "t.json", "-o", "no/x"],
            "--output: cannot be written: the folder of 'no/x' does not exist",
        ),
        (["--trace", "plan.json"], "--trace: is read by this command and would be lost"),
        (["--schedule", "s.csv", "-o", "s.csv"], "--output: is read by this command and would be lost"),
        (["--trace", "a.json", "-o", "a.json"], "is also what --trace writes"),
        (["--schedule", "missing.csv"], "missing.csv: cannot be read: No such file"),
    ],
)
def test_wrong_options_exit_2_and_leave_everything(options: list[str], message: str, plan: str) -> None:
    folder = Path(plan).parent
    (folder / "s.csv").touch()
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    done = subprocess.run(
        [sys.executable, "-m", "ckptplan", "simulate", plan, *options],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(GOLDEN.parent.parent)},
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_plan_and_schedule_cannot_both_be_standard_input() -> None:
    done = run("simulate", "-", "--schedule", "-", stdin="")
    assert done.returncode == 2
    assert "standard input is already the plan" in done.stderr


def test_too_long_for_a_picture(tmp_path: Path) -> None:
    ckptplan.save_plan(long_plan(40_000), tmp_path / "long.json")
    done = run("simulate", str(tmp_path / "long.json"), "--gantt", str(tmp_path / "p.png"))
    assert done.returncode == 2
    assert "--gantt: the schedule has more than 200,000 actions" in done.stderr
    assert not (tmp_path / "p.png").exists()


def test_simulate_loads_no_vl_convert_unless_it_draws(plan: str) -> None:
    script = (
        "import sys\nfrom ckptplan.cli.main import main\n"
        f"try: main(['simulate', {plan!r}])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print(sorted({'scipy', 'vl_convert', 'torch', 'checkpoint_schedules'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_people_see_how_far_it_is_and_pipes_do_not(tmp_path: Path) -> None:
    """On a terminal a bar on standard error; the result on standard output stays what it is."""
    ckptplan.save_plan(long_plan(20_000), tmp_path / "long.json")
    code, output, seen = run_on_terminal("simulate", str(tmp_path / "long.json"), "--format", "csv")
    assert code == 0
    assert "playing the schedule" in seen
    assert output.startswith("quantity,predicted,simulated,agrees\n")
    assert "playing" not in output
