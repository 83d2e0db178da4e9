"""Cells that see where a recorded run of steps begins, truncate, or keep what only gradients see."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.utils.checkpoint import checkpoint

from tests.torch.impure.cases import Job, case, cell_case
from tests.torch.impure.gradients import Surrogate
from tests.torch.impure.modules import Cell, Timed, timed

START = "where a recorded run begins"
TRUNCATED = "truncation"
UNSEEN = "what only gradients see"


class Given(Cell):
    """A GRU; ``before`` changes the state that it is given."""

    def before(self, state: torch.Tensor) -> Any:
        """Return what the step starts from."""
        return state

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        """Take a step."""
        return super().forward(self.before(state), x)


@cell_case(START, "detaches a state that is no leaf")
class DetachedUnlessLeaf(Given):
    def before(self, state: torch.Tensor) -> Any:
        return state if state.is_leaf else 0.5 * state.detach() + 0.5 * state


@cell_case(START, "scales the gradient of a state that is a leaf")
class ScaledIfLeaf(Given):
    def before(self, state: torch.Tensor) -> Any:
        return state - 0.3 * (state - state.detach()) if state.is_leaf else state


@cell_case(START, "scales the gradient of a state with a grad_fn")
class ScaledByGradFn(Given):
    def before(self, state: torch.Tensor) -> Any:
        return state if state.grad_fn is None else state - 0.3 * (state - state.detach())


@cell_case(START, "a hook on the grad_fn of the state that is given")
class HookedGradFn(Given):
    def before(self, state: torch.Tensor) -> Any:
        if state.grad_fn is not None:
            state.grad_fn.register_prehook(lambda found: tuple(0.8 * one for one in found))
        return state


@cell_case(START, "a hook on the operation before the one of the state")
class HookedOperation(Given):
    def before(self, state: torch.Tensor) -> Any:
        if state.grad_fn is not None and state.grad_fn.next_functions[0][0] is not None:
            state.grad_fn.next_functions[0][0].register_hook(lambda found, _: tuple(found))
            state = state - 0.2 * (state - state.detach())
        return state


@cell_case(START, "each step hooks a parameter")
class HookedParameter(Cell):
    def after(self, state: torch.Tensor) -> Any:
        self.inner.bias_hh.register_hook(lambda gradient: 0.97 * gradient)
        return state


@cell_case(START, "the first step hooks a parameter")
class HookedParameterOnce(Cell):
    def after(self, state: torch.Tensor) -> Any:
        if self.kept is None:
            self.kept = self.inner.weight_hh.register_hook(lambda gradient: gradient.clamp(-0.05, 0.05))
        return state


class _Store(Timed):
    def store(self) -> Any:
        return {}

    def begin(self) -> None:
        self.kept = self.store()

    def read(self, step: int) -> Any:
        return self.kept.get(step - 10)

    def then(self, state: torch.Tensor, step: int) -> Any:
        early = self.read(step)
        if early is not None:
            state = state + 0.3 * early
        self.kept[step] = state
        return state


@case(START, "a dict of all states, read ten steps later")
def states_in_dict() -> Job:
    return timed(_Store())


@case(START, "a list of all states, read ten steps later")
def states_in_list() -> Job:
    class InList(_Store):
        def store(self) -> Any:
            return [None] * 64

        def read(self, step: int) -> Any:
            return self.kept[step - 10] if step >= 10 else None

    return timed(InList())


@case(START, "the first state in a dict, read by all later steps")
def first_in_dict() -> Job:
    class First(_Store):
        def read(self, step: int) -> Any:
            return self.kept.get(0) if step else None

    return timed(First())


@cell_case(TRUNCATED, "by a clock that is a float")
class TruncatedByClock(Cell):
    def begin(self) -> None:
        self.kept = 0.0

    def after(self, state: torch.Tensor) -> Any:
        self.kept += 0.1
        return state.detach() if 0.95 < self.kept % 1.2 < 1.05 else state


@cell_case(TRUNCATED, "by a clock that is a tensor of floats, once")
class TruncatedByTensorClock(Cell):
    def begin(self) -> None:
        self.register_buffer("clock", torch.zeros((), dtype=torch.float64))

    def after(self, state: torch.Tensor) -> Any:
        clock: Any = self.clock
        clock += 0.1
        return state - 0.6 * (state - state.detach()) if float(clock) > 1.65 else state


@cell_case(TRUNCATED, "by the length of a record")
class TruncatedByLength(Cell):
    def begin(self) -> None:
        self.kept = []

    def after(self, state: torch.Tensor) -> Any:
        self.kept.append(float(state.detach().mean()))
        return state.detach() if len(self.kept) % 9 == 8 else state


@cell_case(TRUNCATED, "by the length of a text")
class TruncatedByText(Cell):
    def begin(self) -> None:
        self.kept = ""

    def after(self, state: torch.Tensor) -> Any:
        self.kept += "."
        return state - 0.7 * (state - state.detach()) if len(self.kept) > 12 else state


@cell_case(TRUNCATED, "by activity, a sum that resets")
class TruncatedByActivity(Cell):
    def begin(self) -> None:
        self.kept = 0.0

    def after(self, state: torch.Tensor) -> Any:
        self.kept += float(state.detach().abs().mean())
        if self.kept < 2.5:
            return state
        self.kept = 0.0
        return state.detach()


@cell_case(TRUNCATED, "by activity, from a level on")
class TruncatedByLevel(Cell):
    def begin(self) -> None:
        self.kept = 0.0

    def after(self, state: torch.Tensor) -> Any:
        self.kept += float(state.detach().abs().mean())
        return state - 0.5 * (state - state.detach()) if self.kept > 3.5 else state


class CountingBackward(torch.autograd.Function):
    """The identity, whose gradient falls with each backward pass."""

    factor: ClassVar[float] = 1.0

    @staticmethod
    def forward(ctx: Any, state: torch.Tensor) -> Any:
        """Return the state."""
        del ctx
        return state.view_as(state)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return less with each call."""
        del ctx
        CountingBackward.factor *= 0.95
        return gradient * CountingBackward.factor


@case(UNSEEN, "a custom backward that counts its calls from one sequence to the next")
def counting_backward() -> Job:
    CountingBackward.factor = 1.0

    class Counting(Cell):
        def after(self, state: torch.Tensor) -> Any:
            return CountingBackward.apply(state)  # type: ignore[no-untyped-call]

    return Job(cell=Counting())


class BackwardOfCalls(torch.autograd.Function):
    """The identity, whose gradient is the factor that a list holds when the backward pass runs."""

    @staticmethod
    def forward(ctx: Any, state: torch.Tensor, kept: list[float]) -> Any:
        """Return the state."""
        kept[0] *= 1.02
        ctx.kept = kept
        return state.view_as(state)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the gradient, scaled by what is in the list now."""
        return gradient * ctx.kept[0], None


@case(UNSEEN, "a custom backward that reads what later steps wrote")
def reading_backward() -> Job:
    kept = [0.7]

    class Reading(Cell):
        def after(self, state: torch.Tensor) -> Any:
            return BackwardOfCalls.apply(state, kept)  # type: ignore[no-untyped-call]

    return Job(cell=Reading())


@cell_case(UNSEEN, "a slope that is annealed from the twentieth step on")
class AnnealedLate(Cell):
    def begin(self) -> None:
        self.kept = 1.0

    def after(self, state: torch.Tensor) -> Any:
        if self.calls >= 20:
            self.kept *= 1.3
        return 0.9 * state + 0.1 * Surrogate.apply(state - 0.1, self.kept)  # type: ignore[no-untyped-call]


@cell_case(UNSEEN, "a scale of the gradient that changes in the last steps alone")
class ScaledLast(Cell):
    def after(self, state: torch.Tensor) -> Any:
        return state - 0.4 * (state - state.detach()) if self.calls >= 18 else state


@case(UNSEEN, "a loss that scales gradients by a running maximum")
def loss_with_running_scale() -> Job:
    largest = [1.0]

    def loss(_: int, output: torch.Tensor) -> Any:
        largest[0] = max(1.05 * largest[0], float(output.detach().abs().max()))
        scaled = output / largest[0]
        return (scaled + (output - scaled).detach()).square().sum()

    return Job(cell=Cell(), loss=loss)


@case(UNSEEN, "a loss that scales gradients by a running mean, from the twelfth step on")
def loss_with_late_scale() -> Job:
    mean = [1.0]

    def loss(step: int, output: torch.Tensor) -> Any:
        mean[0] = 0.9 * mean[0] + 0.1 * float(output.detach().square().mean())
        scaled = output / mean[0] if step >= 12 else output
        return (scaled + (output - scaled).detach()).square().sum()

    return Job(cell=Cell(), loss=loss)


class NoisyBackward(CountingBackward):
    """The identity, whose backward pass draws random numbers."""

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the gradient with noise."""
        del ctx
        return gradient * (1 + 0.3 * torch.randn_like(gradient))


@case(UNSEEN, "noise in a custom backward")
def noisy_backward() -> Job:
    class Noisy(Cell):
        def after(self, state: torch.Tensor) -> Any:
            return NoisyBackward.apply(state)  # type: ignore[no-untyped-call]

    return Job(cell=Noisy())


@case(UNSEEN, "noise in a hook on the new state")
def noisy_hook() -> Job:
    class Noisy(Cell):
        def after(self, state: torch.Tensor) -> Any:
            if state.requires_grad:
                state.register_hook(lambda gradient: gradient * (1 + 0.3 * torch.randn_like(gradient)))
            return state

    return Job(cell=Noisy())


def _drop(state: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(state, 0.3)


@case(UNSEEN, "dropout under checkpoint(preserve_rng_state=False)")
def checkpointed_dropout() -> Job:
    class Dropped(Cell):
        def after(self, state: torch.Tensor) -> Any:
            return checkpoint(_drop, state, use_reentrant=False, preserve_rng_state=False)

    return Job(cell=Dropped())


@case(UNSEEN, "dropout under checkpoint()")
def preserved_dropout() -> Job:
    class Dropped(Cell):
        def after(self, state: torch.Tensor) -> Any:
            return checkpoint(_drop, state, use_reentrant=False)

    return Job(cell=Dropped())


@case(UNSEEN, "a chunk_loss that depends on how the sequence is cut")
def chunk_loss_of_the_cut() -> Job:
    def chunk_loss(_: int, outputs: torch.Tensor) -> Any:
        return (outputs - outputs.mean(0)).square().sum()

    return Job(cell=Cell(), chunk_loss=chunk_loss)


@case(UNSEEN, "a chunk_loss whose value does not depend on the cut, and whose gradient does")
def chunk_gradient_of_the_cut() -> Job:
    def chunk_loss(_: int, outputs: torch.Tensor) -> Any:
        scaled = outputs / len(outputs)
        return (scaled + (outputs - scaled).detach()).square().sum()

    return Job(cell=Cell(), chunk_loss=chunk_loss)


@case(UNSEEN, "a chunk_loss that adds up steps")
def chunk_loss_of_steps() -> Job:
    return Job(cell=Cell(), chunk_loss=lambda _, outputs: outputs.square().sum())
