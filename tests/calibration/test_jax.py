"""Cells of JAX are measured as compiled programs, and plans for them are validated the same way."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ckptplan
from ckptplan import InputError
from ckptplan.calibration.calibrate import Calibrated, calibrate, count_sizes
from ckptplan.calibration.runtimes import open_backend, set_threads
from ckptplan.calibration.validate import validate, why_not_comparable
from ckptplan.calibration.validation import Verdict
from ckptplan.errors import PlanMismatch
from ckptplan.jax import plan_for
from ckptplan.jax.cells import build_jax_network
from ckptplan.model.cell_spec import CellSpec
from ckptplan.report.calibration import view_calibration
from tests.support import run, told

BATCH, INPUTS, NEURONS, STEPS = 16, 3, 64, 60
SPEC = CellSpec.parse(f"jax:rnn(inputs={INPUTS}, neurons={NEURONS})")
THREADS = set_threads(None)
#: The number of the step and the sum of the loss, which ``bptt`` carries in the state.
LOSS_BYTES = 8


@pytest.fixture(scope="module")
def calibrated() -> Calibrated:
    return calibrate(SPEC, batch=BATCH, steps=STEPS, thread_count=THREADS, quick=True)


def test_sizes_are_those_of_the_shapes_and_times_are_measured(calibrated: Calibrated, tmp_path: Path) -> None:
    found = calibrated.workload
    assert found.cell == str(SPEC) == f"jax:rnn(inputs={INPUTS}, neurons={NEURONS})"
    assert found.state_bytes == 4 * BATCH * NEURONS + LOSS_BYTES
    assert found.resident_bytes == 4 * NEURONS * (INPUTS + NEURONS + 1)
    assert found.resident_bytes_per_step == 4 * BATCH * INPUTS
    assert found.calibration is not None
    assert (found.calibration.torch, found.calibration.uncertainty >= 0.1) == (None, True)
    assert found.basis["forward_seconds"].kind == found.basis["workspace_bytes"].kind == "measured"
    ckptplan.save_workload(found, tmp_path / "my.toml")
    assert ckptplan.load_workload(tmp_path / "my.toml").hash == found.hash
    assert view_calibration(calibrated).document()["profile"]["hash"] == calibrated.profile.hash


def test_a_plan_is_confirmed_by_its_program(calibrated: Calibrated) -> None:
    """Counts, bytes and gradients are exact; times of so small a cell on a busy machine are not judged here."""
    base = ckptplan.optimize(calibrated.workload, calibrated.profile, strategies=["base"])
    plan = ckptplan.optimize(
        calibrated.workload,
        calibrated.profile,
        strategies=["revolve"],
        local_bytes=int(0.7 * base.predicted.local_peak_bytes),
    )
    found = validate(plan, thread_count=THREADS, repeats=1)
    rows = {row.quantity: row for row in found.rows}
    exact = ("state", "checkpoints and tapes", "remote peak", "steps run again", "gradient difference")
    assert {name: rows[name].verdict for name in (*exact, "local peak")} == dict.fromkeys(
        (*exact, "local peak"), Verdict.OK
    )
    assert rows["steps run again"].measured > 0
    assert {"total", "base", "overhead"} <= rows.keys()


def test_another_cell_is_detected(calibrated: Calibrated) -> None:
    plan = ckptplan.optimize(calibrated.workload, calibrated.profile, strategies=["standard"])
    other = CellSpec.parse(f"jax:rnn(inputs={INPUTS}, neurons={2 * NEURONS})")
    rows = validate(plan, spec=other, thread_count=THREADS, repeats=1).rows
    verdicts = {row.quantity: row.verdict for row in rows}
    assert verdicts["remote peak"] is Verdict.OK
    wrong = ("state", "checkpoints and tapes", "local peak")
    assert {name: verdicts[name] for name in wrong} == dict.fromkeys(wrong, Verdict.OFF)
    here = open_backend(SPEC, thread_count=THREADS).environment
    assert why_not_comparable(plan, here) is None
    assert why_not_comparable(plan, replace(here, machine="another one")) is not None
    assert why_not_comparable(plan, replace(here, versions={"torch": "2"})) == "it was calibrated in JAX"


def test_a_limit_of_memory_takes_calibrated_times(calibrated: Calibrated) -> None:
    """The loop of the calibrated cell: its times are in the plan, and a slow forward pass moves the choice."""
    network = build_jax_network(SPEC, batch=BATCH, seed=0)

    def planned(timed: ckptplan.Workload | None) -> ckptplan.Plan:
        def cell(state: Any, x: Any) -> Any:
            return network.step(network.parameters, state, x)

        return plan_for(
            cell, network.state, network.inputs(STEPS), network.loss, memory="200 kB", workload=timed
        )

    found = planned(calibrated.workload).workload
    assert found.recompute_seconds == calibrated.workload.recompute_seconds
    assert found.basis["forward_seconds"].why.startswith("calibrated: workload my-workload")
    slow = calibrated.workload.retimed({"recompute_seconds": 1.0}, basis={}, timed_on="my-machine")
    quick = slow.retimed({"recompute_seconds": 1e-9}, basis={}, timed_on="my-machine")
    with pytest.warns(PlanMismatch, match="enough for a slow plan"):
        recomputed_if_slow = planned(slow).predicted.recomputed_steps
    assert recomputed_if_slow <= planned(quick).predicted.recomputed_steps
    wider = count_sizes(CellSpec.parse("jax:rnn(neurons=9)"), batch=BATCH, steps=STEPS, thread_count=THREADS)
    with pytest.raises(InputError, match=r"workload: .* has a state of 584 B .* this step has 4.008 KiB"):
        planned(wider)


def test_kinds_of_tapes_have_their_sizes() -> None:
    sizes = {
        tape: count_sizes(SPEC, batch=BATCH, steps=STEPS, thread_count=THREADS, tape=tape).tape_bytes
        for tape in ("residuals", "products", "states")
    }
    assert sizes["states"] == 4 * BATCH * NEURONS + LOSS_BYTES
    with pytest.raises(InputError, match=r"tape: 'all' .*residuals, products, states"):
        count_sizes(SPEC, batch=BATCH, steps=STEPS, thread_count=THREADS, tape="all")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--cell", "jax:gru", "--device", "cuda"), "cells of JAX are measured on processors only"),
        (("--cell", "gru", "--tape", "states"), "--tape: is for cells of JAX"),
        (("--cell", "jax:grux"), "there is no cell 'grux'"),
        (("--cell", "jax:gru", "--bytes-only", "--remote-dir", "far"), "--remote-dir"),
    ],
)
def test_options_that_do_not_go_together(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = run("calibrate", *arguments, "--bytes-only", cwd=tmp_path)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_pytorch_is_not_needed(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['ckptplan', 'calibrate', '--cell', 'jax:lif', "
        "'--neurons', '4', '--T', '9', '--bytes-only']; from ckptplan.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert ckptplan.load_workload(tmp_path / "my-workload.toml").state_bytes == 2 * 4 * 32 * 4 + LOSS_BYTES


def test_a_calibration_is_shown_without_the_peaks_that_it_lacks(calibrated: Calibrated) -> None:
    """The rows that ``ckptplan calibrate`` prints: JAX measures no peaks of the machine."""
    shown = told(view_calibration(calibrated).blocks())
    assert "recompute" in shown
    assert "starting a kernel" not in shown
