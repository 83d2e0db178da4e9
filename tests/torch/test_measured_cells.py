"""What a calibration measures of a cell: its bytes, its operations, and gradients; also in compiled pieces."""

import functools
import gc
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import ckptplan
from ckptplan import InputError
from ckptplan.calibration.calibrate import Calibrated, calibrate
from ckptplan.cost.case import Case
from ckptplan.cost.roofline import find_ideal
from ckptplan.execution.backend import CountedSizes, Pace
from ckptplan.model.cell_spec import CellSpec
from ckptplan.planning.playback import make_schedule
from ckptplan.torch import footprint
from ckptplan.torch.backend import TorchNetwork, TorchProgram, exclude_loaded_objects
from ckptplan.torch.cells import build_torch_network, compile_pieces
from ckptplan.torch.footprint import FEW_RUNS
from ckptplan.torch.run.chunk_steps import MAX_WORKING
from ckptplan.torch.work import WorkCounter, count_work
from tests.torch.support import assert_close
from tests.torch.zoo import import_quietly

BATCH, INPUTS, NEURONS = 4, 8, 16
STATE = BATCH * NEURONS * 4


def network(name: str, *, inputs: int = INPUTS, neurons: int = NEURONS, batch: int = BATCH) -> TorchNetwork:
    spec = CellSpec(name=name, inputs=inputs, neurons=neurons)
    return build_torch_network(spec, batch=batch, device="cpu", seed=0)


def made(cell: Any, state: Any = None, make_inputs: Callable[[int], Any] | None = None) -> TorchNetwork:
    """Return the network of a cell of these tests."""
    return TorchNetwork(
        cell=cell,
        state=torch.zeros(BATCH, NEURONS) if state is None else state,
        device=torch.device("cpu"),
        make_inputs=make_inputs or (lambda steps: torch.randn(steps, BATCH, NEURONS)),
        seed=0,
    )


def measured(cell: TorchNetwork, **options: Any) -> CountedSizes:
    # Each run begins with a collection: all that was imported would take most of the time.
    exclude_loaded_objects()
    try:
        return footprint.measure_bytes(cell, **options)
    finally:
        gc.unfreeze()


@functools.cache
def sizes_of(name: str) -> CountedSizes:
    """The sizes of a small network, counted in all runs."""
    return measured(network(name))


@pytest.mark.parametrize(
    ("name", "states", "tapes", "weights"),
    [
        # A GRU saves four gates and what they are made of; an LSTM has two states, and keeps five gates.
        ("gru", 1, 7, 3 * NEURONS * (8 + NEURONS + 2)),
        ("rnn", 1, 1, NEURONS * (8 + NEURONS + 2)),
        ("lif", 1, 1, NEURONS * (8 + NEURONS + 1)),
    ],
)
def test_sizes_are_counted_to_the_byte(name: str, states: int, tapes: int, weights: int) -> None:
    found = sizes_of(name)
    assert found.state_bytes == states * STATE
    assert found.tape_bytes == tapes * STATE
    assert found.resident_bytes == 4 * weights
    inputs = BATCH * 8 * 4
    # Spikes that are saved are at most a bit for each neuron.
    # A step before each piece is saved with it: of 16 steps at least.
    saved = 17 / 16 * BATCH * -(-NEURONS // 8) if name == "lif" else 0
    assert inputs <= found.resident_bytes_per_step <= math.ceil(inputs + saved)


def predict_peak(found: CountedSizes, program: TorchProgram, steps: int) -> int:
    fixed = found.workspace_bytes + found.resident_bytes + found.resident_bytes_per_step * steps
    return program.count().local_bytes + fixed


@pytest.mark.parametrize("name", ["gru", "lif"])
def test_predicted_peaks_are_those_of_live_tensors(name: str) -> None:
    """Of plans that the calibration did not see: within 5 %, for a network as small as this one.

    Chunks of ``LIF`` that are shorter than what it works with at a time need less than predicted.
    """
    cell, found = network(name), sizes_of(name)
    for steps, chunk in ((90, 10), (90, 30), (200, 50)):
        program = TorchProgram(cell, make_schedule("standard", steps=steps, chunk_size=chunk))
        predicted, peak = (
            predict_peak(found, program, steps) + found.chunk_workspace_bytes,
            program.peak_bytes(),
        )
        assert peak <= 1.05 * predicted
        if name == "gru" or chunk >= MAX_WORKING:
            assert peak == pytest.approx(predicted, rel=0.05)


@pytest.mark.parametrize("name", ["gru", "lif"])
def test_plans_of_single_steps_are_not_charged_the_workspace_of_longer_chunks(name: str) -> None:
    """Disk-Revolve, which the calibration did not see: its peak is predicted within 5 %."""
    cell = network(name, inputs=64, neurons=256, batch=32)
    found = measured(cell, runs=FEW_RUNS)
    # A chunk of a LIF works with more than its steps; gradients of a GRU's chunk grow where they are.
    assert (found.chunk_workspace_bytes > 0) == (name == "lif")
    program = TorchProgram(cell, make_schedule("revolve", steps=150, chunk_size=1, nb_local=50))
    assert program.peak_bytes() == pytest.approx(predict_peak(found, program, 150), rel=0.05)


def test_fewer_runs_count_the_same_bytes() -> None:
    """Workspaces are measured: to 5 %, also of a large batch of spiking neurons."""
    large = network("lif", neurons=64, batch=64)
    for whole, cell in ((sizes_of("lif"), network("lif")), (measured(large), large)):
        few = measured(cell, runs=FEW_RUNS)
        for field in ("state_bytes", "tape_bytes", "resident_bytes"):
            assert getattr(few, field) == getattr(whole, field)
        spaces = [found.workspace_bytes + found.chunk_workspace_bytes for found in (few, whole)]
        assert spaces[0] == pytest.approx(spaces[1], rel=0.05)


def test_remote_checkpoints_are_not_local_memory() -> None:
    """On a CPU both memories are the same one; the peak that is measured is the local one all the same."""
    # The first run tries steps, too, which takes memory of its own.
    _, local, remote = (
        TorchProgram(network("gru"), make_schedule(strategy, steps=300, chunk_size=3)).peak_bytes()
        for strategy in ("standard", "standard", "remote")
    )
    assert local - remote == pytest.approx(98 * STATE, abs=3 * STATE)


class Growing(torch.nn.Module):
    """Keeps one tensor more in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(NEURONS, NEURONS)

    def forward(self, state: Any, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        values, count = state
        for _ in range(int(count)):
            values = values.sin()
        values = self.layer(values) + x
        return (values, count + 1), values


class Widening(torch.nn.Module):
    """Begins with an empty state, as some packages' neurons do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(NEURONS, NEURONS)

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = self.layer(x) + (state if len(state) else 0)
        return state, state


@pytest.mark.parametrize(
    ("cell", "state", "message"),
    [
        (
            Growing(),
            (torch.zeros(BATCH, NEURONS), torch.zeros((), dtype=torch.long)),
            r"not linear in the steps of a chunk.*off by up to \d",
        ),
        (Widening(), torch.zeros(0, NEURONS), "takes 0 bytes before the first step and 256 after it"),
        (lambda state, x: (state + x, state), None, "nothing that requires a gradient"),
    ],
)
def test_cells_whose_bytes_no_plan_can_assume_are_refused(cell: Any, state: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        measured(made(cell, state))


def test_live_memory_may_fall_by_a_state_in_long_chunks_and_may_not_rise() -> None:
    """The working state may be a checkpoint, too; what rises with the steps of a chunk is not linear."""
    state, peak = 10**6, 4 * 10**6

    def compare(*spaces: int) -> float:
        return footprint._compare_workspaces([*spaces], runs=FEW_RUNS, peak=peak, state=state)

    assert compare(3 * state, 2 * state) == 0.25
    assert compare(2 * state, 2 * state + peak // 20) == 0.05
    for wrong in ((2 * state, 3 * state), (3 * state + 1, 2 * state), (2 * state, 2 * state + peak // 19)):
        with pytest.raises(
            InputError, match=r"not linear in the steps of a chunk.*by \(T, chunk\): \(48, 16\)"
        ):
            compare(*wrong)


class Leaky(torch.nn.Module):
    """A layer and a neuron of snnTorch, which keeps the slope of its spikes once for all steps of a chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(NEURONS, NEURONS)
        self.neuron = import_quietly("snntorch").Leaky(beta=0.9)

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        spikes, state = self.neuron(self.layer(x), state)
        return state, spikes


def test_what_a_chunk_holds_once_is_part_of_the_workspace() -> None:
    cell = made(Leaky())
    found = measured(cell)
    assert 0 < found.tape_bytes_once < min(found.tape_bytes, found.workspace_bytes)
    for steps in (7, 50):
        held = TorchProgram(cell, make_schedule("base", steps=steps)).count()
        assert held.local_bytes == steps * found.tape_bytes + found.tape_bytes_once


class Dropping(torch.nn.Module):
    """Draws random numbers in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(NEURONS, NEURONS)

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = self.cell(torch.nn.functional.dropout(x), state)
        return state, state


def assert_same(plain: TorchProgram, planned: TorchProgram, *, relative: float, absolute: float = 1e-6) -> None:
    for (one, _), (other, _) in zip(plain.gradients(), planned.gradients(), strict=True):
        assert np.abs(one).max() > 0
        np.testing.assert_allclose(one, other, rtol=relative, atol=absolute)


def test_gradients_of_a_plan_are_those_of_a_plain_loop() -> None:
    """Of cells that draw random numbers, of inputs that are made chunk by chunk, and in double precision."""
    torch.manual_seed(0)
    plan = make_schedule("standard", steps=20, chunk_size=6)
    gru = network("gru")
    whole = gru.inputs(20)
    for cell in (made(Dropping()), gru):
        assert_same(TorchProgram(cell, None, steps=20), TorchProgram(cell, plan), relative=1e-4)
    made_inputs = TorchProgram(gru, None, inputs=lambda start, stop: whole[start:stop], steps=20)
    assert_same(made_inputs, TorchProgram(gru, plan), relative=1e-4)
    with network("lif").in_double() as double:
        # Rounding decides whether a neuron at its threshold fires; in double precision that is rare.
        assert {parameter.dtype for parameter in double.parameters} == {torch.float64}
        assert_same(TorchProgram(double, None, steps=20), TorchProgram(double, plan), relative=1e-9)


# Operations


@pytest.fixture(scope="module")
def calibrated() -> Calibrated:
    spec = CellSpec(name="gru", inputs=INPUTS, neurons=NEURONS)
    return calibrate(spec, batch=BATCH, steps=100, quick=True, thread_count=1)


def test_a_kernel_counts_its_operations_and_the_bytes_that_it_reads_and_writes() -> None:
    a, b = torch.ones(3, 5), torch.ones(5, 7)
    with WorkCounter() as counter:
        product = a @ b
    assert counter.work.tolist() == [2 * 3 * 5 * 7, 4 * (3 * 5 + 5 * 7 + 3 * 7), 1]
    with WorkCounter() as counter:
        product.T[0].unsqueeze(0).expand(9, 3)
    assert counter.work.tolist() == [0, 0, 0]
    with WorkCounter() as counter:
        product.add_(1.0)
    assert counter.work.tolist() == [21, 4 * 42, 1]


@pytest.mark.parametrize(("name", "gates"), [("rnn", 1), ("gru", 3), ("lstm", 4)])
def test_products_are_those_of_the_layer(name: str, gates: int) -> None:
    """Forward: 2 B N (I + N) a gate; backward: that for the weights, and 2 B N N for the state."""
    found, why = count_work(network(name), pace=Pace(step_seconds=1e-4))
    assert found is not None
    each = 2 * gates * BATCH * NEURONS
    forward, backward = each * (INPUTS + NEURONS), each * (INPUTS + 2 * NEURONS)
    # Besides products, there are the numbers that other kernels write: the loss is of a few kernels, too.
    assert forward < found.forward_flops < forward + 40 * gates * BATCH * NEURONS
    assert backward < found.backward_flops < backward + 80 * gates * BATCH * NEURONS
    weights = 4 * gates * NEURONS * (INPUTS + NEURONS)
    assert found.forward_bytes > weights
    assert found.backward_bytes > 2 * weights
    assert found.dtype == "float32"
    assert 3 <= found.forward_kernels < found.backward_kernels
    assert "not counted" not in why


def test_a_cell_with_kernels_of_its_own_is_counted_as_it_runs() -> None:
    """Spikes are summed where they fired: fewer operations than the dense product, and more than none."""
    found, why = count_work(network("lif"), pace=Pace(step_seconds=1e-4))
    assert found is not None
    dense = 2 * BATCH * NEURONS * INPUTS
    assert dense < found.forward_flops < dense + 2 * BATCH * NEURONS * NEURONS + 20 * BATCH * NEURONS
    assert found.backward_flops > dense
    assert "not counted" not in why


class Sparse(torch.nn.Module):
    """A layer whose weights are stored as a sparse matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(NEURONS).to_sparse())

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = torch.sparse.mm(self.weight, state) + x
        return state, state


def test_products_that_nobody_counts_are_named() -> None:
    cell, counter = Sparse(), WorkCounter()
    with counter:
        cell(torch.ones(NEURONS, 2), torch.ones(NEURONS, 2))
    assert any("sparse" in name or "mm" in name for name in counter.unknown)
    assert counter.work[0] < 2 * NEURONS * NEURONS * 2


def test_nothing_is_counted_of_a_cell_whose_steps_take_seconds() -> None:
    found, why = count_work(network("rnn"), pace=Pace(step_seconds=1.0))
    assert (found, why) == (None, "operations were not counted, as a step takes too long")


def test_the_efficiency_is_what_makes_the_roofline_true_on_the_machine_itself(calibrated: Calibrated) -> None:
    workload, profile = calibrated.workload, calibrated.profile
    operations = workload.operations
    assert operations is not None
    assert operations.efficiency is not None
    assert operations.measured_on == profile.name == workload.timed_on
    ideal = sum(find_ideal(operations, profile).values())
    measured = workload.forward_seconds + workload.backward_seconds
    assert ideal / operations.efficiency == pytest.approx(measured, rel=1e-3)
    assert 0 < operations.efficiency < 1
    assert "flop counter" in workload.basis["operations"].why


def test_other_machines_are_estimated_with_it_and_the_machine_itself_keeps_what_was_measured(
    calibrated: Calibrated,
) -> None:
    workload, profile = calibrated.workload, calibrated.profile
    assert Case(workload=workload, profile=profile).timed is workload
    other = ckptplan.load_profile("raspberry-pi-5")
    found = ckptplan.compare_machines(workload, [profile, other], strategies=["base"])
    times = {machine.profile.name: machine for machine in found.machines}
    assert times[profile.name].interval is None
    low, high = times[other.name].interval or (0, 0)
    # An efficiency that was found holds within a factor of two; one that is assumed, of three.
    assert high / low == pytest.approx(4)
    timed = Case(workload=workload, profile=other).timed
    assert "as calibrated on my-machine" in timed.basis["forward_seconds"].why
    plan = ckptplan.optimize(workload, other, strategies=["base"])
    assert "workload.operations" in {entry.field for entry in plan.estimate_basis}
    own = ckptplan.optimize(workload, profile, strategies=["base"])
    assert "workload.operations" not in {entry.field for entry in own.estimate_basis}


# Compiled pieces

PIECE = 2
TEXT = f"rnn(inputs=4, neurons=64, compile={PIECE})"


def build(text: str = TEXT) -> TorchNetwork:
    return build_torch_network(CellSpec.parse(text), batch=16, device="cpu", seed=0)


def read(program: TorchProgram) -> list[torch.Tensor]:
    return [torch.from_numpy(gradient) for gradient, _ in program.gradients()]


@pytest.fixture(scope="module")
def pieces() -> TorchNetwork:
    """Return a network whose pieces are compiled once for all tests here."""
    return build()


#: PyTorch's compiler uses what PyTorch deprecates, and looks at the gradient of each state.
with_compiler = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor that is not a leaf"
)


def test_the_text_of_a_cell_says_how_many_steps_a_piece_has() -> None:
    spec = CellSpec.parse(TEXT)
    assert (spec.compile, str(spec)) == (PIECE, TEXT)


@with_compiler
def test_a_step_is_a_piece_of_steps(pieces: TorchNetwork) -> None:
    alone = build(f"rnn(inputs=4, neurons=64, compile={1})")
    assert torch.equal(pieces.inputs(3), alone.inputs(3 * PIECE))
    ours, theirs = TorchProgram(pieces, None, steps=3), TorchProgram(alone, None, steps=3 * PIECE)
    assert_close(read(ours), read(theirs), relative=1e-5)


@with_compiler
def test_gradients_of_compiled_pieces_are_those_of_plain_backpropagation(pieces: TorchNetwork) -> None:
    plan = make_schedule("standard", steps=6, chunk_size=2)
    assert_close(read(TorchProgram(pieces, plan)), read(TorchProgram(pieces, None, steps=6)), relative=1e-5)


@with_compiler
def test_live_memory_is_counted_inside_of_compiled_pieces(pieces: TorchNetwork) -> None:
    found = footprint.measure_bytes(pieces, runs=FEW_RUNS)
    state = 16 * 64 * 4
    assert found.state_bytes == state
    # A piece keeps a hidden state a step, and little else.
    assert found.tape_bytes == pytest.approx(PIECE * state, rel=0.2)
    # What a run needs besides is not the tape of the whole sequence, which the allocator would have seen.
    assert found.workspace_bytes < 40 * state


@with_compiler
def test_steps_of_a_cell_with_kernels_of_its_own_are_pieces_like_others() -> None:
    lif = build("lif(inputs=4, neurons=8, compile=2)")
    plan = make_schedule("standard", steps=3, chunk_size=2)
    assert_close(read(TorchProgram(lif, plan)), read(TorchProgram(lif, None, steps=3)), relative=1e-5)


@with_compiler
def test_a_compiled_cell_is_calibrated() -> None:
    """By the whole of what ``calibrate --compile`` does; compiled code shows no operations to count."""
    found = calibrate(CellSpec.parse(TEXT), batch=16, steps=6, quick=True)
    assert found.workload.cell == TEXT
    assert found.workload.operations is None
    assert any("compiled pieces do not show" in text for text in found.left_out)


class Broken(torch.nn.Module):
    """A cell that PyTorch's compiler cannot take as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.RNNCell(4, 8)

    def forward(self, state: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        torch._dynamo.graph_break()
        state = self.inner(x, state)
        return state, state


@with_compiler
def test_a_cell_that_cannot_be_compiled_is_refused_with_the_reason(pieces: TorchNetwork) -> None:
    theirs = replace(
        pieces,
        cell=Broken(),
        state=torch.zeros(3, 8),
        make_inputs=lambda count: torch.zeros(count, 3, 4),
    )
    with pytest.raises(InputError, match=r"is 2, but .*graph break at test_measured_cells.py"):
        compile_pieces(theirs)
