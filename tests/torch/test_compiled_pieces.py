"""Law: in compiled pieces, the gradients are those of the steps as they are written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from ckptplan.errors import InputError
from ckptplan.torch import LIF, Compile, CompileFallback, Result, bptt
from tests.torch.support import assert_close, forget_measurements, plan_of

#: PyTorch's compiler uses what PyTorch deprecates, and looks at the gradient of each state.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor that is not a leaf"
)
#: T, and K of the pieces: the last piece is never whole.
STEPS, PIECE = 22, 4
#: How far fp32 may move if operations are fused.
ROUNDING = 1e-5


class Noisy(torch.nn.Module):
    """A recurrent cell with dropout: steps that run again must draw the same numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.recurrent = torch.nn.Linear(5, 7), torch.nn.Linear(7, 7)
        self.dropout = torch.nn.Dropout(0.3)

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take a step."""
        state = torch.tanh(self.inner(x) + self.recurrent(self.dropout(state)))
        return state, state


TARGETS = torch.randint(7, (STEPS, 3), generator=torch.Generator().manual_seed(2))


def classify(step: int, output: torch.Tensor) -> torch.Tensor:
    """Return a loss that takes the target of its step."""
    return cross_entropy(output, TARGETS[step])


def make_job(steps: int = STEPS) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and a state that need gradients."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(steps, 3, 5, generator=generator, requires_grad=True)
    return inputs, torch.randn(3, 7, generator=generator, requires_grad=True)


class Subject:
    """A cell whose pieces the machine's C++ compiler has made, once for all tests here."""

    def __init__(self) -> None:
        forget_measurements()
        self.cell = Noisy()
        self.said: list[tuple[str, float | None]] = []
        self.compile = Compile(steps=PIECE, progress=lambda what, seconds: self.said.append((what, seconds)))

    def train(self, strategy: str, *, steps: int = STEPS, compiled: bool) -> tuple[Result, list[torch.Tensor]]:
        """Return the result of a sequence, and all gradients."""
        inputs, state = make_job(steps)
        torch.manual_seed(5)
        plan = plan_of(steps, strategy, states=3 * steps if strategy == "base" else 16)
        result = bptt(self.cell, inputs, state, classify, plan=plan, compile=self.compile if compiled else None)
        wanted = [inputs, state, *self.cell.parameters()]
        return result, list(torch.autograd.grad(result.loss, wanted))


@pytest.fixture(scope="module")
def subject() -> Subject:
    """Return the cell."""
    return Subject()


@pytest.mark.parametrize("strategy", ["base", "standard", "double", "revolve", "optimal"])
def test_gradients_are_those_of_the_steps_as_written(subject: Subject, strategy: str) -> None:
    usual, theirs = subject.train(strategy, compiled=False)
    result, ours = subject.train(strategy, compiled=True)
    assert (usual.piece, result.piece) == (None, PIECE)
    assert torch.allclose(result.loss, usual.loss, rtol=ROUNDING)
    assert torch.allclose(result.state, usual.state, atol=ROUNDING)
    assert_close(ours, theirs, relative=ROUNDING)


def test_each_piece_is_compiled_once_and_its_seconds_are_told(subject: Subject) -> None:
    subject.train("standard", compiled=True)
    (begun, none), (ended, seconds) = subject.said
    assert begun == ended == f"pieces of {PIECE} steps"
    assert none is None
    assert seconds is not None
    assert seconds > 0.0


def test_a_plan_that_counts_pieces_runs_on_time_steps(subject: Subject) -> None:
    """``calibrate --compile 4`` names the cell so; 22 steps are six pieces, the last one shorter."""
    plan = plan_of(-(-STEPS // PIECE), "standard", states=10)
    workload = plan.workload.model_copy(update={"cell": f"mine:noisy(inputs=5, neurons=7, compile={PIECE})"})
    plan = plan.model_copy(update={"workload": workload})
    inputs, state = make_job()
    torch.manual_seed(5)
    result = bptt(subject.cell, inputs, state, classify, plan=plan, compile=subject.compile)
    assert (result.plan, result.piece) == (plan, PIECE)
    ours = torch.autograd.grad(result.loss, [inputs, state, *subject.cell.parameters()])
    assert_close(ours, subject.train("standard", compiled=False)[1], relative=ROUNDING)
    for other in (None, 8):
        with pytest.raises(InputError, match=r"counts compiled pieces of 4 steps.*compile=4 with it"):
            bptt(subject.cell, inputs, state, classify, plan=plan, compile=other)


def test_a_sequence_shorter_than_a_piece_runs_as_it_is_written(subject: Subject) -> None:
    with pytest.warns(UserWarning, match="3 steps is too short for pieces of 4"):
        result, ours = subject.train("standard", steps=3, compiled=True)
    assert result.piece is None
    assert_close(ours, subject.train("standard", steps=3, compiled=False)[1], relative=0.0)


def differentiate_lif(cell: LIF, **options: Any) -> tuple[Result, list[torch.Tensor]]:
    """Return the result and the gradients of a layer with kernels of its own."""
    inputs, state = torch.randn(STEPS, 3, 5, generator=torch.Generator().manual_seed(3)), cell.initial_state(3)
    plan = plan_of(STEPS, "standard", states=16)
    result = bptt(cell, inputs, state, classify, plan=plan, **options)
    return result, list(torch.autograd.grad(result.loss, list(cell.parameters())))


def test_steps_of_a_layer_with_kernels_are_compiled_if_that_is_asked_for() -> None:
    cell = LIF(5, 7, slope=5.0)
    with torch.no_grad():
        cell.weight.mul_(3)
    _, expected = differentiate_lif(cell)
    result, found = differentiate_lif(cell, compile=Compile(steps=PIECE))
    assert result.piece == PIECE
    assert_close(found, expected, relative=ROUNDING)


def test_under_autocast_the_kernels_of_a_layer_stay() -> None:
    """They keep the precision of the parameters."""
    forget_measurements()
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.warns(CompileFallback, match="kernels"):
        result, found = differentiate_lif(LIF(5, 7), compile=Compile(steps=PIECE))
    assert result.piece is None
    assert all(one.dtype == torch.float32 for one in found)
