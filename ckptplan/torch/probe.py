"""Runs the first steps aside, to find what they use, what they change, and whether steps can run again."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from ckptplan.errors import InputError
from ckptplan.torch.ambient import Autocast, Generators
from ckptplan.torch.call import Call
from ckptplan.torch.constants import refuse_other_leaves
from ckptplan.torch.first_steps import FirstSteps, list_uses
from ckptplan.torch.graphs import find_outer_node
from ckptplan.torch.inputs import Sequence
from ckptplan.torch.kept import Findings, HeldPlace, Situation, keep, read_settings, recall
from ckptplan.torch.modules import CalledModules
from ckptplan.torch.parameters import Parameters, collect_parameters
from ckptplan.torch.sharding import refuse_sharded
from ckptplan.torch.surroundings.iterators import tap_iterators
from ckptplan.torch.surroundings.number_holders import TensorHolder
from ckptplan.torch.surroundings.signature import Signature
from ckptplan.torch.surroundings.snapshot import Place, Snapshot, Surroundings
from ckptplan.torch.surroundings.walk import Reached, walk
from ckptplan.torch.trees import Leaves, flatten, refuse_inference_tensors
from ckptplan.torch.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Probed:
    """The findings of the first steps, and what they are compared with."""

    found: Findings
    #: What the findings depend on.
    situation: Situation
    #: Whether the findings are those of an earlier call, so that no trial was made.
    recalled: bool
    parameters: Parameters
    trial: Trial
    #: The cell and the losses, by the names of their arguments.
    things: dict[str, object]
    #: What the cell and the losses can reach, and what it holds: as before the trial.
    surroundings: Surroundings
    before: Snapshot
    #: Whether there will be a backward pass.
    wants_gradients: bool
    #: Leaves that require a gradient, from which a plain loop computes what steps leave behind.
    roots: tuple[torch.Tensor, ...]

    @classmethod
    def of(
        cls, call: Call, found: Findings, situation: Situation, trial: Trial, *, before: Snapshot | None = None
    ) -> Probed:
        """Return findings for a call; those of an earlier one, if the surroundings were not remembered."""
        surroundings = Surroundings(situation.reached.holders)
        if before is None:
            written = {id(holder) for holder, _ in found.changed}
            now = surroundings.take_some_copies(written)
        else:
            now = surroundings.take_without_copies(before, but={id(holder) for holder, _ in found.changed})
        parameters = collect_parameters(found.modules, call.parameters, list(found.used))
        wanted = tuple(one for one in (*parameters, *call.leaves) if one.requires_grad)
        return cls(
            found=found,
            situation=situation,
            recalled=before is None,
            parameters=parameters,
            trial=trial,
            things=call.things,
            surroundings=surroundings,
            before=now,
            wants_gradients=torch.is_grad_enabled() and bool(wanted),
            roots=tuple(one for one in wanted if one.is_leaf),
        )

    def name_parameters(self) -> dict[str, torch.Tensor]:
        """Return the parameters by what holds them, as a user would write it."""
        names = {id(one.thing): one.name for one in self.surroundings.holders if isinstance(one, TensorHolder)}
        return {names.get(id(one), f"a parameter of shape {tuple(one.shape)}"): one for one in self.parameters}


def probe(call: Call, *, anew: bool = True) -> Probed:
    """Run the first two steps and their losses, in both grad modes, and restore everything. Raises InputError.

    If nothing has changed since an earlier call, what was found then is returned, unless ``anew``; the first
    step runs once, to see whether it uses the same tensors.
    """
    inputs = call.sequence.trial
    refuse_other_leaves(call.state, field="state")
    reverses = torch.is_grad_enabled()
    if reverses:
        refuse_inference_tensors(flatten(call.state)[0], field="state")
        refuse_inference_tensors(call.sequence.leaves, field="inputs")
    # Without gradients, there is nothing to reduce.
    with refuse_sharded((call.cell, *call.losses.values())) if reverses else nullcontext():
        situation = _walk_call(call, inputs)
        generators = Generators(call.device, wanted=True, held=situation.reached.generators)
        trial = Trial(cell=call.cell, inputs=inputs, losses=call.losses, generators=generators)
        if not anew and (findings := recall(situation)) is not None:
            recalled = Probed.of(call, findings, situation, trial)
            if not reverses or _holds(recalled, call):
                return recalled
        # What makes the inputs is asked, and what it returns is checked, before any step runs.
        inputs.piece(0, 1)
        probed = _try_first_steps(call, situation, trial, reverses=reverses)
    if not call.is_closed:
        keep(situation, probed.found)
    return probed


def _walk_call(call: Call, inputs: Sequence) -> Situation:
    def take() -> object:
        leaves, nest = inputs.piece(0, 1)
        return call.cell(call.state, next(inputs.iterate(leaves, nest, 0, 1)))

    signature = Signature()
    reached = walk_made(call.things, call.device, take, signature)
    options = (call.verify, tuple(call.things), call.replay_randomness, min(1, call.plan.steps - 1))
    settings = read_settings(
        call.state, inputs, call.parameters, signature, device=call.device, options=options
    )
    return Situation(reached=reached, signature=signature, settings=settings)


def _try_first_steps(call: Call, situation: Situation, trial: Trial, *, reverses: bool) -> Probed:
    reached, autocast = situation.reached, Autocast.present(call.device)
    called = CalledModules([module for _, module in reached.modules], given=call.things.values())
    with ExitStack() as stack:
        stack.enter_context(trial.generators.aside())
        stack.enter_context(torch.enable_grad())
        surroundings = Surroundings([*reached.holders, *stack.enter_context(tap_iterators(reached.holders))])
        world = surroundings.take(copies=True)
        stack.callback(surroundings.put_back, world)
        if _may_compile():
            _note_called(called, trial, call.state, last=min(1, call.plan.steps - 1), autocast=autocast)
            surroundings.put_back(world)
        else:
            stack.enter_context(called.enter())
        seen = FirstSteps(
            trial=trial,
            things=call.things,
            surroundings=surroundings,
            world=world,
            autocast=autocast,
            named=call.parameters,
            steps=call.plan.steps,
            reverses=reverses,
            replays_randomness=call.replay_randomness,
        ).run(call.state)

    def hold(places: Iterable[Place]) -> tuple[HeldPlace, ...]:
        # What the steps made is gone: the sequence makes it anew.
        known = len(reached.holders)
        return tuple((reached.holders[one.holder], one.key) for one in places if one.holder < known)

    found = Findings(
        used=tuple(seen.parameters),
        modules=called.modules,
        temporary=seen.temporary,
        device=_find_device(seen.first.leaves, default=call.device),
        changed=hold(seen.changed),
        with_graph=hold(seen.with_graph),
        made=hold(seen.made),
    )
    return Probed.of(call, found, situation, trial, before=world)


def _holds(recalled: Probed, call: Call) -> bool:
    """Return whether the first step still uses the same tensors, and changes nothing else than it did.

    What it keeps where nothing looks, as ``functools.lru_cache`` does, is then made with its graph.
    """
    surroundings, before, found = recalled.surroundings, recalled.before, recalled.found
    named = call.parameters
    used, known = {id(one) for one in found.used}, {(one.identity, key) for one, key in found.changed}
    with recalled.trial.generators.aside(), torch.enable_grad():
        try:
            with Autocast.present(call.device).cast_anew():
                result = recalled.trial.take(call.state, 0)
            uses = list_uses(result, named)
            changed = surroundings.list_changes(before, surroundings.take())
        except InputError:
            # The trial says why.
            return False
        finally:
            surroundings.put_back(before)
    same = used <= uses.keys() and len(uses) == len(used) + found.temporary
    places = {(surroundings.holders[place.holder].identity, place.key) for place in changed}
    outer = find_outer_node(result.tensors, before=result.begun, until=named)
    return same and places <= known and outer is None and not result.loss_draws


def _may_compile() -> bool:
    """Return whether PyTorch's compiler is in use, and can be told to stand aside (since torch 2.6)."""
    return "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance")


def _note_called(called: CalledModules, trial: Trial, state: object, *, last: int, autocast: Autocast) -> None:
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
