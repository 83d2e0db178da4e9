"""Runs cells that run whole chunks, replay them from saved outputs, and have their own backward pass."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ckptplan.torch.chunk_cell import SavedOutputs, reverse_chunk
from ckptplan.torch.engine import Engine, Incoming, Tape
from ckptplan.torch.graphs import Gradient, as_graph_roots, compute_gradients
from ckptplan.torch.losses import Terms
from ckptplan.torch.parameters import check_reached
from ckptplan.torch.trees import Leaves, byte_size, flatten

_PAGE = 2**18
_ALIGNMENT = 8


class Pages:
    """Copies small long-lived tensors into pages of bytes, so that they do not fragment the heap.

    An allocator cannot merge the memory freed around a small block that stays. Each further chunk of states
    would then take new memory from the system (2 MiB for every 64 steps of a small network). A page lives as
    long as a tensor in it.
    """

    def __init__(self) -> None:
        self._page: torch.Tensor | None = None
        self._used = 0

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor in a page."""
        size = tensor.nbytes
        if self._page is None or self._used + size > len(self._page):
            self._page = torch.empty(max(size, _PAGE), dtype=torch.uint8, device=tensor.device)
            self._used = 0
        place = self._page[self._used : self._used + size]
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def close(self) -> None:
        """Start a new page; existing copies remain valid."""
        self._page = None


#: The most steps run at a time, and the most whose outputs and adjoints exist at a time.
_MOST, MOST_WORKING = 64, 16
#: One in this many of the states that a plan has room for may be used as working memory in addition.
_SHARE = 8


@dataclass(frozen=True, kw_only=True)
class _Piece:
    start: int
    stop: int
    begin: Any
    states: Any

    def part(self, start: int, stop: int) -> _Piece:
        """Return some of its steps; memory is shared."""
        leaves, structure = flatten(self.states)
        first, last = start - self.start, stop - self.start
        return _Piece(
            start=start,
            stop=stop,
            begin=structure.fill([leaf[first - 1] for leaf in leaves]) if first else self.begin,
            states=structure.fill([leaf[first:last] for leaf in leaves]),
        )


class ChunkTape(Tape):
    """The states of a recorded chunk, in pieces."""

    def __init__(self, *, start: int, stop: int, pieces: list[_Piece], end: Leaves, final: Terms) -> None:
        super().__init__(start=start, stop=stop)
        self.pieces, self.end, self.final = pieces, end, final

    @property
    def bytes(self) -> int:
        return sum(byte_size(flatten(piece.states)[0]) for piece in self.pieces)


@dataclass(frozen=True)
class _Block:
    start: int
    stop: int
    saved: SavedOutputs


class SavedLog:
    """The saved outputs of all steps that have run, in pieces."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def add(self, start: int, stop: int, saved: SavedOutputs) -> None:
        """Keep the outputs of the next steps."""
        self._blocks.append(_Block(start, stop, saved))

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


class ChunkEngine(Engine):
    """Runs a ``ChunkCell``, a few steps at a time."""

    def __init__(
        self,
        *,
        device: torch.device,
        chunk: int,
        room: int | None,
        again: bool,
        before: Any,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        places = {id(one): place for place, one in enumerate(self.parameters)}
        #: Where the cell's parameters stand among all.
        self._places = [places.get(id(one)) for one in self.cell.parameters()]
        self.cell = self.cell.for_sequence()
        #: Whether steps may run again or be reversed.
        self.again = again
        self.wants_inputs = any(self.input_gradients)
        self.device = device
        self.working = MOST_WORKING if room is None else min(max(room // _SHARE, 4), MOST_WORKING)
        # The states of a piece become the tape or are dropped, so a piece may be as large as a chunk's tape.
        self.piece = min(max(chunk, self.working), _MOST)
        self.log = SavedLog()
        self._pages = Pages()
        #: What ``last`` returned for the steps that have run, or for those before the first one.
        self._before = before

    def read_before(self, step: int) -> Any:
        if not step:
            return None
        with self._plain():
            return self.cell.last(self.log.part(self.log.block(step - 1).start, step))

    def advance(self, state: Any, start: int, stop: int, *, known: int) -> Any:
        for first, last in self._pieces(start, stop, known):
            state = _copy_last(self._states(state, first, last, known))
        return state

    def record(self, state: Any, start: int, stop: int, *, known: int) -> tuple[Tape, Any]:
        pieces = []
        for first, last in self._pieces(start, stop, known):
            states = self._states(state, first, last, known)
            pieces.append(_Piece(start=first, stop=last, begin=state, states=states))
            state = _copy_last(states)
        leaves, structure = flatten(state)
        end: Leaves = ()
        final: Terms = []
        if stop == self.steps:
            with torch.enable_grad():
                end = as_graph_roots(leaves)
                final = self.outputs.finish(structure.fill(end))
            check_reached(tuple(final), end, parameters=self.parameters)
        tape = ChunkTape(start=start, stop=stop, pieces=pieces, end=end, final=final)
        return tape, state

    @contextmanager
    def _plain(self) -> Iterator[None]:
        """Disable autograd and autocast."""
        with torch.no_grad(), torch.autocast(device_type=self.device.type, enabled=False):
            yield

    def _pieces(self, start: int, stop: int, known: int) -> Iterator[tuple[int, int]]:
        """Cut steps into pieces; known steps are cut where their outputs were saved."""
        while start < stop:
            end = min(stop, start + self.piece)
            if start < known:
                end = min(end, known, self.log.block(start).stop)
            yield start, end
            start = end

    def _states(self, state: Any, start: int, stop: int, known: int) -> Any:
        """Return the states after each step."""
        leaves, structure = self.inputs.piece(start, stop)
        inputs = structure.fill(tuple(leaf.detach() for leaf in leaves))
        with self._plain():
            if start < known:
                return _detach(self.cell.replay(state, inputs, self.log.part(start, stop)))
            states, made = self.cell.run(state, inputs, self._before)
            states = _detach(states)
            saved = made.moved(self._pages.keep) if self.again else made
            # What it tells of the last step may lie in the memory of the outputs that are kept.
            self._before = self.cell.last(saved)
            if self.again:
                self.log.add(start, stop, saved)
        for first in range(start, stop, self.working):
            last = min(stop, first + self.working)
            with self._plain():
                outputs = _unstack(self.cell.dense(made.part(first - start, last - start)))
            with torch.no_grad():
                self._take(first, outputs, first_time=True)
        return states

    def reverse(self, tape: Tape, incoming: Incoming) -> None:
        assert isinstance(tape, ChunkTape)  # noqa: S101 - this engine's own
        self._reverse_final(tape, incoming)
        while tape.pieces:
            piece = tape.pieces.pop()
            for first in range(piece.start, piece.stop, self.working)[::-1]:
                self._reverse_piece(piece.part(first, min(piece.stop, first + self.working)), incoming)
        self.log.forget(tape.start)

    def _reverse_final(self, tape: ChunkTape, incoming: Incoming) -> None:
        """Add the gradients of the final state's loss."""
        if not tape.final or not incoming or incoming[0] is None:
            return
        found = self._grad(tape.final, [incoming[0]], tape.end)
        given = self.gradients.state or [None] * len(tape.end)
        self.gradients.state = [_add(one, other) for one, other in zip(given, found, strict=True)]

    def _reverse_piece(self, piece: _Piece, incoming: Incoming) -> None:
        saved = self.log.part(piece.start, piece.stop)
        gradients = self.gradients.state or [None] * len(flatten(piece.begin)[0])
        output_gradients = self._output_gradients(piece, saved, incoming)
        inputs = self.inputs.piece(piece.start, piece.stop)
        with self._plain():
            found = reverse_chunk(
                self.cell,
                piece.begin,
                piece.states,
                inputs,
                saved,
                output_gradients=output_gradients,
                state_gradients=gradients,
                wants_inputs=self.wants_inputs,
            )
        self.gradients.state = found.state
        for place, gradient in zip(self._places, found.parameters, strict=True):
            if place is not None and gradient is not None:
                self.gradients.add(place, gradient)
        if self.wants_inputs:
            self.gradients.put(piece.start, piece.stop, found.inputs)

    def _output_gradients(self, piece: _Piece, saved: Any, incoming: Incoming) -> Any | None:
        """Return the gradients of the outputs, by computing the loss of the saved outputs again."""
        if not incoming or all(gradient is None for gradient in incoming):
            return None
        leaves, structure = flatten(self.cell.dense(saved))
        with torch.enable_grad():
            leaves = as_graph_roots(leaves)
            terms = self._take(piece.start, _unstack(structure.fill(leaves)), first_time=False)
        check_reached(tuple(terms), leaves, parameters=self.parameters)
        gradients = self.outputs.gradients(piece.start, piece.stop, incoming, terms=len(terms))
        found = self._grad(terms, gradients, leaves)
        return structure.fill(found)  # type: ignore[arg-type]

    def _take(self, start: int, outputs: list[Any], *, first_time: bool) -> Terms:
        terms: Terms = []
        for first in range(0, len(outputs), self.outputs.at_once):
            some = outputs[first : first + self.outputs.at_once]
            found = self.outputs.take(start + first, some, first_time=first_time)
            if not first_time:
                # The first time they are not needed, and a loss may be a view that keeps its outputs alive.
                terms += found
        return terms

    def _grad(self, terms: Terms, gradients: Any, leaves: Leaves) -> list[Gradient]:
        """Return the gradients of leaves, and accumulate those of parameters."""
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        pairs = [*zip(terms, gradients, strict=True)]
        found = iter(compute_gradients(pairs, (*wanted, *self.parameters)))
        own = [next(found) if leaf.requires_grad else None for leaf in leaves]
        for place, gradient in enumerate(found):
            if gradient is not None:
                self.gradients.add(place, gradient)
        return own

    @property
    def saved_bytes(self) -> int:
        return self.log.bytes

    def close(self) -> None:
        self.log.forget(0)
        self._pages.close()
        self._before = None


def _detach(states: Any) -> Any:
    """Return states without a graph, which a cell may have recorded in spite of all (``enable_grad``)."""
    leaves, structure = flatten(states)
    return structure.fill([leaf.detach() for leaf in leaves])


def _copy_last(states: Any) -> Any:
    """Return a copy of the last state, which does not keep the others alive."""
    leaves, structure = flatten(states)
    return structure.fill([leaf[-1].clone() for leaf in leaves])


def _unstack(outputs: Any) -> list[Any]:
    """Return a list of the outputs of each step."""
    leaves, structure = flatten(outputs)
    return [structure.fill(step) for step in zip(*(leaf.unbind(0) for leaf in leaves), strict=True)]


def _add(one: Gradient, other: Gradient) -> Gradient:
    if one is None or other is None:
        return one if other is None else other
    return one + other
