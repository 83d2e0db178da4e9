"""``ckptplan calibrate`` and ``ckptplan validate``: files, documents, interruptions and exit statuses.

Which lines they refuse is in test_refusals.py.
"""

import csv
import io
import json
import shlex
import signal
import tomllib
from pathlib import Path

import pytest

import ckptplan
from ckptplan.studies.workers import processor_name
from tests.support import run, run_on_terminal, run_process

#: It measures.
pytestmark = pytest.mark.slow

SMALL = ("--cell", "gru", "--batch", "4", "--neurons", "16", "--inputs", "8", "--T", "100", "--threads", "1")
QUICK = (*SMALL, "--quick")
#: Room for a table with any numbers; at 80 columns, long ones break the names of its rows.
WIDE = "120"


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a calibration, its document, and a plan."""
    folder = tmp_path_factory.mktemp("calibrated")
    files = ("-o", "my-gru.toml", "--profile-out", "here.toml")
    done = run("calibrate", *QUICK, *files, "--format", "json", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "calibration.json").write_text(done.stdout)
    job = ("--workload", "./my-gru.toml", "--profile", "./here.toml", "--local-bytes", "170 kB")
    done = run("optimize", *job, "--strategies", "regular", "-o", "plan.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_calibration_is_a_workload_and_a_profile_by_the_names_of_their_files(calibrated: Path) -> None:
    """The document has the same numbers in SI units."""
    workload = ckptplan.load_workload(calibrated / "my-gru.toml")
    profile = ckptplan.load_profile(calibrated / "here.toml")
    assert (workload.name, profile.name, workload.timed_on) == ("my-gru", "here", "here")
    assert (workload.steps, workload.batch, workload.state_bytes) == (100, 4, 256)
    names = {path.name for path in calibrated.iterdir()}
    assert names >= {"here.toml", "my-gru.toml", "plan.json"}
    document = json.loads((calibrated / "calibration.json").read_text())
    assert document["kind"] == "ckptplan.calibration"
    assert document["workload"]["tape_bytes"] == workload.tape_bytes == 7 * 256
    assert document["profile"]["sources"]["latency_seconds"]["grade"] == "M"


def test_a_noisy_machine_widens_intervals_and_writes_nothing_only_if_strict(tmp_path: Path) -> None:
    """No machine is as quiet as a tolerance of a billionth needs."""
    strict = ("--repeats", "3", "--tolerance", "1e-9", "--strict", "--format", "json")
    done = run("calibrate", *SMALL, *strict, cwd=tmp_path)
    assert done.returncode == 4
    for text in ("the machine is noisy: rounds of", "as --strict asks"):
        assert text in done.stderr
    error = json.loads(done.stdout)
    assert (error["error"], error["exit_code"], error["most"]) == ("noisy", 4, 5e-10)
    assert list(tmp_path.iterdir()) == []
    done = run("calibrate", *QUICK, "--tolerance", "1e-9", cwd=tmp_path)
    assert done.returncode == 0
    assert "warning: times of steps are only known to within" in done.stderr
    assert "within the intervals of its times" in done.stderr
    assert "workload written to my-workload.toml, profile to my-machine.toml" in done.stderr
    for text in ("state_bytes", "tape_bytes", "1.75 KiB", "forward", " to ", "--uncertainty"):
        assert text in done.stdout


def test_the_last_line_is_the_whole_next_command(tmp_path: Path) -> None:
    """It plans with both files, and what it plans can be validated."""
    (tmp_path / "my-gru").mkdir()
    done = run("calibrate", *QUICK, "-o", "my-gru/w.toml", "--format", "csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = {row["field"]: row["value"] for row in csv.DictReader(io.StringIO(done.stdout))}
    assert rows["state_bytes"] == "256"
    last = shlex.split(done.stderr.splitlines()[-1])
    assert last[:3] == ["next:", "ckptplan", "optimize"]
    done = run(*last[2:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "within the intervals of its times" in " ".join(done.stdout.split())
    wide = ("--tolerance", "100%", "--overhead-tolerance", "100%")
    done = run("validate", "plan.json", "--repeats", "1", *wide, cwd=tmp_path)
    # Programs beside it may have begun since.
    assert done.returncode in (0, 4), done.stdout
    for command in ("pareto", "largest T"):
        done = run(*command.split(), *last[3:7], "--strategies", "closed", cwd=tmp_path)
        assert "within the intervals of its times" in " ".join(done.stdout.split()), done.stderr


def test_sizes_alone_are_the_same_by_both_commands_and_plan_at_once(tmp_path: Path) -> None:
    """Times are assumed, or given, and nothing takes them for a calibration's."""
    for line in (("calibrate", "--bytes-only"), ("workloads", "new", "--forward-seconds", "80 us")):
        done = run(*line, *SMALL, "-o", f"{line[0]}.toml", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith("about ")
        assert "1.75 KiB" in done.stdout
        assert ("its times are assumed (the least of" in done.stderr) == (line[0] == "calibrate")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["calibrate.toml", "workloads.toml"]
    counted, timed = (ckptplan.load_workload(tmp_path / f"{name}.toml") for name in ("calibrate", "workloads"))
    sizes = [name for name, number in counted.numbers().items() if "bytes" in name and number]
    assert len(sizes) == 6
    assert all(getattr(counted, name) == getattr(timed, name) for name in sizes)
    assert (timed.forward_seconds, timed.backward_seconds) == (80e-6, 160e-6)
    assert (counted.timed_on, counted.calibration) == (processor_name(), None)
    plan = ckptplan.optimize(counted, ckptplan.load_profile("nvidia-h200"), objective="memory")
    assumed = {entry.field for entry in plan.estimate_basis if entry.kind == "assumed"}
    assert "workload.forward_seconds" in assumed
    # A plan for another machine says whose times it shows.
    shown = run("optimize", "--workload", "calibrate.toml", "--profile", "nvidia-h200", cwd=tmp_path).stdout
    assert f"step times carried over from {processor_name()}, not" in " ".join(shown.split())


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
    job = ("calibrate", "--cell", "cells:make", "--threads", "1", "--repeats", "50", "--max-seconds", "3600")
    done = run_process(*job, cwd=tmp_path, heeds_interrupts=True, CALLS=calls, SIGNAL=name)
    assert done.returncode == code, done.stderr
    assert sorted(path.name for path in tmp_path.glob("*.toml")) == files
    if len(files) == 2:
        assert "not a whole calibration: interrupted after" in done.stderr
        calibration = ckptplan.load_workload(tmp_path / "my-workload.toml").calibration
        assert calibration is not None
        assert 3 <= calibration.measured["forward_seconds"].repeats < 50
    elif files:
        assert "sizes written to my-workload.toml, as with --bytes-only" in done.stderr
        (tmp_path / "my-workload.toml").write_text("kept")
        done = run_process(*job, cwd=tmp_path, heeds_interrupts=True, CALLS=calls, SIGNAL=name)
        assert "my-workload.toml exists: it was left as it was" in done.stderr
        assert (tmp_path / "my-workload.toml").read_text() == "kept"


def test_a_validation_is_a_document_and_a_trace_of_both_timelines(calibrated: Path) -> None:
    """Times are what a busy machine makes of them; bytes and counts are exact."""
    options = ("--repeats", "2", "--regret", "--trace", "both.json", "--format", "json")
    done = run("validate", "plan.json", *options, cwd=calibrated)
    document = json.loads(done.stdout)
    assert document["kind"] == "ckptplan.validation"
    assert done.returncode == (0 if document["holds"] else 4)
    assert document["holds"] == (document["off"] == [])
    quantities = {quantity["quantity"]: quantity for quantity in document["quantities"]}
    assert quantities["state"]["predicted"] == quantities["state"]["measured"] == 256
    assert quantities["checkpoints and tapes"]["bias"] == quantities["state"]["allowed"] == 0
    assert quantities.keys() >= {"local peak", "forward", "backward", "total", "base"}
    assert any("gradient" in name for name in quantities)
    assert document["regret"]["ratio"] >= 1
    assert document["regret"]["chosen"] == document["strategy"]
    assert document["not_comparable"] is None
    events = json.loads((calibrated / "both.json").read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert ["simulated" in names[1], "measured" in names[2], len(names)] == [True, True, 2]
    kinds: dict[int, list[str]] = {1: [], 2: []}
    held: dict[int, list[int]] = {1: [], 2: []}
    for event in events:
        if event["ph"] in "Xi":
            kinds[event["pid"]].append(event["name"])
        elif event["name"] == "local memory":
            held[event["pid"]].append(event["args"]["bytes"])
    assert kinds[1] == kinds[2]
    # The simulated timeline begins with the resident memory. The measured one has neither this memory nor what
    # is allocated and freed while a chunk is reversed.
    plan = ckptplan.load_plan(calibrated / "plan.json")
    assert (
        max(held[2]) == plan.predicted.local_peak_bytes - plan.workload.chunk_workspace_bytes - held[1][0] > 0
    )


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


def test_ctrl_c_shows_what_was_compared_so_far(calibrated: Path) -> None:
    """At a tenth of three hundred rounds, bytes are compared, and times of some rounds."""
    job = ("validate", "plan.json", "--repeats", "300", "--max-seconds", "9 h")
    status, output, shown = run_on_terminal(*job, cwd=calibrated, interrupt_at=r" [1-9]\d%", COLUMNS=WIDE)
    # Python itself may end as the signal does; a shell reports 130 for both.
    assert status in (130, -signal.SIGINT), shown
    assert "Traceback" not in shown
    assert "interrupted" in shown
    for text in ("checkpoints and tapes", "overhead", "Interrupted: the rest was not measured"):
        assert text in " ".join(output.split())


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
    quantities = {quantity["quantity"]: quantity for quantity in json.loads(done.stdout)["quantities"]}
    assert quantities["remote peak"]["verdict"] == quantities["states written"]["verdict"] == "ok"
    assert quantities["write bandwidth"]["measured"] > 0
    assert list((tmp_path / "far").iterdir()) == []
