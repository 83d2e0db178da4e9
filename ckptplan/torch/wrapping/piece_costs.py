"""Measures pieces of two lengths, from which the bytes and seconds of pieces of any length follow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from ckptplan.torch.ambient import Autocast, Generators
from ckptplan.torch.backward import compute_gradients
from ckptplan.torch.graphs import as_graph_roots, count_saved_bytes
from ckptplan.torch.measurement import Measurement
from ckptplan.torch.meters import LiveBytes
from ckptplan.torch.trees import byte_size
from ckptplan.torch.wrapping.fused_cell import FusedCell, Hidden
from ckptplan.torch.wrapping.pieces import Rows

#: The longest piece that is measured, at most this share of the sequence; the other one is a quarter of it.
_LONGEST, _SHARE = 32, 16
#: Each piece is timed so often; the least counts.
_ROUNDS = 3
#: Measurements that are kept.
_MOST = 256
_measured: OrderedDict[Any, PieceCosts] = OrderedDict()


@dataclass(frozen=True)
class _Observed:
    """Bytes and seconds of a piece."""

    tape_bytes: float
    workspace_bytes: float
    output_bytes: float
    forward_seconds: float
    record_seconds: float
    backward_seconds: float


@dataclass(frozen=True, kw_only=True)
class PieceCosts:
    """Bytes and seconds of pieces of two lengths; others lie on the line through them."""

    short: tuple[int, _Observed]
    long: tuple[int, _Observed]
    state_bytes: int
    parameter_bytes: int

    def at(self, piece: int) -> Measurement:
        """Return what a piece of so many time steps takes, as a step of a plan."""

        def find(name: str) -> float:
            (few, less), (many, more) = self.short, self.long
            low, high = float(getattr(less, name)), float(getattr(more, name))
            slope = max((high - low) / (many - few), 0.0) if many > few else high / many
            # Times are uncertain: no piece of some length is free, whatever the line says.
            return max(high + slope * (piece - many), high * piece / many / 2)

        def count(name: str) -> int:
            return round(find(name))

        return Measurement(
            state_bytes=self.state_bytes,
            tape_bytes=count("tape_bytes"),
            resident_bytes_per_step=0,
            output_bytes=count("output_bytes"),
            # The sum over pieces, and a copy of it if others hold it, too.
            workspace_bytes=count("workspace_bytes") + 2 * self.parameter_bytes,
            parameter_bytes=2 * self.parameter_bytes,
            forward_seconds=find("forward_seconds"),
            record_seconds=find("record_seconds"),
            backward_seconds=find("backward_seconds"),
            steps=1,
        )


def measure_pieces(cell: FusedCell, rows: Rows, state: Hidden) -> PieceCosts:
    """Return the costs of pieces of a sequence, measured once for each kind of cell and shapes.

    The pieces that are run are of zeros, and as wide as the widest step of the sequence.
    """
    device = rows.data.device
    long = max(1, min(_LONGEST, rows.steps, max(4, rows.steps // _SHARE)))
    lengths = max(1, long // 4), long
    packed = rows.batch_sizes is not None
    key = (
        (cell.mode, cell.bias, cell.dropout, cell.training, cell.backwards, packed, lengths, device),
        tuple((weight.shape, weight.dtype, weight.requires_grad) for weight in cell.flat_weights),
        (rows.batch, rows.data.shape[-1], rows.data.dtype, rows.data.requires_grad),
        tuple((part.shape, part.dtype) for part in state),
        (Autocast.present(device), torch.get_num_threads()),
    )
    if key not in _measured:
        own = cell.detach()
        with torch.enable_grad(), Generators(device, wanted=True).aside(), Autocast.present(device).cast_anew():
            short_, long_ = ((one, _observe(own, _make_rows(rows, one), state)) for one in lengths)
        _measured[key] = PieceCosts(
            short=short_,
            long=long_,
            state_bytes=byte_size(state),
            parameter_bytes=sum(
                {id(one): one.nbytes for one in own.flat_weights if one.requires_grad}.values()
            ),
        )
        while len(_measured) > _MOST:
            _measured.popitem(last=False)
    _measured.move_to_end(key)
    return _measured[key]


def _make_rows(rows: Rows, length: int) -> Rows:
    width = rows.data.shape[-1]
    if rows.batch_sizes is None:
        data = rows.data.new_zeros(length, rows.batch, width)
    else:
        data = rows.data.new_zeros(length * rows.batch, width)
    sizes = None if rows.batch_sizes is None else torch.full((length,), rows.batch)
    return Rows(data=data.requires_grad_(rows.data.requires_grad), batch_sizes=sizes)


def _observe(cell: FusedCell, rows: Rows, state: Hidden) -> _Observed:
    x = rows.data if rows.batch_sizes is None else (rows.data, rows.batch_sizes)
    begin = as_graph_roots(state)
    wanted = [*begin, *([rows.data] if rows.data.requires_grad else [])]
    parameters = [weight for weight in cell.flat_weights if weight.requires_grad]

    def record() -> tuple[Hidden, torch.Tensor]:
        return cell(begin, x)

    def reverse(end: Hidden, outputs: torch.Tensor) -> None:
        ends = [*end, outputs]
        compute_gradients(ends, [torch.ones_like(one) for one in ends], wanted, parameters=parameters)

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
    least = [min(times) for times in zip(*seconds, strict=True)]
    return _Observed(tape, max(0, live.peak - tape), outputs.nbytes, *least)


def _time(action: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    """Return the seconds that an action takes, and what it returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begun = perf_counter()
    found = action()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return max(perf_counter() - begun, 1e-9), found
