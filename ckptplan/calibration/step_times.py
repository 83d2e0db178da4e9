"""Seconds of a step: forward, recompute, record, backward; by a fit over several chunk sizes."""

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

#: Chunks that are timed, in steps: around what plans for a few MiB of memory come to. Where steps take long,
#: what a chunk adds is little beside them, and short chunks do.
_CHUNKS, _CHUNKS_OF_LONG_STEPS, _LONG_SECONDS = (16, 32, 64, 128), (4, 8, 16, 32), 4e-3
#: A shorter one, of a quarter of their steps, is timed for what it adds; step times are not fitted to it.
_SHORT = 4
FORWARD, RECOMPUTE, FIRST, AGAIN, BACKWARD = "forward", "recompute", "record first", "record again", "backward"
#: What a kind of action costs a step, in terms of f, r and o.
_ROWS = {FORWARD: (1, 0, 0), RECOMPUTE: (0, 1, 0), FIRST: (1, 0, 1), AGAIN: (0, 1, 1)}


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Times as the fields of a workload have them, and what they are worth."""

    forward_seconds: float
    recompute_seconds: float
    record_overhead_seconds: float
    backward_seconds: float
    #: Field -> how far its rounds spread, as a share.
    spread: dict[str, float]
    #: Field -> R^2 of the seconds of actions over their steps.
    fit: dict[str, float]
    #: What a chunk costs beside its steps: advanced, recorded and reversed once each.
    chunk_overhead_seconds: float
    #: Seconds of a step that is advanced, recorded and reversed, in a very long chunk.
    slope_seconds: float
    #: The chunks that were timed, in steps.
    chunks: tuple[int, ...]
    #: Measured over modelled seconds of such a step, less one: the root mean square over the chunks.
    misfit: float

    @property
    def uncertainty(self) -> float:
        """The share within which times of plans are known: misfit and spread together."""
        return math.hypot(self.misfit, max(self.spread.values()))

    def shortest_chunk(self, *, tolerance: float) -> int:
        """Return the steps of the shortest chunk that costs no more than predicted and the tolerance."""
        model = (
            self.forward_seconds + self.recompute_seconds + self.record_overhead_seconds + self.backward_seconds
        )
        room = model * (1 + tolerance) - self.slope_seconds
        if room <= 0:
            return max(self.chunks)
        # Nothing is claimed of chunks that are shorter than those that were timed.
        return max(self.chunks[0] // _SHORT, math.ceil(self.chunk_overhead_seconds / room))


@dataclass
class TimedSteps:
    """Seconds a step: of each kind, at each size, round by round."""

    rounds: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, events: Sequence[Event]) -> None:
        """Take a run."""
        total: dict[tuple[str, int], float] = defaultdict(float)
        steps: dict[tuple[str, int], int] = defaultdict(int)
        for event in events:
            kind = _kind_of(event)
            if kind is not None:
                size = _count_steps(event)
                total[kind, size] += event.end - event.start
                steps[kind, size] += size
        for key, one in total.items():
            self.rounds[key].append(one / steps[key])

    def samples(self, kind: str) -> dict[int, Sample]:
        """Return a sample of seconds a step for each size."""
        return {
            size: Sample(values=tuple(values))
            for (name, size), values in sorted(self.rounds.items())
            if name == kind
        }


def measure(network: MeasuredNetwork, *, repeats: int, counter: RunCounter) -> StepTimes:
    """Time steps; ``counter`` counts the runs that this takes.

    All schedules run in turn, several rounds of them, so that a machine that slows down slows all of them.
    """
    chunks = _choose_chunks(network)
    schedules = _make_schedules(chunks)
    inputs = network.inputs(max(one.steps for one in schedules))
    timed = TimedSteps()
    for _ in range(repeats):
        for one in schedules:
            timed.add(record_timeline(network, take_first_steps(inputs, one.steps), plan=one))
            counter.count()
    return fit_step_times(timed, chunks=chunks)


def count_runs(repeats: int) -> int:
    """Return the runs that ``measure`` makes."""
    return repeats * len(_make_schedules(_CHUNKS))


def _choose_chunks(network: MeasuredNetwork) -> tuple[int, ...]:
    """Return the chunks to be timed, from a look at a few steps, which also warms the machine up."""
    inputs = network.inputs(8)
    seconds_ = min(measure_seconds(network, inputs, plan=make_schedule("base", steps=8)) for _ in range(2))
    return _CHUNKS if seconds_ / 8 < _LONG_SECONDS else _CHUNKS_OF_LONG_STEPS


def _make_schedules(chunks: tuple[int, ...]) -> list[Schedule]:
    """Return schedules that run every kind of action.

    Two segments of four chunks, one size after the other, and all steps recorded at once, as plain
    backpropagation does.
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
    """Return the times of a step that come closest to what was timed, by their shares."""
    every = {kind: timed.samples(kind) for kind in (*_ROWS, BACKWARD)}
    samples = {
        kind: {size: one for size, one in found.items() if size >= chunks[0]} for kind, found in every.items()
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
    lines = {kind: _fit_line(found) for kind, found in every.items()}
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
        misfit=math.sqrt(sum((one / model - 1) ** 2 for one in measured) / len(measured)),
    )


#: The field of a workload, or what is measured in its place -> the kind of action that tells most of it.
_FIELDS = {
    "forward_seconds": FORWARD,
    "recompute_seconds": RECOMPUTE,
    # What recording adds is the difference of these and of steps that are run again.
    "recorded_seconds": AGAIN,
    "backward_seconds": BACKWARD,
}


def _fit_line(samples: dict[int, Sample]) -> Line:
    """Return the line through the seconds of whole actions."""
    return Line.through([(size, sample.median * size) for size, sample in samples.items()])


def _spread(samples: dict[int, Sample]) -> float:
    """Return the middle of the spreads: one size that was disturbed is outvoted."""
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
