"""What was predicted and what was measured, side by side, each quantity judged on its own."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ckptplan.calibration.samples import Sample
from ckptplan.schedule.simulator import Event

#: A part of a run that takes less than this share of it is shown, but not judged: a millisecond in a second.
SMALL = 0.005
#: What the bandwidth of copies may differ by from one minute to the next.
RATE_FACTOR = 2.0
Unit = Literal["bytes", "bytes per second", "seconds", "count", "share"]


class Verdict(enum.StrEnum):
    """What is said of a quantity."""

    OK = "ok"
    OFF = "off"
    SMALL = "too small to judge"
    OTHER_MACHINE = "not comparable"
    NOT_MODELLED = "not in the model"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One quantity."""

    quantity: str
    unit: Unit
    predicted: float | None
    measured: float
    verdict: Verdict
    #: Half the range of the rounds, as a share of their median; None where it was counted, not timed.
    noise: float | None = None

    @property
    def bias(self) -> float | None:
        """Predicted over measured, less one: above zero where the model says too much."""
        if self.predicted is None:
            return None
        if self.measured == self.predicted:
            return 0.0
        return self.predicted / self.measured - 1 if self.measured else float("inf")


@dataclass(frozen=True, kw_only=True)
class Contender:
    """The best plan of a strategy, and what it took."""

    strategy: str
    parameters: dict[str, int]
    predicted_seconds: float
    seconds: Sample


@dataclass(frozen=True, kw_only=True)
class Regret:
    """How much longer the chosen plan took than the quickest one of all that were measured."""

    chosen: str
    contenders: tuple[Contender, ...]

    @property
    def best(self) -> Contender:
        """The quickest."""
        return min(self.contenders, key=lambda one: one.seconds.median)

    @property
    def ratio(self) -> float:
        """Measured time of the chosen plan over the best measured one; 1 where nothing was missed."""
        chosen = next(one for one in self.contenders if one.strategy == self.chosen)
        return chosen.seconds.median / self.best.seconds.median


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The result of a validation."""

    cell: str
    device: str
    machine: str
    threads: int
    repeats: int
    tolerance: float
    memory_tolerance: float
    #: Why times are not compared; None where they are.
    not_comparable: str | None
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    regret: Regret | None
    #: One run of the plan, action by action; bytes are those of checkpoints and tapes, from another run.
    timeline: tuple[Event, ...]

    @property
    def off(self) -> list[str]:
        """The quantities that are outside the tolerance."""
        return [row.quantity for row in self.rows if row.verdict is Verdict.OFF]


def counted(quantity: str, *, predicted: float, measured: float, unit: Unit, slack: float = 0.0) -> Row:
    """Return the row of what can be counted: equal, but for a share of ``slack``."""
    agrees = abs(predicted - measured) <= slack * measured
    return Row(
        quantity=quantity,
        unit=unit,
        predicted=predicted,
        measured=measured,
        verdict=Verdict.OK if agrees else Verdict.OFF,
    )


def rate(quantity: str, *, predicted: float, measured: float) -> Row:
    """Return the row of a bandwidth: within a factor, since copies are as quick as caches let them."""
    agrees = max(predicted / measured, measured / predicted) <= RATE_FACTOR
    return Row(
        quantity=quantity,
        unit="bytes per second",
        predicted=predicted,
        measured=measured,
        verdict=Verdict.OK if agrees else Verdict.OFF,
    )


def timed(
    quantity: str, *, predicted: float, sample: Sample, tolerance: float, whole: float, comparable: bool
) -> Row:
    """Return the row of a time; ``whole`` is the run that it is part of.

    It may be off by the tolerance, and by what the rounds themselves differ.
    """
    measured = sample.median
    noise = (max(sample.values) - min(sample.values)) / 2 / measured if measured else 0.0
    if not comparable:
        verdict = Verdict.OTHER_MACHINE
    elif max(predicted, measured) < SMALL * whole:
        verdict = Verdict.SMALL
    else:
        agrees = abs(predicted - measured) <= (tolerance + noise) * measured
        verdict = Verdict.OK if agrees else Verdict.OFF
    return Row(
        quantity=quantity,
        unit="seconds",
        predicted=predicted,
        measured=measured,
        verdict=verdict,
        noise=noise,
    )


def beside(quantity: str, *, sample: Sample) -> Row:
    """Return the row of a time that nothing predicts."""
    return Row(
        quantity=quantity,
        unit="seconds",
        predicted=None,
        measured=sample.median,
        verdict=Verdict.NOT_MODELLED,
    )


def seconds_by_kind(events: Iterable[Event]) -> dict[str, float]:
    """Return the seconds of each kind of action: forward, recompute, record, backward, write, read, ..."""
    from ckptplan.schedule.kinds import kind_of

    found: dict[str, float] = {}
    for event in events:
        kind = kind_of(event)
        found[kind] = found.get(kind, 0.0) + event.end - event.start
    return found
