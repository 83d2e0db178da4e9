"""Separates measured seconds into those of steps and of actions: one fit of rows of counts and seconds.

What runs takes the sum of its parts, each a number of times (docs/equations.md). The parts are

    forward, recompute    a step that runs for the first time, or again
    overhead, backward    what recording adds to a step; a step that is reversed
    advance, save, load   an action, besides its steps
    record, reverse       a chunk, besides its steps, when it is recorded and when it is reversed
    message, write, read  a message to or from remote memory, and each state in it
    call, pages           a compiled program, and each page of memory that is new to it

A row is an action, or a whole program where actions cannot be timed. The seconds of the parts have the least
squares of relative errors over all rows, so that short chunks count as much as long ones.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ckptplan.execution.execute import Frontier
from ckptplan.schedule.actions import Action, Advance, Backward, Load, Record, Save, Tier, Transfer
from ckptplan.schedule.timeline import READ, WRITE, Event, kind_of


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Several measurements of the same quantity."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Half the range between the quartiles, as a share of the median."""
        low, high = np.percentile(self.values, (25, 75))
        return float(high - low) / 2 / self.median if self.median else 0.0


def relative_least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Return the x >= 0 that minimises the sum of squares of relative errors of rows @ x from the values."""
    from scipy.optimize import nnls

    scale = np.array(values, dtype=float)
    solution, _ = nnls(np.array(rows, dtype=float) / scale[:, None], np.ones_like(scale))
    return [float(x) for x in solution]


def measure_straightness(points: Sequence[tuple[float, float]]) -> float:
    """Return R^2, the share of the variation of points (size, value) that a line through them explains.

    The line has the least squares of relative errors.
    """
    sizes, values = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    columns = np.stack((sizes, np.ones_like(sizes)), axis=1)
    line = np.linalg.lstsq(columns / values[:, None], np.ones_like(values), rcond=None)[0]
    variation = float(((values - values.mean()) ** 2).sum())
    return 1.0 if variation == 0 else 1 - float(((values - columns @ line) ** 2).sum()) / variation


#: How many of each part.
Counts = Mapping[str, float]


def count_action(action: Action, again: int) -> dict[str, int]:
    """Return the parts of an action, of whose steps ``again`` ran before; none for what takes no time."""
    match action:
        case Advance(start, stop):
            found = {"forward": stop - start - again, "recompute": again, "advance": 1}
        case Record(start, stop):
            new = stop - start - again
            found = {"forward": new, "recompute": again, "overhead": stop - start, "record": 1}
        case Backward(start, stop):
            found = {"backward": stop - start, "reverse": 1}
        case Save(_, Tier.LOCAL):
            found = {"save": 1}
        case Load(_, Tier.LOCAL):
            found = {"load": 1}
        case Save():
            found = {"message": 1, WRITE: 1}
        case Load():
            found = {"message": 1, READ: 1}
        case Transfer(states, _, target):
            found = {"message": 1, WRITE if target is Tier.REMOTE else READ: len(states)}
        case _:
            found = {}
    return {name: count for name, count in found.items() if count}


def count_actions(actions: Iterable[Action], *, sweep: bool = False) -> Counter[str]:
    """Return the parts of a schedule; with ``sweep``, of what is before its first Backward."""
    found: Counter[str] = Counter()
    frontier = Frontier()
    for action in actions:
        if sweep and isinstance(action, Backward):
            break
        found.update(count_action(action, frontier.pass_over(action)))
    return found


@dataclass(frozen=True, kw_only=True)
class TimedRow:
    """What something consists of, and the seconds that it took."""

    counts: Counts
    seconds: float

    @property
    def moves(self) -> bool:
        """Whether states leave or enter local memory."""
        return _is_message(self.counts)


#: The rows of a round, in which everything ran once; each round has the same names of rows.
Round = Mapping[Hashable, TimedRow]


def read_events(*timelines: Iterable[Event]) -> Round:
    """Return the rows of a round whose actions were timed one by one: one for each kind and size.

    Their seconds are means; those of messages are medians, as the first message of a run takes longer, and each
    timeline counts as much as another.
    """
    found: dict[Hashable, list[TimedRow]] = defaultdict(list)
    for events in timelines:
        rows: dict[Hashable, list[TimedRow]] = defaultdict(list)
        for event in events:
            counts = count_action(event.action, event.recomputed_steps)
            if counts:
                rows[_name(counts)].append(TimedRow(counts=counts, seconds=event.end - event.start))
        for name, some in rows.items():
            found[name].append(_take_middle(some))
    return {name: _take_middle(some) for name, some in found.items()}


def _take_middle(rows: Sequence[TimedRow]) -> TimedRow:
    middle = statistics.median if rows[0].moves else statistics.fmean
    return TimedRow(counts=rows[0].counts, seconds=middle(row.seconds for row in rows))


def seconds_by_kind(events: Iterable[Event]) -> dict[str, float]:
    """Return the seconds of each kind of action: forward, recompute, record, backward, write, read, ..."""
    seconds: dict[str, float] = defaultdict(float)
    for event in events:
        seconds[kind_of(event)] += event.end - event.start
    return dict(seconds)


def _is_message(counts: Counts) -> bool:
    return WRITE in counts or READ in counts


@dataclass(frozen=True, kw_only=True)
class ActionTimes:
    """Times as the fields of a workload, with their accuracy."""

    forward_seconds: float
    recompute_seconds: float
    record_overhead_seconds: float
    backward_seconds: float
    advance_seconds: float
    chunk_seconds: float
    save_seconds: float
    load_seconds: float
    #: Field -> spread of its rounds, as a share.
    spread: Mapping[str, float]
    #: Field of a step's time -> R^2 of the seconds of actions over their steps.
    fit: Mapping[str, float]
    #: Steps of the chunks that were timed.
    chunks: tuple[int, ...]
    #: Measured over modelled seconds of a whole chunk or program, less one: the root mean square.
    misfit: float

    @property
    def uncertainty(self) -> float:
        """The uncertainty of the times of plans, as a share: misfit and spread combined."""
        return math.hypot(self.misfit, self.widest[1])

    @property
    def widest(self) -> tuple[str, float]:
        """The time of a step whose rounds spread most, and their spread; actions are small in comparison."""
        return max(((name, self.spread[name]) for name in _STEPS), key=lambda one: one[1])


@dataclass(frozen=True, kw_only=True)
class TransferTimes:
    """The seconds of a message, and of each state in it, in both directions."""

    message_seconds: float
    write_seconds: float
    read_seconds: float
    #: Whether the time of a message was told from that of its states.
    tells_messages: bool
    #: 'write' or 'read' -> spread of the rounds, as a share.
    spread: dict[str, float]
    #: The root mean square of measured over modelled seconds of a message, less one.
    misfit: float

    @property
    def uncertainty(self) -> float:
        """The uncertainty of the times of messages, as a share: misfit and spread combined."""
        return math.hypot(self.misfit, max(self.spread.values()))

    def rate(self, way: str, *, state_bytes: int) -> float:
        """Return the bytes per second of a 'write' or 'read' of states of this size.

        If the time of a state is too short to distinguish from the message's, a hundredth of that is assumed.
        """
        seconds = self.write_seconds if way == WRITE else self.read_seconds
        return state_bytes / max(seconds, 0.01 * self.message_seconds, 1e-9)


#: A time of a step -> the parts that it is the sum of, and those of the actions that show how straight it is.
#: What recording adds is the difference between steps that are recorded, and that run again.
_STEPS = {
    "forward_seconds": (("forward",), ("forward", "advance")),
    "recompute_seconds": (("recompute",), ("recompute", "advance")),
    "recorded_seconds": (("recompute", "overhead"), ("recompute", "overhead", "record")),
    "backward_seconds": (("backward",), ("backward", "reverse")),
}
#: A time of a workload -> the parts that it is the sum of.
_FIELDS = {
    **{field: parts for field, (parts, _) in _STEPS.items()},
    "advance_seconds": ("advance",),
    "chunk_seconds": ("record", "reverse"),
    "save_seconds": ("save",),
    "load_seconds": ("load",),
}


class Fit:
    """The seconds of parts that fit rows best."""

    def __init__(self, rounds: Sequence[Round]) -> None:
        self._rounds = rounds
        self._samples = {name: Sample(values=tuple(one[name].seconds for one in rounds)) for name in rounds[0]}
        # The pages of a program vary from round to round.
        self._counts = {
            name: {
                part: statistics.median(one[name].counts.get(part, 0) for one in rounds)
                for part in rounds[0][name].counts
            }
            for name in rounds[0]
        }

    def steps(self, *, chunks: tuple[int, ...], shown_by: Mapping[str, Hashable] | None = None) -> ActionTimes:
        """Return the times of steps and actions.

        ``chunks`` are the sizes of the chunks that ran. ``shown_by`` names, for rows of whole programs, the one
        whose rounds show the spread of a field best: parts are then known through differences, whose spread
        says little.
        """
        found = {field: self._sum(self._parts, parts) for field, parts in _FIELDS.items()}
        del found["recorded_seconds"]
        if shown_by is None:
            # A disturbed action of few steps says little about its times, so that each round is fitted alone.
            spread = {
                field: Sample(values=tuple(self._sum(one, parts) for one in self._each)).spread
                for field, parts in _FIELDS.items()
            }
            straight = {field: self._straightness(parts) for field, (_, parts) in _STEPS.items()}
            together = [[_name(counts) for counts in _parts_of_chunk(chunk)] for chunk in chunks]
        else:
            spread = {field: self._samples[name].spread for field, name in shown_by.items()}
            straight = {}
            together = [[name] for name, counts in self._counts.items() if not _is_message(counts)]
        return ActionTimes(
            **found,
            record_overhead_seconds=self._sum(self._parts, ("overhead",)),
            spread=spread,
            fit=straight,
            chunks=chunks,
            misfit=self._misfit(together),
        )

    def transfers(self) -> TransferTimes:
        """Return the times of messages and states."""
        rows = {name: counts for name, counts in self._counts.items() if _is_message(counts)}
        return TransferTimes(
            **{f"{part}_seconds": self._parts.get(part, 0.0) for part in ("message", WRITE, READ)},
            tells_messages=any("message" in counts for counts in rows.values()),
            spread={
                way: statistics.median(self._samples[name].spread for name in rows if way in rows[name])
                for way in (WRITE, READ)
            },
            misfit=self._misfit([name] for name in rows),
        )

    @cached_property
    def _parts(self) -> dict[str, float]:
        return self._solve({name: sample.median for name, sample in self._samples.items()})

    @cached_property
    def _each(self) -> list[dict[str, float]]:
        """The parts by each round alone."""
        return [self._solve({name: row.seconds for name, row in one.items()}) for one in self._rounds]

    def _solve(self, seconds: Mapping[Hashable, float]) -> dict[str, float]:
        # What takes no time at all has no relative error.
        counted = {name: counts for name, counts in self._counts.items() if seconds[name]}
        parts = list(dict.fromkeys(part for counts in counted.values() for part in counts))
        rows = [[counts.get(part, 0) for part in parts] for counts in counted.values()]
        found = relative_least_squares(rows, [seconds[name] for name in counted])
        return dict(zip(parts, found, strict=True))

    @staticmethod
    def _sum(parts: Mapping[str, float], names: Iterable[str]) -> float:
        return sum(parts.get(name, 0.0) for name in names)

    def _straightness(self, parts: tuple[str, ...]) -> float:
        """Return R^2 of the seconds of the actions of these parts over their steps."""
        return measure_straightness(
            [
                (counts[parts[0]], self._samples[name].median)
                for name, counts in self._counts.items()
                if tuple(counts) == parts
            ]
        )

    def _misfit(self, groups: Iterable[Sequence[Hashable]]) -> float:
        """Return the root mean square of measured over modelled seconds, less one, of rows added in groups."""
        shares = [
            sum(self._samples[name].median for name in names) / sum(map(self._model, names)) - 1
            for names in groups
        ]
        return math.sqrt(statistics.fmean(share**2 for share in shares))

    def _model(self, name: Hashable) -> float:
        return sum(count * self._parts[part] for part, count in self._counts[name].items())


def _name(counts: Mapping[str, int]) -> Hashable:
    """Return the name that ``read_events`` gives to a row."""
    return tuple(counts.items())


def _parts_of_chunk(chunk: int) -> list[dict[str, int]]:
    """Return the parts of the actions of a chunk that is advanced, recorded and reversed."""
    return [
        count_action(Advance(0, chunk), 0),
        count_action(Record(0, chunk), chunk),
        count_action(Backward(0, chunk), 0),
    ]
