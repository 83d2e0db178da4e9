"""Every example runs as it stands, learns, and keeps to the bytes that it plans with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import mean

import pytest

import ckptplan
from tests.examples.support import EXAMPLES, JAX_CELLS, ROOT, losses, python

HERE = Path(__file__).parent
SHORTEST = [EXAMPLES / "train_gru.py", EXAMPLES / "train_snntorch.py"]
#: Of ckptplan.torch; those of ckptplan.jax are in test_jax_cells.py.
ADAPTERS = sorted(file for file in (EXAMPLES / "adapters").glob("*.py") if file not in JAX_CELLS)
#: What packages are known to say on the error stream, and no fault of an example.
KNOWN = re.compile(r"W\d.*torch/_library/triton\.py:.* Triton not available")


def name(file: Path) -> str:
    return str(file.relative_to(EXAMPLES))


@pytest.mark.parametrize("file", [*SHORTEST, *ADAPTERS], ids=name)
def test_examples_run_and_learn_in_the_memory_that_base_has_not(file: Path, tmp_path: Path) -> None:
    """Autograd is watched meanwhile: the tapes that it held are within the plan's bytes."""
    done = python(HERE / "held.py", tmp_path / "facts.json", file)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not KNOWN.match(line)] == []
    trainings = losses(done.stdout)
    assert trainings
    for training in trainings:
        assert mean(training[-3:]) < 0.9 * mean(training[:3]), training
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert 0.25 * facts["budget"] < facts["held"] <= facts["budget"] < facts["base"]
    if file in ADAPTERS:
        told = re.findall(r"^\w+, [\w-]+: ([\d,]+) bytes; base ([\d,]+)$", done.stdout, re.M)
        assert len(told) == len(trainings)
        for planned, base in told:
            assert int(planned.replace(",", "")) <= facts["budget"] < int(base.replace(",", ""))


@pytest.mark.parametrize("file", SHORTEST, ids=name)
def test_shortest_loops_have_less_than_thirty_lines(file: Path) -> None:
    assert len(file.read_text().splitlines()) < 30


@pytest.mark.parametrize("file", ADAPTERS, ids=name)
def test_adapters_are_shown_in_less_than_35_lines_and_say_what_to_install(file: Path) -> None:
    text = file.read_text()
    assert len(text.splitlines()) < 35
    assert re.search(r'Install: pip install "\.\[(torch|snntorch)\]"', text.splitlines()[0])


def test_every_example_has_its_row_with_its_command() -> None:
    rows = [line for line in (EXAMPLES / "README.md").read_text().splitlines() if line.startswith("| `")]
    for file in EXAMPLES.rglob("*.py"):
        if file.name.startswith("compare"):
            # The other programs of the folder import it.
            continue
        if file.parent.name == "convert":
            # Before and after share a row.
            assert any(f"`python examples/{name(file)}`" in row.split("|")[3] for row in rows)
            continue
        row = next(row for row in rows if row.startswith(f"| `{name(file)}` |"))
        assert f" examples/{name(file)}" in row.split("|")[3]


def test_a_network_in_lightning_s_trainer_learns_and_the_page_shows_its_training_step() -> None:
    file = EXAMPLES / "train_lightning.py"
    (shown,) = re.findall(r"```py\n(.*?)```", (ROOT / "docs/runtime.md").read_text(), re.DOTALL)
    assert "def training_step" in shown
    assert shown in file.read_text()
    done = python(file)
    assert done.returncode == 0, done.stderr
    (training,) = losses(done.stdout)
    assert mean(training[-3:]) < 0.9 * mean(training[:3]), training


def test_training_under_a_plan_file_learns(tmp_path: Path) -> None:
    """With a plan for a GRU, as `ckptplan calibrate` and `ckptplan optimize` would give it."""
    batch, neurons = 8, 16
    state = 4 * batch * neurons
    workload = ckptplan.Workload(
        name="gru",
        cell="gru(inputs=8, neurons=16)",
        steps=64,
        batch=batch,
        units=1,
        state_bytes=state,
        tape_bytes=7 * state,
        forward_seconds=1,
        backward_seconds=2,
        recompute_seconds=1,
    )
    plan = ckptplan.optimize(workload, ckptplan.load_profile("nvidia-h200"), local_bytes=100 * state)
    ckptplan.save_plan(plan, tmp_path / "plan.json")
    done = python(EXAMPLES / "train_plan.py", tmp_path / "plan.json")
    assert done.returncode == 0, done.stderr
    (training,) = losses(done.stdout)
    assert mean(training[-3:]) < 0.9 * mean(training[:3]), training
    # Code of C++ is compiled for each kind of piece: two minutes of one core.
    compiled = python(EXAMPLES / "train_plan.py", tmp_path / "plan.json", "--compile", seconds=400)
    assert (compiled.returncode, compiled.stderr) == (0, "")
    assert losses(compiled.stdout)[0] == pytest.approx(training, abs=2e-3)
    other = ckptplan.load_workload("paper-snn").with_steps(64)
    ckptplan.save_plan(ckptplan.optimize(other, ckptplan.load_profile("ipu-mk2")), tmp_path / "other.json")
    for arguments, told in (
        ((), "usage: train_plan.py PLAN [--compile]"),
        ((tmp_path / "nowhere.json",), "cannot be read"),
        ((tmp_path / "other.json",), "the plan is for the cell lif"),
    ):
        done = python(EXAMPLES / "train_plan.py", *arguments)
        assert done.returncode == 1
        assert told in done.stderr
        assert "Traceback" not in done.stderr


def test_a_spiking_layer_learns_what_it_was_shown_long_ago() -> None:
    """In a limit that no plain loop keeps, with spikes of some steps only."""
    options = ("--steps", "2000", "--batches", "8", "--memory", "160 kB")
    done = python(EXAMPLES / "train_long_spikes.py", *options)
    assert done.returncode == 0, done.stderr
    training = [float(loss) for loss in re.findall(r"^batch \d+: loss ([\d.]+), ", done.stdout, re.M)]
    assert len(training) == 8
    assert mean(training[-3:]) < 0.9 * mean(training[:3]), training
    told = re.search(
        r"the spikes of ([\d,]+) steps stay, ([\d,]+) run again, of which ([\d,]+) in full", done.stdout
    )
    assert told is not None
    assert "a plain loop would keep at least" in done.stdout
