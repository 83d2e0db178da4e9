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
from ckptplan.torch.first_steps import FirstSteps, list_uses
from ckptplan.torch.graphs import find_outer_node
from ckptplan.torch.inputs import Sequence
from ckptplan.torch.kept import Findings, Situation, find_places, read_settings, recall
from ckptplan.torch.losses import SummedLoss
from ckptplan.torch.modules import CalledModules
from ckptplan.torch.parameters import Modules, Parameters, collect_parameters
from ckptplan.torch.surroundings.holders import Holder
from ckptplan.torch.surroundings.iterators import tap_iterators
from ckptplan.torch.surroundings.number_holders import TensorHolder
from ckptplan.torch.surroundings.signature import Signature
from ckptplan.torch.surroundings.snapshot import Place, Snapshot, Surroundings
from ckptplan.torch.surroundings.walk import Reached, walk
from ckptplan.torch.trees import Leaves
from ckptplan.torch.trial import Trial


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """The findings of the first steps."""

    parameters: Parameters
    #: The number of tensors requiring a gradient that each step creates.
    temporary: int
    #: The cell and the losses, if they are modules, and all modules that were called.
    modules: Modules
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
    #: What steps changed in the trial, or in earlier sequences: the holders with the keys.
    changed: tuple[tuple[Holder, Any], ...]
    #: The tensors requiring a gradient that steps used.
    used: tuple[torch.Tensor, ...]
    #: What the findings depend on.
    situation: Situation
    #: Whether the findings are those of an earlier call, so that no trial was made.
    recalled: bool

    def name_parameters(self) -> dict[str, torch.Tensor]:
        """Return the parameters by what holds them, as a user would write it."""
        names = {id(one.thing): one.name for one in self.surroundings.holders if isinstance(one, TensorHolder)}
        return {names.get(id(one), f"a parameter of shape {tuple(one.shape)}"): one for one in self.parameters}


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
    options: tuple[Any, ...] = (),
    anew: bool = True,
) -> ProbeResult:
    """Run the first two steps and their losses, in both grad modes, and restore everything. Raises InputError.

    If nothing has changed since an earlier call, what was found then is returned; the first step runs once, to
    see whether it uses the same tensors.

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
        options: what else of the call findings depend on.
        anew: whether findings of earlier calls are left aside.
    """
    inputs = inputs.trial

    def take() -> object:
        leaves, nest = inputs.piece(0, 1)
        return cell(state, next(inputs.iterate(leaves, nest, 0, 1)))

    signature = Signature()
    reached = walk_made(things, device, take, signature)
    last = min(1, steps - 1)
    settings = read_settings(
        state,
        inputs,
        named,
        signature,
        device=device,
        options=(*options, tuple(things), replays_randomness, last),
    )
    situation = Situation(reached=reached, signature=signature, settings=settings)
    generators = Generators(device, wanted=True, held=reached.generators)
    trial = Trial(cell=cell, inputs=inputs, losses=losses, generators=generators)
    if not anew and (findings := recall(situation)) is not None:
        recalled = _apply(findings, situation, trial=trial, things=things, named=named)
        if not torch.is_grad_enabled() or _holds(recalled, state, Autocast.present(device), named):
            return recalled
    # What makes the inputs is asked, and what it returns is checked, before any step runs.
    inputs.piece(0, 1)
    called = CalledModules([module for _, module in reached.modules], given=things.values())
    autocast = Autocast.present(device)
    reverses = torch.is_grad_enabled()
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
            steps=steps,
            reverses=reverses,
            replays_randomness=replays_randomness,
        ).run(state)
    # What the steps made is gone: the sequence makes it anew.
    known = len(reached.holders)
    surroundings = Surroundings(reached.holders)
    return ProbeResult(
        parameters=collect_parameters(called.modules, named, seen.parameters),
        temporary=seen.temporary,
        modules=called.modules,
        device=_find_device(seen.first.leaves, default=device),
        generators=tuple(reached.generators),
        trial=trial,
        things=things,
        surroundings=surroundings,
        before=surroundings.take_without_copies(world, but={place.holder for place in seen.changed}),
        with_graph={place for place in seen.with_graph if place.holder < known},
        changed=tuple((reached.holders[one.holder], one.key) for one in seen.changed if one.holder < known),
        used=tuple(seen.parameters),
        situation=situation,
        recalled=False,
    )


def _apply(
    findings: Findings, situation: Situation, *, trial: Trial, things: dict[str, object], named: Parameters
) -> ProbeResult:
    """Return findings of an earlier call, with the objects of this one."""
    reached, met = situation.reached, situation.signature.things
    modules = tuple(met[number] for number in findings.modules)
    used = [met[number] for number in findings.used]
    surroundings = Surroundings(reached.holders)
    written = {number for number, _ in findings.changed}
    return ProbeResult(
        parameters=collect_parameters(modules, named, used),
        temporary=findings.temporary,
        modules=modules,
        device=findings.device,
        generators=tuple(reached.generators),
        trial=trial,
        things=things,
        surroundings=surroundings,
        before=surroundings.take_some_copies(written),
        with_graph=find_places(reached, findings.with_graph),
        changed=tuple((reached.holders[number], key) for number, key in findings.changed),
        used=tuple(used),
        situation=situation,
        recalled=True,
    )


def _holds(recalled: ProbeResult, state: Any, autocast: Autocast, named: Parameters) -> bool:
    """Return whether the first step still uses the same tensors, and changes nothing else than it did.

    What it keeps where nothing looks, as ``functools.lru_cache`` does, is then made with its graph.
    """
    surroundings, before = recalled.surroundings, recalled.before
    used, known = {id(one) for one in recalled.used}, {(id(one.thing), key) for one, key in recalled.changed}
    with recalled.trial.generators.aside(), torch.enable_grad():
        try:
            with autocast.cast_anew():
                result = recalled.trial.take(state, 0)
            uses = list_uses(result, named)
            changed = surroundings.list_changes(before, surroundings.take())
        except InputError:
            # The trial says why.
            return False
        finally:
            surroundings.put_back(before)
    same = used <= uses.keys() and len(uses) == len(used) + recalled.temporary
    places = {(id(surroundings.holders[place.holder].thing), place.key) for place in changed}
    outer = find_outer_node(result.tensors, before=result.begun, until=named)
    return same and places <= known and outer is None and not result.loss_draws


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


def walk_made(
    things: dict[str, object],
    device: torch.device,
    take: Callable[[], object],
    signature: Signature | None = None,
) -> Reached:
    """Return what can be reached, after a step in which lazy modules make their parameters."""
    reached = walk(things, signature=signature)
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
