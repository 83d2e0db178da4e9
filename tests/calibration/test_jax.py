"""Cells of JAX are measured as compiled programs, and plans for them are validated the same way."""

from __future__ import annotations

import itertools
import mmap
import os
import platform
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import ckptplan
from ckptplan import InputError
from ckptplan.calibration.calibrate import Calibrated, calibrate, count_sizes
from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.calibration.jax_cells import build_jax_network
from ckptplan.calibration.runtimes import open_backend, set_threads
from ckptplan.calibration.validate import validate, why_not_comparable
from ckptplan.calibration.validation import Verdict
from ckptplan.errors import PlanMismatch
from ckptplan.jax import backend as jax_backend
from ckptplan.jax import new_memory, plan_for
from ckptplan.planning.playback import make_schedule
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


def test_the_first_touch_of_new_memory_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of more than 32 MiB goes back to the system after each run; a smaller one is kept."""
    network = build_jax_network(SPEC, batch=BATCH, seed=0)
    backend = open_backend(SPEC, thread_count=THREADS)
    new = {}
    for steps in (60, 6_000):
        schedule = make_schedule("base", steps=steps)
        program = backend.program(network, schedule, inputs=network.inputs(steps), steps=steps)
        # As with one thread, which is another number than this process has.
        monkeypatch.setattr(program, "_clock", time.process_time)
        reports = [program.time() for _ in range(3)]
        assert all(report.seconds > 0 and report.new_memory >= 0 for report in reports)
        assert (program.peak_bytes() > 2**26) == (steps == 6_000)
        new[steps] = reports[-1].new_memory
    if platform.libc_ver()[0] == "glibc" and "MALLOC_MMAP_MAX_" not in os.environ:
        assert new[6_000] > 10 * new[60]


def test_pages_whose_time_is_nonsense_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those of another clock than the processor's are not taken off."""
    monkeypatch.setattr(jax_backend, "count_new_pages", itertools.count(0, 10).__next__)
    monkeypatch.setattr(jax_backend, "time_new_page", lambda: 60.0)
    network = build_jax_network(SPEC, batch=BATCH, seed=0)
    program = jax_backend.compile_gradient(network, make_schedule("base", steps=STEPS), steps=STEPS)
    with pytest.raises(InputError, match=r"the first touch of new memory takes 600.* s of a run of"):
        program.measure(time.process_time)
    report = program.measure(time.perf_counter)
    assert (report.seconds > 0, report.new_memory) == (True, 0)


@pytest.mark.skipif(not hasattr(mmap, "MADV_NOHUGEPAGE"), reason="large pages are of Linux")
def test_a_page_is_timed_and_not_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults are of single pages, also where the system gives large ones to all."""
    faults: list[int] = []

    class Large(mmap.mmap):
        """Has large pages, unless they are switched off."""

        def __init__(self, *_: Any, **__: Any) -> None:
            self.madvise(mmap.MADV_HUGEPAGE)
            faults.append(new_memory.count_new_pages())

    monkeypatch.setattr(mmap, "mmap", Large)
    new_memory.time_new_page.__wrapped__()
    each = faults[1] - faults[0]
    assert each >= new_memory._TOUCHED_BYTES // mmap.PAGESIZE


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


def make_pairs() -> Any:
    return lambda _, state, x: (state, x), {"w": jnp.ones(3)}


def make_frozen() -> Any:
    return lambda _, state, x: (state, x), {"w": 3}, jnp.ones(3)


def make_broken(batch: int) -> Any:
    return lambda weights, state, x: (state @ weights, x), jnp.ones((7, 7)), jnp.ones((batch, 3))


def make_stateless() -> Any:
    return lambda _, state, x: (state, x), jnp.ones(3), ()


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("make_pairs", "returned 'tuple' .*step, parameters, state"),
        ("make_frozen", "returned parameters without a gradient"),
        ("make_broken", "its first step, .* raised TypeError"),
        ("make_stateless", "returned a state without arrays"),
        ("make_nothing", "cannot be imported"),
    ],
)
def test_factories_that_are_not_accepted(factory: str, message: str) -> None:
    with pytest.raises(InputError, match=f"cell: .*{message}"):
        build_jax_network(CellSpec.parse(f"jax:{__name__}:{factory}(neurons=3)"), batch=2, seed=0)


def test_a_factory_without_a_signature_is_called_with_nothing() -> None:
    with pytest.raises(InputError, match="jax:builtins:dict returned 'dict'"):
        build_jax_network(CellSpec.parse("jax:builtins:dict(neurons=3)"), batch=2, seed=0)


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
