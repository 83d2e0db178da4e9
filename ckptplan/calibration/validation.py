"""What was predicted and what was measured, side by side, each quantity judged on its own."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self

from ckptplan.calibration.samples import Sample
from ckptplan.schedule.timeline import Event, kind_of

#: A part of a run that takes less than this share of it is shown, but not judged: a millisecond in a second.
SMALL = 0.005
#: What the bandwidth of copies may differ by from one minute to the next.
FACTOR = 2.0
Unit = Literal["bytes", "bytes per second", "seconds", "count", "share"]


class Verdict(enum.StrEnum):
    """What is said of a quantity."""

    OK = "ok"
    OFF = "off"
    NOISY = "too noisy to judge"
    SMALL = "too small to judge"
    OTHER_MACHINE = "not comparable"
    UNCHECKED = "not against plain BPTT"
    NOT_MODELLED = "not in the model"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One quantity."""

    quantity: str
    unit: Unit
    predicted: float | None
    measured: float
    verdict: Verdict
    #: The share that it may be off by; None where nothing is compared.
    allowed: float | None = None
    #: How far the rounds spread (half the range between quartiles); None where it was counted, not timed.
    noise: float | None = None

    @property
    def bias(self) -> float | None:
        """Predicted over measured, less one: above zero where too much was predicted.

        None where nothing was predicted, or zero, or measured as zero.
        """
        if self.predicted is not None and self.measured == self.predicted:
            return 0.0
        return self.predicted / self.measured - 1 if self.predicted and self.measured else None

    @classmethod
    def exact(cls, quantity: str, *, predicted: float, measured: float, unit: Unit, slack: float = 0.0) -> Self:
        """Return the row of what can be counted: equal, but for a share of ``slack``."""
        agrees = abs(predicted - measured) <= slack * measured
        return cls(
            quantity=quantity,
            unit=unit,
            predicted=predicted,
            measured=measured,
            allowed=slack,
            verdict=Verdict.OK if agrees else Verdict.OFF,
        )

    @classmethod
    def bandwidth(cls, quantity: str, *, predicted: float, measured: float, unit: Unit) -> Self:
        """Return the row of a bandwidth or a message: within a factor, as caches let them.

        Both are above zero.
        """
        agrees = max(predicted / measured, measured / predicted) <= FACTOR
        return cls(
            quantity=quantity,
            unit=unit,
            predicted=predicted,
            measured=measured,
            allowed=FACTOR - 1,
            verdict=Verdict.OK if agrees else Verdict.OFF,
        )

    @classmethod
    def timed(
        cls,
        quantity: str,
        *,
        predicted: float,
        sample: Sample,
        tolerance: float,
        whole: float,
        comparable: bool,
        unit: Unit = "seconds",
    ) -> Self:
        """Return the row of a time; ``whole`` is the run that it is part of.

        It may be off by the tolerance and by what the rounds spread, which must not be more than the tolerance.
        """
        measured, noise = sample.median, sample.spread
        allowed = tolerance + noise
        if not comparable:
            verdict = Verdict.OTHER_MACHINE
        elif max(predicted, measured) < SMALL * whole:
            verdict = Verdict.SMALL
        elif noise > tolerance:
            verdict = Verdict.NOISY
        else:
            verdict = Verdict.OK if abs(predicted - measured) <= allowed * measured else Verdict.OFF
        return cls(
            quantity=quantity,
            unit=unit,
            predicted=predicted,
            measured=measured,
            verdict=verdict,
            allowed=allowed if comparable else None,
            noise=noise,
        )

    @classmethod
    def unmodelled(cls, quantity: str, *, seconds: float) -> Self:
        """Return the row of a time that nothing predicts."""
        return cls(
            quantity=quantity,
            unit="seconds",
            predicted=None,
            measured=seconds,
            verdict=Verdict.NOT_MODELLED,
        )


@dataclass(frozen=True, kw_only=True)
class Contender:
    """The best plan of a strategy, and what it took."""

    strategy: str
    parameters: dict[str, int]
    predicted_seconds: float
    seconds: Sample
    #: Strategies whose best plan has the same schedule; it ran once for all of them.
    same: tuple[str, ...]


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
    def own(self) -> Contender:
        """The plan that was chosen."""
        return next(one for one in self.contenders if one.strategy == self.chosen)

    @property
    def ratio(self) -> float:
        """Measured time of the chosen plan over the best measured one; 1 where nothing was missed."""
        return self.own.seconds.median / self.best.seconds.median

    @property
    def noise(self) -> float:
        """How far the rounds of the chosen and of the quickest plan spread: less than that nobody can tell."""
        return self.own.seconds.spread + self.best.seconds.spread


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

    @property
    def noisy(self) -> list[str]:
        """The quantities whose rounds differ by more than the tolerance, so that nothing is said of them."""
        return [row.quantity for row in self.rows if row.verdict is Verdict.NOISY]


def seconds_by_kind(events: Iterable[Event]) -> dict[str, float]:
    """Return the seconds of each kind of action: forward, recompute, record, backward, write, read, ..."""
    found: dict[str, float] = {}
    for event in events:
        kind = kind_of(event)
        found[kind] = found.get(kind, 0.0) + event.end - event.start
    return found
