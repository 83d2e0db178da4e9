"""torch.utils.checkpoint, chunked and nested, predicted by the same simulator from a calibration of its own.

Its actions are written as a schedule: the first pass records with hooks, and each chunk is run again, the last
one included. This tests the model with a runtime that it was not made for.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.variants import Job, make_job, run_checkpoint
from ckptplan.calibration.fit import Sample
from ckptplan.model.step_costs import StepCosts
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier
from ckptplan.schedule.simulator import play
from ckptplan.torch import measured_sizes
from ckptplan.torch.meters import LiveBytes, choose_clock

#: Settings (T, chunk) that are timed for the calibration, then those that are predicted: (T, chunk) or
#: (T, outer, inner).
SEEN = ((512, 32), (512, 64))
UNSEEN: tuple[tuple[int, ...], ...] = (
    (1024, 24),
    (1024, 128),
    (1536, 40),
    (1024, 128, 16),
    (1536, 192, 24),
    (1024, 256, 32),
)
ROUNDS = 5
_LOCAL = Tier.LOCAL


@dataclass(frozen=True, kw_only=True)
class Peer:
    """The cost of a step of a network under torch.utils.checkpoint."""

    forward_seconds: float
    #: Running a step again, recording it and reversing it.
    again_seconds: float
    state_bytes: int
    tape_bytes: int
    beside_bytes: int

    def predicted(self, setting: tuple[int, ...]) -> tuple[float, int]:
        """Return seconds and live bytes, from the simulator."""
        steps, *chunks = setting
        costs = StepCosts(
            steps=steps,
            state_bytes=self.state_bytes,
            tape_bytes=self.tape_bytes,
            resident_bytes=self.beside_bytes,
            remote_state_bytes=self.state_bytes,
            forward_seconds=self.forward_seconds,
            # Steps are run again as in the first pass: with hooks, whether the tape is needed or not.
            recompute_seconds=self.forward_seconds,
            backward_seconds=self.again_seconds - self.forward_seconds,
        )
        trace = play(schedule(0, steps, tuple(chunks), held=False), costs=costs, budget=None)
        return trace.seconds, trace.local_peak_bytes


def schedule(start: int, stop: int, chunks: tuple[int, ...], *, held: bool) -> Iterator[Action]:
    """Return the schedule of torch.utils.checkpoint: chunks are run, kept at their start, and run again."""
    outer, *inner = chunks
    firsts = range(start, stop, outer)
    for first in firsts:
        if first > start or not held:
            yield Save(first, _LOCAL)
        yield Advance(first, min(stop, first + outer))
    for first in reversed(firsts):
        last = min(stop, first + outer)
        yield Load(first, _LOCAL)
        if inner:
            yield from schedule(first, last, tuple(inner), held=True)
        else:
            yield Record(first, last)
            yield Backward(first, last)
        if first > start or not held:
            yield Free(first, _LOCAL)


def peers() -> list[dict[str, Any]]:
    """Return a line for each setting that the calibration did not see."""
    found = []
    for kind, name in {"gru": "gru", "lif": "lif under autograd"}.items():
        job = make_job(kind, batch=32, inputs=64, neurons=256)
        times = measured(job)
        peer = calibrated(job, times)
        for setting in UNSEEN:
            seconds, size = peer.predicted(setting)
            totals = [forward + backward for forward, backward in times[setting]]
            middle = statistics.median(totals)
            found.append(
                {
                    "network": name,
                    "steps": setting[0],
                    "chunks": list(setting[1:]),
                    "predicted_seconds": seconds,
                    "measured_seconds": middle,
                    "spread": Sample(values=tuple(totals)).spread,
                    "predicted_bytes": size,
                    "measured_bytes": live_peak(variant(job, setting)),
                }
            )
    return found


def variant(job: Job, setting: tuple[int, ...]) -> Any:
    """Return the loss under a setting, as a function."""
    return partial(run_checkpoint, job, setting[0], setting[1:])


def live_peak(run: Any) -> int:
    """Return the peak bytes of live tensors."""
    with LiveBytes() as live:
        run().backward()
    return int(live.peak)


def measured(job: Job) -> dict[tuple[int, ...], list[tuple[float, float]]]:
    """Return seconds of forward and backward passes: all settings in turn, for several rounds."""
    found: dict[tuple[int, ...], list[tuple[float, float]]] = {one: [] for one in (*SEEN, *UNSEEN)}
    for number in range(ROUNDS + 1):
        for setting, times in found.items():
            times_of_one = passes(job, variant(job, setting))
            if number:
                times.append(times_of_one)
    return found


def passes(job: Job, run: Any) -> tuple[float, float]:
    """Return the seconds of a forward and of a backward pass."""
    for parameter in job.parameters:
        parameter.grad = None
    gc.collect()
    clock = choose_clock(torch.device("cpu"))
    began = clock()
    loss: torch.Tensor = run()
    between = clock()
    loss.backward()
    return between - began, clock() - between


def calibrated(job: Job, times: dict[tuple[int, ...], list[tuple[float, float]]]) -> Peer:
    """Return the cost of a step, fitted to the settings of the calibration."""
    forward = [statistics.median(one for one, _ in times[setting]) / setting[0] for setting in SEEN]
    again = [statistics.median(one for _, one in times[setting]) / setting[0] for setting in SEEN]
    seen = SEEN[0]
    sizes = measured_sizes(job.cell, job.inputs(0, 1), job.state)
    peer = Peer(
        forward_seconds=statistics.mean(forward),
        again_seconds=statistics.mean(again),
        state_bytes=sizes.state_bytes,
        tape_bytes=sizes.tape_bytes,
        beside_bytes=0,
    )
    beside = live_peak(variant(job, seen)) - peer.predicted(seen)[1]
    return Peer(**{**vars(peer), "beside_bytes": max(0, beside)})
