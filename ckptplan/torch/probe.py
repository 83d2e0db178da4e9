"""Runs the first steps aside, to find what they use, what they change, and whether steps can run again.

The first step and its loss run, then the second step, and the first one again: of the tensors that it uses,
others are those that it makes. A tensor that it leaves behind with its graph, and that the second step uses, is
hidden state. What only the first step changes, without a graph, is a cache. Whether steps return the same when
they run again, and whether they read what earlier ones changed, a rehearsal finds.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from ckptplan.errors import InputError
from ckptplan.torch.ambient import Autocast, Generators, RandomState
from ckptplan.torch.call import Call
from ckptplan.torch.cell_calls import ClosedCell, SlotCell
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.chunk_check import refuse_backward_hooks
from ckptplan.torch.graphs import (
    count_saved_bytes,
    find_graph_leaves,
    find_kept_tensors,
    find_outer_node,
    gives_sparse,
    walk_nodes,
)
from ckptplan.torch.held_graphs import describe_holders, name_graphs
from ckptplan.torch.parameters import CalledModules, Parameters, collect_parameters, refuse_sharded
from ckptplan.torch.recognise import Findings, Situation, describe_call, keep, recall
from ckptplan.torch.surroundings.holders import TensorHolder
from ckptplan.torch.surroundings.signature import Signature
from ckptplan.torch.surroundings.snapshot import Place, Snapshot, Surroundings, aside, list_changes, put_back
from ckptplan.torch.surroundings.walk import Reached, walk
from ckptplan.torch.trees import (
    Leaves,
    byte_size,
    detach_state,
    find_tensors,
    flatten,
    holds_graph,
    refuse_inference_tensors,
    refuse_other_leaves,
)
from ckptplan.torch.trial import (
    StepResult,
    make_hidden_state,
    name_loss,
    refuse_changed_parameters,
    refuse_lost_changes,
    take_step,
)


@dataclass(frozen=True, kw_only=True)
class FirstSteps:
    """Runs the first two steps of a call from the same surroundings, several times.

    Arguments:
        call: the call.
        generators: the random generators.
        surroundings: what they can reach.
        world: what they find there.
        reached: what a walk found, without what was added to watch it.
    """

    call: Call
    generators: Generators
    surroundings: Surroundings
    world: Snapshot
    reached: Reached

    def run(self) -> Findings:
        """Run the steps, and return what they show, but for the modules that they call. Raises InputError."""
        surroundings, call, drawn = self.surroundings, self.call, self.generators.state()
        result = self._take(call.state, 0, drawn)
        found, after = self._examine(result), detach_state(result.after)
        draws, outer = result.loss_draws, self._find_outer_node(result)
        # What holds the graph of a step must be gone before the next one runs.
        del result
        _refuse_outer_graph(outer)
        _check_structure(call.state, after)
        # What the first step makes, later steps may change.
        surroundings.find_more(list_changes(self.world, surroundings.take(copies=True, since=self.world)))
        then, between = surroundings.take(copies=True, since=self.world), self.generators.state()
        graphs = {
            place: {one.grad_fn for one in find_tensors(place.value)} - {None}
            for place in list_changes(self.world, then)
        }
        result = self._take(after, min(1, call.plan.steps - 1), between)
        moved = self.generators.moved_since(drawn)
        nodes = set(walk_nodes((*result.tensors, *self._list_sums(graphs)), until=call.parameters))
        read = [place for place, operations in graphs.items() if operations & nodes]
        second, outer = self._examine(result), self._find_outer_node(result)
        del result, nodes, graphs
        end = surroundings.take(copies=True, since=then)
        made, lasting = list_changes(self.world, then), list_changes(then, end)
        changed = list(dict.fromkeys((*made, *lasting)))
        with_graph = {place for place in changed if holds_graph(place.value)}
        refuse_lost_changes(surroundings, changed)
        refuse_changed_parameters(lasting, hooks=True)
        held = name_graphs(call.things) if outer else ()
        # They refer to the graphs that steps left behind.
        del then, end
        again = self._run_first_again(drawn, draws=draws)
        if read:
            raise make_hidden_state(surroundings, read, field="cell or loss" if call.losses else "cell")
        _refuse_outer_graph(outer, held)
        # A cell may create tensors that require a gradient, as initial states; each run creates new ones.
        shared = tuple(leaf for leaf in found.used if id(leaf) in again)
        return replace(
            found,
            used=shared,
            temporary=len(found.used) - len(shared),
            dtypes=found.dtypes | second.dtypes,
            sparse=found.sparse or second.sparse,
            changed=self._hold(changed),
            with_graph=self._hold(with_graph),
            # The first one is read quickly. Where a sequence cannot begin again, any may move later.
            drawn=moved | {0} if call.runs_as_planned else None,
            # With a graph, such a cache would be part of each chunk's graph.
            made=self._hold(place for place in made if place not in lasting and place not in with_graph),
        )

    def _list_sums(self, places: Iterable[Place]) -> list[torch.Tensor]:
        """Return what goes on in the places of a ``SlotCell``: a sum over time may be added to a loss later."""
        if not isinstance(self.call.cell, SlotCell):
            return []
        return [place.value for place in places if isinstance(place.value, torch.Tensor)]

    def _hold(self, places: Iterable[Place]) -> tuple[Place, ...]:
        # What the steps made is gone: the sequence makes it anew.
        known = set(self.reached.holders)
        return tuple(one for one in places if one.holder in known)

    def _run_first_again(self, drawn: RandomState, *, draws: bool) -> set[int]:
        """Run the first step again, with what it found, and return the ids of tensors that it uses."""
        call = self.call
        put_back(self.world)
        again = self._take(call.state, 0, drawn)
        # Once may have been another thread, as one that prepares data.
        if call.replay_randomness and draws and again.loss_draws:
            raise InputError(
                "draws random numbers, which are not replayed when steps run again",
                field=name_loss(call),
                accepted="a loss without dropout or noise; within the cell, whose output may be that of a "
                "readout, the same is drawn again",
            )
        put_back(self.world)
        if isinstance(call.cell, ChunkCell):
            refuse_backward_hooks(call.cell)
        return set(map(id, list_uses(again, call.parameters)))

    def _take(self, state: Any, step: int, drawn: RandomState) -> StepResult:
        self.generators.restore(drawn)
        with Autocast.present(self.call.device).cast_anew():
            return take_step(self.call, state, step, self.generators)

    def _examine(self, result: StepResult) -> Findings:
        """Return what the graph of a step shows. Raises InputError for tensors that cannot be named."""
        used = list_uses(result, self.call.parameters)
        self._refuse_computed(used)
        try:
            # The next step may keep the state that it begins with: it counts here.
            end = flatten(result.after)[0]
            tape_bytes = count_saved_bytes(
                result.tensors, end=end, without=result.roots, known=self.reached.storages
            )
            types = {one.dtype for one in find_kept_tensors(result.tensors) if one.is_floating_point()}
        except RuntimeError:
            # A part of the graph is gone.
            tape_bytes, types = 0, set()
        return Findings(
            device=_find_device(result.leaves, default=self.call.device),
            used=used,
            tape_bytes=tape_bytes,
            growth_bytes=max(0, byte_size(flatten(result.after)[0]) - byte_size(flatten(self.call.state)[0])),
            dtypes=frozenset(types),
            sparse=gives_sparse(result.tensors),
        )

    def _find_outer_node(self, result: StepResult) -> str | None:
        """Return the name of an operation that was recorded before a step, and that it uses."""
        return find_outer_node(result.tensors, before=result.begun, until=self.call.parameters)

    def _refuse_computed(self, used: Parameters) -> None:
        """Raise InputError for a named tensor that was computed with hooks, or from another parameter."""
        named = self.call.parameters
        # Held, since PyTorch makes objects for nodes anew, and others may have their addresses then.
        ends = [one if one.grad_fn is None else one.grad_fn for one in (*used, *named)]
        places = set(map(id, ends))
        for one in named:
            if one.grad_fn is None:
                continue
            before = (node for node in walk_nodes((one,)) if node is not one.grad_fn)
            leads = any(id(getattr(node, "variable", node)) in places for node in before)
            if leads or one._backward_hooks:
                names = {id(holder.thing): holder.name for holder in self.reached.holders}
                name = names.get(id(one), f"of shape {tuple(one.shape)}")
                why = (
                    "from a parameter that is named or used, too"
                    if leads
                    else "and has hooks, which each run of steps would call"
                )
                raise InputError(
                    f"names the tensor {name}, which was computed {why}",
                    field="parameters",
                    accepted="tensors without hooks, of which none was computed from another; or what they "
                    "were computed from, and a cell that computes them in each step",
                )


def list_uses(result: StepResult, named: Parameters) -> Parameters:
    """Return the tensors requiring a gradient that a step used, those behind named ones left out."""
    inner = {id(leaf) for leaf in result.roots}
    leaves = find_graph_leaves(result.tensors, until=named)
    return tuple(leaf for leaf in leaves if id(leaf) not in inner)


def _refuse_outer_graph(node: str | None, holders: Sequence[str] = ()) -> None:
    """Raise InputError if a step uses an outer graph, which each chunk would backpropagate through again."""
    if node is not None:
        held = f": {describe_holders(holders)} one" if holders else ""
        raise InputError(
            f"the cell or the loss uses a tensor that was computed outside (by {node}) and has its own graph"
            + held,
            field="parameters",
            accepted="parameters=[...] with that tensor, or the tensor as an input or in the state; if a step "
            "computed it and keeps it, the tensor in the state, or computed anew in each step",
        )


def _check_structure(state: Any, after: Any) -> None:
    """Raise InputError if a step returns a state of another number of tensors."""
    given, returned = len(flatten(state)[0]), len(flatten(after)[0])
    if given and returned != given:
        raise InputError(
            f"takes a state of {given} tensors and returns one of {returned}",
            field="cell",
            accepted="a state that is the same structure at every step",
        )


@dataclass(frozen=True, kw_only=True)
class Probed:
    """The findings of the first steps, and what they are compared with."""

    found: Findings
    #: What the findings depend on.
    situation: Situation
    #: Whether the findings are those of an earlier call, so that no trial was made.
    recalled: bool
    parameters: Parameters
    #: The random generators.
    generators: Generators
    #: What the cell and the losses can reach, and what it holds: as before the trial.
    surroundings: Surroundings
    before: Snapshot
    #: Whether there will be a backward pass.
    wants_gradients: bool
    #: Leaves that require a gradient, from which a plain loop computes what steps leave behind.
    roots: tuple[torch.Tensor, ...]

    @classmethod
    def of(
        cls, call: Call, found: Findings, situation: Situation, generators: Generators, *, recalled: bool
    ) -> Probed:
        """Return findings for a call; the surroundings are as they are before it."""
        surroundings = Surroundings(situation.reached.holders, room=call.room)
        parameters = collect_parameters(found.modules, call.parameters, list(found.used))
        wanted = tuple(one for one in (*parameters, *call.leaves) if one.requires_grad)
        return cls(
            found=found,
            situation=situation,
            recalled=recalled,
            parameters=parameters,
            generators=generators,
            surroundings=surroundings,
            before=surroundings.take(copies={one.holder for one in found.changed}),
            wants_gradients=torch.is_grad_enabled() and bool(wanted),
            roots=tuple(one for one in wanted if one.is_leaf),
        )

    def describe_kind(self, call: Call) -> tuple[Any, ...]:
        """Return what the sizes of the first steps depend on, and times, but for constants.

        That is code, modules with their modes, shapes, and what a step keeps.
        """
        shapes, *others = self.situation.settings
        used = tuple((one.shape, one.dtype) for one in self.parameters)
        modules = tuple((type(one), one.training) for _, one in self.situation.reached.modules)
        return (tuple(others), call.code, used, modules), shapes, self.found.tape_bytes

    @cached_property
    def constants(self) -> int:
        """What is equal for equal numbers and texts, but for those that steps change.

        A counter is another one in each step: it tells no call from others.
        """
        return self.situation.hash_constants(but={one.name for one in self.found.changed})

    def list_parameter_names(self) -> list[str]:
        """Return the name of each parameter, as a user would write it."""
        names = {id(one.thing): one.name for one in self.surroundings.holders if isinstance(one, TensorHolder)}
        return [names.get(id(one), f"a parameter of shape {tuple(one.shape)}") for one in self.parameters]


def probe(call: Call, *, anew: bool = True) -> Probed:
    """Run the first two steps and their losses, and restore everything. Raises InputError.

    If nothing has changed since an earlier call, what was found then is returned, unless ``anew``. No step is
    tried without gradients, where each runs once as in a plain loop, nor of a closed cell.
    """
    reverses = torch.is_grad_enabled()
    refuse_other_leaves(call.state, field="state")
    if reverses:
        refuse_inference_tensors(flatten(call.state)[0], field="state")
        refuse_inference_tensors(call.sequence.leaves, field="inputs")
        # Without gradients, there is nothing to reduce.
        refuse_sharded((call.cell, *call.losses.values()))
    situation = _walk_call(call)
    draws = not isinstance(call.cell, ClosedCell) or call.cell.draws
    generators = Generators(call.device, wanted=draws, held=situation.reached.generators)
    if call.is_closed or not reverses:
        # No step has to show anything.
        found = Findings(device=_find_device(call.leaves, default=call.device), drawn=None)
        return Probed.of(call, found, situation, generators, recalled=not reverses)
    findings = recall(situation)
    if not anew and findings is not None:
        return Probed.of(call, findings, situation, generators, recalled=True)
    # What makes the inputs is asked, and what it returns is checked, before any step runs.
    call.sequence.piece(0, 1)
    probed = _try_first_steps(call, situation, generators)
    uses, changes = set(map(id, probed.found.used)), set(probed.found.changed)
    alike = findings is not None and (set(map(id, findings.used)), set(findings.changed)) == (uses, changes)
    if findings is not None and findings.rehearsed and alike:
        probed = replace(probed, found=replace(probed.found, rehearsed=True))
    keep(situation, probed.found)
    return probed


def _walk_call(call: Call) -> Situation:
    signature = Signature()
    reached = walk_made(call.things, call, signature)
    options = (call.verify, tuple(call.things), call.replay_randomness, min(1, call.plan.steps - 1))
    return describe_call(call, reached, signature, named=call.parameters, options=options)


def _try_first_steps(call: Call, situation: Situation, generators: Generators) -> Probed:
    reached = situation.reached
    called = CalledModules([module for _, module in reached.modules], given=call.things.values())
    # Hooks would be compiled into compiled cells, anew in each call.
    with aside(reached, generators, room=call.room) as (surroundings, world), run_eagerly(), called.enter():
        found = FirstSteps(
            call=call, generators=generators, surroundings=surroundings, world=world, reached=reached
        ).run()
    return Probed.of(call, replace(found, modules=called.modules), situation, generators, recalled=False)


@contextmanager
def run_eagerly() -> Iterator[None]:
    """Run compiled functions as they are written, where they can be told to stand aside: since torch 2.6."""
    if "torch._dynamo" not in sys.modules or not hasattr(torch.compiler, "set_stance"):
        yield
        return
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using `torch.compile\\(module\\)` when there are global")
        yield


def walk_made(things: dict[str, object], call: Call, signature: Signature | None = None) -> Reached:
    """Return what things reach, after a step of a call in which lazy modules make their parameters.

    The random numbers of that step stay drawn: those parameters are made of them.
    """
    reached = walk(things, signature=signature)
    if not reached.lazy:
        return reached
    modules = [module for _, module in reached.modules]
    modes = [module.training for module in modules]
    own = [vars(module) for module in modules if isinstance(module, LazyModuleMixin)]
    lazy = {id(one) for attributes in own for one in (attributes, *attributes.values())}
    others = replace(reached, holders=[one for one in reached.holders if id(one.thing) not in lazy])
    try:
        with aside(others, Generators(call.device, wanted=False)), torch.no_grad():
            # In eval(), running statistics stay as they are.
            for module in modules:
                module.training = False
            call.cell(call.state, call.sequence.take(0))
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
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
