"""Measures the seconds of messages to remote memory and back, by a fit over the states per message."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from ckptplan.calibration.counter import RunCounter
from ckptplan.calibration.samples import Sample, relative_least_squares
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.timeline import READ, WRITE, Event

if TYPE_CHECKING:
    from ckptplan.calibration.cells import MeasuredNetwork

#: States of the messages that are timed; a saved or loaded state is a message of one state.
_GROUPS = (8, 4, 2, 1)
#: Steps between two states, so that caches are in the same condition as in a plan.
CHUNK = 8


@dataclass(frozen=True, kw_only=True)
class TransferTimes:
    """The seconds of a message, and of each state in it, in both directions."""

    message_seconds: float
    write_seconds: float
    read_seconds: float
    #: 'write' or 'read' -> spread of the rounds, as a share.
    spread: dict[str, float]
    #: The root mean square of measured over modelled seconds of a message, less one.
    misfit: float

    def rate(self, way: str, *, state_bytes: int) -> float:
        """Return the bytes per second of a 'write' or 'read' of states of this size.

        If the time of a state is too short to distinguish from the message's, a hundredth of that is assumed.
        """
        seconds = self.write_seconds if way == WRITE else self.read_seconds
        return state_bytes / max(seconds, 0.01 * self.message_seconds, 1e-9)


@dataclass
class TimedMessages:
    """Seconds of messages, by direction and by number of states, round by round."""

    rounds: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, events: Sequence[Event]) -> None:
        """Add the timeline of a run."""
        seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
        for event in events:
            if event.track in (WRITE, READ):
                states = len(event.action.states) if isinstance(event.action, Transfer) else 1
                seconds[event.track, states].append(event.end - event.start)
        for key, values in seconds.items():
            self.rounds[key].append(Sample(values=tuple(values)).median)


def measure(network: MeasuredNetwork, *, repeats: int, counter: RunCounter) -> TransferTimes:
    """Measure the times of messages; ``counter`` counts the rounds."""
    from ckptplan.calibration.runs import record_timeline

    schedules, timed = make_message_schedules(CHUNK), TimedMessages()
    inputs = network.inputs(schedules[0].steps)
    record_timeline(network, inputs, plan=schedules[0])
    for _ in range(repeats):
        for one in schedules:
            timed.add(record_timeline(network, inputs, plan=one))
        counter.count()
    return fit_transfer_times(timed)


def make_message_schedules(chunk: int) -> list[Schedule]:
    """Return schedules with messages of every size, ``chunk`` steps between two states."""
    steps = chunk * (sum(_GROUPS) + 1)
    # In both orders, since the first message of a run takes longer.
    messages = [
        Schedule(steps=steps, actions=partial(make_grouped_actions, groups, chunk=chunk), chunk_size=chunk)
        for groups in (_GROUPS, _GROUPS[::-1])
    ]
    return [make_schedule("remote", steps=steps, chunk_size=chunk), *messages]


def make_grouped_actions(groups: Sequence[int], *, chunk: int) -> Iterator[Action]:
    """Yield a legal schedule that moves its checkpoints out and back in messages of ``groups`` states."""
    states = [chunk * number for number in range(sum(groups))]
    messages = [tuple(states[low:high]) for low, high in pairwise(accumulate(groups, initial=0))]
    for state in states:
        yield Save(state, Tier.LOCAL)
        yield Advance(state, state + chunk)
    for message in messages:
        yield Transfer(message, Tier.LOCAL, Tier.REMOTE)
    last = states[-1] + chunk
    yield Record(last, last + chunk)
    yield Backward(last, last + chunk)
    for message in reversed(messages):
        yield Transfer(message, Tier.REMOTE, Tier.LOCAL)
        for state in reversed(message):
            yield Load(state, Tier.LOCAL)
            yield Free(state, Tier.LOCAL)
            yield Record(state, state + chunk)
            yield Backward(state, state + chunk)


def fit_transfer_times(timed: TimedMessages) -> TransferTimes:
    """Return the times of a message and of a state with the least relative errors."""
    samples = {key: Sample(values=tuple(values)) for key, values in timed.rounds.items()}
    rows = [(1, states * (way == WRITE), states * (way == READ)) for way, states in samples]
    message, write, read = relative_least_squares(rows, [one.median for one in samples.values()])
    spread = {
        way: Sample(values=tuple(one.spread for (name, _), one in samples.items() if name == way)).median
        for way in (WRITE, READ)
    }
    model = [message * one + write * out + read * back for one, out, back in rows]
    shares = [sample.median / one - 1 for sample, one in zip(samples.values(), model, strict=True)]
    return TransferTimes(
        message_seconds=message,
        write_seconds=write,
        read_seconds=read,
        spread=spread,
        misfit=math.sqrt(sum(share**2 for share in shares) / len(shares)),
    )
