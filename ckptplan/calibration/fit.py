"""Separates measured seconds into the seconds of steps, actions and messages, by one fit over all measurements.

The seconds of a run are the sum over its parts of count x seconds of a part (docs/equations.md). The parts are

    forward, recompute    a step that runs for the first time, or again
    overhead, backward    the extra time of recording a step; a step that is reversed
    action                the fixed seconds of an action, for any number of steps
    save, load            a local save or load, which has no steps
    message, batch        a save to or a load from remote memory, and a transfer, without the states that move
    write, read           each state that moves
    call                  a compiled program

A row is an action, or a whole program if actions cannot be timed. The fit minimizes the squares of the relative
errors over all rows, so that short chunks count as much as long ones.
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

#: The multiples of an action's fixed cost in a recording, which builds a graph, and in its backward pass, which
#: walks the graph. An advance takes the fixed cost once.
_RECORD, _REVERSE = 1.5, 2.5
#: Part -> its count.
Counts = Mapping[str, float]


def count_action(action: Action, rerun: int) -> dict[str, float]:
    """Return the parts of an action with ``rerun`` recomputed steps; none for an action without duration."""
    match action:
        case Advance(start, stop):
            parts: dict[str, float] = {"forward": stop - start - rerun, "recompute": rerun, "action": 1}
        case Record(start, stop):
            steps = stop - start
            parts = {"forward": steps - rerun, "recompute": rerun, "overhead": steps, "action": _RECORD}
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
            # A transfer takes less than the message of a Save or a Load, so it is another part.
            parts = {"batch": 1, WRITE if target is Tier.REMOTE else READ: len(states)}
        case _:
            parts = {}
    return {name: count for name, count in parts.items() if count}


def count_actions(actions: Iterable[Action], *, sweep: bool = False) -> Counter[str]:
    """Return the parts of a schedule; with ``sweep``, only of the actions before its first Backward."""
    parts: Counter[str] = Counter()
    frontier = Frontier()
    for action in actions:
        if sweep and isinstance(action, Backward):
            break
        parts.update(count_action(action, frontier.pass_over(action)))
    return parts


@dataclass(frozen=True, kw_only=True)
class TimedRow:
    """The parts of an action or a program, and its measured seconds."""

    counts: Counts
    seconds: float

    @property
    def moves(self) -> bool:
        """Whether states leave or enter local memory."""
        return WRITE in self.counts or READ in self.counts


#: The rows of a round, by name. All rounds have the same names.
Round = Mapping[Hashable, TimedRow]


def read_events(*timelines: Iterable[Event]) -> Round:
    """Return the rows of a round whose actions were timed one by one: a row for each kind and size of action.

    The seconds of a row are the mean over its actions, or for messages the median, since the first message of a
    run takes longer. All timelines have equal weight. A timeline with messages gives rows of messages only,
    since steps are timed without messages.
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
            by_name[name].append(_average_rows(timed))
    return {name: _average_rows(timed) for name, timed in by_name.items()}


def _average_rows(rows: Sequence[TimedRow]) -> TimedRow:
    average = statistics.median if rows[0].moves else statistics.fmean
    return TimedRow(counts=rows[0].counts, seconds=average(row.seconds for row in rows))


#: The seconds of fields of a workload and of messages (message_seconds, write_seconds, read_seconds).
Times = Mapping[str, Estimate]
#: Field of a time -> its part, and the multiple of the part.
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
#: The times of a step that dominate a run. The overhead of recording is only known as a difference.
STEPS = ("forward_seconds", "recompute_seconds", "backward_seconds")
#: If a part takes at least this share of an action, the timings of the action determine the part's interval.
_MOSTLY = 0.7


class Fit:
    """Fits the seconds of the parts to the rows of several rounds."""

    def __init__(self, rounds: Sequence[Round]) -> None:
        names = list(rounds[0])
        estimates = estimate_rounds([[measured[name].seconds for name in names] for measured in rounds])
        self._rows = [(rounds[0][name].counts, row) for name, row in zip(names, estimates, strict=True)]
        self._seconds = self._solve()

    @property
    def times(self) -> Times:
        """Each time, with an interval from the misfit of the actions that consist mostly of it.

        If there are no such actions, the time is a difference of others. Then the misfit of the actions with
        its largest share may be entirely due to it.
        """
        return {field: self._estimate(part).scaled(count) for field, (part, count) in _FIELDS.items()}

    @property
    def widest(self) -> tuple[str, float]:
        """The time of a step whose actions spread most over the rounds, and the median of their spreads."""
        spreads = {
            field: statistics.median(row.spread for counts, row in self._rows if _FIELDS[field][0] in counts)
            for field in STEPS
        }
        return max(spreads.items(), key=lambda item: item[1])

    def _solve(self) -> dict[str, float]:
        from scipy.optimize import nnls

        # Rows of zero seconds have no relative error.
        timed = [(counts, row.value) for counts, row in self._rows if row.value]
        parts = list(dict.fromkeys(part for counts, _ in timed for part in counts))
        shares = [[counts.get(part, 0) / seconds for part in parts] for counts, seconds in timed]
        solution, _ = nnls(np.array(shares, dtype=float), np.ones(len(timed)))
        return dict(zip(parts, map(float, solution), strict=True))

    def _estimate(self, part: str) -> Estimate:
        estimate = Estimate.exactly(self._seconds.get(part, 0.0))
        misfits = []
        for counts, row in self._rows:
            model = sum(count * self._seconds.get(name, 0.0) for name, count in counts.items())
            if own := counts.get(part, 0) * estimate.value:
                misfits.append((own / model, (row.low - model) / own, (row.high - model) / own))
        least_share = min(_MOSTLY, max((share for share, *_ in misfits), default=0.0))
        for share, low, high in misfits:
            if share >= least_share:
                estimate = estimate.widened(max(0.0, 1 + low), 1 + high)
        return estimate


def state_rate(times: Times, way: str, *, state_bytes: int) -> Estimate:
    """Return the bytes per second of a 'write' or 'read' of states of this size.

    If the seconds of a state cannot be distinguished from the message's, 1 % of the message's are assumed.
    """
    seconds = times[f"{way}_seconds"]
    least = max(0.01 * times["message_seconds"].value, 1e-9)
    return Estimate(
        low=state_bytes / max(seconds.high, least),
        value=state_bytes / max(seconds.value, least),
        high=state_bytes / max(seconds.low, least),
    )
