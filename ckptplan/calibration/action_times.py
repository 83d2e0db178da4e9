"""Separates measured seconds of actions into those of each step and those of the action itself.

With f, r, o and b the seconds of a step, and a and k those of an action (docs/equations.md), actions of n steps
take

    Advance, first time    n f + a            Record, first time    n (f + o) + k'
    Advance, again         n r + a            Record, again         n (r + o) + k'
    Backward               n b + k''          chunk_seconds = k' + k''

The seven unknowns have the least squares of relative errors, so that short chunks count as much as long ones.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ckptplan.calibration.samples import Line, Sample, relative_least_squares
from ckptplan.model.workload import ACTION_TIMES
from ckptplan.schedule.actions import Advance, Backward, Load, Record, Save, Tier
from ckptplan.schedule.timeline import Event

FORWARD, RECOMPUTE, FIRST, AGAIN, BACKWARD = "forward", "recompute", "record first", "record again", "backward"
SAVE, LOAD = "save", "load"
#: What an action of n steps takes, as coefficients of f, r, o, b, a, k' and k''.
_ROWS: dict[str, Callable[[int], tuple[int, ...]]] = {
    FORWARD: lambda n: (n, 0, 0, 0, 1, 0, 0),
    RECOMPUTE: lambda n: (0, n, 0, 0, 1, 0, 0),
    FIRST: lambda n: (n, 0, n, 0, 0, 1, 0),
    AGAIN: lambda n: (0, n, n, 0, 0, 1, 0),
    BACKWARD: lambda n: (0, 0, 0, n, 0, 0, 1),
}
#: The field of a workload, or what is measured in its place -> the kind of action that determines it most.
_FIELDS = {
    "forward_seconds": FORWARD,
    "recompute_seconds": RECOMPUTE,
    # The overhead of recording is the difference between these steps and steps that run again.
    "recorded_seconds": AGAIN,
    "backward_seconds": BACKWARD,
}
#: The actions of a chunk that is advanced, recorded and reversed.
_OF_A_CHUNK = (FORWARD, AGAIN, BACKWARD)


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
    spread: dict[str, float]
    #: Field of a step's time -> R^2 of the seconds of actions over their steps.
    fit: dict[str, float]
    #: Steps of the chunks that were timed.
    chunks: tuple[int, ...]
    #: Measured over modelled seconds of a whole chunk, less one: the root mean square over the chunks.
    misfit: float

    @property
    def uncertainty(self) -> float:
        """The uncertainty of the times of plans, as a share: misfit and spread combined."""
        return math.hypot(self.misfit, self.widest[1])

    @property
    def widest(self) -> tuple[str, float]:
        """The time of a step whose rounds spread most, and their spread; actions are small in comparison."""
        return max(((name, self.spread[name]) for name in _FIELDS), key=lambda one: one[1])


@dataclass
class TimedActions:
    """Mean seconds of an action, by its kind and its steps, one value a round."""

    rounds: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, events: Iterable[Event]) -> None:
        """Add the events of one round, in which every schedule ran once."""
        total: dict[tuple[str, int], float] = defaultdict(float)
        count: dict[tuple[str, int], int] = defaultdict(int)
        for event in events:
            key = _classify(event)
            if key is not None:
                total[key] += event.end - event.start
                count[key] += 1
        for key, seconds in total.items():
            self.rounds[key].append(seconds / count[key])

    def samples(self, kind: str) -> dict[int, Sample]:
        """Return a sample of the seconds of an action for each number of steps."""
        return {
            steps: Sample(values=tuple(values))
            for (name, steps), values in sorted(self.rounds.items())
            if name == kind
        }


@dataclass(frozen=True, kw_only=True)
class _Solution:
    """The seconds that fit best."""

    forward: float
    recompute: float
    overhead: float
    backward: float
    advance: float
    record: float
    reverse: float
    save: float
    load: float

    @property
    def actions(self) -> dict[str, float]:
        """The seconds of actions, by the field of a workload."""
        values = (self.advance, self.record + self.reverse, self.save, self.load)
        return dict(zip(ACTION_TIMES, values, strict=True))

    @property
    def fields(self) -> dict[str, float]:
        """The seconds of what is measured of steps, and of actions."""
        recorded = self.recompute + self.overhead
        values = (self.forward, self.recompute, recorded, self.backward)
        return {**dict(zip(_FIELDS, values, strict=True)), **self.actions}

    def seconds(self, kind: str, steps: int) -> float:
        """Return the seconds of an action of a kind of ``_ROWS``."""
        steps_cost = (self.forward, self.recompute, self.overhead, self.backward)
        costs = (*steps_cost, self.advance, self.record, self.reverse)
        return sum(count * cost for count, cost in zip(_ROWS[kind](steps), costs, strict=True))


def fit_action_times(timed: TimedActions, *, chunks: tuple[int, ...]) -> ActionTimes:
    """Return the times of steps and actions with the least relative errors.

    ``chunks`` are the sizes of chunks that were advanced, recorded and reversed.
    """
    medians = {key: Sample(values=tuple(values)).median for key, values in timed.rounds.items()}
    found = _solve(medians)
    rounds = min(len(values) for values in timed.rounds.values())
    each = [_solve({key: values[i] for key, values in timed.rounds.items()}).fields for i in range(rounds)]
    samples = {name: timed.samples(kind) for name, kind in _FIELDS.items()}
    return ActionTimes(
        forward_seconds=found.forward,
        recompute_seconds=found.recompute,
        record_overhead_seconds=found.overhead,
        backward_seconds=found.backward,
        **found.actions,
        # Each round is fitted alone: a disturbed action of few steps says little about its times.
        spread={name: Sample(values=tuple(one[name] for one in each)).spread for name in each[0]},
        fit={
            name: Line.through([(steps, sample.median) for steps, sample in by_steps.items()]).fit
            for name, by_steps in samples.items()
        },
        chunks=chunks,
        misfit=_misfit(found, medians, chunks),
    )


def _solve(seconds: dict[tuple[str, int], float]) -> _Solution:
    timed = [(_ROWS[kind](steps), value) for (kind, steps), value in seconds.items() if kind in _ROWS]
    rows, values = zip(*timed, strict=True)
    names = ("forward", "recompute", "overhead", "backward", "advance", "record", "reverse")
    solved = dict(zip(names, relative_least_squares(rows, values), strict=True))
    return _Solution(**solved, save=seconds.get((SAVE, 0), 0.0), load=seconds.get((LOAD, 0), 0.0))


def _misfit(found: _Solution, medians: dict[tuple[str, int], float], chunks: Sequence[int]) -> float:
    shares = [
        sum(medians[kind, chunk] for kind in _OF_A_CHUNK)
        / sum(found.seconds(kind, chunk) for kind in _OF_A_CHUNK)
        - 1
        for chunk in chunks
    ]
    return math.sqrt(sum(share**2 for share in shares) / len(shares))


def _classify(event: Event) -> tuple[str, int] | None:
    """Return the kind of an action and its steps, None if it is not timed here."""
    match event.action:
        case Advance(start, stop):
            return (RECOMPUTE if event.recomputed_steps else FORWARD), stop - start
        case Record(start, stop):
            return (AGAIN if event.recomputed_steps else FIRST), stop - start
        case Backward(start, stop):
            return BACKWARD, stop - start
        case Save(_, Tier.LOCAL):
            return SAVE, 0
        case Load(_, Tier.LOCAL):
            return LOAD, 0
    return None
