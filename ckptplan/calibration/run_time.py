"""Estimates the seconds of runs from a few steps that run first, and reports progress in these seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import ckptplan
from ckptplan.calibration import runs
from ckptplan.calibration.cells import MeasuredNetwork
from ckptplan.calibration.validation import seconds_by_kind
from ckptplan.model.plan import Plan
from ckptplan.model.progress import Progress
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.actions import Advance, Record
from ckptplan.schedule.schedule import Schedule

#: Steps that run first, those that run next, and those that run next if the first were quick.
_FEW, _SEVERAL, _MORE, _QUICK_SECONDS = 4, 8, 32, 0.05
#: Chunks of the schedules that run first, as parts of their steps, and segments of which steps run again.
_FINE, _COARSE, _SEGMENTS = 8, 4, 2


@dataclass(frozen=True, kw_only=True)
class Work:
    """The steps, chunks and actions of a run."""

    forward_steps: int
    recomputed_steps: int
    recorded_steps: int
    chunks: int
    actions: int

    @classmethod
    def of(cls, plan: Plan | Schedule) -> Work:
        """Return the work of a plan or a schedule."""
        forward = recomputed = recorded = chunks = actions = known = 0
        for action in ckptplan.actions(plan) if isinstance(plan, Plan) else plan:
            actions += 1
            if isinstance(action, Record):
                recorded += action.stop - action.start
                chunks += 1
                known = max(known, action.stop)
            elif isinstance(action, Advance):
                again = max(0, min(known, action.stop) - action.start)
                recomputed += again
                forward += action.stop - action.start - again
                known = max(known, action.stop)
        return cls(
            forward_steps=forward,
            recomputed_steps=recomputed,
            recorded_steps=recorded,
            chunks=chunks,
            actions=actions,
        )


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Seconds of steps and chunks on this machine, and how many times as long runs with meters take."""

    forward_seconds: float
    recompute_seconds: float
    #: A step that is recorded and reversed.
    record_seconds: float
    #: A chunk, besides its steps.
    chunk_seconds: float
    #: A step of plain BPTT in PyTorch alone.
    plain_seconds: float
    held_factor: float
    peak_factor: float

    def seconds(self, work: Work) -> float:
        """Return the estimated seconds of a run without meters."""
        return (
            work.forward_steps * self.forward_seconds
            + work.recomputed_steps * self.recompute_seconds
            + work.recorded_steps * self.record_seconds
            + work.chunks * self.chunk_seconds
        )


def measure_step(network: MeasuredNetwork, *, steps: int) -> float:
    """Return the seconds of a step that is recorded and reversed, 0 if it is too short to tell from so few.

    At most ``steps`` steps run.
    """
    runs.compile_pieces(network)
    few = min(_FEW, steps)
    inputs, plan = network.inputs(few), make_schedule("base", steps=few)
    # The first run of a process takes longer than any other.
    seconds = min(runs.measure_seconds(network, inputs, plan=plan) for _ in range(2))
    return seconds / few if seconds >= _QUICK_SECONDS else 0.0


def measure_pace(network: MeasuredNetwork, *, steps: int, step_seconds: float) -> Pace:
    """Return the pace of a network, from a few of at most ``steps`` steps.

    ``step_seconds`` is what ``measure_step`` returned.
    """
    return _measure(network, steps=min(steps, _SEVERAL if step_seconds else _MORE))


def _measure(network: MeasuredNetwork, *, steps: int) -> Pace:
    inputs = network.inputs(steps)
    fine, coarse = (
        make_schedule(
            "nested",
            steps=steps,
            chunk_size=max(1, steps // parts),
            segment_size=max(1, steps // _SEGMENTS),
        )
        for parts in (_FINE, _COARSE)
    )
    # Wall time: this is to tell how long a person waits.
    small, large = (
        runs.time_actions(network, inputs, plan=schedule, clock=perf_counter) for schedule in (fine, coarse)
    )
    by_kind, work = seconds_by_kind(large.events), Work.of(coarse)
    recorded, finer = (
        kinds["record"] + kinds["backward"] for kinds in (by_kind, seconds_by_kind(small.events))
    )
    more_chunks = Work.of(fine).chunks - work.chunks
    chunk = max(0.0, (finer - recorded) / more_chunks) if more_chunks else 0.0
    forward = by_kind.get("forward", 0.0) / max(1, work.forward_steps)
    inside = sum(by_kind.values())
    # A call takes some time before and after the actions, however many they are.
    around = max(0.0, large.seconds - inside)
    held = _time(lambda: runs.measure_held(network, inputs, plan=coarse))
    peak = _time(lambda: runs.measure_live_peak(network, inputs, plan=coarse))
    return Pace(
        forward_seconds=forward,
        recompute_seconds=by_kind["recompute"] / work.recomputed_steps if work.recomputed_steps else forward,
        record_seconds=max(0.0, recorded - work.chunks * chunk) / steps,
        chunk_seconds=chunk,
        plain_seconds=runs.measure_plain_seconds(network, inputs, steps=steps) / steps,
        held_factor=max(1.0, (held - around) / inside),
        peak_factor=max(1.0, (peak - around) / inside),
    )


def _time(run: Callable[[], object]) -> float:
    """Return the seconds of the second of two runs: a meter's first run takes longer than any other."""
    run()
    began = perf_counter()
    run()
    return perf_counter() - began


def format_estimate(seconds: float) -> str:
    """Return an estimate in words: 'about 12 s', 'about 3 min'."""
    if seconds < 1:
        return "less than a second"
    return f"about {seconds:.0f} s" if seconds < 100 else f"about {seconds / 60:,.0f} min"


def round_down(number: int) -> int:
    """Return a number from 1 with all digits but the first set to 0."""
    unit: int = 10 ** (len(str(number)) - 1)
    return number // unit * unit


class SecondsCounter:
    """Reports progress in thousandths of the estimated seconds, run by run and within a run."""

    def __init__(self, *, seconds: float, progress: Progress | None) -> None:
        self._total, self._progress = max(1, round(1000 * seconds)), progress
        self._done = 0.0
        self._shown = -1
        self._show()

    @contextmanager
    def run(self, seconds: float, *, actions: int = 0) -> Iterator[Callable[[], None]]:
        """Count a run of so many estimated seconds; yields what to call after each of its actions."""
        begun = self._done
        number = 0

        def tick() -> None:
            nonlocal number
            number += 1
            self._done = begun + seconds * min(1.0, number / actions) if actions else begun
            self._show()

        yield tick
        self._done = begun + seconds
        self._show()

    def end(self) -> None:
        """Report that everything is done."""
        self._done = self._total / 1000
        self._show()

    def _show(self) -> None:
        done = min(self._total, round(1000 * self._done))
        if self._progress is not None and done > self._shown:
            self._shown = done
            self._progress(done, self._total)
