"""Runs the first steps aside, to find what they use, what they change, and whether steps can run again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ckptplan.errors import InputError
from ckptplan.torch.ambient import Autocast, Generators, RandomState
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.graphs import find_graph_leaves, find_outer_node
from ckptplan.torch.hidden import refuse_hidden_state, refuse_lost_changes
from ckptplan.torch.inputs import Sequence, iterate_steps
from ckptplan.torch.losses import SummedLoss
from ckptplan.torch.modules import CalledModules
from ckptplan.torch.parameters import Modules, Parameters, collect_parameters
from ckptplan.torch.surroundings.snapshot import Place, Snapshot, Surroundings
from ckptplan.torch.surroundings.values import holds_graph
from ckptplan.torch.surroundings.walk import Reached, walk
from ckptplan.torch.trees import Leaves, Structure, flatten
from ckptplan.torch.trial import StepResult, Trial, are_equal, copy_leaves, detach_state

#: Tensors by their ids.
Uses: TypeAlias = dict[int, torch.Tensor]


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
    trial = Trial(cell=cell, inputs=inputs, losses=losses)
    reached = _walk(things, trial, state, device)
    surroundings, generators = Surroundings(reached), Generators(device, wanted=True, held=reached.generators)
    world, drawn = surroundings.take(copies=True), generators.state()
    called = CalledModules(reached.modules, given=things.values())
    autocast = Autocast.present(device)

    def take(state: Any, step: int, *, draws: RandomState = drawn) -> StepResult:
        generators.restore(draws)
        with autocast.cast_anew():
            return trial.take(state, step)

    with ExitStack() as stack:
        stack.enter_context(generators.aside())
        stack.enter_context(torch.enable_grad())
        stack.enter_context(called.enter())
        stack.callback(surroundings.put_back, world)
        first, uses = _examine(take(state, 0), named)
        _check_structure(state, first)
        between, then = generators.state(), surroundings.take_since(world)
        last = min(1, steps - 1)
        second, later_uses = _examine(take(first.after, last, draws=between), named)
        end = surroundings.take_since(then)
        changed = surroundings.list_changes(world, then), surroundings.list_changes(then, end)
        either = {*changed[0], *changed[1]}
        with_graph = {place for place in either if holds_graph(surroundings.value_of(place))}
        refuse_lost_changes(surroundings, either)

        surroundings.put_back(world)
        again, again_uses = _examine(take(state, 0), named)
        _check_repeated(first, again, trial)
        surroundings.put_back(world)
        with torch.no_grad():
            _check_grad_mode(first, take(state, 0), trial)
        if replays_randomness:
            surroundings.put_back(world)
            _check_draws(trial, generators, first)
        surroundings.put_back(world)
        if isinstance(cell, ChunkCell):
            _check_chunk(cell, state, inputs)
        surroundings.put_back(end)
        refuse_hidden_state(
            lambda: take(first.after, last, draws=between),
            surroundings,
            end,
            _list_lasting_changes(surroundings, *changed),
            second,
        )
    found, temporary = _sort_leaves(uses, again_uses, later_uses)
    return ProbeResult(
        parameters=collect_parameters(called.modules, named, found),
        temporary=temporary,
        modules=called.modules,
        output=flatten(first.output)[1],
        device=_find_device(first.leaves, default=device),
        generators=tuple(reached.generators),
        trial=trial,
        surroundings=surroundings,
        before=surroundings.drop_copies(world, keep={place.holder for place in either}),
        with_graph=with_graph,
    )


def _walk(things: dict[str, object], trial: Trial, state: Any, device: torch.device) -> Reached:
    """Return what can be reached, after lazy modules have made their parameters."""
    reached = walk(things)
    if reached.lazy:
        with Generators(device, wanted=True).aside(), torch.no_grad():
            trial.take(state, 0)
        reached = walk(things)
    return reached


def _list_lasting_changes(surroundings: Surroundings, first: list[Place], second: list[Place]) -> list[Place]:
    """Return the places that may carry something from step to step.

    What the first step makes and the second leaves alone is made once, as masks and other caches are. With a
    graph, such a cache would be part of each chunk's graph.
    """
    once = set(first) - set(second)
    return [*second, *(place for place in once if holds_graph(surroundings.value_of(place)))]


def _check_structure(state: Any, result: StepResult) -> None:
    """Raise InputError if a step returns a state of another number of tensors."""
    given, returned = len(flatten(state)[0]), len(flatten(result.after)[0])
    if given and returned != given:
        raise InputError(
            f"takes a state of {given} tensors and returns one of {returned}",
            field="cell",
            accepted="a state that is the same structure at every step",
        )


def _examine(result: StepResult, named: Parameters) -> tuple[StepResult, Uses]:
    """Return a result without its graph, and the tensors requiring a gradient that the step used."""
    _check_outer(result, named=named)
    inner = {id(leaf) for leaf in result.roots}
    leaves = find_graph_leaves(result.tensors, until=named)
    return result.detach(), {id(leaf): leaf for leaf in leaves if id(leaf) not in inner}


def _sort_leaves(first: Uses, again: Uses, later: Uses) -> tuple[list[torch.Tensor], int]:
    """Return the tensors that steps share, and how many tensors requiring a gradient each step creates."""
    shared = {key: leaf for key, leaf in {**first, **later}.items() if key in again}
    return list(shared.values()), len(first.keys() - shared.keys())


def _check_repeated(first: StepResult, again: StepResult, trial: Trial) -> None:
    """Raise InputError if the same step returns another result, though all was put back."""
    same = are_equal(first.leaves, again.leaves) and (
        flatten((first.after, first.output))[1].plain == flatten((again.after, again.output))[1].plain
    )
    if not same or not are_equal(tuple(first.terms), tuple(again.terms)):
        raise InputError(
            "returned another result when its first step ran again: it depends on something that could not be "
            "found and put back (a file, a clock, an extension, a random generator of its own)",
            field=trial.loss_field if same else "cell",
            accepted="a result that depends on the arguments and on random generators that can be found: "
            "PyTorch's, Python's and numpy's, and those in attributes, closures and globals",
        )


def _check_grad_mode(first: StepResult, plain: StepResult, trial: Trial) -> None:
    """Raise InputError if a step returns another result where no graph is recorded."""
    same = are_equal(first.leaves, plain.leaves)
    if not same or not are_equal(tuple(first.terms), tuple(plain.terms)):
        raise InputError(
            "returns another result under torch.no_grad(), where steps run that are run again later",
            field=trial.loss_field if same else "cell",
            accepted="a result that does not depend on torch.is_grad_enabled()",
        )


def _check_draws(trial: Trial, generators: Generators, result: StepResult) -> None:
    """Raise InputError if a loss draws random numbers."""
    before = generators.state()
    trial.take_losses(0, detach_state(result.after), detach_state(result.output))
    if generators.moved_since(before):
        raise InputError(
            "draws random numbers, which are not replayed when steps run again",
            field=trial.loss_field,
            accepted="a loss without dropout or noise; within the cell, whose output may be that of a readout, "
            "the same is drawn again",
        )


def _check_chunk(cell: ChunkCell, state: Any, inputs: Sequence) -> None:
    """Raise InputError if a chunk differs from a step, e.g. because a subclass changes only the step."""
    given, nest = inputs.piece(0, 1)
    leaves, structure = flatten(state)
    state, pieces = structure.fill(copy_leaves(leaves)), copy_leaves(given)
    with torch.no_grad(), torch.autocast(device_type=pieces[0].device.type, enabled=False):
        states, saved = cell.run(state, nest.fill(pieces), None)
        after, output = cell(state, next(iterate_steps(pieces, nest, 1)))
        chunk = tuple(leaf[0] for leaf in flatten((states, cell.dense(saved)))[0])
    if not are_equal(flatten((after, output))[0], chunk):
        raise InputError(
            f"{type(cell).__name__}: a chunk of one step, by run, is not what its step returns, by forward",
            field="cell",
            accepted="a ChunkCell whose methods say the same; wrap a cell in a function to change its outputs",
        )


def _check_outer(result: StepResult, *, named: Parameters) -> None:
    """Raise InputError if the step uses an outer graph, which each chunk would backpropagate through again."""
    node = find_outer_node(result.tensors, before=result.begun, until=named)
    if node is not None:
        raise InputError(
            f"the cell or the loss uses a tensor that was computed outside (by {node}) and has its own graph",
            field="parameters",
            accepted="parameters=[...] with that tensor, or the tensor as an input or in the state",
        )
    for one in named:
        behind = {id(leaf) for leaf in find_graph_leaves([one])} if one.grad_fn is not None else set()
        if behind & {id(leaf) for leaf in find_graph_leaves(result.tensors, until=named)}:
            raise InputError(
                "names a tensor that was computed from a parameter which the cell or the loss also uses",
                field="parameters",
                accepted="one of the two, so that no gradient is counted twice",
            )


def _find_device(leaves: Leaves, *, default: torch.device) -> torch.device:
    """Return the CUDA device of a step's results, or ``default``. Raises InputError for other devices."""
    devices = {leaf.device for leaf in leaves}
    for device in devices:
        if device.type not in ("cpu", "cuda"):
            raise InputError(
                f"is on {device.type}, which is not supported", field="state", accepted="tensors on cpu or cuda"
            )
    return next((device for device in devices if device.type == "cuda"), default)
