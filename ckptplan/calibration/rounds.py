"""Times steps and messages in rounds, which can end after any of them.

The timed schedules hold every kind of action, in chunks of several sizes.
"""

from __future__ import annotations

from itertools import chain
from time import perf_counter
from typing import Any

from ckptplan.calibration.action_times import ActionTimes, TimedActions, fit_action_times
from ckptplan.calibration.cells import MeasuredNetwork
from ckptplan.calibration.counter import RunCounter
from ckptplan.calibration.runs import record_timeline
from ckptplan.calibration.transfer_times import (
    TimedMessages,
    TransferTimes,
    fit_transfer_times,
    make_message_schedules,
)
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.timeline import Event
from ckptplan.torch.trees import flatten

#: The least number of steps of a schedule: single steps are timed several times in each round.
_LEAST_STEPS = 32


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


#: Quartiles need at least this many rounds.
LEAST_ROUNDS = 3


def list_schedules(chunks: tuple[int, ...], steps_between: int) -> list[Schedule]:
    """Return the schedules of a round: those that time steps, then those that time messages."""
    return [*make_schedules(chunks), *make_message_schedules(steps_between)]


def warm_up_schedule(steps_between: int) -> Schedule:
    """Return the schedule that runs before the first round."""
    return make_message_schedules(steps_between)[0]


class TimedRounds:
    """Runs all schedules in turn, in several rounds, so that a slower machine affects all of them equally.

    Only complete rounds count.
    """

    def __init__(self, network: MeasuredNetwork, *, chunks: tuple[int, ...], steps_between: int) -> None:
        self.network, self.chunks, self.steps_between = network, chunks, steps_between
        self.complete = 0
        self.longest_seconds = 0.0
        self._schedules = list_schedules(chunks, steps_between)
        self._messages = len(make_message_schedules(steps_between))
        self._inputs = network.inputs(max(schedule.steps for schedule in self._schedules))
        self._steps, self._transfers = TimedActions(), TimedMessages()

    def warm_up(self, counter: RunCounter) -> None:
        """Run once what moves states, which is not timed."""
        self._run(warm_up_schedule(self.steps_between))
        counter.count()

    def run(self, counter: RunCounter) -> None:
        """Run a round."""
        began = perf_counter()
        timelines = []
        for schedule in self._schedules:
            timelines.append(self._run(schedule))
            counter.count()
        # Nothing of a round is kept before all of it is there.
        self._steps.add(chain(*timelines[: -self._messages]))
        for timeline in timelines[-self._messages :]:
            self._transfers.add(timeline)
        self.longest_seconds = max(self.longest_seconds, perf_counter() - began)
        self.complete += 1

    def fit_steps(self) -> ActionTimes:
        """Return the times of steps and actions by the rounds so far."""
        return fit_action_times(self._steps, chunks=self.chunks)

    def fit_transfers(self) -> TransferTimes:
        """Return the times of messages by the rounds so far."""
        return fit_transfer_times(self._transfers)

    def _run(self, schedule: Schedule) -> list[Event]:
        return record_timeline(self.network, _take_first_steps(self._inputs, schedule.steps), plan=schedule)


def _take_first_steps(inputs: Any, steps: int) -> Any:
    """Return the inputs of the first steps."""
    leaves, structure = flatten(inputs)
    return structure.fill([leaf[:steps] for leaf in leaves])
