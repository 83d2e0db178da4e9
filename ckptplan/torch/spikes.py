"""Stores spikes compactly: as indices of the neurons that fired, or as bits, whichever is smaller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

import numpy as np
import torch

#: How many numbers are packed at a time.
_PACKED = 2**22


@dataclass(frozen=True, kw_only=True)
class Spikes:
    """Spikes of some steps: booleans of shape (steps, *batch, neurons), stored as rows of neurons."""

    form: Literal["indices", "bits"]
    batch: tuple[int, ...]
    neurons: int
    #: The indices of all rows, concatenated; or bytes of shape (rows, bytes per row).
    data: torch.Tensor
    #: For indices: the number of spikes in each row.
    counts: torch.Tensor
    #: For indices: the offset of each step in ``data``, and the end of the last step.
    bounds: tuple[int, ...]

    @classmethod
    def pack(cls, spikes: torch.Tensor) -> Spikes:
        """Store spikes of shape (steps, ..., neurons); any nonzero value is a spike."""
        steps, *batch, neurons = spikes.shape
        rows = (spikes != 0 if spikes.dtype != torch.bool else spikes).reshape(-1, neurons)
        # Sums and products make temporary tensors of larger types. Packing in parts keeps these small.
        parts = rows.split(max(1, _PACKED // max(1, neurons)))
        counts = torch.cat([part.sum(1, dtype=torch.int32) for part in parts])
        step_counts = [int(count) for count in counts.view(steps, -1).sum(1).tolist()]
        bounds = tuple(accumulate(step_counts, initial=0))
        index_type, count = _index_type(neurons), _index_type(neurons + 1)
        form: Literal["indices", "bits"] = "bits"
        if bounds[-1] * index_type.itemsize + len(rows) * count.itemsize <= len(rows) * -(-neurons // 8):
            data = torch.cat([_find_columns(part).to(index_type) for part in parts])
            form, counts = "indices", counts.to(count)
        else:
            data, counts = torch.cat([_pack_bits(part) for part in parts]), counts.new_empty(0)
        return cls(form=form, batch=tuple(batch), neurons=neurons, data=data, counts=counts, bounds=bounds)

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.bounds) - 1

    @property
    def bytes(self) -> int:
        """The bytes of the tensors."""
        return self.data.nbytes + self.counts.nbytes

    def part(self, start: int, stop: int) -> Spikes:
        """Return the spikes of steps start..stop-1, counted from the first step here; memory is shared."""
        low, counts = self.bounds[start], self.counts
        if self.form == "indices":
            rows, data = len(counts) // self.steps, self.data[low : self.bounds[stop]]
            counts = counts[start * rows : stop * rows]
        else:
            rows = len(self.data) // self.steps
            data = self.data[start * rows : stop * rows]
        bounds = tuple(bound - low for bound in self.bounds[start : stop + 1])
        return replace(self, data=data, counts=counts, bounds=bounds)

    def join(self, other: Spikes) -> Spikes:
        """Return these spikes, and after them the spikes ``other`` of the following steps."""
        if self.form != other.form:
            return Spikes.pack(torch.cat([self.dense(torch.bool), other.dense(torch.bool)]))
        return replace(
            self,
            data=torch.cat([self.data, other.data]),
            counts=torch.cat([self.counts, other.counts]),
            bounds=(*self.bounds, *(self.bounds[-1] + bound for bound in other.bounds[1:])),
        )

    def moved(self, keep: Callable[[torch.Tensor], torch.Tensor]) -> Spikes:
        """Return the same spikes with each tensor replaced by ``keep(tensor)``."""
        return replace(self, data=keep(self.data), counts=keep(self.counts))

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the spikes as ones and zeros, shape (steps, *batch, neurons)."""
        shape = (self.steps, *self.batch, self.neurons)
        if self.form == "bits":
            return _unpack_bits(self.data, self.neurons).to(dtype).view(shape)
        dense = torch.zeros(shape, dtype=dtype, device=self.data.device)
        rows = torch.arange(len(self.counts), device=self.data.device).repeat_interleave(self.counts.long())
        dense.view(-1).index_fill_(0, rows.mul_(self.neurons).add_(self.data), 1)
        return dense

    def product(self, table: torch.Tensor) -> torch.Tensor:
        """Return spikes @ table, shape (steps, *batch, columns), for a table of shape (neurons, columns)."""
        indices, offsets = self._indices()
        rows = torch.nn.functional.embedding_bag(indices, table, offsets, mode="sum")
        return rows.view(self.steps, *self.batch, table.shape[1])

    def _indices(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the indices of all rows, and the offset of each row."""
        if self.form == "bits":
            rows = _unpack_bits(self.data, self.neurons)
            data, counts = _find_columns(rows), rows.sum(1, dtype=torch.int32)
        else:
            data, counts = self.data, self.counts
        offsets = torch.zeros(len(counts), dtype=torch.int32, device=data.device)
        torch.cumsum(counts[:-1], 0, dtype=torch.int32, out=offsets[1:])
        return data.to(torch.int32), offsets


def _index_type(neurons: int) -> torch.dtype:
    """Return the smallest type that holds 0..neurons-1."""
    if neurons <= 2**8:
        return torch.uint8
    return torch.int16 if neurons <= 2**15 else torch.int32


def _find_columns(rows: torch.Tensor) -> torch.Tensor:
    """Return the columns of the ones."""
    if rows.device.type == "cpu":
        # Faster than torch.nonzero.
        flat = torch.from_numpy(np.flatnonzero(rows.numpy()))
    else:
        flat = rows.reshape(-1).nonzero().view(-1)
    neurons = rows.shape[1]
    return flat % neurons if neurons & (neurons - 1) else flat & (neurons - 1)


def _pack_bits(rows: torch.Tensor) -> torch.Tensor:
    padded = torch.nn.functional.pad(rows.to(torch.uint8), (0, -rows.shape[1] % 8))
    return (padded.view(len(rows), -1, 8) << _shifts(rows.device)).sum(-1, dtype=torch.uint8)


def _unpack_bits(data: torch.Tensor, neurons: int) -> torch.Tensor:
    bits = (data.unsqueeze(-1) >> _shifts(data.device)) & 1
    return bits.view(len(data), -1)[:, :neurons].bool()


def _shifts(device: torch.device) -> torch.Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)
