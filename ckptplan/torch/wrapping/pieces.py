"""Cuts sequences into pieces, each of which is one step of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ckptplan.torch.inputs import Sequence as Inputs
from ckptplan.torch.losses import StackedOutputs
from ckptplan.torch.trees import Leaves, Structure, flatten
from ckptplan.torch.verify import Verifier


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Where a sequence is cut.

    A piece has the same steps each time it runs: fused kernels round otherwise, and draw other numbers, if the
    same steps are cut otherwise.
    """

    #: Where pieces begin along the first axis, in the order of time, and where the last one ends.
    bounds: tuple[int, ...]
    #: Whether the last piece runs first.
    backwards: bool = False

    @property
    def count(self) -> int:
        """The number of pieces."""
        return len(self.bounds) - 1

    def rows(self, start: int, stop: int) -> tuple[int, int]:
        """Return where pieces begin and end along the first axis, given when they run."""
        if self.backwards:
            start, stop = self.count - stop, self.count - start
        return self.bounds[start], self.bounds[stop]

    def order(self, start: int, stop: int) -> range:
        """Return the places of pieces in time, in the order in which they run."""
        if self.backwards:
            return range(self.count - 1 - start, self.count - 1 - stop, -1)
        return range(start, stop)


@dataclass(frozen=True, kw_only=True)
class RowKind:
    """What bytes and seconds of a sequence depend on."""

    steps: int
    batch: int
    #: Elements of a row.
    width: int
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    packed: bool


@dataclass(frozen=True, kw_only=True)
class SequenceRows:
    """A sequence of steps as rows: of shape (T, B, F), or packed, as ``PackedSequence`` has them, (N, F)."""

    data: torch.Tensor
    #: If packed, the number of sequences that have each step, on the CPU.
    batch_sizes: torch.Tensor | None = None

    @cached_property
    def steps(self) -> int:
        """The number of time steps, T."""
        return len(self.data if self.batch_sizes is None else self.batch_sizes)

    @property
    def batch(self) -> int:
        """The number of sequences."""
        return self.data.shape[1] if self.batch_sizes is None else int(self.batch_sizes[0])

    @property
    def size(self) -> int:
        """The number of time steps of all sequences together."""
        return self.data.numel() // self.data.shape[-1]

    @property
    def kind(self) -> RowKind:
        """What its bytes and seconds depend on."""
        return RowKind(
            steps=self.steps,
            batch=self.batch,
            width=self.data.shape[-1],
            dtype=self.data.dtype,
            device=self.data.device,
            requires_grad=self.data.requires_grad,
            packed=self.batch_sizes is not None,
        )

    def with_data(self, data: torch.Tensor) -> SequenceRows:
        """Return other data for the same steps."""
        return SequenceRows(data=data, batch_sizes=self.batch_sizes)

    def cut(self, piece: int, *, backwards: bool = False) -> Cut:
        """Cut the sequence into pieces of so many time steps; the last one may have less."""
        begins = range(0, self.steps, piece)
        if self.batch_sizes is None:
            bounds = (*begins, self.steps)
        else:
            ends = [0, *self.batch_sizes.cumsum(0).tolist()]
            bounds = (*(ends[begin] for begin in begins), ends[-1])
        return Cut(bounds=bounds, backwards=backwards)


class PieceInputs(Inputs):
    """Pieces of a sequence; a packed one's are pairs of rows and batch sizes."""

    def __init__(self, rows: SequenceRows, cut: Cut, *, piece: int) -> None:
        self.leaves, self.structure = flatten(rows.data)
        self.cut = cut
        self._sizes = None if rows.batch_sizes is None else rows.batch_sizes.split(piece)

    def piece(self, start: int, stop: int) -> tuple[Leaves, Structure]:
        first, last = self.cut.rows(start, stop)
        return (self.leaves[0][first:last],), self.structure

    def iterate(self, leaves: Leaves, structure: Structure, start: int, stop: int) -> Iterator[Any]:
        places = self.cut.order(start, stop)
        bounds, first = self.cut.bounds, min(places)
        # At once: a slice would give each piece a gradient as large as all of them.
        parts = leaves[0].split([bounds[place + 1] - bounds[place] for place in sorted(places)])
        for place in places:
            part = parts[place - first]
            yield part if self._sizes is None else (part, self._sizes[place])

    def rows(self, start: int, stop: int) -> tuple[int, int]:
        return self.cut.rows(start, stop)

    def device(self) -> torch.device:
        return self.leaves[0].device

    @property
    def trial(self) -> Inputs:
        return _FirstRows(self)


class _FirstRows(Inputs):
    """The first time step of each piece, for trials: they cost little, and all time steps are alike."""

    def __init__(self, pieces: PieceInputs) -> None:
        self._pieces = pieces
        self.leaves = pieces.leaves

    def piece(self, start: int, stop: int) -> tuple[Leaves, Structure]:
        sizes, first = self._sizes(start), self._pieces.rows(start, start + 1)[0]
        count = 1 if sizes is None else int(sizes[0])
        return (self.leaves[0][first : first + count],), self._pieces.structure

    def iterate(self, leaves: Leaves, structure: Structure, start: int, stop: int) -> Iterator[Any]:
        sizes = self._sizes(start)
        yield leaves[0] if sizes is None else (leaves[0], sizes)

    def device(self) -> torch.device:
        return self._pieces.device()

    def _sizes(self, step: int) -> torch.Tensor | None:
        sizes = self._pieces._sizes
        return None if sizes is None else sizes[self._pieces.cut.order(step, step + 1)[0]][:1]


class PieceOutputs(StackedOutputs):
    """Keeps the outputs of all pieces, joined along the first axis."""

    def __init__(self, cut: Cut, **options: Any) -> None:
        super().__init__(steps=cut.count, **options)
        self.cut = cut

    def _make_room(self, leaf: torch.Tensor) -> torch.Tensor:
        return leaf.new_empty((self.cut.bounds[-1], *leaf.shape[1:]))

    def _select(self, kept: torch.Tensor, step: int) -> torch.Tensor:
        first, last = self.cut.rows(step, step + 1)
        return kept[first:last]

    def _project(self, verifier: Verifier, kept: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        numbers: Sequence[torch.Tensor] = [
            verifier.project(self._select(kept, step)) for step in range(start, stop)
        ]
        return torch.stack(list(numbers))
