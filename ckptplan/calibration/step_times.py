"""Measures the seconds of a step (forward, recompute, record, backward) by a fit over chunk sizes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ckptplan.calibration.cells import MeasuredNetwork
from ckptplan.calibration.counter import RunCounter
from ckptplan.calibration.runs import measure_seconds, record_timeline
from ckptplan.calibration.samples import Line, Sample, relative_least_squares
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.actions import Advance, Backward, Record
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.timeline import Event
from ckptplan.torch.trees import flatten

#: Steps of the chunks that are timed, as in plans for a few MiB of memory. If steps take long, the overhead of
#: a chunk is small in comparison, and short chunks are enough.
_CHUNKS, _CHUNKS_OF_LONG_STEPS, _LONG_SECONDS = (16, 32, 64, 128), (4, 8, 16, 32), 4e-3
#: A chunk of a quarter of the shortest one's steps is timed for the overhead; step times are not fitted to it.
_SHORT = 4
FORWARD, RECOMPUTE, FIRST, AGAIN, BACKWARD = "forward", "recompute", "record first", "record again", "backward"
#: The cost of each kind of action per step, as coefficients of f, r and o.
_ROWS = {FORWARD: (1, 0, 0), RECOMPUTE: (0, 1, 0), FIRST: (1, 0, 1), AGAIN: (0, 1, 1)}


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Times as the fields of a workload, with their accuracy."""

    forward_seconds: float
    recompute_seconds: float
    record_overhead_seconds: float
    backward_seconds: float
    #: Field -> spread of its rounds, as a share.
    spread: dict[str, float]
    #: Field -> R^2 of the seconds of actions over their steps.
    fit: dict[str, float]
    #: Seconds of a chunk in addition to its steps, if it is advanced, recorded and reversed once each.
    chunk_overhead_seconds: float
    #: Seconds of a step in a very long chunk that is advanced, recorded and reversed.
    slope_seconds: float
    #: Steps of the chunks that were timed.
    chunks: tuple[int, ...]
    #: Measured over modelled seconds of such a step, less one: the root mean square over the chunks.
    misfit: float

    @property
    def uncertainty(self) -> float:
        """The uncertainty of the times of plans, as a share: misfit and spread combined."""
        return math.hypot(self.misfit, max(self.spread.values()))

    def shortest_chunk(self, *, tolerance: float) -> int:
        """Return the steps of the shortest chunk whose time exceeds the prediction by at most ``tolerance``."""
        model = (
            self.forward_seconds + self.recompute_seconds + self.record_overhead_seconds + self.backward_seconds
        )
        room = model * (1 + tolerance) - self.slope_seconds
        if room <= 0:
            return max(self.chunks)
        # Chunks shorter than those that were timed are not covered.
        return max(self.chunks[0] // _SHORT, math.ceil(self.chunk_overhead_seconds / room))


@dataclass
class TimedSteps:
    """Seconds per step, by kind of action and by size of the chunk, round by round."""

    rounds: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, events: Sequence[Event]) -> None:
        """Add the timeline of a run."""
        total: dict[tuple[str, int], float] = defaultdict(float)
        steps: dict[tuple[str, int], int] = defaultdict(int)
        for event in events:
            kind = _kind_of(event)
            if kind is not None:
                size = _count_steps(event)
                total[kind, size] += event.end - event.start
                steps[kind, size] += size
        for key, seconds in total.items():
            self.rounds[key].append(seconds / steps[key])

    def samples(self, kind: str) -> dict[int, Sample]:
        """Return a sample of the seconds per step for each size."""
        return {
            size: Sample(values=tuple(values))
            for (name, size), values in sorted(self.rounds.items())
            if name == kind
        }


def measure(network: MeasuredNetwork, *, repeats: int, counter: RunCounter) -> StepTimes:
    """Measure the times of steps; ``counter`` counts the runs.

    All schedules run in turn, in several rounds, so that a slower machine affects all of them equally.
    """
    chunks = _choose_chunks(network)
    schedules = _make_schedules(chunks)
    inputs = network.inputs(max(schedule.steps for schedule in schedules))
    timed = TimedSteps()
    for _ in range(repeats):
        for schedule in schedules:
            timed.add(record_timeline(network, take_first_steps(inputs, schedule.steps), plan=schedule))
            counter.count()
    return fit_step_times(timed, chunks=chunks)


def count_runs(repeats: int) -> int:
    """Return the number of runs that ``measure`` makes."""
    return repeats * len(_make_schedules(_CHUNKS))


def _choose_chunks(network: MeasuredNetwork) -> tuple[int, ...]:
    """Return the chunks to time, from the time of a few steps, which also warm up the machine."""
    inputs = network.inputs(8)
    seconds_ = min(measure_seconds(network, inputs, plan=make_schedule("base", steps=8)) for _ in range(2))
    return _CHUNKS if seconds_ / 8 < _LONG_SECONDS else _CHUNKS_OF_LONG_STEPS


def _make_schedules(chunks: tuple[int, ...]) -> list[Schedule]:
    """Return schedules that run every kind of action.

    For each size, there is a schedule of two segments of four chunks. A further one records all steps at once,
    as plain backpropagation does.
    """
    sizes = (chunks[0] // _SHORT, *chunks)
    nested = [
        make_schedule("nested", steps=8 * chunk, chunk_size=chunk, segment_size=4 * chunk) for chunk in sizes
    ]
    return [*nested, make_schedule("base", steps=3 * chunks[-1])]


def take_first_steps(inputs: Any, steps: int) -> Any:
    """Return the inputs of the first steps."""
    leaves, structure = flatten(inputs)
    return structure.fill([leaf[:steps] for leaf in leaves])


def fit_step_times(timed: TimedSteps, *, chunks: tuple[int, ...]) -> StepTimes:
    """Return the times of a step with the least relative errors."""
    every = {kind: timed.samples(kind) for kind in (*_ROWS, BACKWARD)}
    samples = {
        kind: {size: sample for size, sample in by_size.items() if size >= chunks[0]}
        for kind, by_size in every.items()
    }
    rows, values = [], []
    for kind, row in _ROWS.items():
        for sample in samples[kind].values():
            rows.append(row)
            values.append(sample.median)
    forward, recompute, overhead = relative_least_squares(rows, values)
    backward = relative_least_squares(
        [(1,)] * len(samples[BACKWARD]), [sample.median for sample in samples[BACKWARD].values()]
    )[0]
    lines = {kind: _fit_line(by_size) for kind, by_size in every.items()}
    model = forward + recompute + overhead + backward
    chunked = (FORWARD, AGAIN, BACKWARD)
    measured = [sum(samples[kind][chunk].median for kind in chunked) for chunk in chunks]
    return StepTimes(
        forward_seconds=forward,
        recompute_seconds=recompute,
        record_overhead_seconds=overhead,
        backward_seconds=backward,
        spread={name: _spread(samples[kind]) for name, kind in _FIELDS.items()},
        fit={name: lines[kind].fit for name, kind in _FIELDS.items()},
        chunk_overhead_seconds=max(0.0, sum(lines[kind].constant for kind in chunked)),
        slope_seconds=sum(lines[kind].slope for kind in chunked),
        chunks=chunks,
        misfit=math.sqrt(sum((seconds / model - 1) ** 2 for seconds in measured) / len(measured)),
    )


#: The field of a workload, or what is measured in its place -> the kind of action that determines it most.
_FIELDS = {
    "forward_seconds": FORWARD,
    "recompute_seconds": RECOMPUTE,
    # The overhead of recording is the difference between these steps and steps that run again.
    "recorded_seconds": AGAIN,
    "backward_seconds": BACKWARD,
}


def _fit_line(samples: dict[int, Sample]) -> Line:
    """Return the line through the seconds of whole actions."""
    return Line.through([(size, sample.median * size) for size, sample in samples.items()])


def _spread(samples: dict[int, Sample]) -> float:
    """Return the median of the spreads, which ignores a single disturbed size."""
    return Sample(values=tuple(sample.spread for sample in samples.values())).median


def _kind_of(event: Event) -> str | None:
    action = event.action
    if isinstance(action, Advance):
        return RECOMPUTE if event.recomputed_steps else FORWARD
    if isinstance(action, Record):
        return AGAIN if event.recomputed_steps else FIRST
    return BACKWARD if isinstance(action, Backward) else None


def _count_steps(event: Event) -> int:
    action = event.action
    assert isinstance(action, Advance | Record | Backward)  # noqa: S101 - what has a kind
    return action.stop - action.start
