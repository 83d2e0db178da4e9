"""Seconds of messages to remote memory and back, by a fit over several numbers of states a message."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise

from ckptplan.calibration.cells import MeasuredNetwork
from ckptplan.calibration.counter import RunCounter
from ckptplan.calibration.runs import record_timeline
from ckptplan.calibration.samples import Sample, relative_least_squares
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer
from ckptplan.schedule.schedule import Schedule
from ckptplan.schedule.timeline import READ, WRITE, Event

#: States of the messages that are timed; a saved or loaded state is one of one.
_GROUPS = (8, 4, 2, 1)
#: Steps between two states, so that caches hold what they hold in a plan.
_CHUNK = 8


@dataclass(frozen=True, kw_only=True)
class TransferTimes:
    """What a message costs, and each state in it, either way."""

    message_seconds: float
    write_seconds: float
    read_seconds: float
    #: 'write' or 'read' -> how far the rounds spread, as a share.
    spread: dict[str, float]
    #: The root mean square of measured over modelled seconds of a message, less one.
    misfit: float

    def rate(self, way: str, *, state_bytes: int) -> float:
        """Return bytes a second, 'write' or 'read', as they come to for states of this size.

        What takes no time that could be told from the message's takes a hundredth of it.
        """
        seconds = self.write_seconds if way == WRITE else self.read_seconds
        return state_bytes / max(seconds, 0.01 * self.message_seconds, 1e-9)


@dataclass
class TimedMessages:
    """Seconds of messages: each way, by the number of states, round by round."""

    rounds: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, events: Sequence[Event]) -> None:
        """Take a run."""
        found: dict[tuple[str, int], list[float]] = defaultdict(list)
        for event in events:
            if event.track in (WRITE, READ):
                states = len(event.action.states) if isinstance(event.action, Transfer) else 1
                found[event.track, states].append(event.end - event.start)
        for key, values in found.items():
            self.rounds[key].append(Sample(values=tuple(values)).median)


def measure(network: MeasuredNetwork, *, repeats: int, counter: RunCounter) -> TransferTimes:
    """Time messages; ``counter`` counts the rounds that this takes."""
    steps = _CHUNK * (sum(_GROUPS) + 1)
    inputs, timed = network.inputs(steps), TimedMessages()
    remote = make_schedule("remote", steps=steps, chunk_size=_CHUNK)
    # Either way round: the first message of a run pays for what later ones find in place.
    messages = [
        Schedule(steps=steps, actions=partial(make_grouped_actions, groups, chunk=_CHUNK), chunk_size=_CHUNK)
        for groups in (_GROUPS, _GROUPS[::-1])
    ]
    record_timeline(network, inputs, plan=remote)
    for _ in range(repeats):
        for one in (remote, *messages):
            timed.add(record_timeline(network, inputs, plan=one))
        counter.count()
    return fit_transfer_times(timed)


def make_grouped_actions(groups: Sequence[int], *, chunk: int) -> Iterator[Action]:
    """Return a legal schedule that moves its checkpoints out, and back, in messages of so many states."""
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
    """Return the times of a message and of a state that come closest to what was timed, by their shares."""
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
