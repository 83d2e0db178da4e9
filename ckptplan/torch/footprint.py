"""Measures the bytes of a cell in real storages: state, tape, resident bytes and workspace."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

from ckptplan.errors import InputError
from ckptplan.execution.backend import CountedSizes, Pace
from ckptplan.model.workload import Basis
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch import measured_sizes
from ckptplan.torch.backend import TorchNetwork, TorchProgram, compute_loss
from ckptplan.torch.run.chunk_steps import MAX_WORKING
from ckptplan.torch.state.nests import count_bytes, flatten
from ckptplan.units import format_bytes, format_share

#: Allowed deviation of a tape from a straight line, which alignment may cause.
_STRAIGHT = 1e-3
#: Allowed range of the workspace as a share of the peak: the default memory tolerance of a validation.
_CONSTANT = 0.05
#: A smaller range is ignored: in very small networks, a few tensors are a large share of the peak.
_SMALL_BYTES = 2**16
#: How often single steps run. They run once more if the runs differ, since two of them have to agree.
_SINGLE_RUNS = 2


@dataclass(frozen=True, kw_only=True)
class SizeRuns:
    """The runs in which bytes are counted."""

    #: T of the run whose steps are recorded one by one. Its checkpoints take more than the trial of a step.
    single: int
    #: Steps of the chunks whose tapes are compared.
    chunks: tuple[int, ...]
    #: (T, chunk) of the runs whose live peaks are compared with the counted bytes.
    peaks: tuple[tuple[int, int], ...]

    @property
    def schedules(self) -> list[Schedule]:
        """The schedules whose live peaks are measured. The schedule of single steps comes first, twice."""
        several = (make_schedule("standard", steps=steps, chunk_size=chunk) for steps, chunk in self.peaks)
        return [*[make_schedule("standard", steps=self.single, chunk_size=1)] * _SINGLE_RUNS, *several]

    def seconds(self, pace: Pace) -> float:
        """Return the estimated seconds of all runs: each schedule of ``peaks`` runs twice."""
        bases = sum(pace.run(make_schedule("base", steps=chunk)) for chunk in self.chunks)
        return bases + sum(pace.run(schedule) + pace.count(schedule) for schedule in self.schedules)

    @property
    def runs(self) -> int:
        """The number of runs."""
        return len(self.chunks) + 2 * len(self.schedules)


#: All runs, and fewer runs for a cell whose steps take long. Chunks are whole pieces of a ``ChunkCell``, since
#: shorter chunks need less working memory.
ALL_RUNS = SizeRuns(chunks=(1, 2, 3, 5, 8, 16, 32), peaks=((64, 16), (96, 32), (192, 64), (128, 16)), single=64)
FEW_RUNS = SizeRuns(
    chunks=(1, 2, 5, 16),
    peaks=((3 * MAX_WORKING, MAX_WORKING), (4 * MAX_WORKING, 2 * MAX_WORKING)),
    single=2 * MAX_WORKING,
)


class _CountedRun(NamedTuple):
    """Bytes of a run: the peak, the inputs and saved outputs of one step, and all other bytes at the peak."""

    peak: int
    inputs: int
    saved: int
    space: int

    @classmethod
    def of(cls, network: TorchNetwork, schedule: Schedule, *, fixed: int, count: Callable[[], object]) -> Self:
        """Run a schedule twice; ``fixed`` bytes, such as parameters, are left out of ``space``."""
        inputs = network.inputs(schedule.steps)
        program = TorchProgram(network, schedule, inputs=inputs)
        counted = program.count()
        count()
        peak = program.peak_bytes()
        count()
        input_bytes, saved = (
            -(-size // schedule.steps) for size in (count_bytes(flatten(inputs)[0]), counted.saved_bytes)
        )
        space = peak - counted.local_bytes - (input_bytes + saved) * schedule.steps - fixed
        return cls(peak=peak, inputs=input_bytes, saved=saved, space=max(0, space))


def measure_bytes(
    network: TorchNetwork, *, runs: SizeRuns = ALL_RUNS, count: Callable[[], object] = lambda: None
) -> CountedSizes:
    """Measure the bytes of a network in ``runs``; ``count`` is called after each run. Raises InputError."""
    tapes = []
    for chunk in runs.chunks:
        tapes.append(TorchProgram(network, make_schedule("base", steps=chunk)).count().local_bytes)
        count()
    tape, once = _fit_tape(tapes, chunks=runs.chunks)
    _check_state(network)
    state, fixed = network.state_bytes, network.fixed_bytes
    run = partial(_CountedRun.of, network, fixed=fixed - once, count=count)
    counted = [run(schedule) for schedule in runs.schedules]
    singles, several = counted[:_SINGLE_RUNS], counted[_SINGLE_RUNS:]
    apart = max(single.space for single in singles) - min(single.space for single in singles)
    if apart > _SMALL_BYTES:
        # Other tensors were alive in one of the runs, as in a first run. Two of three runs agree.
        singles.append(run(runs.schedules[0]))
    # A state that is being read from remote memory is no checkpoint.
    workspace = sorted(single.space for single in singles)[1] + state
    spaces = [chunked.space for chunked in several]
    residual = _compare_workspaces(spaces, runs=runs, peak=max(run.peak for run in counted), state=state)
    # Runs of single steps save more spikes for each step, which are in their workspace.
    saved = max(chunked.saved for chunked in several)
    # Outputs that no plan may drop stay until the end.
    cache = saved if getattr(network.cell, "runs_from_state", False) else 0
    return CountedSizes(
        state_bytes=state,
        tape_bytes=tape,
        resident_bytes=fixed,
        resident_bytes_per_step=max(chunked.inputs for chunked in several) + saved - cache,
        cache_bytes=cache,
        workspace_bytes=workspace,
        chunk_workspace_bytes=max(0, max(spaces) - workspace),
        tape_bytes_once=once,
        residual=residual,
        basis={
            field: Basis(kind="measured", why=why)
            for field, why in _explain(runs, once=once, residual=residual, apart=apart).items()
            if cache or field != "cache_bytes"
        },
    )


def _compare_workspaces(workspaces: list[int], *, runs: SizeRuns, peak: int, state: int) -> float:
    """Return the range of the workspaces of some runs as a share of the peak. Raises InputError if it is large.

    The working state is also a checkpoint if the peak is where steps are recorded, but not if the peak is in
    the forward pass. So runs of short chunks, whose peak may be in the forward pass, may need one state more
    than the run of the longest chunk. No run of long chunks may.
    """
    _, longest = max((chunk, space) for (_, chunk), space in zip(runs.peaks, workspaces, strict=True))
    span = max(workspaces) - min(workspaces)
    most = max(_SMALL_BYTES, _CONSTANT * peak)
    if span > max(most, state) or longest - min(workspaces) > most:
        shown = ", ".join(f"{kind}: {size:,}" for kind, size in zip(runs.peaks, workspaces, strict=True))
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
        "resident_bytes_per_step": "counted: inputs, and outputs that the cell has to keep",
        "cache_bytes": "counted: outputs that the cell saves, spikes as they fired, in chunks of many steps",
        "workspace_bytes": "live tensors at the peak besides the bytes above, where steps are recorded one by "
        f"one: gradients, working states, scratch{middle}",
        "chunk_workspace_bytes": f"what {len(runs.peaks)} runs of up to {max(runs.peaks)[0]} steps need "
        f"besides; its range is {format_share(residual)} of the peak",
    }


def _check_state(network: TorchNetwork) -> None:
    """Raise InputError if the size of the state changes in the first steps."""
    sizes = measured_sizes(network.cell, network.inputs(2), network.state, compute_loss)
    first = network.state_bytes
    if sizes.state_bytes != first:
        raise InputError(
            f"its state takes {first:,} bytes before the first step and {sizes.state_bytes:,} after it, but a "
            "plan assumes states of equal size",
            field="cell",
            accepted="an initial state of the size that it keeps",
        )


def _fit_tape(tapes: list[int], *, chunks: tuple[int, ...]) -> tuple[int, int]:
    """Return the bytes of the tape of a step, and the bytes that a chunk holds once.

    The tape of a single step includes a constant, as weights in another type. Raises InputError unless tapes
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
