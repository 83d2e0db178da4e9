"""Runs, records and reverses steps: those of any cell, one by one under autograd."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ckptplan.torch.call import Call
from ckptplan.torch.cell_calls import ClosedCell, call_cell, check_result
from ckptplan.torch.graphs import (
    Gradient,
    Gradients,
    Hooks,
    as_graph_roots,
    count_saved_bytes,
    hand_over_hooks,
    list_hooks,
)
from ckptplan.torch.inputs import detach_inputs
from ckptplan.torch.losses import Outputs, Terms
from ckptplan.torch.parameters import check_reached
from ckptplan.torch.probe import Probed
from ckptplan.torch.trees import Leaves, Structure, flatten

#: Gradients of the results of the outputs, i.e. of stacked outputs or of the loss.
Incoming = tuple[torch.Tensor | None, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Tape:
    """The graph of recorded steps: where it begins and ends, and where gradients enter."""

    start: int
    stop: int
    begin: Leaves
    end: Leaves
    inputs: Leaves
    terms: Terms
    final: Terms
    #: Whether the state at its end is a part of it.
    holds_end: bool
    #: The storages of what the steps found.
    known: frozenset[int]
    #: The bytes of inputs that were made for it.
    made_bytes: int

    @cached_property
    def bytes(self) -> int:
        """The bytes it keeps alive, without its initial state, parameters, inputs and what steps found."""
        return self._count((*self.end, *self.terms, *self.final))

    @property
    def least_bytes(self) -> int:
        """Those of its steps, without the last loss, which may keep more than others do."""
        return self._count((*self.end, *self.terms[:-1]))

    def _count(self, outputs: Leaves) -> int:
        end = self.end if self.holds_end else ()
        # Where gradients enter, outputs of steps are held, whether the graph saved them or not.
        # A sum may have been made in the memory of its parts.
        held = (*end, *(one for one in self.terms if one.dim() or one.untyped_storage().nbytes() > one.nbytes))
        return self.made_bytes + count_saved_bytes(
            outputs, end=held, without=(*self.begin, *self.inputs), known=self.known
        )


#: Steps whose inputs are made or unbound at a time, if nothing is recorded.
_PIECE = 64


class Engine:
    """Runs any cell, one step at a time. States passed in and returned belong to no graph.

    Arguments:
        call: the call.
        probed: what is known of its steps.
        outputs: takes the outputs of the steps.
    """

    #: Whether the state after recorded steps is a part of their tape.
    holds_end = True

    def __init__(self, call: Call, probed: Probed, outputs: Outputs) -> None:
        found, leaves = probed.found, call.sequence.leaves
        self.cell: Any = call.cell
        self.inputs, self.steps, self.outputs = call.sequence, call.plan.steps, outputs
        self.parameters = probed.parameters
        self._known = probed.situation.reached.storages
        # Inputs that are made are there as many at a time as a tape has, whose room is free when steps advance.
        self._piece = _PIECE if self.inputs.leaves else min(_PIECE, call.planned.chunk_size)
        #: For each tensor of the inputs, whether its gradient is wanted.
        self.wanted = tuple(leaf.requires_grad for leaf in leaves)
        self.gradients = Gradients(
            parameters=self.parameters,
            inputs=leaves,
            wanted=self.wanted,
            sparse=found.sparse,
            single=call.plan.steps == 1,
            see=call.see_gradient,
        )
        #: The tensors requiring a gradient that each step creates, at most.
        self.temporary = found.temporary
        #: Where the present recording begins besides the state and the inputs: leaves that need no gradient.
        self.roots: Terms = []
        #: Whether a step that runs without a tape has returned a state with a graph (by ``enable_grad``).
        self._leaks = False
        #: Hooks on the state that the steps reversed last began with.
        self.hooks: list[Hooks] = []

    @property
    def saved_bytes(self) -> int:
        """The bytes of outputs that are kept for the whole sequence."""
        return 0

    def read_before(self, step: int) -> Any:
        """Return what a ``ChunkCell`` needs of the steps before one, in order to run from there."""
        del step

    def advance(self, state: Any, start: int, stop: int, *, known: int) -> Any:
        """Run steps without a tape, and return the state after them; steps before ``known`` have run before."""
        with torch.no_grad():
            for cut in self._cut(start, stop, known):
                state, _ = self._run(state, *self._read(*cut), cut, known=known)
        return state

    def record(self, state: Any, start: int, stop: int, *, known: int) -> tuple[Tape, Any]:
        """Run steps, and return their tape and the state after them."""
        leaves, structure = flatten(state)
        with torch.enable_grad():
            first = as_graph_roots(leaves)
            pieces, nest = self._read(start, stop)
            inputs = detach_inputs(pieces)
            state, terms = self._run(structure.fill(first), inputs, nest, (start, stop), known=known)
            final = self.outputs.finish(state) if stop == self.steps else []
        end, after = flatten(state)
        tape = Tape(
            start=start,
            stop=stop,
            begin=first,
            end=end,
            inputs=inputs,
            terms=terms,
            final=final,
            holds_end=self.holds_end,
            known=self._known,
            made_bytes=self.inputs.count_made(inputs),
        )
        self._check(tape)
        self.roots = []
        return tape, after.fill(tuple(leaf.detach() for leaf in end))

    def close(self) -> None:
        """Release everything but graphs, which are released with their tapes."""

    def _cut(self, start: int, stop: int, known: int) -> Iterator[tuple[int, int]]:
        """Cut steps into runs; those before ``known`` have run before."""
        while start < stop:
            end = self._find_end(start, stop, known)
            yield start, end
            start = end

    def _find_end(self, start: int, stop: int, known: int) -> int:
        """Return where a run ends that begins with a step."""
        del known
        return min(stop, start + self._piece)

    def _read(self, start: int, stop: int) -> tuple[Leaves, Structure]:
        """Return the inputs of some steps."""
        return self.inputs.piece(start, stop)

    def _run(
        self, state: Any, inputs: Leaves, nest: Structure, cut: tuple[int, int], *, known: int
    ) -> tuple[Any, Terms]:
        """Run steps; return the state after them, and the terms through which gradients enter.

        Outputs are passed on as soon as possible, so that few of them exist at a time.
        """
        cell, outputs, graph = self.cell, self.outputs, torch.is_grad_enabled()
        terms: Terms = []
        waiting: list[Any] = []
        begun = step = cut[0]
        for x in self.inputs.iterate(inputs, nest, *cut):
            # The first one tells what is wrong with the call.
            state, output = check_result(cell(state, x) if step else call_cell(cell, state, x))
            if not graph and (
                self._leaks or step == begun or (state.__class__ is Tensor and state.requires_grad)
            ):
                state, output = self._detach(state), self._detach(output)
            new = step >= known
            step += 1
            if not (new or graph):
                continue
            waiting.append(output)
            if step == known or len(waiting) == outputs.at_once:
                found = outputs.take(step - len(waiting), waiting, first_time=new)
                waiting = []
                if graph:
                    # Without a graph they are not needed, and a loss may be a view that keeps a state alive.
                    terms += found
        if waiting:
            terms += outputs.take(step - len(waiting), waiting, first_time=step > known)
        return state if graph else self._detach(state), terms

    def _detach(self, tree: Any) -> Any:
        """Return what a step returned without its graph, which would keep those of all steps before."""
        leaves, structure = flatten(tree)
        if not any(leaf.requires_grad for leaf in leaves):
            return tree
        self._leaks = True
        return structure.fill([leaf.detach() for leaf in leaves])

    def _check(self, tape: Tape) -> None:
        """Raise InputError if a chunk reaches an unknown parameter."""
        if isinstance(self.cell, ClosedCell):
            return
        check_reached(
            (*tape.end, *tape.terms, *tape.final),
            (*tape.begin, *tape.inputs, *self.roots),
            parameters=self.parameters,
            temporary=self.temporary * (tape.stop - tape.start),
        )

    def reverse(self, tape: Tape, incoming: Incoming) -> None:
        """Backpropagate through a tape; the state's gradients become those of the tape's initial state."""
        hand_over_hooks(self.hooks, tape.end)
        self.hooks = list_hooks(tape.begin)
        pairs = [
            *zip(tape.end, self.gradients.state or [None] * len(tape.end), strict=True),
            *self._incoming_pairs(tape, incoming),
        ]
        wanted = [leaf for leaf in (*tape.begin, *tape.inputs) if leaf.requires_grad]
        self.gradients.state = []
        self._keep(tape, self.gradients.backpropagate(pairs, wanted))

    def _incoming_pairs(self, tape: Tape, incoming: Incoming) -> list[tuple[torch.Tensor, Gradient]]:
        """Return the terms of a chunk with their gradients."""
        if not incoming:
            return []
        gradients = self.outputs.gradients(tape.start, tape.stop, incoming, terms=len(tape.terms))
        return [
            *zip(tape.terms, gradients, strict=True),
            *((term, incoming[0]) for term in tape.final),
        ]

    def _keep(self, tape: Tape, found: Iterable[Gradient]) -> None:
        """Keep the gradients of the state and the inputs with which a tape begins."""
        each = iter(found)
        self.gradients.state = [next(each) if leaf.requires_grad else None for leaf in tape.begin]
        rows = self.inputs.rows(tape.start, tape.stop)
        self.gradients.put(*rows, [next(each) if leaf.requires_grad else None for leaf in tape.inputs])
