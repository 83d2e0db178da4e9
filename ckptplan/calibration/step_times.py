"""Measures the seconds of steps and of actions: whole schedules run in turn, and a fit separates both."""

from __future__ import annotations

from typing import Any

from ckptplan.calibration.action_times import ActionTimes, TimedActions, fit_action_times
from ckptplan.calibration.cells import MeasuredNetwork
from ckptplan.calibration.counter import RunCounter
from ckptplan.calibration.runs import measure_seconds, record_timeline
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.trees import flatten

#: Steps of the chunks that are timed: from single steps to those of plans for some MiB of memory. If steps take
#: long, what a chunk takes in addition is small in comparison, and shorter chunks are enough.
_CHUNKS, _CHUNKS_OF_LONG_STEPS, _LONG_SECONDS = (1, 4, 16, 64, 192), (1, 2, 4, 8, 16), 4e-3
#: The least number of steps of a schedule: single steps are timed several times in each round.
_LEAST_STEPS = 32


def measure(network: MeasuredNetwork, *, repeats: int, counter: RunCounter) -> ActionTimes:
    """Measure the times of steps and actions; ``counter`` counts the runs.

    All schedules run in turn, in several rounds, so that a slower machine affects all of them equally.
    """
    chunks = _choose_chunks(network)
    schedules = make_schedules(chunks)
    inputs = network.inputs(max(schedule.steps for schedule in schedules))
    timed = TimedActions()
    for _ in range(repeats):
        events = []
        for schedule in schedules:
            events += record_timeline(network, take_first_steps(inputs, schedule.steps), plan=schedule)
            counter.count()
        timed.add(events)
    return fit_action_times(timed, chunks=chunks)


def count_runs(repeats: int) -> int:
    """Return the number of runs that ``measure`` makes."""
    return repeats * len(make_schedules(_CHUNKS))


def _choose_chunks(network: MeasuredNetwork) -> tuple[int, ...]:
    """Return the chunks to time, from the time of a few steps, which also warm up the machine."""
    inputs = network.inputs(8)
    seconds = min(measure_seconds(network, inputs, plan=make_schedule("base", steps=8)) for _ in range(2))
    return _CHUNKS if seconds / 8 < _LONG_SECONDS else _CHUNKS_OF_LONG_STEPS


def make_schedules(chunks: tuple[int, ...]) -> list[Schedule]:
    """Return schedules that run every kind of action with each size of a chunk.

    For each size, there is a schedule of two segments of four or more chunks. A further one records all steps
    at once, as plain backpropagation does.
    """
    nested = []
    for chunk in chunks:
        segment = chunk * max(4, _LEAST_STEPS // 2 // chunk)
        nested.append(make_schedule("nested", steps=2 * segment, chunk_size=chunk, segment_size=segment))
    return [*nested, make_schedule("base", steps=3 * chunks[-1])]


def take_first_steps(inputs: Any, steps: int) -> Any:
    """Return the inputs of the first steps."""
    leaves, structure = flatten(inputs)
    return structure.fill([leaf[:steps] for leaf in leaves])
