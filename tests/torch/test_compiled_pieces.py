"""Law: in compiled pieces, the gradients are those of the steps as they are written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from ckptplan.errors import InputError
from ckptplan.torch import LIF, Compile, CompileFallback, Result
from tests.torch.limit_tables import plan_steps
from tests.torch.support import assert_close, forget_measurements, plan_of
from tests.torch.test_compiling import Cell, train

#: PyTorch's compiler uses what PyTorch deprecates, and looks at the gradient of each state.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor that is not a leaf"
)
#: T, and K of the pieces: the last piece is never whole.
STEPS, PIECE = 22, 4
#: How far fp32 may move if operations are fused.
ROUNDING = 1e-5


TARGETS = torch.randint(7, (STEPS, 3), generator=torch.Generator().manual_seed(2))


def classify(step: int, output: torch.Tensor) -> torch.Tensor:
    """Return a loss that takes the target of its step."""
    return cross_entropy(output, TARGETS[step])


def drop_out(cell: Any, state: torch.Tensor) -> torch.Tensor:
    """Draw random numbers, which steps that run again must draw again."""
    dropped: torch.Tensor = cell.dropout(state)
    return dropped


class Subject:
    """A cell whose pieces the machine's C++ compiler has made, once for all tests here."""

    def __init__(self) -> None:
        forget_measurements()
        self.cell = Cell(drop_out, dropout=torch.nn.Dropout(0.3))
        self.said: list[tuple[str, float | None]] = []
        self.compile = Compile(steps=PIECE, progress=lambda what, seconds: self.said.append((what, seconds)))

    def train(
        self, strategy: str = "standard", *, compiled: bool = True, steps: int = STEPS, **options: Any
    ) -> tuple[Result, list[torch.Tensor]]:
        """Return the result of a sequence, and all gradients."""
        state = torch.randn(3, 7, generator=torch.Generator().manual_seed(1)).requires_grad_()
        own = {"plan": plan_steps(steps, strategy, states=16), "compile": self.compile if compiled else None}
        return train(self.cell, classify, steps=steps, state=state, **{**own, **options})


@pytest.fixture(scope="module")
def subject() -> Subject:
    """Return the cell."""
    return Subject()


@pytest.mark.parametrize("strategy", ["base", "standard", "double", "revolve", "optimal"])
def test_gradients_are_those_of_the_steps_as_written(subject: Subject, strategy: str) -> None:
    usual, theirs = subject.train(strategy, compiled=False)
    result, ours = subject.train(strategy)
    assert (usual.piece, result.piece) == (None, PIECE)
    assert torch.allclose(result.loss, usual.loss, rtol=ROUNDING)
    assert torch.allclose(result.state, usual.state, atol=ROUNDING)
    assert_close(ours, theirs, relative=ROUNDING)


def test_each_piece_is_compiled_once_and_its_seconds_are_told(subject: Subject) -> None:
    subject.train()
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
    result, ours = subject.train(plan=plan)
    assert (result.plan, result.piece) == (plan, PIECE)
    assert_close(ours, subject.train(compiled=False)[1], relative=ROUNDING)
    for other in (None, 8):
        with pytest.raises(InputError, match=r"counts compiled pieces of 4 steps.*compile=4 with it"):
            subject.train(plan=plan, compile=other)


def test_a_sequence_shorter_than_a_piece_runs_as_it_is_written(subject: Subject) -> None:
    with pytest.warns(UserWarning, match="3 steps is too short for pieces of 4"):
        result, ours = subject.train(steps=3)
    assert result.piece is None
    assert_close(ours, subject.train(steps=3, compiled=False)[1], relative=0.0)


def test_steps_of_a_layer_with_kernels_are_compiled_if_that_is_asked_for() -> None:
    cell = LIF(5, 7, slope=5.0)
    with torch.no_grad():
        cell.weight.mul_(3)
    options: dict[str, Any] = {"steps": STEPS, "plan": plan_of(STEPS, "standard", states=16)}
    _, expected = train(cell, classify, compile=None, **options)
    result, found = train(cell, classify, compile=Compile(steps=PIECE), **options)
    assert result.piece == PIECE
    assert_close(found, expected, relative=ROUNDING)


def test_under_autocast_the_kernels_of_a_layer_stay() -> None:
    """They keep the precision of the parameters."""
    forget_measurements()
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.warns(CompileFallback, match="kernels"):
        result, found = train(LIF(5, 7), classify, compile=Compile(steps=PIECE))
    assert result.piece is None
    assert all(gradient.dtype == torch.float32 for gradient in found)
