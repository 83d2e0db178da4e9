"""What a step computes is counted as its formulas say, and carries its efficiency to other machines."""

from __future__ import annotations

import pytest
import torch

import ckptplan
from ckptplan.calibration.calibrate import Calibrated, calibrate
from ckptplan.cost.case import Case
from ckptplan.cost.roofline import find_ideal
from ckptplan.execution.backend import Pace
from ckptplan.model.cell_spec import CellSpec
from ckptplan.torch.backend import TorchNetwork
from ckptplan.torch.cells import build_torch_network
from ckptplan.torch.work import WorkCounter, count_work

BATCH, INPUTS, NEURONS = 4, 8, 16


def network(name: str) -> TorchNetwork:
    return build_torch_network(
        CellSpec(name=name, inputs=INPUTS, neurons=NEURONS), batch=BATCH, device="cpu", seed=0
    )


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
