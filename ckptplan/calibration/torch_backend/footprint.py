"""Measures the bytes of a cell in real storages: state, tape, resident bytes and workspace."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Self

from ckptplan.calibration.backend import CountedSizes, PilotTimes, RunCounter
from ckptplan.calibration.torch_backend.cells import MeasuredNetwork, compute_loss
from ckptplan.calibration.torch_backend.runs import TorchProgram
from ckptplan.errors import InputError
from ckptplan.model.workload import Basis
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch import measured_sizes
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.run.chunk_steps import MAX_WORKING
from ckptplan.torch.state.nests import count_bytes, flatten
from ckptplan.units import format_bytes, format_share

#: Allowed deviation of a tape from a straight line, which alignment may cause.
_STRAIGHT = 1e-3
#: Allowed range of the workspace as a share of the peak: the default memory tolerance of a validation.
_CONSTANT = 0.05
#: A smaller range is ignored: in very small networks, a few tensors are a large share of the peak.
_SMALL_BYTES = 2**16
#: How many times longer a run takes while graphs are inspected, and while all live tensors are counted; the
#: seconds that counting them adds to a step, which the dispatch of its operations takes.
_INSPECTED, _COUNTED, _COUNT_SECONDS = 1.1, 1.2, 1.5e-3


def estimate_meters(seconds: float, *, steps: int) -> tuple[float, float]:
    """Return how long a run of some seconds takes while graphs are inspected, and while tensors are counted."""
    return _INSPECTED * seconds, _COUNTED * seconds + _COUNT_SECONDS * steps


#: How often single steps run, and once more if both differ: the workspace of all plans rests on two that agree.
_SINGLE_RUNS = 2
#: (T, chunk) of short runs whose chunks are whole pieces of a ``ChunkCell``.
_WHOLE_PIECES = ((3 * MAX_WORKING, MAX_WORKING), (4 * MAX_WORKING, 2 * MAX_WORKING))


@dataclass(frozen=True, kw_only=True, order=True)
class SizeRuns:
    """The runs that bytes are counted in; those of fewer steps are less."""

    #: T of the one whose steps are recorded one by one: its checkpoints hide what the trial of a step takes.
    single: int
    #: Steps of the chunks whose tapes are compared.
    chunks: tuple[int, ...]
    #: (T, chunk) of the runs whose live peaks are compared with what was counted.
    peaks: tuple[tuple[int, int], ...]

    @property
    def schedules(self) -> list[Schedule]:
        """The schedules whose live peaks are measured, that of single steps first, and twice."""
        several = (make_schedule("standard", steps=steps, chunk_size=chunk) for steps, chunk in self.peaks)
        return [*[make_schedule("standard", steps=self.single, chunk_size=1)] * _SINGLE_RUNS, *several]

    def of(self, network: MeasuredNetwork) -> SizeRuns:
        """Return the runs for a network. Short chunks of a ``ChunkCell`` need less working memory."""
        short = any(chunk % MAX_WORKING for _, chunk in self.peaks)
        return replace(self, peaks=_WHOLE_PIECES) if short and isinstance(network.cell, ChunkCell) else self

    def seconds(self, pilot: PilotTimes) -> Iterator[float]:
        """Yield the estimated seconds of each run that ``measure`` counts."""
        for chunk in self.chunks:
            yield estimate_meters(pilot.run(make_schedule("base", steps=chunk)), steps=chunk)[0]
        for schedule in self.schedules:
            yield sum(estimate_meters(pilot.run(schedule), steps=schedule.steps))


#: All runs, fewer, and as few as show whether sizes are linear.
ALL_RUNS = SizeRuns(chunks=(1, 2, 3, 5, 8, 16, 32), peaks=((64, 16), (96, 32), (192, 64), (128, 16)), single=64)
FEWER_RUNS = SizeRuns(chunks=(1, 2, 3, 5, 8, 16), peaks=_WHOLE_PIECES, single=32)
FEWEST_RUNS = SizeRuns(chunks=(1, 2, 5), peaks=((8, 2), (10, 5)), single=8)


class _CountedRun(NamedTuple):
    """Bytes of a run: its peak, what it keeps for each step, and what it needs besides what was counted."""

    peak: int
    resident: int
    space: int

    @classmethod
    def of(cls, network: MeasuredNetwork, schedule: Schedule, *, beside: int) -> Self:
        """Run a schedule twice; ``beside`` is there besides what it holds and keeps for its steps."""
        inputs = network.inputs(schedule.steps)
        program = TorchProgram(network, schedule, inputs=inputs)
        counted, peak = program.counted(), program.peak_bytes()
        resident = -(-(count_bytes(flatten(inputs)[0]) + counted.saved_bytes) // schedule.steps)
        space = peak - counted.local_bytes - resident * schedule.steps - beside
        return cls(peak=peak, resident=resident, space=max(0, space))


def measure(network: MeasuredNetwork, *, counter: RunCounter, runs: SizeRuns = ALL_RUNS) -> CountedSizes:
    """Measure the bytes of a network in ``runs``, which ``counter`` counts. Raises InputError."""
    runs = runs.of(network)
    bases = (TorchProgram(network, make_schedule("base", steps=chunk)) for chunk in runs.chunks)
    tapes = [counter.run(program.counted).local_bytes for program in bases]
    tape, once = _fit_tape(tapes, chunks=runs.chunks)
    _check_state(network)
    state, fixed = count_bytes(flatten(network.state)[0]), _fixed_bytes(network)
    run = partial(_CountedRun.of, network, beside=fixed - once)
    found = [counter.run(partial(run, schedule)) for schedule in runs.schedules]
    singles, several = found[:_SINGLE_RUNS], found[_SINGLE_RUNS:]
    apart = max(one.space for one in singles) - min(one.space for one in singles)
    if apart > _SMALL_BYTES:
        # Something besides the steps was alive in one of them, as in a first run: two of three agree.
        singles.append(run(runs.schedules[0]))
    # A state that is read from remote memory is no checkpoint.
    single = sorted(one.space for one in singles)[1] + state
    workspaces = [one.space for one in several]
    residual = _compare_workspaces(workspaces, runs=runs, peak=max(one.peak for one in found), state=state)
    return CountedSizes(
        state_bytes=state,
        tape_bytes=tape,
        resident_bytes=fixed,
        # Single steps save more spikes each: those are in their workspace.
        resident_bytes_per_step=max(one.resident for one in several),
        workspace_bytes=single,
        chunk_workspace_bytes=max(0, max(workspaces) - single),
        tape_bytes_once=once,
        residual=residual,
        basis={
            field: Basis(kind="measured", why=why)
            for field, why in _explain(runs, once=once, residual=residual, apart=apart).items()
        },
    )


def _compare_workspaces(workspaces: list[int], *, runs: SizeRuns, peak: int, state: int) -> float:
    """Return the range of the workspaces of some runs as a share of the peak. Raises InputError if it is large.

    Whether the working state is a checkpoint, too, depends on where in a schedule the peak is: where it is
    recorded, it is one, and during the forward pass it is not. So runs of short chunks, whose peak may be
    there, may need a state more than that of the longest chunk, but no run of long chunks may.
    """
    _, longest = max((chunk, space) for (_, chunk), space in zip(runs.peaks, workspaces, strict=True))
    span = max(workspaces) - min(workspaces)
    most = max(_SMALL_BYTES, _CONSTANT * peak)
    if span > max(most, state) or longest - min(workspaces) > most:
        shown = ", ".join(f"{one}: {size:,}" for one, size in zip(runs.peaks, workspaces, strict=True))
        raise InputError(
            "its live memory is not linear in the steps of a chunk, as every plan assumes: the memory that a "
            f"run needs besides checkpoints and tapes ranges over {format_share(span / peak)} of the peak "
            f"(bytes by (T, chunk): {shown})",
            field="cell",
            accepted="a cell whose scratch memory is the same for every chunk",
        )
    return span / peak


def _explain(runs: SizeRuns, *, once: int, residual: float, apart: int) -> dict[str, str]:
    """Return how each field was counted."""
    middle = f"; two of three runs agree, the first two were {format_bytes(apart)} apart"
    middle = middle if apart > _SMALL_BYTES else ""
    return {
        "state_bytes": "counted: the tensors of a state",
        "tape_bytes": f"counted in real storages, in chunks of up to {max(runs.chunks)} steps: the same for "
        f"each step{f', and {once:,} B once a chunk' if once else ''}",
        "resident_bytes": "counted: parameters and buffers",
        "resident_bytes_per_step": "counted: inputs, and outputs that the cell saves (spikes as they fired)",
        "workspace_bytes": "live tensors at the peak besides the bytes above, where steps are recorded one by "
        f"one: gradients, working states, scratch{middle}",
        "chunk_workspace_bytes": f"what {len(runs.peaks)} runs of up to {max(runs.peaks)[0]} steps need "
        f"besides; its range is {format_share(residual)} of the peak",
    }


def _fixed_bytes(network: MeasuredNetwork) -> int:
    """Return the bytes of parameters and buffers."""
    return network.bytes_before(()) - count_bytes(flatten(network.state)[0])


def _check_state(network: MeasuredNetwork) -> None:
    """Raise InputError if the size of the state changes in the first steps."""
    sizes = measured_sizes(network.cell, network.inputs(2), network.state, compute_loss)
    first = count_bytes(flatten(network.state)[0])
    if sizes.state_bytes != first:
        raise InputError(
            f"its state takes {first:,} bytes before the first step and {sizes.state_bytes:,} after it, but a "
            "plan assumes states of equal size",
            field="cell",
            accepted="an initial state of the size that it keeps",
        )


def _fit_tape(tapes: list[int], *, chunks: tuple[int, ...]) -> tuple[int, int]:
    """Return the bytes of one step's tape, and those that a chunk holds once.

    The tape of a single step shows a constant, as of weights in another type. Raises InputError unless tapes
    are linear in their steps, with a constant that is not negative.
    """
    each = (tapes[-1] - tapes[0]) / (chunks[-1] - chunks[0])
    once = tapes[0] - each * chunks[0]
    if abs(once) <= _STRAIGHT * tapes[0]:
        each, once = tapes[-1] / chunks[-1], 0.0
    residual = max(abs(tape - each * chunk - once) / tape for chunk, tape in zip(chunks, tapes, strict=True))
    if residual > _STRAIGHT or once < 0:
        shown = ", ".join(f"{chunk}: {tape:,}" for chunk, tape in zip(chunks, tapes, strict=True))
        raise InputError(
            "its tape is not linear in the steps of a chunk, as every plan assumes: it is off by up to "
            f"{format_share(max(residual, -once / tapes[0]))} (bytes by steps: {shown})",
            field="cell",
            accepted="a cell whose steps all keep the same amount, and whose state keeps its size",
        )
    return math.ceil(each), round(once)
