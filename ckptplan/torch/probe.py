"""Runs the first steps aside, to find what they use, what they change, and whether steps can run again."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from ckptplan.errors import InputError
from ckptplan.torch.ambient import Autocast, Generators
from ckptplan.torch.first_steps import FirstSteps
from ckptplan.torch.inputs import Sequence
from ckptplan.torch.losses import SummedLoss
from ckptplan.torch.modules import CalledModules
from ckptplan.torch.parameters import Modules, Parameters, collect_parameters
from ckptplan.torch.surroundings.iterators import tap_iterators
from ckptplan.torch.surroundings.snapshot import Place, Snapshot, Surroundings
from ckptplan.torch.surroundings.walk import Reached, walk
from ckptplan.torch.trees import Leaves, Structure, flatten
from ckptplan.torch.trial import Trial


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """The findings of the first steps."""

    parameters: Parameters
    #: The number of tensors requiring a gradient that each step creates.
    temporary: int
    #: The cell and the losses, if they are modules, and all modules that were called.
    modules: Modules
    output: Structure
    device: torch.device
    #: Random generators that the cell and the losses hold.
    generators: tuple[object, ...]
    trial: Trial
    #: The cell and the losses, by the names of their arguments.
    things: dict[str, object]
    #: What the cell and the losses can reach, and what it holds: as before the trial.
    surroundings: Surroundings
    before: Snapshot
    #: Places that hold tensors with a graph after a step.
    with_graph: set[Place]


def probe(
    cell: Callable[..., Any],
    state: Any,
    inputs: Sequence,
    *,
    things: dict[str, object],
    named: Parameters,
    losses: SummedLoss | None,
    device: torch.device,
    replays_randomness: bool,
    steps: int,
) -> ProbeResult:
    """Run the first two steps and their losses, in both grad modes, and restore everything. Raises InputError.

    Arguments:
        cell: ``cell(state, x)`` returns (state, output).
        state: the initial state.
        inputs: the inputs of all steps.
        things: the cell and the losses, by the names of their arguments.
        named: the parameters named by the caller.
        losses: the losses, None if there are none.
        device: the device on which the cell will probably run.
        replays_randomness: whether steps that run again draw the same random numbers.
        steps: T.
    """
    inputs = inputs.trial
    leaves, nest = inputs.piece(0, 1)
    reached = _walk(things, device, lambda: cell(state, next(inputs.iterate(leaves, nest, 0, 1))))
    generators = Generators(device, wanted=True, held=reached.generators)
    trial = Trial(cell=cell, inputs=inputs, losses=losses, generators=generators)
    called = CalledModules([module for _, module in reached.modules], given=things.values())
    autocast, last = Autocast.present(device), min(1, steps - 1)
    with ExitStack() as stack:
        stack.enter_context(generators.aside())
        stack.enter_context(torch.enable_grad())
        surroundings = Surroundings([*reached.holders, *stack.enter_context(tap_iterators(reached.holders))])
        world = surroundings.take(copies=True)
        stack.callback(surroundings.put_back, world)
        if _may_compile():
            _note_called(called, trial, state, last=last, autocast=autocast)
            surroundings.put_back(world)
        else:
            stack.enter_context(called.enter())
        seen = FirstSteps(
            trial=trial,
            things=things,
            surroundings=surroundings,
            world=world,
            autocast=autocast,
            named=named,
            last=last,
            replays_randomness=replays_randomness,
        ).run(state)
    # What the steps made is gone: the sequence makes it anew.
    known = len(reached.holders)
    surroundings = Surroundings(reached.holders)
    return ProbeResult(
        parameters=collect_parameters(called.modules, named, seen.parameters),
        temporary=seen.temporary,
        modules=called.modules,
        output=flatten(seen.first.output)[1],
        device=_find_device(seen.first.leaves, default=device),
        generators=tuple(reached.generators),
        trial=trial,
        things=things,
        surroundings=surroundings,
        before=surroundings.take_without_copies(world, but={place.holder for place in seen.changed}),
        with_graph={place for place in seen.with_graph if place.holder < known},
    )


def _may_compile() -> bool:
    """Return whether PyTorch's compiler is in use, and can be told to stand aside (since torch 2.6)."""
    return "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance")


def _note_called(called: CalledModules, trial: Trial, state: Any, *, last: int, autocast: Autocast) -> None:
    """Note the modules of two steps, not compiled: hooks would be compiled into them, anew in each call."""
    drawn = trial.generators.state()
    # Weights that parametrize.cached() keeps from here on would be none of the sequence's.
    kept = getattr(sys.modules.get("torch.nn.utils.parametrize"), "_cache", {})
    before = dict(kept)
    with ExitStack() as stack:
        stack.callback(kept.update, before)
        stack.callback(kept.clear)
        stack.enter_context(called.enter())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(autocast.cast_anew())
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="Using `torch.compile\\(module\\)` when there are global")
        trial.take(trial.take(state, 0).detach().after, last)
    trial.generators.restore(drawn)


def _walk(things: dict[str, object], device: torch.device, take: Callable[[], object]) -> Reached:
    """Return what can be reached, after a step in which lazy modules make their parameters."""
    reached = walk(things)
    if not reached.lazy:
        return reached
    modules = [module for _, module in reached.modules]
    modes = [module.training for module in modules]
    own = [vars(module) for module in modules if isinstance(module, LazyModuleMixin)]
    lazy = {id(one) for attributes in own for one in (attributes, *attributes.values())}
    surroundings = Surroundings(reached.holders)
    before = surroundings.take(copies=True)
    # In eval(), running statistics stay as they are.
    for module in modules:
        module.training = False
    try:
        with Generators(device, wanted=True).aside(), torch.no_grad():
            take()
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        surroundings.put_back(before, but=lazy)
    return walk(things)


def _find_device(leaves: Leaves, *, default: torch.device) -> torch.device:
    """Return the CUDA device of a step's results, or ``default``. Raises InputError for other devices."""
    devices = {leaf.device for leaf in leaves}
    for device in devices:
        if device.type not in ("cpu", "cuda"):
            raise InputError(
                f"is on {device.type}, which is not supported", field="state", accepted="tensors on cpu or cuda"
            )
    return next((device for device in devices if device.type == "cuda"), default)
