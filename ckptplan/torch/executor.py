"""Executes the actions of a schedule on a real cell: runs, tapes, checkpoints, gradients.

A tape is the graph that autograd records of a chunk; a checkpoint is a detached state with the random
generators of that moment. The first sweep runs until the first Backward, the rest when the gradient of
the result comes in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ckptplan.errors import InputError
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer
from ckptplan.torch.ambient import Autocast, Generators, forget_casts
from ckptplan.torch.discovery import Parameters, begin, check_result, graph_leaves, hooks_suspended
from ckptplan.torch.inputs import Sequence, as_graph_leaves, each_step
from ckptplan.torch.losses import Outputs, Terms
from ckptplan.torch.stores import Checkpoint, Store
from ckptplan.torch.trees import Leaves, Structure, flattened, is_differentiable

Cell = Callable[[Any, Any], tuple[Any, Any]]
#: Gradients that came in, of what came of the outputs.
Incoming = tuple[torch.Tensor | None, ...]
#: Is told each action when it is done.
Observer = Callable[[Action, "Executor"], None]
#: Steps whose inputs are taken apart, or made, at a time where nothing is recorded.
_PIECE = 64


@dataclass(kw_only=True)
class Tape:
    """A recorded chunk: where its graph begins and ends, and where gradients come in on the way."""

    start: int
    stop: int
    begin: Leaves
    end: Leaves
    inputs: Leaves
    terms: Terms
    final: Terms


class Executor:
    """Carries a schedule out. Not for use twice."""

    def __init__(
        self,
        *,
        cell: Cell,
        inputs: Sequence,
        steps: int,
        state: Any,
        outputs: Outputs,
        parameters: Parameters,
        input_gradients: tuple[bool, ...],
        stores: dict[Tier, Store],
        generators: Generators,
        autocast: Autocast,
        observer: Observer | None = None,
    ) -> None:
        self.cell, self.inputs, self.steps, self.outputs = cell, inputs, steps, outputs
        self.parameters, self.input_gradients = parameters, input_gradients
        self.stores, self.generators, self.autocast, self.observer = stores, generators, autocast, observer
        self.tapes: list[Tape] = []
        #: Steps that have run at least once.
        self.frontier = 0
        self.state: Any = state
        self._first = flattened(state)[1]
        self._later: Structure | None = None
        self.gradient: list[torch.Tensor | None] = []
        self.parameter_gradients: list[torch.Tensor | None] = [None] * len(parameters)
        self.leaf_gradients: list[torch.Tensor | None] = []
        self.final: Leaves = ()
        self._incoming: Incoming = ()
        self._checked = False

    def sweep(self, actions: Iterator[Action]) -> Backward | None:
        """Carry actions out up to the first Backward, which is returned."""
        for action in actions:
            if isinstance(action, Backward):
                return action
            self._do(action)
        return None

    def reverse(
        self, first: Backward, rest: Iterator[Action], *, final: list[torch.Tensor | None], incoming: Incoming
    ) -> None:
        """Carry the rest out, given the gradients of the final state and of what came of the outputs."""
        self.gradient, self._incoming = final, incoming
        self.leaf_gradients = [
            torch.zeros_like(leaf) if wanted else None
            for leaf, wanted in zip(self.inputs.leaves, self.input_gradients, strict=True)
        ]
        with self.generators.aside(), self.autocast.entered():
            self._do(first)
            for action in rest:
                self._do(action)

    def forward_only(self) -> None:
        """Run all steps and keep nothing."""
        self._advance(0, self.steps)
        with torch.no_grad():
            self.outputs.finish(self.state)

    def close(self) -> None:
        """Let go of everything."""
        self.tapes.clear()
        self.state = None
        for store in self.stores.values():
            store.close()

    def _do(self, action: Action) -> None:
        match action:
            case Advance(start, stop):
                self._advance(start, stop)
            case Record(start, stop):
                self._record(start, stop)
            case Backward(start, stop):
                self._backward(start, stop)
            case Save(number, tier):
                self.stores[tier].put(number, self._checkpoint())
            case Load(number, tier):
                self._resume(number, self.stores[tier].get(number))
            case Free(number, tier):
                self.stores[tier].drop(number)
            case Transfer(numbers, source, target):
                for number in numbers:
                    self.stores[target].put(number, self.stores[source].get(number))
                    self.stores[source].drop(number)
        if self.observer is not None:
            self.observer(action, self)

    # Checkpoints

    def _checkpoint(self) -> Checkpoint:
        leaves, _ = flattened(self.state)
        return Checkpoint(tuple(leaf.detach() for leaf in leaves), self.generators.state())

    def _resume(self, number: int, checkpoint: Checkpoint) -> None:
        structure = self._first if number == 0 or self._later is None else self._later
        self.state = structure.filled(checkpoint.leaves)
        self.generators.restore(checkpoint.random)

    # Runs

    def _advance(self, start: int, stop: int) -> None:
        forget = self.autocast.enabled
        with torch.no_grad():
            if forget:
                forget_casts()
            for first in range(start, stop, _PIECE):
                last = min(stop, first + _PIECE)
                leaves, structure = self.inputs.piece(first, last)
                outputs = self._run(leaves, structure, last - first)
                self._take(first, last, outputs)
            if forget:
                forget_casts()
        self._ran(stop)

    def _take(self, start: int, stop: int, outputs: list[Any]) -> Terms:
        """Hand outputs over; a run may reach over the frontier, where steps are new."""
        known = min(max(self.frontier - start, 0), stop - start)
        terms: Terms = []
        if known:
            terms += self.outputs.take(start, outputs[:known], first_time=False)
        if known < stop - start:
            terms += self.outputs.take(start + known, outputs[known:], first_time=True)
        return terms

    def _run(self, leaves: Leaves, structure: Structure, count: int) -> list[Any]:
        state, cell, outputs = self.state, self.cell, []
        for x in each_step(leaves, structure, count):
            state, output = check_result(cell(state, x))
            outputs.append(output)
        self.state = state
        return outputs

    def _ran(self, stop: int) -> None:
        self.frontier = max(self.frontier, stop)
        leaves, structure = flattened(self.state)
        self._later = structure
        if stop == self.steps:
            self.final = tuple(leaf.detach() for leaf in leaves)

    def _record(self, start: int, stop: int) -> None:
        leaves, structure = flattened(self.state)
        if self.autocast.enabled:
            forget_casts()
        with torch.enable_grad():
            first = begin(leaves)
            self.state = structure.filled(first)
            pieces, nest = self.inputs.piece(start, stop)
            inputs = as_graph_leaves(pieces, self.input_gradients)
            terms = self._take(start, stop, self._run(inputs, nest, stop - start))
            final = self.outputs.finish(self.state) if stop == self.steps else []
        if self.autocast.enabled:
            forget_casts()
        end, after = flattened(self.state)
        tape = Tape(start=start, stop=stop, begin=first, end=end, inputs=inputs, terms=terms, final=final)
        self.tapes.append(tape)
        self._check(tape)
        self.state = after.filled(tuple(leaf.detach() for leaf in end))
        self._ran(stop)

    def _check(self, tape: Tape) -> None:
        """See once that no parameter is missing that the graph of a chunk reaches."""
        if self._checked:
            return
        self._checked = True
        known = {id(one) for one in (*self.parameters, *tape.begin, *tape.inputs)}
        missing = [
            leaf for leaf in graph_leaves((*tape.end, *tape.terms, *tape.final)) if id(leaf) not in known
        ]
        if missing:
            raise InputError(
                f"the cell or the loss uses {len(missing)} tensors that require a gradient and were not found "
                f"in the first step, the first one of shape {tuple(missing[0].shape)}",
                field="parameters",
                accepted="parameters=[...] with all of them",
            )

    # Gradients

    def _backward(self, start: int, stop: int) -> None:
        while stop > start:
            tape = self.tapes.pop()
            if tape.start < start:
                raise InputError(
                    f"reverses steps {start} to {stop}, recorded together with those from {tape.start}",
                    field="schedule",
                    accepted="a Backward that begins where a Record does",
                )
            self._reverse(tape)
            stop = tape.start
        self.state = None

    def _reverse(self, tape: Tape) -> None:
        pairs = [
            *zip(tape.end, self.gradient or [None] * len(tape.end), strict=True),
            *self._incoming_pairs(tape),
        ]
        live = [(out, gradient) for out, gradient in pairs if gradient is not None and out.requires_grad]
        begins = [leaf for leaf in tape.begin if leaf.requires_grad]
        inputs = [leaf for leaf in tape.inputs if leaf.requires_grad]
        wanted = [*begins, *inputs, *self.parameters]
        found: tuple[torch.Tensor | None, ...] = (None,) * len(wanted)
        if live and wanted:
            outs, gradients = zip(*live, strict=True)
            with hooks_suspended(self.parameters):
                found = torch.autograd.grad(outs, wanted, gradients, allow_unused=True)
        self._keep(tape, found, begins=len(begins), inputs=len(inputs))

    def _incoming_pairs(self, tape: Tape) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """Return the terms of a chunk with their gradients."""
        if not self._incoming:
            return []
        gradients = self.outputs.gradients(tape.start, tape.stop, self._incoming, terms=len(tape.terms))
        return [
            *zip(tape.terms, gradients, strict=True),
            *((term, self._incoming[0]) for term in tape.final),
        ]

    def _keep(self, tape: Tape, found: tuple[torch.Tensor | None, ...], *, begins: int, inputs: int) -> None:
        states = iter(found[:begins])
        self.gradient = [next(states) if is_differentiable(leaf) else None for leaf in tape.begin]
        parts = iter(found[begins : begins + inputs])
        for place, leaf in enumerate(tape.inputs):
            part = next(parts) if leaf.requires_grad else None
            whole = self.leaf_gradients[place] if place < len(self.leaf_gradients) else None
            if part is not None and whole is not None:
                whole[tape.start : tape.stop] = part
        for place, gradient in enumerate(found[begins + inputs :]):
            kept = self.parameter_gradients[place]
            if gradient is None:
                continue
            if kept is None:
                self.parameter_gradients[place] = gradient
            else:
                kept += gradient
