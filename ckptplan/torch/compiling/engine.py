"""Runs a cell in compiled pieces; steps that make no whole piece run one by one, as they are written."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from ckptplan.torch.compiling.steps import SHIFT, CompiledPiece, PieceError, copy_from_graph, prepare_leaves
from ckptplan.torch.engine import Graph, StepEngine
from ckptplan.torch.graphs import Gradient
from ckptplan.torch.inputs import iterate_steps
from ckptplan.torch.losses import SummedLoss, Terms
from ckptplan.torch.trees import Leaves, Structure, flatten


class CompiledEngine(StepEngine):
    """Runs pieces of K steps that begin at multiples of K, so that each piece is the same whenever it runs.

    Arguments:
        piece: the compiled piece.
        loss: the loss that is part of the piece, None if it is not.
        options: those of ``StepEngine``.
    """

    def __init__(self, *, piece: CompiledPiece, loss: Any, **options: Any) -> None:
        super().__init__(**options)
        self.piece, self.loss = piece, loss
        #: Whether a later run overwrites the gradients of this one, as CUDA graphs do: then they are copied.
        self.overwrites = piece.reuses_memory

    def advance(self, state: Any, start: int, stop: int, *, known: int) -> Any:
        with self.piece.settings():
            for first, last in self._cut(start, stop, known):
                leaves, structure = flatten(state)
                if self._is_whole(first, last) and self.piece.accepts(leaves, structure):
                    with torch.no_grad():
                        state = self._advance_piece(leaves, structure, first, last, known)
                else:
                    state = super().advance(state, first, last, known=known)
        return state

    def _advance_piece(self, leaves: Leaves, structure: Structure, first: int, last: int, known: int) -> Any:
        pieces, nest = self.inputs.piece(first, last)
        inputs = nest.fill([leaf.detach() for leaf in pieces])
        begin = prepare_leaves(leaves, roots=False)
        try:
            made, state = self._call(self.piece.advance, first, structure.fill(begin), inputs)
        except PieceError:
            return super().advance(structure.fill(leaves), first, last, known=known)
        if first >= known:
            self._take(made, first, last, structure.fill(begin), first_time=True)
        return self._detach(state)

    def _record(
        self, state: Any, inputs: Leaves, nest: Structure, cut: tuple[int, int], *, known: int
    ) -> tuple[Any, Terms, Terms]:
        terms: Terms = []
        extra: Terms = []
        cuts = list(self._cut(*cut, known))
        # Cut at once: slices would give each piece a gradient as large as the whole.
        parts = [leaf.split([last - first for first, last in cuts]) for leaf in inputs]
        with self.piece.settings():
            for number, one in enumerate(cuts):
                rows = tuple(part[number] for part in parts)
                state, some, roots = self._record_some(state, rows, nest, one, known)
                terms += some
                extra += roots
        return state, terms, extra

    def _keep(self, tape: Graph, found: tuple[Gradient, ...], *, begins: int, inputs: int) -> None:
        if self.overwrites:
            # The next chunk would overwrite them (pytorch#169545).
            found = tuple(map(_copy, found))
            self.gradients.parameters = list(map(_copy, self.gradients.parameters))
        super()._keep(tape, found, begins=begins, inputs=inputs)

    def _record_some(
        self, state: Any, inputs: Leaves, nest: Structure, cut: tuple[int, int], known: int
    ) -> tuple[Any, Terms, Terms]:
        first, last = cut
        leaves, structure = flatten(state)
        if self._is_whole(first, last) and self.piece.accepts(leaves, structure):
            begin = prepare_leaves(leaves, roots=True)
            roots = [one for one in begin if one.is_leaf and all(one is not leaf for leaf in leaves)]
            try:
                made, after = self._call(self.piece.record, first, structure.fill(begin), nest.fill(inputs))
            except PieceError:
                pass
            else:
                terms = self._take(made, first, last, structure.fill(begin), first_time=first >= known)
                return after, terms, roots
        return super()._record(state, inputs, nest, cut, known=known)

    def _call(self, run: Any, first: int, state: Any, inputs: Any) -> tuple[Any, Any]:
        try:
            result: tuple[Any, Any] = run(self.cell, self.loss, first + SHIFT, state, inputs)
            return result
        except PieceError as error:
            self.piece.broken = error.why
            error.why.warn()
            raise

    def _is_whole(self, first: int, last: int) -> bool:
        return last - first == self.piece.steps and self.piece.broken is None

    def _cut(self, start: int, stop: int, known: int) -> Iterator[tuple[int, int]]:
        """Cut steps into whole pieces, and what lies between. Steps that run again are cut from new ones."""
        size = self.piece.steps
        first = start
        while first < stop:
            last = min((first // size + 1) * size, stop)
            if first < known < last:
                last = known
            yield first, last
            first = last

    def _take(self, made: Any, first: int, last: int, begin: Any, *, first_time: bool) -> Terms:
        """Hand on what a piece made; return the terms through which gradients enter."""
        if self.piece.product == "outputs":
            return self._take_outputs(made, first, first_time=first_time)
        assert isinstance(self.outputs, SummedLoss)  # noqa: S101 - others have no loss
        if self.piece.product == "chunk_loss":
            return self.outputs.take_run(first, last, made[0], first_time=first_time)
        scale = partial(self._measure_scale, first, begin, first)
        return self.outputs.take_run(first, last, made, first_time=first_time, scale=scale)

    def _take_outputs(self, made: list[Any], first: int, *, first_time: bool) -> Terms:
        outputs, terms = self.outputs, []
        for place in range(0, len(made), outputs.at_once):
            terms += outputs.take(first + place, made[place : place + outputs.at_once], first_time=first_time)
        return terms

    def _measure_scale(self, first: int, begin: Any, step: int) -> float:
        """Return how far the loss of a step moves with its output, for a comparison that is in doubt."""
        assert isinstance(self.outputs, SummedLoss)  # noqa: S101 - others have no loss
        leaves, nest = self.inputs.piece(first, step + 1)
        state, output = begin, None
        # Of the other GPUs, contexts would be created.
        gpus = {leaf.device for leaf in flatten(begin)[0] if leaf.is_cuda}
        with torch.no_grad(), torch.random.fork_rng(devices=gpus):
            for x in iterate_steps(leaves, nest, step + 1 - first):
                state, output = self.cell(state, x)
        with torch.enable_grad():
            return self.outputs.measure_scale(step, output)


def _copy(gradient: Gradient) -> Gradient:
    return None if gradient is None else copy_from_graph(gradient)
