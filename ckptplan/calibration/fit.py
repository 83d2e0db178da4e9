"""Separates measured seconds into those of steps, actions and messages: one fit of rows of counts and seconds.

What runs takes the sum of its parts, each a number of times (docs/equations.md). The parts are

    forward, recompute    a step that runs for the first time, or again
    overhead, backward    what recording adds to a step; a step that is reversed
    action                the fixed seconds of an action, whatever its number of steps
    save, load            a local save or load, which has no steps
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
from ckptplan.schedule.timeline import READ, WRITE, Event, Frontier

#: How often the cost of an action counts in a recording, and in its backward pass, which build and walk a
#: graph. An advance takes it once.
_RECORD, _REVERSE = 1.5, 2.5
#: How many of each part.
Counts = Mapping[str, float]


def count_action(action: Action, again: int) -> dict[str, float]:
    """Return the parts of an action, of whose steps ``again`` ran before; none if it takes no time."""
    match action:
        case Advance(start, stop):
            parts: dict[str, float] = {"forward": stop - start - again, "recompute": again, "action": 1}
        case Record(start, stop):
            steps = stop - start
            parts = {"forward": steps - again, "recompute": again, "overhead": steps, "action": _RECORD}
        case Backward(start, stop):
            parts = {"backward": stop - start, "action": _REVERSE}
        case Save(_, Tier.LOCAL):
            parts = {"save": 1}
        case Load(_, Tier.LOCAL):
            parts = {"load": 1}
        case Save():
            parts = {"message": 1, WRITE: 1}
        case Load():
            parts = {"message": 1, READ: 1}
        case Transfer(states, _, target):
            # Without what a Save or a Load takes besides, so that it is less than a message.
            parts = {"batch": 1, WRITE if target is Tier.REMOTE else READ: len(states)}
        case _:
            parts = {}
    return {name: count for name, count in parts.items() if count}


def count_actions(actions: Iterable[Action], *, sweep: bool = False) -> Counter[str]:
    """Return the parts of a schedule; with ``sweep``, of the actions before its first Backward."""
    parts: Counter[str] = Counter()
    frontier = Frontier()
    for action in actions:
        if sweep and isinstance(action, Backward):
            break
        parts.update(count_action(action, frontier.pass_over(action)))
    return parts


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
    timeline counts as much as another. A timeline with messages gives the rows of messages alone: steps are
    timed without them.
    """
    by_name: dict[Hashable, list[TimedRow]] = defaultdict(list)
    for events in timelines:
        rows: dict[Hashable, list[TimedRow]] = defaultdict(list)
        for event in events:
            counts = count_action(event.action, event.recomputed_steps)
            if counts:
                rows[tuple(counts.items())].append(TimedRow(counts=counts, seconds=event.end - event.start))
        moving = {name: timed for name, timed in rows.items() if timed[0].moves}
        for name, timed in (moving or rows).items():
            by_name[name].append(_take_middle(timed))
    return {name: _take_middle(timed) for name, timed in by_name.items()}


def _take_middle(rows: Sequence[TimedRow]) -> TimedRow:
    middle = statistics.median if rows[0].moves else statistics.fmean
    return TimedRow(counts=rows[0].counts, seconds=middle(row.seconds for row in rows))


#: The seconds of fields of a workload and of messages (message_seconds, write_seconds, read_seconds).
Times = Mapping[str, Estimate]
#: A time -> its part, and how many of the part it is.
_FIELDS: Mapping[str, tuple[str, float]] = {
    "forward_seconds": ("forward", 1),
    "recompute_seconds": ("recompute", 1),
    "record_overhead_seconds": ("overhead", 1),
    "backward_seconds": ("backward", 1),
    "advance_seconds": ("action", 1),
    "chunk_seconds": ("action", _RECORD + _REVERSE),
    "save_seconds": ("save", 1),
    "load_seconds": ("load", 1),
    "message_seconds": ("message", 1),
    "write_seconds": (WRITE, 1),
    "read_seconds": (READ, 1),
}
#: The times of a step that take most of a run. The overhead of recording is only known as a difference.
STEPS = ("forward_seconds", "recompute_seconds", "backward_seconds")
#: If a part takes this share of an action, the timings of the action show how precisely the part is known.
_MOSTLY = 0.7


class Fit:
    """The seconds of parts that fit the rows of several rounds best."""

    def __init__(self, rounds: Sequence[Round]) -> None:
        names = list(rounds[0])
        estimates = estimate_rounds([[measured[name].seconds for name in names] for measured in rounds])
        self._rows = [(rounds[0][name].counts, row) for name, row in zip(names, estimates, strict=True)]
        self._seconds = self._solve()

    @property
    def times(self) -> Times:
        """Each time, with the interval that the actions of all sizes showed which consist mostly of it.

        If none does, it is known through differences alone: the whole misfit of the rows nearest to it may be
        its own.
        """
        return {field: self._estimate(part).scaled(count) for field, (part, count) in _FIELDS.items()}

    @property
    def widest(self) -> tuple[str, float]:
        """The time of a step whose actions spread most over the rounds, and their spread in the middle."""
        spreads = {
            field: statistics.median(row.spread for counts, row in self._rows if _FIELDS[field][0] in counts)
            for field in STEPS
        }
        return max(spreads.items(), key=lambda item: item[1])

    def _solve(self) -> dict[str, float]:
        from scipy.optimize import nnls

        # What takes no time at all has no relative error.
        timed = [(counts, row.value) for counts, row in self._rows if row.value]
        parts = list(dict.fromkeys(part for counts, _ in timed for part in counts))
        shares = [[counts.get(part, 0) / seconds for part in parts] for counts, seconds in timed]
        solution, _ = nnls(np.array(shares, dtype=float), np.ones(len(timed)))
        return dict(zip(parts, map(float, solution), strict=True))

    def _estimate(self, part: str) -> Estimate:
        estimate = Estimate.exactly(self._seconds.get(part, 0.0))
        shown = []
        for counts, row in self._rows:
            model = sum(count * self._seconds.get(name, 0.0) for name, count in counts.items())
            if own := counts.get(part, 0) * estimate.value:
                shown.append((own / model, (row.low - model) / own, (row.high - model) / own))
        enough = min(_MOSTLY, max((share for share, *_ in shown), default=0.0))
        for share, low, high in shown:
            if share >= enough:
                estimate = estimate.widened(max(0.0, 1 + low), 1 + high)
        return estimate


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
