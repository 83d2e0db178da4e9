"""Compares the first steps of a sequence: repeated, without a graph, and after what they changed.

The first step and its loss run, then the second step, the first one again, and the first one without a graph.
The first step must return the same each time: if not, it depends on something that could not be found. What the
second step changed, and what holds a graph after the first, is given other values, and the second step runs
again: it reads them if it returns something else, has another graph or other gradients, or fails. What only the
first step changes, without a graph, is a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ckptplan.errors import InputError
from ckptplan.torch.ambient import Autocast, RandomState
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.chunk_check import check_chunk, check_reverse
from ckptplan.torch.constants import are_equal_constants
from ckptplan.torch.graphs import find_graph_leaves, find_outer_node
from ckptplan.torch.held_graphs import describe_holders, name_graphs
from ckptplan.torch.hidden import refuse_hidden_state, refuse_lost_changes
from ckptplan.torch.parameters import Parameters
from ckptplan.torch.surroundings.snapshot import Place, Snapshot, Surroundings, holds_graph
from ckptplan.torch.trees import flatten
from ckptplan.torch.trial import ROUNDING, StepResult, Trial, are_equal, are_equal_terms

#: Tensors by their ids.
Uses: TypeAlias = dict[int, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Observations:
    """What the first steps showed."""

    #: The result of the first step, outside of any graph.
    first: StepResult
    #: The tensors requiring a gradient that steps use.
    parameters: list[torch.Tensor]
    #: The number of tensors requiring a gradient that each step creates.
    temporary: int
    #: What the first two steps changed, and which of it held tensors with a graph.
    changed: list[Place]
    with_graph: set[Place]
    #: What only the first step changed, and without a graph, as masks and other caches.
    made: list[Place]


@dataclass(frozen=True, kw_only=True)
class FirstSteps:
    """Runs the first two steps from the same surroundings, several times.

    Arguments:
        trial: runs the steps.
        things: the cell and the losses, by the names of their arguments.
        surroundings: what they can reach.
        world: what they find there.
        autocast: the settings in force.
        named: the parameters named by the caller.
        steps: T.
        reverses: whether there may be a backward pass.
        replays_randomness: whether steps that run again draw the same random numbers.
    """

    trial: Trial
    things: dict[str, object]
    surroundings: Surroundings
    world: Snapshot
    autocast: Autocast
    named: Parameters
    steps: int
    reverses: bool
    replays_randomness: bool

    def run(self, state: Any) -> Observations:
        """Run the steps from an initial state. Raises InputError."""
        surroundings, generators = self.surroundings, self.trial.generators
        drawn = generators.state()
        first = self._examine(self._take(state, 0, drawn))
        _refuse_outer_graph(first.outer)
        _check_structure(state, first.result)
        # What the first step makes, later steps may change.
        surroundings.find_more(surroundings.list_changes(self.world, surroundings.take_since(self.world)))
        then, between = surroundings.take_since(self.world), generators.state()

        def take_second() -> StepResult:
            return self._take(first.result.after, min(1, self.steps - 1), between)

        second = self._examine(take_second())
        end = surroundings.take_since(then)
        made, lasting = surroundings.list_changes(self.world, then), surroundings.list_changes(then, end)
        changed = list(dict.fromkeys((*made, *lasting)))
        with_graph = {place for place in changed if holds_graph(surroundings.value_of(place))}
        refuse_lost_changes(surroundings, changed)

        again = self._run_first_again(state, drawn, first.result)
        # What the first step makes and the second leaves alone is made once, as masks and other caches are.
        # With a graph, such a cache would be part of each chunk's graph.
        places = [*lasting, *(place for place in made if place in with_graph and place not in lasting)]
        caches = [place for place in made if place not in places]
        refuse_hidden_state(take_second, surroundings, end, places, second.result)
        surroundings.put_back(end)
        _refuse_outer_graph(second.outer, name_graphs(self.things))
        # A cell may create tensors that require a gradient, as initial states; each run creates new ones.
        shared = {key: leaf for key, leaf in {**first.uses, **second.uses}.items() if key in again.uses}
        return Observations(
            first=first.result,
            parameters=list(shared.values()),
            temporary=len(first.uses.keys() - shared.keys()),
            changed=changed,
            with_graph=with_graph,
            made=caches,
        )

    def _run_first_again(self, state: Any, drawn: RandomState, first: StepResult) -> _Examined:
        """Run the first step again, with and without a graph. Raises InputError if it differs."""
        surroundings, trial = self.surroundings, self.trial
        surroundings.put_back(self.world)
        again = self._examine(self._take(state, 0, drawn))
        _check_repeated(first, again.result, trial)
        surroundings.put_back(self.world)
        with torch.no_grad():
            plain = self._take(state, 0, drawn)
        if not _are_same(first, plain):
            surroundings.put_back(self.world)
            # Something that could not be found may have changed in the meantime.
            _check_repeated(first, self._take(state, 0, drawn).detach(), trial)
            raise _grad_mode_error(first, plain, trial)
        # Once may have been another thread, as one that prepares data.
        if self.replays_randomness and first.loss_draws and again.result.loss_draws:
            raise _loss_draws_error(trial)
        surroundings.put_back(self.world)
        if isinstance(trial.cell, ChunkCell):
            check_chunk(trial.cell, state, trial.inputs)
            if self.reverses:
                check_reverse(trial.cell, state, trial.inputs, steps=self.steps)
        return again

    def _take(self, state: Any, step: int, drawn: RandomState) -> StepResult:
        self.trial.generators.restore(drawn)
        with self.autocast.cast_anew():
            return self.trial.take(state, step)

    def _examine(self, result: StepResult) -> _Examined:
        uses = list_uses(result, self.named)
        self._refuse_doubles(uses)
        return _Examined(
            result=result.detach(),
            uses=uses,
            outer=find_outer_node(result.tensors, before=result.begun, until=self.named),
        )

    def _refuse_doubles(self, used: Uses) -> None:
        """Raise InputError if a named tensor was computed from one that the step uses, too."""
        computed = [one for one in self.named if one.grad_fn is not None]
        if any(id(leaf) in used for leaf in find_graph_leaves(computed)):
            raise InputError(
                "names a tensor that was computed from a parameter which the cell or the loss also uses",
                field="parameters",
                accepted="one of the two, so that no gradient is counted twice",
            )


def list_uses(result: StepResult, named: Parameters) -> Uses:
    """Return the tensors requiring a gradient that a step used, those behind named ones left out."""
    inner = {id(leaf) for leaf in result.roots}
    leaves = find_graph_leaves(result.tensors, until=named)
    return {id(leaf): leaf for leaf in leaves if id(leaf) not in inner}


@dataclass(frozen=True, kw_only=True)
class _Examined:
    """The result of a step outside of its graph, and what its graph led to."""

    result: StepResult
    uses: Uses
    #: An operation that was recorded before the step.
    outer: str | None


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


def _check_structure(state: Any, result: StepResult) -> None:
    """Raise InputError if a step returns a state of another number of tensors."""
    given, returned = len(flatten(state)[0]), len(flatten(result.after)[0])
    if given and returned != given:
        raise InputError(
            f"takes a state of {given} tensors and returns one of {returned}",
            field="cell",
            accepted="a state that is the same structure at every step",
        )


def _check_repeated(first: StepResult, again: StepResult, trial: Trial) -> None:
    """Raise InputError if the same step returns another result, though all was put back."""
    same = are_equal(first.leaves, again.leaves) and (
        are_equal_constants(
            flatten((first.after, first.output))[1].plain,
            flatten((again.after, again.output))[1].plain,
            ROUNDING,
        )
    )
    if not same or not are_equal_terms(first, again):
        raise InputError(
            "returned another result when its first step ran again: it depends on something that could not be "
            "found and put back (a file, a clock, an extension, a random generator of its own)",
            field=trial.loss_field if same else "cell",
            accepted="a result that depends on the arguments and on random generators that can be found: "
            "PyTorch's, Python's and numpy's, and those in attributes, closures and globals",
        )


def _are_same(first: StepResult, again: StepResult) -> bool:
    return are_equal(first.leaves, again.leaves) and are_equal_terms(first, again)


def _grad_mode_error(first: StepResult, plain: StepResult, trial: Trial) -> InputError:
    return InputError(
        "returns another result under torch.no_grad(), where steps run that are run again later",
        field=trial.loss_field if are_equal(first.leaves, plain.leaves) else "cell",
        accepted="a result that does not depend on torch.is_grad_enabled()",
    )


def _loss_draws_error(trial: Trial) -> InputError:
    return InputError(
        "draws random numbers, which are not replayed when steps run again",
        field=trial.loss_field,
        accepted="a loss without dropout or noise; within the cell, whose output may be that of a readout, "
        "the same is drawn again",
    )
