"""Neurons and layers of other packages: finds them all, and steps them under plans and in their own loop."""

from __future__ import annotations

import inspect
import pkgutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch

from ckptplan import InputError
from ckptplan.torch import bptt, run_call
from ckptplan.torch.state.nests import flatten, map_leaves
from tests.torch.limit_tables import count_calls, plan_steps
from tests.torch.support import assert_close

STEPS = 12
#: Strategies by mode: each module runs under all of them, and in either mode under cuts of its own.
STRATEGIES = {"train": ("base", "standard", "revolve"), "eval": ("double", "optimal")}
#: A module's own loop: (its adapter, inputs, initial state) -> (outputs of all steps, final state).
Loop = Callable[[Any, list[Any], Any], tuple[list[Any], Any]]


@dataclass(frozen=True)
class Animal:
    """A module to step."""

    make: Callable[[], torch.nn.Module]
    _: KW_ONLY
    #: The shape of the input of a step.
    shape: tuple[int, ...] = (3, 5)
    dtype: torch.dtype = torch.float64
    #: Inputs are between 0 and this.
    largest: float = 3.0
    #: The largest relative difference of a gradient: sums in another order, and states in single precision.
    relative: float = 1e-9
    #: What a refusal names, if this is refused: in both modes, or only in train() or eval().
    refused: str | None = None
    #: Whether statistics run in train(), for which it may be refused by the names of their buffers.
    statistics: bool = False


@cache
def plan(strategy: str) -> Any:
    """A plan that runs some steps again, unless its strategy never does."""
    return plan_steps(STEPS, strategy, states=10)


def run_cell(cell: Any, inputs: list[Any], state: Any) -> tuple[list[Any], Any]:
    """The loop of a cell of PyTorch, which takes its state and returns it."""
    outputs = []
    for x in inputs:
        state = cell.module(x, state)
        outputs.append(state[0] if isinstance(state, tuple) else state)
    return outputs, state


def import_quietly(name: str) -> Any:
    """Import a module of a package that warns about itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(name)


def find_modules(package: str, *, without: dict[str, str]) -> dict[str, type]:
    """All classes of modules that a package defines, each by the last part of its module and its own name.

    Private classes and those that are called a base class are none. ``without`` has what is left out of the
    package, with the reason.
    """
    found: dict[str, type] = {}
    for name in _find_names(package, {f"{package}.{one}" for one in without}):
        for one in vars(import_quietly(name)).values():
            if not inspect.isclass(one) or not issubclass(one, torch.nn.Module) or one.__module__ != name:
                continue
            if not (one.__name__.startswith("_") or "Base" in one.__name__):
                found[f"{name.rpartition('.')[2]}.{one.__name__}"] = one
    return found


def _find_names(package: str, without: set[str]) -> Iterator[str]:
    for one in pkgutil.iter_modules(import_quietly(package).__path__, f"{package}."):
        if one.name not in without:
            yield one.name
            if one.ispkg:
                yield from _find_names(one.name, without)


def draw_inputs(animal: Animal) -> torch.Tensor:
    """The inputs of all steps, with a gradient."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.rand(STEPS, *animal.shape, dtype=animal.dtype, generator=generator)
    return (inputs * animal.largest).requires_grad_()


def measure(output: Any, step: int) -> torch.Tensor:
    """A loss of one output, with another weight for each value."""
    total = torch.zeros((), dtype=torch.float64)
    for leaf in flatten(output)[0]:
        if leaf.is_floating_point():
            place = torch.arange(leaf.numel(), dtype=leaf.dtype).reshape(leaf.shape)
            total = total + (leaf * torch.cos(place + 3 * step)).sum()
    return total


def differentiate(loss: torch.Tensor, wanted: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return gradients; all are zero if the loss depends on nothing that requires one.

    The graphs of constants that the module computed when it was made stay.
    """
    if not loss.requires_grad:
        return [torch.zeros_like(one) for one in wanted]
    return list(torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True, retain_graph=True))


def compare(animal: Animal, cell: Any, loop: Loop, initial: Any, *, mode: str) -> None:
    """Gradients under each strategy equal those of the module's own loop, from ``initial`` and from later."""
    before = {name: value.clone() for name, value in cell.named_buffers()}
    for state in (initial, _later(cell, animal, initial)):
        leaves = [leaf for leaf in flatten(state)[0] if leaf.requires_grad]
        inputs = draw_inputs(animal)
        wanted = [inputs, *leaves, *(one for one in cell.parameters() if one.requires_grad)]
        torch.manual_seed(5)
        outputs, end = loop(cell, list(inputs.unbind()), state)
        assert any(bool(leaf.any()) for output in outputs for leaf in flatten(output)[0]), "silent"
        expected = sum((measure(one, step) for step, one in enumerate(outputs)), torch.zeros(()))
        expected = expected + measure(end, 1)
        theirs = differentiate(expected, wanted)
        for name, value in cell.named_buffers():
            if name in before and before[name].shape == value.shape:
                value.data.copy_(before[name])
        for strategy in STRATEGIES[mode]:
            torch.manual_seed(5)
            result = bptt(
                cell,
                inputs,
                state,
                lambda step, output: measure(output, step),
                final_loss=lambda final: measure(final, 1),
                plan=plan(strategy),
            )
            assert torch.allclose(result.loss, expected.detach().to(result.loss.dtype), equal_nan=True)
            assert_close(differentiate(result.loss, wanted), theirs, relative=animal.relative)
    assert _is_recognised(cell, inputs, state), "each call tries its first steps again"


def _is_recognised(cell: Any, inputs: torch.Tensor, state: Any) -> bool:
    """Whether a call like the one before it tries no steps."""
    with count_calls(run_call, "try_steps") as trials:
        for _ in range(2):
            trials.clear()
            torch.manual_seed(5)
            result = bptt(
                cell, inputs, state, lambda step, output: measure(output, step), plan=plan("standard")
            )
            result.loss.backward(inputs=[inputs]) if result.loss.requires_grad else None
    return not trials


def _later(cell: Any, animal: Animal, initial: Any) -> Any:
    """The state after two steps, whose floats require a gradient."""
    state = initial
    torch.manual_seed(7)
    with torch.no_grad():
        for x in draw_inputs(animal)[:2]:
            state, _ = cell(state, x)
    return map_leaves(lambda leaf: leaf.detach().clone().requires_grad_(leaf.is_floating_point()), state)


def check(animal: Animal, adapt: Callable[[Any], Any], loop: Loop, *, mode: str) -> None:
    """A module gives the gradients of its own loop, or is refused by name where that is expected."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        # The packages warn about themselves.
        warnings.simplefilter("ignore")
        module = animal.make().to(animal.dtype).train(mode == "train")
        try:
            cell = adapt(module)
            initial = cell.initial_state() if hasattr(cell, "initial_state") else None
            compare(animal, cell, loop, initial, mode=mode)
            message = None
        except InputError as error:
            message = str(error)
    if animal.statistics and mode == "train":
        assert message is None or "running_mean" in message
    elif animal.refused is None:
        assert message is None
    else:
        assert message is not None
        assert animal.refused in message
