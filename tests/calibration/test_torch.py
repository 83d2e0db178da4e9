"""Real cells of PyTorch are calibrated, and plans for them hold; the files have what was found."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import ckptplan
from ckptplan import InputError, Plan, Workload
from ckptplan.calibration.calibrate import Calibrated, calibrate, count_sizes
from ckptplan.calibration.fit import STEPS
from ckptplan.calibration.validate import validate
from ckptplan.calibration.validation import Verdict
from ckptplan.model.cell_spec import CellSpec
from ckptplan.model.workload import ACTION_TIMES, TIMES

BATCH, NEURONS = 4, 16


@pytest.fixture(scope="module", params=["gru", "lif"])
def either(request: Any) -> Calibrated:
    """A cell under autograd, and one that runs chunks itself."""
    spec = CellSpec(name=request.param, inputs=8, neurons=NEURONS)
    return calibrate(spec, batch=BATCH, steps=120, quick=True, thread_count=1)


@pytest.fixture(scope="module")
def lif() -> Calibrated:
    """A cell whose spikes are the caches of its steps."""
    spec = CellSpec(name="lif", inputs=8, neurons=NEURONS)
    return calibrate(spec, batch=BATCH, steps=120, quick=True, thread_count=1)


class Failing(torch.nn.Module):
    """Has no answer from the hundredth step on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(NEURONS, NEURONS)

    def forward(self, state: Any, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        values, count = state
        if int(count) >= 99:
            raise KeyError("step")
        return (self.layer(values) + x, count + 1), values


def make_failing() -> Any:
    state = (torch.zeros(BATCH, NEURONS), torch.zeros((), dtype=torch.long))
    return Failing(), state, lambda steps: torch.randn(steps, BATCH, NEURONS)


def test_a_cell_that_fails_later_in_the_sequence_is_named_with_its_step() -> None:
    with pytest.raises(InputError, match="its step 100 raised KeyError: 'step'"):
        calibrate(CellSpec(name=f"{__name__}:make_failing", inputs=1, neurons=1), batch=4, steps=10)


class Waiting(torch.nn.Module):
    """On several threads, each step waits for other programs; on one, none does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if torch.get_num_threads() > 1:
            time.sleep(0.002)
        state = self.weight * state + x
        return state, state


def make_waiting(batch: int) -> Any:
    return Waiting(), torch.zeros(batch, 1)


def test_times_of_counted_sizes_leave_out_what_threads_wait_for_other_programs() -> None:
    """A number of threads that is given holds."""
    spec, before = CellSpec(name=f"{__name__}:make_waiting", inputs=1, neurons=1), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = count_sizes(spec, batch=1, steps=10)
        given = count_sizes(spec, batch=1, steps=10, thread_count=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert max(found.forward_seconds, found.recompute_seconds) < 0.002 <= given.forward_seconds
    assert "64 steps on this machine, processor time on one thread" in found.basis["forward_seconds"].why
    assert "wall time on 2 threads" in given.basis["forward_seconds"].why


def test_a_calibration_says_how_it_was_obtained(either: Calibrated, tmp_path: Path) -> None:
    """Machine, threads, rounds and intervals are in the files, with the basis of every number."""
    workload, profile = either.workload, either.profile
    found = workload.calibration
    assert found is not None
    assert (found.device, found.threads, found.torch, found.clock) == (
        "cpu",
        1,
        torch.__version__,
        "processor time",
    )
    assert str(workload.cell).endswith("(inputs=8, neurons=16)")
    assert workload.timed_on == profile.name
    times = {*TIMES, *ACTION_TIMES}
    assert set(found.measured) == times
    assert all(
        known.low is not None and known.low <= 1 <= (known.high or 0) for known in found.measured.values()
    )
    ends = [
        max(1 - (known.low or 0), (known.high or 0) - 1) for known in map(found.measured.get, STEPS) if known
    ]
    assert found.uncertainty == pytest.approx(max(ends), abs=1e-3)
    assert {basis.kind for basis in workload.basis.values()} == {"measured"}
    assert times | {"state_bytes", "tape_bytes", "workspace_bytes"} < set(workload.basis)
    assert {name for name, source in profile.sources.items() if source.grade != "M"} == {"headroom"}
    ckptplan.save_workload(workload, tmp_path / "w.toml")
    ckptplan.save_profile(profile, tmp_path / "p.toml")
    assert ckptplan.load_workload(tmp_path / "w.toml") == workload
    assert ckptplan.load_profile(tmp_path / "p.toml") == profile
    plan = ckptplan.optimize(workload, profile)
    assert {entry.field for entry in plan.estimate_basis if entry.kind == "assumed"} == {"profile.headroom"}


def plan_for(found: Calibrated, strategy: str, **changes: Any) -> Plan:
    workload = Workload(**{**dict(found.workload), **changes})
    beside = workload.resident_bytes + (workload.resident_bytes_per_step + workload.cache_bytes) * 120
    beside += workload.workspace_bytes + workload.chunk_workspace_bytes
    room = beside + int((1 if strategy == "base" else 0.3) * 120 * workload.tape_bytes)
    return ckptplan.optimize(workload, found.profile, strategies=[strategy], local_bytes=room)


@pytest.mark.parametrize("strategy", ["base", "standard", "remote", "hierarchical", "double", "optimal"])
def test_bytes_counts_and_gradients_of_a_right_plan_hold(either: Calibrated, strategy: str) -> None:
    found = validate(plan_for(either, strategy), repeats=1, memory_tolerance=0.1)
    rows = {row.quantity: row for row in found.rows}
    counts = ("steps run again", "states written", "states read", "messages")
    exact = ("state", "checkpoints and tapes", "remote peak", *counts)
    assert {name: rows[name].bias for name in exact} == dict.fromkeys(exact, 0)
    for quantity in ("local peak", "gradient difference"):
        assert rows[quantity].verdict is Verdict.OK, rows[quantity]
    assert found.not_comparable is None
    assert {"total", "base", "overhead", "forward", "backward"} <= rows.keys()


@pytest.mark.parametrize(
    ("strategy", "cache"),
    [("standard", "none"), ("double", "segment"), ("remote", "offloaded"), ("optimal", "segment")],
)
def test_a_plan_that_drops_or_moves_caches_is_judged(lif: Calibrated, strategy: str, cache: str) -> None:
    workload = lif.workload
    assert workload.cache_bytes > 0
    assert workload.resident_bytes_per_step == 4 * 8 * BATCH
    room = workload.resident_bytes + workload.workspace_bytes + workload.chunk_workspace_bytes
    room += 120 * workload.resident_bytes_per_step + 23 * workload.tape_bytes
    plan = ckptplan.optimize(workload, lif.profile, strategies=[strategy], local_bytes=room, cache=cache)
    assert plan.cache == cache
    found = validate(plan, repeats=1, memory_tolerance=0.1)
    rows = {row.quantity: row for row in found.rows}
    for quantity in ("state", "checkpoints and tapes", "steps run again", "states written", "messages"):
        assert rows[quantity].bias == 0, quantity
    for quantity in ("remote peak", "local peak", "gradient difference"):
        assert rows[quantity].verdict is Verdict.OK, rows[quantity]


def test_another_cell_can_be_run_and_is_found_out(either: Calibrated) -> None:
    found = validate(plan_for(either, "double"), cell="gru(inputs=8, neurons=32)", repeats=1)
    assert found.cell == "gru(inputs=8, neurons=32)"
    assert "state" in found.off
    assert any("another cell" in note for note in found.notes)


def test_bytes_of_many_units_are_those_of_all_of_them() -> None:
    workload = ckptplan.load_workload("paper-snn").with_batch(2).with_steps(20)
    plan = ckptplan.optimize(workload, ckptplan.load_profile("ipu-mk2"), strategies=["standard"])
    found = validate(plan, repeats=1, max_seconds=300)
    assert found.rows[0].measured == 2 * 2944 * 4
    assert found.off == []
