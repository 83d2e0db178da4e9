"""Runs a cell in compiled pieces; steps that make no whole piece run one by one, as they are written."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from ckptplan.torch.call import Call
from ckptplan.torch.compiling.steps import (
    SHIFT,
    CompiledPiece,
    NotCompiled,
    copy_from_graph,
    describe_form,
    prepare_leaves,
    warn_uncompiled,
)
from ckptplan.torch.engine import Engine, Tape
from ckptplan.torch.graphs import Gradient, refuse_hooks
from ckptplan.torch.losses import Outputs, SummedLoss, Terms
from ckptplan.torch.probe import Probed
from ckptplan.torch.trees import Leaves, Structure, flatten


class CompiledEngine(Engine):
    """Runs pieces of K steps that begin at multiples of K, so that each piece is the same whenever it runs."""

    def __init__(self, call: Call, probed: Probed, outputs: Outputs) -> None:
        super().__init__(call, probed, outputs)
        self.piece: CompiledPiece = call.compile
        #: The loss that is part of the piece, None if none is.
        self.loss = call.losses.get(self.piece.product)

    def advance(self, state: Any, start: int, stop: int, *, known: int) -> Any:
        with self.piece.settings():
            return super().advance(state, start, stop, known=known)

    def record(self, state: Any, start: int, stop: int, *, known: int) -> tuple[Tape, Any]:
        with self.piece.settings():
            return super().record(state, start, stop, known=known)

    def _find_end(self, start: int, stop: int, known: int) -> int:
        # Whole pieces, and what lies between. Steps that run again are cut from new ones.
        end = min((start // self.piece.steps + 1) * self.piece.steps, stop)
        return known if start < known < end else end

    def _run(
        self, state: Any, inputs: Leaves, nest: Structure, cut: tuple[int, int], *, known: int
    ) -> tuple[Any, Terms]:
        terms: Terms = []
        cuts = list(self._cut(*cut, known))
        # Cut at once: slices would give each piece a gradient as large as the whole.
        parts = [leaf.split([last - first for first, last in cuts]) for leaf in inputs]
        for number, one in enumerate(cuts):
            rows = tuple(part[number] for part in parts)
            found = self._run_piece(state, rows, nest, one, known)
            state, some = super()._run(state, rows, nest, one, known=known) if found is None else found
            terms += some
        return state, terms

    def _run_piece(
        self, state: Any, rows: Leaves, nest: Structure, cut: tuple[int, int], known: int
    ) -> tuple[Any, Terms] | None:
        """Run steps compiled, as ``_run`` does; return None if they have to run as they are written."""
        piece, (first, last), (leaves, structure) = self.piece, cut, flatten(state)
        if last - first < piece.steps or piece.broken or describe_form(leaves, structure) != piece.form:
            return None
        graph = torch.is_grad_enabled()
        begin = prepare_leaves(leaves, roots=graph)
        given = structure.fill(begin), nest.fill(rows if graph else [leaf.detach() for leaf in rows])
        try:
            made, after = (piece.record if graph else piece.advance)(
                self.cell, self.loss, first + SHIFT, *given, product=piece.product
            )
        except NotCompiled as error:
            piece.broken = True
            warn_uncompiled(error.text)
            return None
        terms: Terms = []
        if graph or first >= known:
            terms = self._take(made, first, last, given[0], first_time=first >= known)
        if not graph:
            return self._detach(after), []
        refuse_hooks(tuple(one for one in begin if one.is_leaf))
        self.roots += [one for one in begin if one.is_leaf and all(one is not leaf for leaf in leaves)]
        return after, terms

    def _keep(self, tape: Tape, found: Iterable[Gradient]) -> None:
        if self.piece.reuses_memory:
            # The next chunk would overwrite them (pytorch#169545).
            kept = list(found), self.gradients.parameters
            found, self.gradients.parameters = tree_map_only(torch.Tensor, copy_from_graph, kept)
        super()._keep(tape, found)

    def _take(self, made: Any, first: int, last: int, begin: Any, *, first_time: bool) -> Terms:
        """Hand on what a piece made; return the terms through which gradients enter."""
        if self.piece.product == "outputs":
            return self.outputs.take_some(first, made, first_time=first_time)
        assert isinstance(self.outputs, SummedLoss)  # noqa: S101 - others have no loss
        if self.piece.product == "chunk_loss":
            return self.outputs.take_run(first, last, made[0], first_time=first_time)
        scale = partial(self._measure_scale, first, begin)
        return self.outputs.take_run(first, last, made, first_time=first_time, scale=scale)

    def _measure_scale(self, step: int, state: Any) -> float:
        """Return how far the loss of a step moves with its output, for a comparison that is in doubt."""
        assert isinstance(self.outputs, SummedLoss)  # noqa: S101 - others have no loss
        leaves, nest = self.inputs.piece(step, step + 1)
        (x,) = self.inputs.iterate(leaves, nest, step, step + 1)
        # Of the other GPUs, contexts would be created.
        gpus = {leaf.device for leaf in flatten(state)[0] if leaf.is_cuda}
        with torch.no_grad(), torch.random.fork_rng(devices=gpus):
            _, output = self.cell(state, x)
        return self.outputs.measure_scale(step, output)
