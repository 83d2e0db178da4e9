"""Runs cells that run whole chunks, replay them from saved outputs, and have their own backward pass."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ckptplan.torch.ambient import Autocast
from ckptplan.torch.call import Call
from ckptplan.torch.chunk_cell import ChunkGradients, SavedOutputs, make_gradients_error, read_gradients
from ckptplan.torch.engine import Engine, Incoming, Tape
from ckptplan.torch.graphs import Gradient, as_graph_roots, compute_gradients
from ckptplan.torch.inputs import iterate_steps
from ckptplan.torch.losses import Outputs, Terms
from ckptplan.torch.pages import Pages
from ckptplan.torch.parameters import check_reached
from ckptplan.torch.probe import Probed
from ckptplan.torch.trees import Leaves, Structure, detach_state, flatten, is_differentiable

#: The most steps run at a time, and the most whose outputs and adjoints exist at a time.
_MOST, MOST_WORKING = 64, 16
#: One in this many of the states that a plan has room for may be used as working memory in addition.
_SHARE = 8


def find_working(states: int) -> int:
    """Return the steps whose outputs exist at a time, in a plan that has room for so many states."""
    return min(max(states // _SHARE, 4), MOST_WORKING)


@dataclass(frozen=True)
class _Block:
    start: int
    stop: int
    saved: SavedOutputs


class SavedLog:
    """The saved outputs of all steps that have run, in pieces."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._pages = Pages()

    def add(self, start: int, stop: int, saved: SavedOutputs) -> SavedOutputs:
        """Keep the outputs of the next steps, and return what is kept."""
        kept = saved.moved(self._pages.keep)
        self._blocks.append(_Block(start, stop, kept))
        return kept

    def block(self, step: int) -> _Block:
        """Return the block that a step is in."""
        return self._blocks[bisect_right(self._blocks, step, key=lambda block: block.start) - 1]

    def part(self, start: int, stop: int) -> Any:
        """Return the outputs of steps of one block."""
        block = self.block(start)
        if (start, stop) == (block.start, block.stop):
            return block.saved
        return block.saved.part(start - block.start, stop - block.start)

    def forget(self, step: int) -> None:
        """Drop blocks that begin at a step or later."""
        while self._blocks and self._blocks[-1].start >= step:
            self._blocks.pop()

    @property
    def bytes(self) -> int:
        """The bytes of the saved outputs."""
        return sum(block.saved.bytes for block in self._blocks)


class _ChunkPart(torch.autograd.Function):
    """Some steps that have run: their backward pass is that of the cell.

    Its arguments are the engine; where the steps begin and end, the state before them, the leaves of the states
    after each one and how these nest, all outside of any graph; and what has gradients: the leaves of the state
    before, inputs and parameters. It returns the leaves of the state after them, and a scalar that stands for
    their outputs.
    """

    @staticmethod
    def forward(ctx: Any, engine: ChunkEngine, ran: tuple[Any, ...], *_: Any) -> tuple[torch.Tensor, ...]:
        """Return copies of what the steps left, which do not keep the other states alive."""
        ctx.set_materialize_grads(False)
        ctx.engine, (ctx.cut, ctx.begin, ctx.states, ctx.nest) = engine, ran
        end = tuple(leaf[-1].clone() for leaf in ctx.states)
        ctx.mark_non_differentiable(*(leaf for leaf in end if not is_differentiable(leaf)))
        return *end, torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Gradient) -> Any:
        """Return the gradients of the state and of the parameters; those of inputs lie where they belong."""
        begin, states, ctx.begin, ctx.states = ctx.begin, ctx.states, None, None
        engine: ChunkEngine = ctx.engine
        state, parameters = engine.reverse_part(ctx.cut, begin, ctx.nest.fill(states), gradients[:-1])
        inputs = [None] * len(engine.inputs.leaves)
        return None, None, *state, *inputs, *parameters


class ChunkEngine(Engine):
    """Runs a ``ChunkCell``, a few steps at a time."""

    #: It is a copy.
    holds_end = False

    def __init__(self, call: Call, probed: Probed, outputs: Outputs) -> None:
        super().__init__(call, probed, outputs)
        # The graph of a chunk has none of the tensors that steps create.
        self.temporary = 0
        places = {id(one): place for place, one in enumerate(self.parameters)}
        #: Where the cell's parameters stand among all.
        self._places = [places.get(id(one)) for one in self.cell.parameters()]
        self.cell = self.cell.for_sequence()
        #: Whether steps may run again or be reversed.
        self.again = probed.wants_gradients
        self.device, room = probed.found.device, call.planned.local_states
        self.working = MOST_WORKING if room is None else find_working(room)
        # The states of a piece become the tape or are dropped, so a piece may be as large as a chunk's tape.
        self.piece = min(max(call.planned.chunk_size, self.working), _MOST)
        self.log = SavedLog()
        #: What ``last`` returned for the steps that have run, or for those before the first one.
        self._before = call.before
        #: What the backward pass of a tape was given, and the autocast settings that it began with.
        self._incoming: Incoming = ()
        self._autocast = Autocast.present(self.device)

    def read_before(self, step: int) -> Any:
        if not step:
            return None
        with self._plain():
            return self.cell.last(self.log.part(self.log.block(step - 1).start, step))

    @contextmanager
    def _plain(self) -> Iterator[None]:
        """Disable autograd and autocast."""
        with torch.no_grad(), torch.autocast(device_type=self.device.type, enabled=False):
            yield

    def _find_end(self, start: int, stop: int, known: int) -> int:
        end = min(stop, start + self.piece)
        # Known steps are cut where their outputs were saved.
        return min(end, known, self.log.block(start).stop) if start < known else end

    def _read(self, start: int, stop: int) -> tuple[Leaves, Structure]:
        # Inputs that are made have no gradients, and are made when they are needed.
        return flatten(tuple(leaf[start:stop] for leaf in self.inputs.leaves))

    def _run(
        self, state: Any, inputs: Leaves, nest: Structure, cut: tuple[int, int], *, known: int
    ) -> tuple[Any, Terms]:
        graph, terms = torch.is_grad_enabled(), []
        begin = detach_state(state)
        for start, stop in self._cut(*cut, known):
            found, structure = flatten(self._states(detach_state(state), start, stop, known))
            if not graph:
                state = structure.fill([leaf[-1].clone() for leaf in found])
                # Before those of the next steps are there.
                del found
                continue
            for first in range(start, stop, self.working):
                last = min(stop, first + self.working)
                some = tuple(leaf[first - start : last - start] for leaf in found)
                ran = (first, last), begin, some, structure
                roots = (*flatten(state)[0], *inputs, *self.parameters)
                *end, term = _ChunkPart.apply(self, ran, *roots)  # type: ignore[no-untyped-call]
                begin, state = structure.fill([leaf[-1] for leaf in some]), structure.fill(end)
                terms.append(term)
        return state, terms

    def _states(self, state: Any, start: int, stop: int, known: int) -> Any:
        """Return the states after each step."""
        leaves, structure = self.inputs.piece(start, stop)
        inputs = structure.fill(tuple(leaf.detach() for leaf in leaves))
        with self._plain():
            if start < known:
                return detach_state(self.cell.replay(state, inputs, self.log.part(start, stop)))
            states, made = self.cell.run(state, inputs, self._before)
            states = detach_state(states)
            saved = self.log.add(start, stop, made) if self.again else made
            # What it tells of the last step may lie in the memory of the outputs that are kept.
            self._before = self.cell.last(saved)
        for first in range(start, stop, self.working):
            last = min(stop, first + self.working)
            with self._plain():
                outputs = [*iterate_steps(*flatten(self.cell.dense(made.part(first - start, last - start))))]
            with torch.no_grad():
                self.outputs.take_some(first, outputs, first_time=True)
        return states

    def reverse(self, tape: Tape, incoming: Incoming) -> None:
        self._incoming, self._autocast = incoming, Autocast.present(self.device)
        super().reverse(tape, incoming)
        self.log.forget(tape.start)

    def _incoming_pairs(self, tape: Tape, incoming: Incoming) -> list[tuple[torch.Tensor, Gradient]]:
        if all(gradient is None for gradient in incoming):
            return []
        # Parts ask for the gradients of their outputs themselves.
        return [
            *((term, torch.zeros(())) for term in tape.terms),
            *((term, incoming[0]) for term in tape.final),
        ]

    def reverse_part(
        self, cut: tuple[int, int], begin: Any, states: Any, gradients: Sequence[Gradient]
    ) -> tuple[list[Gradient], list[Gradient]]:
        """Return the gradients of the state before some steps, and of the parameters; put those of inputs.

        ``begin`` is the state before them, ``states`` that after each one, time first, and ``gradients`` those
        of the last one. States may be overwritten. Raises InputError for what a cell may not return.
        """
        cell, saved, (leaves, structure) = self.cell, self.log.part(*cut), self.inputs.piece(*cut)
        (begins, nest), named = flatten(begin), dict(self.cell.named_parameters())
        output_gradients, parameters = self._reverse_outputs(cut, saved)
        with self._plain():
            found = cell.reverse(
                begin,
                states,
                structure.fill(tuple(leaf.detach() for leaf in leaves)),
                saved,
                output_gradients=output_gradients,
                state_gradients=nest.fill(gradients),  # type: ignore[arg-type]
                wants_inputs=any(self.wanted),
            )
        if not isinstance(found, ChunkGradients):
            raise make_gradients_error(cell, f"returned {type(found).__name__}")
        state = read_gradients(cell, nest.pick, found.state, begins, "the state")
        if any(self.wanted):
            self.gradients.put(*cut, read_gradients(cell, structure.pick, found.inputs, leaves, "the inputs"))
        name = f"the parameters ({', '.join(named)})"
        own = read_gradients(cell, list, found.parameters, tuple(named.values()), name)
        for place, gradient in zip(self._places, own, strict=True):
            if place is not None and gradient is not None:
                other = parameters[place]
                parameters[place] = gradient if other is None else other + gradient
        return state, parameters

    def _reverse_outputs(self, cut: tuple[int, int], saved: Any) -> tuple[Any | None, list[Gradient]]:
        """Return the gradients of outputs and of parameters, by computing the loss of saved outputs again."""
        if all(gradient is None for gradient in self._incoming):
            return None, [None] * len(self.parameters)
        with self._plain():
            leaves, structure = flatten(self.cell.dense(saved))
        with torch.enable_grad(), self._autocast.enter():
            leaves = as_graph_roots(leaves)
            terms = self.outputs.take_some(cut[0], [*iterate_steps(leaves, structure)], first_time=False)
        check_reached(tuple(terms), leaves, parameters=self.parameters)
        gradients = self.outputs.gradients(*cut, self._incoming, terms=len(terms))
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        found = compute_gradients([*zip(terms, gradients, strict=True)], (*wanted, *self.parameters))
        parts = iter(found)
        own = structure.fill([next(parts) if leaf.requires_grad else None for leaf in leaves])  # type: ignore[misc]
        return own, list(parts)

    @property
    def saved_bytes(self) -> int:
        return self.log.bytes

    def close(self) -> None:
        self.log, self._before = SavedLog(), None
