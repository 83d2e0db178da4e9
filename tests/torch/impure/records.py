"""Cells that see where a recorded run of steps begins, truncate, or keep what only gradients see."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.utils.checkpoint import checkpoint

from tests.torch.impure.cases import Cell, Given, Timed, call, case, does, family, make_class, weaken
from tests.torch.impure.gradients import spike
from tests.torch.tables import Call

START = "where a recorded run begins"
UNSEEN = "what only gradients see"


@family(START)
class Beginning(Given):
    """Cells that look at the state that they are given."""

    @does("detaches a state that is no leaf")
    def detached_unless_leaf(self, state: torch.Tensor) -> Any:
        return state if state.is_leaf else 0.5 * state.detach() + 0.5 * state

    @does("scales the gradient of a state that is a leaf")
    def scaled_if_leaf(self, state: torch.Tensor) -> Any:
        return weaken(state, 0.7) if state.is_leaf else state

    @does("scales the gradient of a state with a grad_fn")
    def scaled_by_grad_fn(self, state: torch.Tensor) -> Any:
        return state if state.grad_fn is None else weaken(state, 0.7)

    @does("a hook on the grad_fn of the state that is given")
    def hooked_grad_fn(self, state: torch.Tensor) -> Any:
        if state.grad_fn is not None:
            state.grad_fn.register_prehook(lambda found: tuple(0.8 * one for one in found))
        return state

    @does("a hook on the operation before the one of the state")
    def hooked_operation(self, state: torch.Tensor) -> Any:
        if state.grad_fn is not None and state.grad_fn.next_functions[0][0] is not None:
            state.grad_fn.next_functions[0][0].register_hook(lambda found, _: tuple(found))
            state = weaken(state, 0.8)
        return state


@family(START)
class Hooking(Cell):
    """Cells that hook a parameter."""

    @does("each step hooks a parameter")
    def hooked_parameter(self, state: torch.Tensor) -> Any:
        self.inner.bias_hh.register_hook(lambda gradient: 0.97 * gradient)
        return state

    @does("the first step hooks a parameter")
    def hooked_parameter_once(self, state: torch.Tensor) -> Any:
        if self.kept is None:
            self.kept = self.inner.weight_hh.register_hook(lambda gradient: gradient.clamp(-0.05, 0.05))
        return state


@family(START)
class Storing(Timed):
    """Cells that keep their states, and read them later."""

    @does("a dict of all states, read ten steps later", dict)
    def states_in_dict(self, state: torch.Tensor, step: int) -> Any:
        early = self.kept.get(step - 10)
        self.kept[step] = state = state if early is None else state + 0.3 * early
        return state

    @does("a list of all states, read ten steps later", lambda: [None] * 64)
    def states_in_list(self, state: torch.Tensor, step: int) -> Any:
        self.kept[step] = state = state + 0.3 * self.kept[step - 10] if step >= 10 else state
        return state

    @does("the first state in a dict, read by all later steps", dict)
    def first_in_dict(self, state: torch.Tensor, step: int) -> Any:
        self.kept[step] = state = state + 0.3 * self.kept[0] if step else state
        return state


@family("truncation")
class Truncated(Cell):
    """Cells that truncate gradients by something that they keep."""

    @does("by a clock that is a float", lambda: 0.0)
    def truncated_by_clock(self, state: torch.Tensor) -> Any:
        self.kept += 0.1
        return state.detach() if 0.95 < self.kept % 1.2 < 1.05 else state

    @does("by a clock that is a tensor of floats, once", lambda: torch.nn.Buffer(torch.zeros(()).double()))
    def truncated_by_tensor_clock(self, state: torch.Tensor) -> Any:
        self.kept += 0.1
        return weaken(state, 0.4) if float(self.kept) > 1.65 else state

    @does("by the length of a record", list)
    def truncated_by_length(self, state: torch.Tensor) -> Any:
        self.kept.append(float(state.detach().mean()))
        return state.detach() if len(self.kept) % 9 == 8 else state

    @does("by the length of a text", str)
    def truncated_by_text(self, state: torch.Tensor) -> Any:
        self.kept += "."
        return weaken(state, 0.3) if len(self.kept) > 12 else state

    @does("by activity, a sum that resets", lambda: 0.0)
    def truncated_by_activity(self, state: torch.Tensor) -> Any:
        self.kept += float(state.detach().abs().mean())
        if self.kept < 2.5:
            return state
        self.kept = 0.0
        return state.detach()


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


class NoisyBackward(CountingBackward):
    """The identity, whose backward pass draws random numbers."""

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the gradient with noise."""
        del ctx
        return gradient * (1 + 0.3 * torch.randn_like(gradient))


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


def _drop(state: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(state, 0.3)


@family(UNSEEN)
class Unseen(Cell):
    """Cells whose values tell nothing of their gradients."""

    @does("noise in a custom backward")
    def noisy_backward(self, state: torch.Tensor) -> Any:
        return NoisyBackward.apply(state)  # type: ignore[no-untyped-call]

    @does("noise in a hook on the new state")
    def noisy_hook(self, state: torch.Tensor) -> Any:
        if state.requires_grad:
            state.register_hook(lambda gradient: gradient * (1 + 0.3 * torch.randn_like(gradient)))
        return state

    @does("dropout under checkpoint(preserve_rng_state=False)")
    def checkpointed_dropout(self, state: torch.Tensor) -> Any:
        return checkpoint(_drop, state, use_reentrant=False, preserve_rng_state=False)

    @does("dropout under checkpoint()")
    def preserved_dropout(self, state: torch.Tensor) -> Any:
        return checkpoint(_drop, state, use_reentrant=False)

    @does("a slope that is annealed from the twentieth step on", lambda: 1.0)
    def annealed_late(self, state: torch.Tensor) -> Any:
        if self.calls >= 20:
            self.kept *= 1.3
        return spike(state, self.kept)

    @does("a scale of the gradient that changes in the last steps alone")
    def scaled_last(self, state: torch.Tensor) -> Any:
        return weaken(state, 0.6) if self.calls >= 18 else state


@case(UNSEEN, "a custom backward that counts its calls from one sequence to the next")
def counting_backward() -> Call:
    CountingBackward.factor = 1.0
    return call(make_class("Counting", lambda _, state: CountingBackward.apply(state))())  # type: ignore[no-untyped-call]


@case(UNSEEN, "a custom backward that reads what later steps wrote")
def reading_backward() -> Call:
    kept = [0.7]
    return call(make_class("Reading", lambda _, state: BackwardOfCalls.apply(state, kept))())  # type: ignore[no-untyped-call]


@case(UNSEEN, "a loss that scales gradients by a running maximum")
def loss_with_running_scale() -> Call:
    largest = [1.0]

    def loss(_: int, output: torch.Tensor) -> Any:
        largest[0] = max(1.05 * largest[0], float(output.detach().abs().max()))
        scaled = output / largest[0]
        return (scaled + (output - scaled).detach()).square().sum()

    return call(Cell(), loss=loss)


@case(UNSEEN, "a loss that scales gradients by a running mean, from the twelfth step on")
def loss_with_late_scale() -> Call:
    mean = [1.0]

    def loss(step: int, output: torch.Tensor) -> Any:
        mean[0] = 0.9 * mean[0] + 0.1 * float(output.detach().square().mean())
        scaled = output / mean[0] if step >= 12 else output
        return (scaled + (output - scaled).detach()).square().sum()

    return call(Cell(), loss=loss)


def _scale_by_length(_: int, outputs: torch.Tensor) -> Any:
    scaled = outputs / len(outputs)
    return (scaled + (outputs - scaled).detach()).square().sum()


@case(UNSEEN, "a chunk_loss that depends on how the sequence is cut")
def chunk_loss_of_the_cut() -> Call:
    return call(Cell(), chunk_loss=lambda _, outputs: (outputs - outputs.mean(0)).square().sum())


@case(UNSEEN, "a chunk_loss whose value does not depend on the cut, and whose gradient does")
def chunk_gradient_of_the_cut() -> Call:
    return call(Cell(), chunk_loss=_scale_by_length)


@case(UNSEEN, "a chunk_loss that adds up steps")
def chunk_loss_of_steps() -> Call:
    return call(Cell(), chunk_loss=lambda _, outputs: outputs.square().sum())
