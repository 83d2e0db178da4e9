"""Measures pieces of a few lengths, from which the bytes and seconds of pieces of any length are estimated."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ckptplan.torch.ambient import Autocast, Generators
from ckptplan.torch.backward import compute_gradients
from ckptplan.torch.clock import choose_clock
from ckptplan.torch.graphs import as_graph_roots, count_saved_bytes
from ckptplan.torch.measurement import Measurement
from ckptplan.torch.meters import LiveBytes
from ckptplan.torch.trees import byte_size
from ckptplan.torch.wrapping.fused_cell import FusedCell, Hidden
from ckptplan.torch.wrapping.pieces import RowKind, SequenceRows

#: The longer of the two pieces that are measured first: at most so many time steps, and this share of the
#: sequence. The other one is a quarter of it.
_LONGEST, _SHARE = 32, 16
#: Each piece is timed so often; the least counts.
_ROUNDS = 3
#: What the runtime does for a piece, besides the kernel: checkpoints, comparisons, gradients.
_RUNTIME_SECONDS = 2e-4
#: Kinds of calls whose measurements are kept.
_MOST = 256
_measured: OrderedDict[Any, dict[int, _Observed]] = OrderedDict()


@dataclass(frozen=True)
class _Observed:
    """Bytes and seconds of a piece."""

    state_bytes: float
    tape_bytes: float
    workspace_bytes: float
    output_bytes: float
    forward_seconds: float
    record_seconds: float
    backward_seconds: float


class PieceCosts:
    """Bytes and seconds of the pieces of a sequence. What was measured is kept for calls of the same kind.

    The pieces that run are of zeros, and as wide as the widest step of the sequence. Nothing else changes.
    """

    def __init__(self, cell: FusedCell, kind: RowKind, state: Hidden) -> None:
        self._cell, self._kind, self._state = cell, kind, state
        self._parameter_bytes = byte_size(cell.parameters)
        self._known = _find_known(cell, kind, state)
        long = max(1, min(_LONGEST, kind.steps, max(4, kind.steps // _SHARE)))
        for length in (max(1, long // 4), long):
            self.measure(length)

    def is_measured(self, length: int) -> bool:
        """Return whether pieces of so many time steps have run."""
        return length in self._known

    def measure(self, length: int) -> None:
        """Run a piece of so many time steps, if none has run yet."""
        if length in self._known:
            return
        device = self._kind.device
        autocast = Autocast.present(device)
        with torch.enable_grad(), Generators(device, wanted=True).aside(), autocast.cast_anew():
            self._known[length] = _observe(self._cell.detach(), _make_rows(self._kind, length), self._state)

    def at(self, length: int) -> Measurement:
        """Return what a piece of so many time steps takes, as a step of a plan.

        Lengths that have not run are on the line through the two nearest ones.
        """

        def find(name: str) -> float:
            if length in self._known:
                return float(getattr(self._known[length], name))
            few, many = sorted(sorted(self._known, key=lambda one: abs(one - length))[:2])
            low, high = (float(getattr(self._known[one], name)) for one in (few, many))
            slope = max((high - low) / (many - few), 0.0)
            # Times are uncertain, and bytes come in blocks: no part of a piece is free, whatever the line says.
            return max(high + slope * (length - many), high * length / many / 2)

        def time(name: str) -> float:
            # Longer pieces are not slower for their length; if they seem to be, other programs were at work.
            longest = max(self._known)
            return max(find(name), float(getattr(self._known[longest], name)) * min(length / longest, 1.0))

        return Measurement(
            state_bytes=round(find("state_bytes")),
            tape_bytes=round(find("tape_bytes")),
            resident_bytes_per_step=0,
            output_bytes=round(find("output_bytes")),
            # The sum over pieces, and a copy of it if others hold it, too.
            workspace_bytes=round(find("workspace_bytes")) + 2 * self._parameter_bytes,
            parameter_bytes=2 * self._parameter_bytes,
            forward_seconds=time("forward_seconds"),
            record_seconds=time("record_seconds"),
            backward_seconds=time("backward_seconds"),
            counted=1,
            steps=1,
        )


def _find_known(cell: FusedCell, kind: RowKind, state: Hidden) -> dict[int, _Observed]:
    """Return what is known of calls of the same kind, by the length of the pieces."""
    key = (
        (cell.mode, cell.bias, cell.dropout, cell.training, cell.backwards),
        tuple((weight.shape, weight.dtype, weight.requires_grad) for weight in cell.flat_weights),
        replace(kind, steps=0),
        tuple((part.shape, part.dtype) for part in state),
        (Autocast.present(kind.device), torch.get_num_threads()),
    )
    known = _measured.setdefault(key, {})
    _measured.move_to_end(key)
    while len(_measured) > _MOST:
        _measured.popitem(last=False)
    return known


def _make_rows(kind: RowKind, length: int) -> SequenceRows:
    """Return a sequence of so many time steps, all of which all sequences of the batch have."""
    shape = (length * kind.batch, kind.width) if kind.packed else (length, kind.batch, kind.width)
    data = torch.zeros(shape, dtype=kind.dtype, device=kind.device, requires_grad=kind.requires_grad)
    sizes = torch.full((length,), kind.batch, device="cpu") if kind.packed else None
    return SequenceRows(data=data, batch_sizes=sizes)


def _observe(cell: FusedCell, rows: SequenceRows, state: Hidden) -> _Observed:
    x = rows.data if rows.batch_sizes is None else (rows.data, rows.batch_sizes)
    begin = as_graph_roots(state)
    wanted = [*begin, *([rows.data] if rows.data.requires_grad else [])]

    def record() -> tuple[Hidden, torch.Tensor]:
        return cell(begin, x)

    def reverse(end: Hidden, outputs: torch.Tensor) -> None:
        ends = [*end, outputs]
        compute_gradients(ends, [torch.ones_like(one) for one in ends], wanted, parameters=cell.parameters)

    seconds: list[tuple[float, float, float]] = []
    for _ in range(_ROUNDS):
        with torch.no_grad():
            forward, _ = _time(lambda: cell(state, x), rows.data.device)
        recording, result = _time(record, rows.data.device)
        reversal, _ = _time(lambda found=result: reverse(*found), rows.data.device)  # type: ignore[misc]
        seconds.append((forward, recording, reversal))
        del result
    with LiveBytes() as live:
        end, outputs = record()
        tape = count_saved_bytes((*end, outputs), end=(*end, outputs), without=(*begin, rows.data))
        reverse(end, outputs)
    size = max(byte_size(state), byte_size(end))
    least = [min(times) for times in zip(*seconds, strict=True)]
    return _Observed(size, tape, max(0, live.peak - tape), outputs.nbytes, *least)


def _time(action: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    """Return the seconds that an action takes, and what it returns."""
    on_gpu = device.type == "cuda"
    clock = choose_clock(device)
    if on_gpu:
        torch.cuda.synchronize(device)
    begun = clock()
    found = action()
    if on_gpu:
        torch.cuda.synchronize(device)
    return clock() - begun + _RUNTIME_SECONDS, found
