"""Runs the first steps aside, to find what they use, what they change, and whether steps can run again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from ckptplan.errors import InputError
from ckptplan.torch.ambient import Autocast, Generators
from ckptplan.torch.first_steps import FirstSteps
from ckptplan.torch.inputs import Sequence, iterate_steps
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
    leaves, nest = inputs.piece(0, 1)
    reached = _walk(things, device, lambda: cell(state, next(iterate_steps(leaves, nest, 1))))
    generators = Generators(device, wanted=True, held=reached.generators)
    trial = Trial(cell=cell, inputs=inputs, losses=losses, generators=generators)
    called = CalledModules([module for _, module in reached.modules], given=things.values())
    with ExitStack() as stack:
        stack.enter_context(generators.aside())
        stack.enter_context(torch.enable_grad())
        stack.enter_context(called.enter())
        surroundings = Surroundings([*reached.holders, *stack.enter_context(tap_iterators(reached.holders))])
        world = surroundings.take(copies=True)
        stack.callback(surroundings.put_back, world)
        seen = FirstSteps(
            trial=trial,
            things=things,
            surroundings=surroundings,
            world=world,
            autocast=Autocast.present(device),
            named=named,
            last=min(1, steps - 1),
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


def _walk(things: dict[str, object], device: torch.device, take: Callable[[], object]) -> Reached:
    """Return what can be reached, after a step in which lazy modules make their parameters."""
    reached = walk(things)
    if reached.lazy:
        with Generators(device, wanted=True).aside(), torch.no_grad():
            take()
        reached = walk(things)
    return reached


def _find_device(leaves: Leaves, *, default: torch.device) -> torch.device:
    """Return the CUDA device of a step's results, or ``default``. Raises InputError for other devices."""
    devices = {leaf.device for leaf in leaves}
    for device in devices:
        if device.type not in ("cpu", "cuda"):
            raise InputError(
                f"is on {device.type}, which is not supported", field="state", accepted="tensors on cpu or cuda"
            )
    return next((device for device in devices if device.type == "cuda"), default)
