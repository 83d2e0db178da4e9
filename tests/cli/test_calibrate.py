"""``ckptplan calibrate`` and ``ckptplan validate`` as processes: files, tables, JSON, exit codes."""

import csv
import io
import json
import re
import shlex
import signal
import tomllib
from pathlib import Path

import pytest

import ckptplan
from ckptplan.calibration.host import processor_name
from tests.support import run, run_on_terminal, run_process

#: It measures.
pytestmark = pytest.mark.slow

SMALL = ("--cell", "gru", "--batch", "4", "--neurons", "16", "--inputs", "8", "--T", "100", "--threads", "1")
QUICK = (*SMALL, "--quick")
#: Room for a table with any numbers; at 80 columns, long ones break the names of its rows.
WIDE = "120"


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a calibration and a plan."""
    folder = tmp_path_factory.mktemp("calibrated")
    done = run("calibrate", *QUICK, "-o", "my-gru.toml", "--profile-out", "here.toml", cwd=folder)
    assert done.returncode == 0, done.stderr
    job = ("--workload", "./my-gru.toml", "--profile", "./here.toml")
    done = run(
        "optimize", *job, "--local-bytes", "170 kB", "--strategies", "regular", "-o", "plan.json", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_a_calibration_is_a_workload_and_a_profile_by_the_names_of_their_files(calibrated: Path) -> None:
    workload = ckptplan.load_workload(calibrated / "my-gru.toml")
    profile = ckptplan.load_profile(calibrated / "here.toml")
    assert (workload.name, profile.name, workload.timed_on) == ("my-gru", "here", "here")
    assert (workload.steps, workload.batch, workload.state_bytes) == (100, 4, 256)
    assert sorted(path.name for path in calibrated.iterdir()) == ["here.toml", "my-gru.toml", "plan.json"]


def test_json_and_csv_hold_si_numbers(tmp_path: Path) -> None:
    document = json.loads(run("calibrate", *QUICK, "--format", "json", cwd=tmp_path).stdout)
    assert document["kind"] == "ckptplan.calibration"
    assert document["workload"]["tape_bytes"] == 7 * 256
    assert document["profile"]["sources"]["latency_seconds"]["grade"] == "M"
    rows = list(csv.DictReader(io.StringIO(run("calibrate", *QUICK, "--format", "csv", cwd=tmp_path).stdout)))
    assert next(row["value"] for row in rows if row["field"] == "state_bytes") == "256"


def test_a_noisy_machine_widens_intervals_and_writes_nothing_only_if_strict(tmp_path: Path) -> None:
    """No machine is as quiet as a tolerance of a billionth needs."""
    wanted = (*SMALL, "--repeats", "3", "--tolerance", "1e-9")
    done = run("calibrate", *wanted, "--strict", "--format", "json", cwd=tmp_path)
    assert done.returncode == 4
    assert "the machine is noisy: rounds of" in done.stderr
    assert "nothing was written, as --strict asks" in done.stderr
    error = json.loads(done.stdout)
    assert (error["error"], error["exit_code"], error["most"]) == ("noisy", 4, 5e-10)
    assert list(tmp_path.iterdir()) == []
    done = run("calibrate", *wanted, cwd=tmp_path)
    assert done.returncode == 0
    assert "rounds differ: more follow" in done.stderr
    assert "warning: times of steps are only known to within" in done.stderr
    assert "within the intervals of its times" in done.stderr
    assert "workload written to my-workload.toml, profile to my-machine.toml" in done.stderr
    for text in ("state", "tape of a step", "1.75 KiB", "forward", " to ", "--uncertainty"):
        assert text in done.stdout


def test_the_last_line_is_the_whole_next_command(tmp_path: Path) -> None:
    """It plans with both files, and what it plans can be validated."""
    done = run("calibrate", *QUICK, "-o", "my-gru/w.toml", cwd=_made(tmp_path / "my-gru").parent)
    assert done.returncode == 0, done.stderr
    last = shlex.split(done.stderr.splitlines()[-1])
    assert last[:3] == ["next:", "ckptplan", "optimize"]
    done = run(*last[2:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "within the intervals of its times" in " ".join(done.stdout.split())
    done = run(
        "validate",
        "plan.json",
        "--repeats",
        "1",
        "--tolerance",
        "100%",
        "--overhead-tolerance",
        "100%",
        cwd=tmp_path,
    )
    # Programs beside it may have begun since.
    assert done.returncode in (0, 4), done.stdout
    for command in ("pareto", "largest T"):
        done = run(*command.split(), *last[3:7], "--strategies", "closed", cwd=tmp_path)
        assert "within the intervals of its times" in " ".join(done.stdout.split()), done.stderr


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


NOT_LINEAR = """
import torch

class Cell(torch.nn.Module):
    def __init__(self, neurons):
        super().__init__()
        self.layer = torch.nn.Linear(neurons, neurons)

    def forward(self, state, x):
        values, count = state
        for _ in range(int(count)):
            values = values.sin()
        values = self.layer(values)
        return (values, count + 1), values

def make(batch, neurons):
    return Cell(neurons), (torch.zeros(batch, neurons), torch.zeros((), dtype=torch.long))
"""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--cell", "gruu"), "Did you mean 'gru'"),
        (("--cell", "nowhere.at_all:make"), "cannot be imported: ModuleNotFoundError"),
        (("--cell", "cells:make"), "not linear in the steps of a chunk"),
        (("--cell", "gru", "--batch", "0"), "--batch"),
        (("--cell", "gru", "--tolerance", "0"), "--tolerance"),
        (("--cell", "gru", "--bytes-only", "--tolerance", "0"), "--tolerance"),
        (("--cell", "gru", "--threads", "none"), "--threads"),
        (("--cell", "gru", "-o", "same.toml", "--profile-out", "same.toml"), "--profile-out"),
        (("--cell", "gru", "-o", "nowhere/w.toml"), "the folder of 'nowhere/w.toml' does not exist"),
        (("--cell", "gru", "-o", "-"), "--output"),
        (("--cell", "gru", "-o", "my gru.toml"), "is not a name"),
        (("--cell", "gru", "--repeats", "2"), "--repeats"),
        (("--cell", "gru", "--max-seconds", "0"), "--max-seconds: '0' is out of range"),
        (("--cell", "gru", "--max-seconds=-1"), "--max-seconds"),
        (("--cell", "gru", "--max-seconds", "0.01"), "sizes without times (--bytes-only), or --max-seconds"),
        (("--cell", "gru", "--quick", "--repeats", "5"), "--repeats: does not go together with --quick"),
        (("--cell", "gru", "--quick", "--bytes-only"), "--quick: does not go together with --bytes-only"),
        (("--cell", "gru", "--bytes-only", "--profile-out", "p.toml"), "--profile-out: does not go together"),
        ((), "--cell"),
    ],
)
def test_bad_input_is_told_and_leaves_nothing(arguments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    (tmp_path / "cells.py").write_text(NOT_LINEAR)
    done = run("calibrate", *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.glob("*.*")] == ["cells.py"]


def test_sizes_alone_are_the_same_by_both_commands_and_plan_at_once(tmp_path: Path) -> None:
    """Times are assumed, and nothing takes them for a calibration's."""
    for command in (("calibrate", *SMALL, "--bytes-only"), ("workloads", "new", *SMALL)):
        done = run(*command, "-o", f"{command[0]}.toml", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith("about ")
        assert "its times are assumed (the least of" in done.stderr
        assert "1.75 KiB" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["calibrate.toml", "workloads.toml"]
    one, other = (ckptplan.load_workload(tmp_path / f"{name}.toml") for name in ("calibrate", "workloads"))
    sizes = [name for name, number in one.numbers().items() if "bytes" in name and number]
    assert len(sizes) == 6
    assert all(getattr(one, name) == getattr(other, name) for name in sizes)
    assert (one.timed_on, one.calibration) == (processor_name(), None)
    plan = ckptplan.optimize(other, ckptplan.load_profile("nvidia-h200"), objective="memory")
    assumed = {entry.field for entry in plan.estimate_basis if entry.kind == "assumed"}
    assert "workload.forward_seconds" in assumed
    # A plan for another machine says whose times it shows.
    shown = run("optimize", "--workload", "workloads.toml", "--profile", "nvidia-h200", cwd=tmp_path).stdout
    assert f"step times carried over from {processor_name()}, not" in " ".join(shown.split())


def test_times_of_a_new_workload_are_those_given(tmp_path: Path) -> None:
    done = run("workloads", "new", *SMALL, "--forward-seconds", "80 us", "-o", "w.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = ckptplan.load_workload(tmp_path / "w.toml")
    assert (made.forward_seconds, made.backward_seconds) == (80e-6, 160e-6)
    done = run("workloads", "new", *SMALL, "--backward-seconds", "80 us", cwd=tmp_path)
    assert done.returncode == 2
    assert "--forward-seconds: is missing" in done.stderr


INTERRUPTING = """
import os
import signal

import torch

class Cell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, state, x):
        # A file is no state of the cell.
        with open("calls", "ab") as calls:
            calls.write(b".")
            if calls.tell() == int(os.environ["CALLS"]):
                os.kill(os.getpid(), getattr(signal, os.environ["SIGNAL"]))
        state = self.layer(state) + x
        return state, state

def make_inputs(steps):
    if steps > 200 and os.environ["CALLS"] == "0":
        # Rounds begin, and sizes are counted.
        os.kill(os.getpid(), getattr(signal, os.environ["SIGNAL"]))
    return torch.zeros(steps, 1, 2)

def make():
    return Cell(), torch.zeros(1, 2), make_inputs
"""


@pytest.mark.parametrize(
    ("calls", "name", "code", "files"),
    [
        ("30000", "SIGTERM", 143, ["my-machine.toml", "my-workload.toml"]),
        ("0", "SIGINT", 130, ["my-workload.toml"]),
        ("100", "SIGINT", 130, []),
    ],
)
def test_an_interrupted_calibration_keeps_what_it_measured(
    calls: str, name: str, code: int, files: list[str], tmp_path: Path
) -> None:
    """After three rounds both files, before them the sizes, before those nothing."""
    (tmp_path / "cells.py").write_text(INTERRUPTING)
    job = ("calibrate", "--cell", "cells:make", "--threads", "1", "--repeats", "50")
    done = run_process(
        *job, "--max-seconds", "3600", cwd=tmp_path, heeds_interrupts=True, CALLS=calls, SIGNAL=name
    )
    assert done.returncode == code, done.stderr
    assert sorted(path.name for path in tmp_path.glob("*.toml")) == files
    if len(files) == 2:
        assert "not a whole calibration: interrupted after" in done.stderr
        found = ckptplan.load_workload(tmp_path / "my-workload.toml").calibration
        assert found is not None
        assert 3 <= found.measured["forward_seconds"].repeats < 50
    elif files:
        assert "sizes written to my-workload.toml, as with --bytes-only" in done.stderr
        (tmp_path / "my-workload.toml").write_text("kept")
        done = run_process(*job, cwd=tmp_path, heeds_interrupts=True, CALLS=calls, SIGNAL=name)
        assert "my-workload.toml exists: it was left as it was" in done.stderr
        assert (tmp_path / "my-workload.toml").read_text() == "kept"


def test_a_validation_shows_each_quantity_on_its_own(calibrated: Path) -> None:
    done = run("validate", "plan.json", "--repeats", "1", cwd=calibrated, COLUMNS=WIDE)
    assert done.returncode in (0, 4), done.stderr
    for quantity in ("checkpoints and tapes", "local peak", "forward", "backward", "total", "base", "gradient"):
        assert quantity in done.stdout
    # Times are what a busy machine makes of them.
    assert ("The prediction holds" in done.stdout) == (done.returncode == 0)


def test_the_exit_code_is_what_the_json_says(calibrated: Path) -> None:
    done = run("validate", "plan.json", "--repeats", "2", "--regret", "--format", "json", cwd=calibrated)
    document = json.loads(done.stdout)
    assert document["kind"] == "ckptplan.validation"
    assert done.returncode == (0 if document["holds"] else 4)
    assert document["holds"] == (document["off"] == [])
    exact = {one["quantity"]: one for one in document["quantities"] if one["unit"] in ("bytes", "count")}
    assert exact["state"]["predicted"] == exact["state"]["measured"] == 256
    assert exact["checkpoints and tapes"]["bias"] == 0
    assert document["regret"]["ratio"] >= 1
    assert exact["state"]["allowed"] == 0
    assert document["regret"]["chosen"] == document["strategy"]
    assert "not_comparable" in document
    assert document["not_comparable"] is None


def test_a_wrong_profile_is_found_out_and_named(calibrated: Path) -> None:
    """Half the bytes of a state, many times the bandwidth."""
    text = (calibrated / "my-gru.toml").read_text()
    (calibrated / "half.toml").write_text(text.replace('state_bytes = "256 B"', "state_bytes = 128"))
    profile = tomllib.loads((calibrated / "here.toml").read_text())
    rate = profile["write_bytes_per_second"]["value"]
    text = (calibrated / "here.toml").read_text().replace(f'value = "{rate}"', 'value = "1000 GB/s"', 1)
    (calibrated / "fast.toml").write_text(text)
    for workload, machine, named in (
        ("./half.toml", "./here.toml", "state"),
        ("./my-gru.toml", "./fast.toml", "write bandwidth"),
    ):
        job = ("--workload", workload, "--profile", machine, "--local-bytes", "170 kB")
        assert run("optimize", *job, "--strategies", "remote", "-o", "w.json", cwd=calibrated).returncode == 0
        done = run("validate", "w.json", "--repeats", "1", cwd=calibrated)
        assert done.returncode == 4
        assert named in done.stderr.partition("outside the tolerance: ")[2]


def test_a_trace_has_both_timelines(calibrated: Path) -> None:
    done = run("validate", "plan.json", "--repeats", "1", "--trace", "both.json", cwd=calibrated)
    assert done.returncode in (0, 4)
    events = json.loads((calibrated / "both.json").read_text())["traceEvents"]
    names = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert len(names) == 2
    assert "simulated" in names[1]
    assert "measured" in names[2]
    kinds = {pid: [one["name"] for one in events if one["pid"] == pid and one["ph"] in "Xi"] for pid in names}
    assert kinds[1] == kinds[2]
    held = {
        pid: [one["args"]["bytes"] for one in events if one["name"] == "local memory" and one["pid"] == pid]
        for pid in names
    }
    # What stays resident, which the simulated timeline begins with, is not in the measured one, nor what is
    # allocated and freed while a chunk is reversed.
    plan = ckptplan.load_plan(calibrated / "plan.json")
    kept = plan.predicted.local_peak_bytes - plan.workload.chunk_workspace_bytes
    assert max(held[2]) == kept - held[1][0] > 0


def test_a_plan_for_other_hardware_is_carried_out(tmp_path: Path) -> None:
    """A spiking network on an IPU: counts, bytes and gradients hold, times are shown as not comparable."""
    for neurons, profile in (("100", "ipu-mk2"), ("1472", "nvidia-h200")):
        # Of 100 neurons on 1,472 units each unit's share is rounded up; copies on an H200 overlap compute.
        job = ("--T", "30", "--batch", "2", "--neurons", neurons, "--profile", profile)
        done = run("optimize", *job, "--strategies", "remote", "-o", "plan.json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        done = run("validate", "plan.json", "--repeats", "1", "--threads", "1", cwd=tmp_path)
        assert done.returncode == 0, done.stdout
        assert "times cannot be compared here" in done.stderr.splitlines()[0]
        assert "4 runs, " in done.stderr.splitlines()[1]
        assert "Times are not comparable" in done.stdout
        assert "hold; times were not compared" in done.stdout


def test_a_long_run_on_other_hardware_is_refused_before_it_begins(tmp_path: Path) -> None:
    """README's first plan: steps of 1,472 neurons, of which a laptop would run thousands for minutes."""
    done = run("optimize", "--T", "4096", "--strategies", "paper", "-o", "plan.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run("validate", "plan.json", "--max-seconds", "100 ms", "--format", "json", cwd=tmp_path)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert "times cannot be compared here" in first
    assert re.search("--max-seconds: 4 runs of 4,096 steps take (at least )?about .* here", second)
    assert "(accepted: --max-seconds " in second
    assert json.loads(done.stdout)["field"] == "--max-seconds"


def test_ctrl_c_shows_what_was_compared_so_far(calibrated: Path) -> None:
    """At a tenth of three hundred rounds, bytes are compared, and times of some rounds."""
    job = ("validate", "plan.json", "--repeats", "300")
    code, output, said = run_on_terminal(*job, cwd=calibrated, interrupt_at=r" [1-9]\d%", COLUMNS=WIDE)
    # Python itself may end as the signal does; a shell reports 130 for both.
    assert code in (130, -signal.SIGINT), said
    assert "Traceback" not in said
    assert "interrupted" in said
    for text in ("checkpoints and tapes", "overhead", "Interrupted: the rest was not measured"):
        assert text in " ".join(output.split())


def test_what_cannot_be_validated_is_told(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text(
        'name = "w"\nsteps = 8\nunits = 1\nbatch = 2\nstate_bytes = 8\ntape_bytes = 8\n'
        "forward_seconds = 1\nbackward_seconds = 1\nrecompute_seconds = 1\n"
    )
    job = ("--workload", "./w.toml", "--profile", "nvidia-h200")
    assert run("optimize", *job, "-o", "plan.json", cwd=tmp_path).returncode == 0
    for arguments, told in (
        (("plan.json",), "names no cell"),
        (("plan.json", "--cell", "gruu(neurons=2)"), "Did you mean 'gru'"),
        (("nowhere.json",), "nowhere.json"),
        (("plan.json", "--tolerance", "-1"), "--tolerance"),
        (("plan.json", "--overhead-tolerance", "0"), "--overhead-tolerance"),
        (("plan.json", "--max-seconds", "soon"), "--max-seconds"),
        (("plan.json", "--max-seconds", "0"), "--max-seconds: '0' is out of range"),
        (("plan.json", "--trace", "nowhere/t.json"), "does not exist"),
        (("plan.json", "-o", "plan.json"), "would be lost"),
    ):
        done = run("validate", *arguments, cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert told in done.stderr
        assert "Traceback" not in done.stderr


_JAX_CELLS = """
import atexit, ctypes, os
import jax, jax.numpy as jnp

# As libraries that count leaks, or whose threads are still at work, when Python has been taken apart.
ctypes.pythonapi.Py_AtExit(ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p))
atexit.register(os.write, 1, b"in order")

def cell(step):
    return step, {"w": jnp.ones((4, 4))}, jnp.zeros((2, 4)), lambda steps: jnp.zeros((steps, 2, 4))

def raises():
    raise ValueError("had enough")

def changes():
    return cell(lambda weights, state, x: (jnp.zeros(3), state))
"""


@pytest.mark.parametrize("factory", ["raises", "changes"])
def test_an_error_of_a_cell_of_jax_is_all_that_is_printed(tmp_path: Path, factory: str) -> None:
    (tmp_path / "own_cells.py").write_text(_JAX_CELLS)
    result = run_process(
        "calibrate", "--cell", f"jax:own_cells:{factory}", cwd=tmp_path, PYTHONPATH=str(tmp_path)
    )
    assert result.returncode == 2
    assert result.stderr.startswith("ckptplan: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == "in order"


def test_a_folder_is_measured_as_remote_memory_and_plans_are_validated_with_it(tmp_path: Path) -> None:
    """In wall time: processor time does not see a disk. Nothing stays in the folder."""
    place = ("--remote-dir", "far")
    done = run("calibrate", *QUICK, *place, "-o", "w.toml", "--profile-out", "p.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    workload, profile = ckptplan.load_workload(tmp_path / "w.toml"), ckptplan.load_profile(tmp_path / "p.toml")
    assert workload.calibration is not None
    assert workload.calibration.clock == "wall time"
    assert str(tmp_path / "far") in profile.description
    for field in ("write_bytes_per_second", "read_bytes_per_second", "remote_bytes"):
        assert str(tmp_path / "far") in str(profile.sources[field].source)
    job = ("--workload", "./w.toml", "--profile", "./p.toml", "--strategies", "remote", "-o", "plan.json")
    assert run("optimize", *job, cwd=tmp_path).returncode == 0
    wide = ("--tolerance", "100%", "--overhead-tolerance", "100%", "--repeats", "1", "--format", "json")
    done = run("validate", "plan.json", *place, *wide, cwd=tmp_path)
    assert done.returncode in (0, 4), done.stderr
    found = {one["quantity"]: one for one in json.loads(done.stdout)["quantities"]}
    assert found["remote peak"]["verdict"] == found["states written"]["verdict"] == "ok"
    assert found["write bandwidth"]["measured"] > 0
    assert list((tmp_path / "far").iterdir()) == []
    refused = run("calibrate", *SMALL, *place, "--bytes-only", cwd=tmp_path)
    assert "--remote-dir: does not go together with --bytes-only" in refused.stderr


def test_a_profile_has_the_rates_of_a_folder(tmp_path: Path) -> None:
    """What is given otherwise stays; a file, or a state of nothing, is refused."""
    made = ("profiles", "new", "--like", "nvidia-h200", "--measure", ".", "--state-bytes", "64 KiB")
    done = run(*made, "--read-bytes-per-second", "2 GB/s", "-o", "p.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    profile = ckptplan.load_profile(tmp_path / "p.toml")
    assert profile.read_bytes_per_second == 2e9
    assert profile.write_bytes_per_second > 0
    assert (profile.sources["write_bytes_per_second"].grade, profile.latency_seconds) == ("M", 0)
    assert "64 KiB" in str(profile.sources["write_bytes_per_second"].source)
    assert "read_bytes_per_second" not in profile.sources
    done = run("profiles", "new", "--like", "nvidia-h200", "--measure", "p.toml", cwd=tmp_path)
    assert (done.returncode, "--measure: " in done.stderr) == (2, True)
    done = run(*made[:-1], "0 B", cwd=tmp_path)
    assert (done.returncode, "--state-bytes" in done.stderr) == (2, True)
