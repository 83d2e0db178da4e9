"""Bytes of a cell, counted in real storages: a state, a tape, what stays, and what a run needs besides."""

from __future__ import annotations

from dataclasses import dataclass

from ckptplan.calibration.cells import MeasuredNetwork
from ckptplan.calibration.counter import RunCounter
from ckptplan.calibration.runs import measure_held, measure_live_peak
from ckptplan.errors import InputError
from ckptplan.planning.playback import make_schedule
from ckptplan.torch.sizes import measured_sizes
from ckptplan.torch.trees import byte_size, flatten
from ckptplan.units import format_share

#: Chunks whose tapes are compared, in steps.
_CHUNKS = (1, 2, 3, 5, 8, 16, 32)
#: (T, chunk) of the runs whose live peaks are compared with what was counted.
_PEAKS = ((64, 16), (96, 32), (192, 64), (128, 16))
#: A tape may be so far off a straight line: what a byte or two of alignment makes.
_STRAIGHT = 1e-3
#: A workspace may range over this share of the peak: what validations allow peaks by default.
_CONSTANT = 0.05
#: In networks as small as toys a few tensors are a large share of the peak.
_SMALL_BYTES = 2**16


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes as the fields of a workload of one unit have them, and how far the peaks disagree on the last."""

    state_bytes: int
    tape_bytes: int
    resident_bytes: int
    resident_bytes_per_step: int
    workspace_bytes: int
    #: Range of the workspaces found, as a share of the peaks that they were found in.
    residual: float


def measure(network: MeasuredNetwork, *, counter: RunCounter) -> Footprint:
    """Count bytes; ``counter`` counts the runs that this takes. Raises InputError."""
    tapes = []
    for chunk in _CHUNKS:
        found = measure_held(network, network.inputs(chunk), plan=make_schedule("base", steps=chunk))
        tapes.append(found.local_bytes)
        counter.count()
    tape = _fit_tape(tapes)
    _check_state(network)
    residents: list[int] = []
    workspaces: list[int] = []
    peaks: list[int] = []
    for steps, chunk in _PEAKS:
        plan, inputs = make_schedule("standard", steps=steps, chunk_size=chunk), network.inputs(steps)
        counted = measure_held(network, inputs, plan=plan)
        peaks.append(measure_live_peak(network, inputs, plan=plan))
        residents.append(-(-(byte_size(flatten(inputs)[0]) + counted.saved_bytes) // steps))
        beside = counted.local_bytes + residents[-1] * steps + _fixed_bytes(network)
        workspaces.append(max(0, peaks[-1] - beside))
        counter.count()
    residual = (max(workspaces) - min(workspaces)) / max(peaks)
    if residual > _CONSTANT and max(workspaces) - min(workspaces) > _SMALL_BYTES:
        shown = ", ".join(f"{one}: {size:,}" for one, size in zip(_PEAKS, workspaces, strict=True))
        raise InputError(
            "its live memory is not linear in the steps of a chunk, as every plan takes it to be: what a run "
            f"needs beside checkpoints and tapes ranges over {format_share(residual)} of the peak (bytes by "
            f"(T, chunk): {shown})",
            field="cell",
            accepted="a cell whose scratch memory is the same for every chunk",
        )
    return Footprint(
        state_bytes=byte_size(flatten(network.state)[0]),
        tape_bytes=tape,
        resident_bytes=_fixed_bytes(network),
        resident_bytes_per_step=max(residents),
        workspace_bytes=max(workspaces),
        residual=residual,
    )


#: Runs that ``measure`` makes.
RUNS = len(_CHUNKS) + len(_PEAKS)


def _fixed_bytes(network: MeasuredNetwork) -> int:
    """Return what stands there before a run beside inputs and state: parameters and buffers."""
    return network.bytes_before(()) - byte_size(flatten(network.state)[0])


def _check_state(network: MeasuredNetwork) -> None:
    """Raise InputError for a state that has another size after a step."""
    sizes = measured_sizes(network.cell, network.inputs(2), network.state, network.loss)
    first = byte_size(flatten(network.state)[0])
    if sizes.state_bytes != first:
        raise InputError(
            f"its state takes {first:,} bytes before the first step and {sizes.state_bytes:,} after it, and a "
            "plan takes all states to be as large",
            field="cell",
            accepted="an initial state of the size that it keeps",
        )


def _fit_tape(tapes: list[int]) -> int:
    """Return the tape of one step, if those of more steps are multiples of it. Raises InputError."""
    each = tapes[-1] / _CHUNKS[-1]
    residual = max(abs(tape - each * chunk) / tape for chunk, tape in zip(_CHUNKS, tapes, strict=True))
    if residual > _STRAIGHT:
        shown = ", ".join(f"{chunk}: {tape:,}" for chunk, tape in zip(_CHUNKS, tapes, strict=True))
        raise InputError(
            "its tape is not linear in the steps of a chunk, as every plan takes it to be: it is off by up to "
            f"{format_share(residual)} (bytes by steps: {shown})",
            field="cell",
            accepted="a cell whose every step keeps as much, and whose state keeps its size",
        )
    return -(-tapes[-1] // _CHUNKS[-1])
