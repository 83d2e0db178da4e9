"""Decides how much a calibration measures, from how long that takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ckptplan.calibration.footprint import ALL_RUNS, FEWER_RUNS, FEWEST_RUNS, SizeRuns
from ckptplan.calibration.pilot import PilotTimes
from ckptplan.calibration.rounds import LEAST_ROUNDS, list_schedules, warm_up_schedule
from ckptplan.errors import InputError
from ckptplan.units import format_wait
from ckptplan.wording import Argument, Phrase

#: Steps of the chunks that are timed: from single steps, which show what an action takes besides its steps, to
#: those of plans for some MiB of memory. If steps take long, shorter chunks are enough.
_CHUNKS, _CHUNKS_OF_LONG_STEPS, _LONG_SECONDS = (1, 4, 16, 64, 192), (1, 2, 4, 8, 16), 4e-3
_QUICK_CHUNKS, _QUICK_CHUNKS_OF_LONG_STEPS = (1, 4, 16, 32), (1, 4)
#: Steps between the states of a message, so that caches are in the same condition as in a plan.
_STEPS_BETWEEN = 8
#: What is left out if everything takes too long: each of these changes after those before it.
_LADDER: tuple[dict[str, Any], ...] = (
    {"chunks": (1, 4, 16, 64)},
    {"chunks": (1, 4, 16, 32)},
    {"rounds": LEAST_ROUNDS},
    {"steps_between": 2},
    {"size_runs": FEWER_RUNS},
    {"chunks": (1, 4, 8)},
    {"chunks": (1, 4)},
    {"size_runs": FEWEST_RUNS, "steps_between": 1},
    {"chunks": (1, 2)},
)
#: The share of the limit that estimates may take, since they may be off.
SHARE = 0.8


@dataclass(frozen=True, kw_only=True)
class Extent:
    """What a calibration measures, and how often."""

    #: Steps of the chunks that are timed; empty if only bytes are counted.
    chunks: tuple[int, ...]
    rounds: int
    #: Steps between the states that are moved in messages.
    steps_between: int
    size_runs: SizeRuns = ALL_RUNS

    def size_seconds(self, pilot: PilotTimes) -> list[float]:
        """Return the estimated seconds of the runs that bytes are counted in."""
        return list(self.size_runs.seconds(pilot))

    def round_seconds(self, pilot: PilotTimes) -> list[float]:
        """Return the estimated seconds of the runs of the rounds, the first of which warms up."""
        if not self.chunks:
            return []
        runs = [pilot.run(one) for one in list_schedules(self.chunks, self.steps_between)]
        return [pilot.run(warm_up_schedule(self.steps_between)), *runs * self.rounds]

    def seconds(self, pilot: PilotTimes) -> float:
        """Return the estimated seconds of everything."""
        return sum(self.size_seconds(pilot)) + sum(self.round_seconds(pilot))

    def text(self, pilot: PilotTimes) -> str:
        """Return how long it takes, and why: 'about 40 s: 5 rounds of 6 schedules, ...'."""
        counted = f"sizes in {len(self.size_runs.chunks) + 2 * len(self.size_runs.peaks)} runs"
        parts = [counted]
        if self.chunks:
            schedules = len(list_schedules(self.chunks, self.steps_between))
            parts = [f"{self.rounds} rounds of {schedules} schedules (steps and transfers)", counted]
        return f"{format_wait(self.seconds(pilot))}: {', '.join(parts)}"

    def left_out(self, full: Extent) -> tuple[str, ...]:
        """Return what this measures less than ``full`` does."""
        return tuple(self._list_differences(full))

    def _list_differences(self, full: Extent) -> Iterator[str]:
        if self.chunks != full.chunks:
            yield f"chunks of {_join(self.chunks)} steps instead of {_join(full.chunks)}"
        if self.rounds != full.rounds:
            yield f"{self.rounds} rounds instead of {full.rounds}"
        if self.steps_between != full.steps_between:
            yield f"messages {self.steps_between} steps apart instead of {full.steps_between}"
        mine, others = self.size_runs.peaks, full.size_runs.peaks
        if mine != others:
            yield (
                f"sizes in runs of up to {max(mine)[0]} steps instead of {max(others)[0]}, "
                f"live memory in {len(mine)} of them instead of {len(others)}"
            )


def full_extent(pilot: PilotTimes, *, rounds: int) -> Extent:
    """Return everything that is measured without a limit on the time."""
    long = pilot.step_seconds >= _LONG_SECONDS
    chunks = _CHUNKS_OF_LONG_STEPS if long else _CHUNKS
    return Extent(chunks=chunks, rounds=rounds, steps_between=_STEPS_BETWEEN)


def quick_extent(pilot: PilotTimes) -> Extent:
    """Return what a quick calibration measures."""
    long = pilot.step_seconds >= _LONG_SECONDS
    return Extent(
        chunks=_QUICK_CHUNKS_OF_LONG_STEPS if long else _QUICK_CHUNKS,
        rounds=LEAST_ROUNDS,
        steps_between=2,
        size_runs=FEWER_RUNS,
    )


def size_extent() -> Extent:
    """Return the runs that count bytes alone."""
    return Extent(chunks=(), rounds=0, steps_between=0)


def fit_in(
    extent: Extent, pilot: PilotTimes, *, max_seconds: float | None, seconds_left: float | None = None
) -> Extent:
    """Return ``extent``, or as much of it as fits in ``max_seconds``; None means no limit.

    ``seconds_left``: what is left of the time for the rounds, if bytes are counted already. Raises InputError
    if even the least takes too long.
    """
    if max_seconds is None:
        return extent
    for candidate in _list_reduced(extent):
        if seconds_left is None:
            seconds, most = candidate.seconds(pilot), max_seconds
        else:
            seconds, most = sum(candidate.round_seconds(pilot)), seconds_left
        if seconds <= SHARE * most:
            return candidate
    alone = Phrase("sizes without times (", Argument("bytes_only", True), "), ") if extent.chunks else ""
    raise InputError(
        f"measuring this cell takes {format_wait(seconds)} even with the fewest runs, and may take "
        f"{describe_limit(max_seconds)}",
        field="max_seconds",
        value=max_seconds,
        accepted=Phrase(
            "a smaller batch or fewer neurons, ",
            alone,
            "or ",
            Argument("max_seconds", _round_up(seconds / SHARE + max_seconds - most)),
        ),
    )


def describe_limit(max_seconds: float) -> str:
    """Return what a calibration may take, as '120 s at most, of which estimates may take 80 %'."""
    return f"{max_seconds:g} s at most, of which estimates may take {100 * SHARE:g} %, as they may be off"


def _list_reduced(extent: Extent) -> Iterator[Extent]:
    """Yield an extent and ever smaller ones."""
    yield extent
    for change in _LADDER:
        smaller = {name: value for name, value in change.items() if _is_less(value, getattr(extent, name))}
        if smaller:
            extent = replace(extent, **smaller)
            yield extent


def _is_less(value: Any, present: Any) -> bool:
    """Return whether a change of the ladder leaves anything out."""
    if isinstance(value, SizeRuns):
        return bool(value.peaks < present.peaks)
    return bool(present) and (sum(value) < sum(present) if isinstance(value, tuple) else value < present)


def _round_up(seconds: float) -> int:
    """Return whole seconds, the next ten from 20 on."""
    unit = 10 if seconds > 20 else 1
    return unit * (int(seconds // unit) + 1)


def _join(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
