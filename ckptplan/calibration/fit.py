"""Separates measured seconds into those of steps and of actions: one fit of rows of counts and seconds.

What runs takes the sum of its parts, each a number of times (docs/equations.md). The parts are

    forward, recompute    a step that runs for the first time, or again
    overhead, backward    what recording adds to a step; a step that is reversed
    advance, save, load   an action, besides its steps
    record, reverse       a chunk, besides its steps, when it is recorded and when it is reversed
    message, batch        a save to or a load from remote memory, and a transfer, without the states that move
    write, read           each state that moves
    call                  a compiled program

A row is an action, or a whole program where actions cannot be timed. The seconds of the parts have the least
squares of relative errors over all rows, so that short chunks count as much as long ones.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ckptplan.calibration.estimate import Estimate, estimate_rounds
from ckptplan.schedule.actions import Action, Advance, Backward, Load, Record, Save, Tier, Transfer
from ckptplan.schedule.timeline import READ, WRITE, Event, Frontier, kind_of


def relative_least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Return the x >= 0 that minimises the sum of squares of relative errors of rows @ x from the values."""
    from scipy.optimize import nnls

    scale = np.array(values, dtype=float)
    solution, _ = nnls(np.array(rows, dtype=float) / scale[:, None], np.ones_like(scale))
    return [float(x) for x in solution]


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
            # Without what a Save or a Load takes besides, so that it is less than a message.
            found = {"batch": 1, WRITE if target is Tier.REMOTE else READ: len(states)}
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
        return WRITE in self.counts or READ in self.counts


#: The rows of a round, in which everything ran once; each round has the same names of rows.
Round = Mapping[Hashable, TimedRow]


def read_events(*timelines: Iterable[Event]) -> Round:
    """Return the rows of a round whose actions were timed one by one: one for each kind and size.

    Their seconds are means; those of messages are medians, as the first message of a run takes longer, and each
    timeline counts as much as another. One with messages tells of these alone: steps are timed without them.
    """
    found: dict[Hashable, list[TimedRow]] = defaultdict(list)
    for events in timelines:
        rows: dict[Hashable, list[TimedRow]] = defaultdict(list)
        for event in events:
            counts = count_action(event.action, event.recomputed_steps)
            if counts:
                rows[tuple(counts.items())].append(TimedRow(counts=counts, seconds=event.end - event.start))
        moving = {name: some for name, some in rows.items() if some[0].moves}
        for name, some in (moving or rows).items():
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


#: The seconds of fields of a workload and of messages (message_seconds, write_seconds, read_seconds).
Times = Mapping[str, Estimate]

#: An action of which a part takes this share shows how well the part is known.
_MOSTLY = 0.7
#: A time of a step, of an action, of a message, or of a state in it -> the parts that it is the sum of.
_FIELDS = {
    "forward_seconds": ("forward",),
    "recompute_seconds": ("recompute",),
    "record_overhead_seconds": ("overhead",),
    "backward_seconds": ("backward",),
    "advance_seconds": ("advance",),
    "chunk_seconds": ("record", "reverse"),
    "save_seconds": ("save",),
    "load_seconds": ("load",),
    "message_seconds": ("message",),
    "write_seconds": (WRITE,),
    "read_seconds": (READ,),
}
#: The times of a step that take most of a run. What recording adds is only known as a difference.
STEPS = ("forward_seconds", "recompute_seconds", "backward_seconds")


class Fit:
    """The seconds of parts that fit the rows of several rounds best."""

    def __init__(self, rounds: Sequence[Round]) -> None:
        names = list(rounds[0])
        estimates = estimate_rounds([[one[name].seconds for name in names] for one in rounds])
        self._rows = dict(zip(names, estimates, strict=True))
        self._counts = {name: row.counts for name, row in rounds[0].items()}
        self._parts = self._solve({name: row.value for name, row in self._rows.items()})

    @property
    def times(self) -> Times:
        """Each time, with the interval that the actions of all sizes showed which consist mostly of it.

        If none does, it is known through differences alone: what the nearest of them are off may be all its.
        """
        return {field: self._estimate(parts) for field, parts in _FIELDS.items()}

    @property
    def widest(self) -> tuple[str, float]:
        """The time of a step whose actions spread most over the rounds, and their spread in the middle."""
        spreads = {
            field: statistics.median(
                row.spread for name, row in self._rows.items() if _FIELDS[field][0] in self._counts[name]
            )
            for field in STEPS
        }
        return max(spreads.items(), key=lambda one: one[1])

    def _solve(self, seconds: Mapping[Hashable, float]) -> dict[str, float]:
        # What takes no time at all has no relative error.
        counted = {name: counts for name, counts in self._counts.items() if seconds[name]}
        parts = list(dict.fromkeys(part for counts in counted.values() for part in counts))
        rows = [[counts.get(part, 0) for part in parts] for counts in counted.values()]
        found = relative_least_squares(rows, [seconds[name] for name in counted])
        return dict(zip(parts, found, strict=True))

    def _estimate(self, parts: tuple[str, ...]) -> Estimate:
        found = Estimate.exactly(_sum(self._parts, parts))
        shown = []
        for name, row in self._rows.items():
            seconds = {part: count * self._parts.get(part, 0.0) for part, count in self._counts[name].items()}
            model = sum(seconds.values())
            if own := _sum(seconds, parts):
                shown.append((own / model, (row.low - model) / own, (row.high - model) / own))
        enough = min(_MOSTLY, max((share for share, *_ in shown), default=0.0))
        for share, low, high in shown:
            if share >= enough:
                found = found.widened(max(0.0, 1 + low), 1 + high)
        return found


def _sum(parts: Mapping[str, float], names: Iterable[str]) -> float:
    return sum(parts.get(name, 0.0) for name in names)


def state_rate(times: Times, way: str, *, state_bytes: int) -> Estimate:
    """Return the bytes per second of a 'write' or 'read' of states of this size.

    If the time of a state is too short to distinguish from the message's, a hundredth of that is assumed.
    """
    seconds = times[f"{way}_seconds"]
    least = max(0.01 * times["message_seconds"].value, 1e-9)
    return Estimate(
        low=state_bytes / max(seconds.high, least),
        value=state_bytes / max(seconds.value, least),
        high=state_bytes / max(seconds.low, least),
    )
