"""Law: compiled pieces of K steps are measured as steps are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from ckptplan.calibration.calibrate import calibrate
from ckptplan.errors import InputError
from ckptplan.model.cell_spec import CellSpec
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.backend import TorchNetwork, TorchProgram
from ckptplan.torch.cells import build_torch_network, compile_pieces
from ckptplan.torch.footprint import FEW_RUNS, measure_bytes
from tests.torch.support import assert_close

#: PyTorch's compiler uses what PyTorch deprecates, and looks at the gradient of each state.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor that is not a leaf"
)
PIECE = 2
TEXT = f"rnn(inputs=4, neurons=64, compile={PIECE})"


def build(text: str = TEXT) -> TorchNetwork:
    """Return a network."""
    return build_torch_network(CellSpec.parse(text), batch=16, device="cpu", seed=0)


def gradients(network: TorchNetwork, steps: int, plan: Schedule | None = None) -> list[torch.Tensor]:
    """Return the gradients of the parameters, by plain backpropagation without a plan."""
    return [torch.from_numpy(one) for one, _ in TorchProgram(network, plan, steps=steps).gradients()]


@pytest.fixture(scope="module")
def network() -> TorchNetwork:
    """Return a network whose pieces are compiled once for all tests here."""
    return build()


def test_the_text_of_a_cell_says_how_many_steps_a_piece_has() -> None:
    spec = CellSpec.parse(TEXT)
    assert (spec.compile, str(spec)) == (PIECE, TEXT)


def test_a_step_is_a_piece_of_steps(network: TorchNetwork) -> None:
    alone = build(f"rnn(inputs=4, neurons=64, compile={1})")
    assert torch.equal(network.inputs(3), alone.inputs(3 * PIECE))
    assert_close(gradients(network, 3), gradients(alone, 3 * PIECE), relative=1e-5)


def test_gradients_of_compiled_pieces_are_those_of_plain_backpropagation(network: TorchNetwork) -> None:
    plan = make_schedule("standard", steps=6, chunk_size=2)
    assert_close(gradients(network, 6, plan), gradients(network, 6), relative=1e-5)


def test_live_memory_is_counted_inside_of_compiled_pieces(network: TorchNetwork) -> None:
    found = measure_bytes(network, runs=FEW_RUNS)
    state = 16 * 64 * 4
    assert found.state_bytes == state
    # A piece keeps a hidden state a step, and little else.
    assert found.tape_bytes == pytest.approx(PIECE * state, rel=0.2)
    # What a run needs besides is not the tape of the whole sequence, which the allocator would have seen.
    assert found.workspace_bytes < 40 * state


def test_steps_of_a_cell_with_kernels_of_its_own_are_pieces_like_others() -> None:
    network = build("lif(inputs=4, neurons=8, compile=2)")
    plan = make_schedule("standard", steps=3, chunk_size=2)
    assert_close(gradients(network, 3, plan), gradients(network, 3), relative=1e-5)


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
        """Take a step."""
        torch._dynamo.graph_break()
        state = self.inner(x, state)
        return state, state


def test_a_cell_that_cannot_be_compiled_is_refused_with_the_reason(network: TorchNetwork) -> None:
    broken = Broken()
    theirs = replace(
        network,
        cell=broken,
        state=torch.zeros(3, 8),
        make_inputs=lambda count: torch.zeros(count, 3, 4),
        parameters=tuple(broken.parameters()),
    )
    with pytest.raises(InputError, match=r"is 2, but .*graph break at test_measured_pieces.py"):
        compile_pieces(theirs)
