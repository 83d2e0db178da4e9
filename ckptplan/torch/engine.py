"""Engines run, record and reverse steps; the usual one runs any cell step by step under autograd."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ckptplan.schedule.actions import Action
from ckptplan.torch.cell_calls import ClosedCell, check_result
from ckptplan.torch.graphs import (
    Gradient,
    Gradients,
    as_graph_roots,
    count_saved_bytes,
    refuse_hooks,
)
from ckptplan.torch.inputs import Sequence, detach_inputs
from ckptplan.torch.losses import Outputs, Terms
from ckptplan.torch.parameters import Parameters, check_reached
from ckptplan.torch.trees import Leaves, Structure, flatten, is_differentiable

Cell = Callable[[Any, Any], tuple[Any, Any]]
#: Called with each action when it is done, and with its executor.
Observer = Callable[[Action, Any], None]
#: Gradients of the results of the outputs, i.e. of stacked outputs or of the loss.
Incoming = tuple[torch.Tensor | None, ...]


class Tape(ABC):
    """The data that the backward pass of some steps needs."""

    def __init__(self, *, start: int, stop: int) -> None:
        self.start, self.stop = start, stop

    @property
    @abstractmethod
    def bytes(self) -> int:
        """The bytes it keeps alive, excluding its initial state, parameters and inputs."""

    @property
    def least_bytes(self) -> int:
        """Those of its steps, without the last loss, which may keep more than others do."""
        return self.bytes


class Engine(ABC):
    """Runs steps. States passed in and returned belong to no graph.

    Arguments:
        cell: the cell.
        inputs: the inputs of all steps.
        steps: T.
        outputs: takes the outputs of the steps.
        parameters: the tensors that gradients are wanted of, besides the state and the inputs.
        gradients: takes the gradients.
        input_gradients: for each tensor of the inputs, whether its gradient is wanted.
    """

    def __init__(
        self,
        *,
        cell: Any,
        inputs: Sequence,
        steps: int,
        outputs: Outputs,
        parameters: Parameters,
        gradients: Gradients,
        input_gradients: tuple[bool, ...],
    ) -> None:
        self.cell, self.inputs, self.steps, self.outputs = cell, inputs, steps, outputs
        self.parameters, self.gradients, self.input_gradients = parameters, gradients, input_gradients

    @property
    def saved_bytes(self) -> int:
        """The bytes of outputs that are kept for the whole sequence."""
        return 0

    def read_before(self, step: int) -> Any:
        """Return what a ``ChunkCell`` needs of the steps before one, in order to run from there."""
        del step

    @abstractmethod
    def advance(self, state: Any, start: int, stop: int, *, known: int) -> Any:
        """Run steps without a tape, and return the state after them; steps before ``known`` have run before."""

    @abstractmethod
    def record(self, state: Any, start: int, stop: int, *, known: int) -> tuple[Tape, Any]:
        """Run steps, and return their tape and the state after them."""

    @abstractmethod
    def reverse(self, tape: Tape, incoming: Incoming) -> None:
        """Backpropagate through a tape; the state's gradients become those of the tape's initial state."""

    @abstractmethod
    def close(self) -> None:
        """Release everything."""


#: Steps whose inputs are made or unbound at a time, if nothing is recorded.
_PIECE = 64


class Graph(Tape):
    """The graph of a recorded chunk: where it begins and ends, and where gradients enter."""

    def __init__(
        self, *, start: int, stop: int, begin: Leaves, end: Leaves, inputs: Leaves, terms: Terms, final: Terms
    ) -> None:
        super().__init__(start=start, stop=stop)
        self.begin, self.end, self.inputs, self.terms, self.final = begin, end, inputs, terms, final

    @property
    def bytes(self) -> int:
        return self._count((*self.end, *self.terms, *self.final))

    @property
    def least_bytes(self) -> int:
        return self._count((*self.end, *self.terms[:-1]))

    def _count(self, outputs: Leaves) -> int:
        return count_saved_bytes(outputs, end=self.end, without=(*self.begin, *self.inputs))


class StepEngine(Engine):
    """Runs any cell, one step at a time."""

    def __init__(self, *, temporary: int, **options: Any) -> None:
        super().__init__(**options)
        self.temporary = temporary
        #: Whether a step that runs without a tape has returned a state with a graph (by ``enable_grad``).
        self._leaks = False

    def advance(self, state: Any, start: int, stop: int, *, known: int) -> Any:
        with torch.no_grad():
            for first in range(start, stop, _PIECE):
                last = min(stop, first + _PIECE)
                leaves, structure = self.inputs.piece(first, last)
                steps = self.inputs.iterate(leaves, structure, first, last)
                state, _ = self._run(state, first, steps, known=known)
        return state

    def record(self, state: Any, start: int, stop: int, *, known: int) -> tuple[Tape, Any]:
        leaves, structure = flatten(state)
        with torch.enable_grad():
            first = as_graph_roots(leaves)
            pieces, nest = self.inputs.piece(start, stop)
            inputs = detach_inputs(pieces, self.input_gradients)
            given = structure.fill(first)
            state, terms, roots = self._record(given, inputs, nest, (start, stop), known=known)
            final = self.outputs.finish(state) if stop == self.steps else []
        end, after = flatten(state)
        tape = Graph(start=start, stop=stop, begin=first, end=end, inputs=inputs, terms=terms, final=final)
        self._check(tape, roots)
        return tape, after.fill(tuple(leaf.detach() for leaf in end))

    def _record(
        self, state: Any, inputs: Leaves, nest: Structure, cut: tuple[int, int], *, known: int
    ) -> tuple[Any, Terms, Terms]:
        """Return the state after steps, the terms through which gradients enter, and roots that need none."""
        steps = self.inputs.iterate(inputs, nest, *cut)
        return *self._run(state, cut[0], steps, known=known), []

    def _run(self, state: Any, step: int, inputs: Any, *, known: int) -> tuple[Any, Terms]:
        """Run steps; pass outputs on as soon as possible, so that few of them exist at a time."""
        cell, outputs, graph = self.cell, self.outputs, torch.is_grad_enabled()
        terms: Terms = []
        waiting: list[Any] = []
        begun = step
        for x in inputs:
            state, output = check_result(cell(state, x))
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

    def _check(self, tape: Graph, roots: Terms) -> None:
        """Raise InputError if a chunk reaches an unknown parameter, or its initial state has a hook."""
        if isinstance(self.cell, ClosedCell):
            return
        refuse_hooks(tape.begin)
        check_reached(
            (*tape.end, *tape.terms, *tape.final),
            (*tape.begin, *tape.inputs, *roots),
            parameters=self.parameters,
            temporary=self.temporary * (tape.stop - tape.start),
        )

    def reverse(self, tape: Tape, incoming: Incoming) -> None:
        assert isinstance(tape, Graph)  # noqa: S101 - this engine's own
        pairs = [
            *zip(tape.end, self.gradients.state or [None] * len(tape.end), strict=True),
            *self._incoming_pairs(tape, incoming),
        ]
        begins = [leaf for leaf in tape.begin if leaf.requires_grad]
        inputs = [leaf for leaf in tape.inputs if leaf.requires_grad]
        self.gradients.state = []
        found = self.gradients.backpropagate(pairs, [*begins, *inputs])
        self._keep(tape, found, begins=len(begins), inputs=len(inputs))

    def close(self) -> None:
        # Graphs are released with their tapes.
        pass

    def _incoming_pairs(self, tape: Graph, incoming: Incoming) -> list[tuple[torch.Tensor, Gradient]]:
        """Return the terms of a chunk with their gradients."""
        if not incoming:
            return []
        gradients = self.outputs.gradients(tape.start, tape.stop, incoming, terms=len(tape.terms))
        return [
            *zip(tape.terms, gradients, strict=True),
            *((term, incoming[0]) for term in tape.final),
        ]

    def _keep(self, tape: Graph, found: tuple[Gradient, ...], *, begins: int, inputs: int) -> None:
        states = iter(found[:begins])
        self.gradients.state = [next(states) if is_differentiable(leaf) else None for leaf in tape.begin]
        parts = iter(found[begins : begins + inputs])
        rows = self.inputs.rows(tape.start, tape.stop)
        self.gradients.put(*rows, [next(parts) if leaf.requires_grad else None for leaf in tape.inputs])
