"""Defines the result of a validation: predicted and measured quantities, each with a verdict."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self

from ckptplan.calibration.samples import Sample
from ckptplan.schedule.timeline import Event, kind_of

#: A part of a run below this share of it is shown but not judged.
SMALL = 0.005
#: The factor by which the bandwidth of copies may vary over time.
FACTOR = 2.0
Unit = Literal["bytes", "bytes per second", "seconds", "count", "share"]


class Verdict(enum.StrEnum):
    """The verdict on a quantity."""

    OK = "ok"
    OFF = "off"
    NOISY = "too noisy to judge"
    SMALL = "too small to judge"
    OTHER_MACHINE = "not comparable"
    UNCHECKED = "not against plain BPTT"
    NOT_MODELLED = "not in the model"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One quantity, predicted and measured."""

    quantity: str
    unit: Unit
    predicted: float | None
    measured: float
    verdict: Verdict
    #: The share by which it may be off; None if nothing is compared.
    allowed: float | None = None
    #: Half the range between the quartiles of the rounds, as a share; None if it was counted, not timed.
    noise: float | None = None

    @property
    def bias(self) -> float | None:
        """Predicted over measured, less one: positive if the prediction is too high.

        None if nothing was predicted, or if only one of both is zero.
        """
        if self.predicted is not None and self.measured == self.predicted:
            return 0.0
        return self.predicted / self.measured - 1 if self.predicted and self.measured else None

    @classmethod
    def exact(cls, quantity: str, *, predicted: float, measured: float, unit: Unit, slack: float = 0.0) -> Self:
        """Return the row of a counted quantity, which must be equal up to the share ``slack``."""
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
        """Return the row of a bandwidth or a message, which must agree within ``FACTOR``.

        Both values are above zero.
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
        """Return the row of a time.

        It may be off by the tolerance plus the spread of the rounds, which must not exceed the tolerance.

        Arguments:
            quantity: the name of the quantity.
            predicted: the predicted time.
            sample: the measured times.
            tolerance: the share by which the time may be off.
            whole: the time of the run that it is part of.
            comparable: whether the prediction is for this machine.
            unit: the unit of the values.
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
    """The best plan of a strategy, with its measured times."""

    strategy: str
    parameters: dict[str, int]
    predicted_seconds: float
    seconds: Sample
    #: Other strategies whose best plan has the same schedule, which ran only once.
    same: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Regret:
    """How much longer the chosen plan took than the fastest of all measured plans."""

    chosen: str
    contenders: tuple[Contender, ...]

    @property
    def best(self) -> Contender:
        """The fastest plan."""
        return min(self.contenders, key=lambda one: one.seconds.median)

    @property
    def own(self) -> Contender:
        """The plan that was chosen."""
        return next(one for one in self.contenders if one.strategy == self.chosen)

    @property
    def ratio(self) -> float:
        """The measured time of the chosen plan over that of the fastest; 1 if it is the fastest."""
        return self.own.seconds.median / self.best.seconds.median

    @property
    def noise(self) -> float:
        """The spreads of the chosen and of the fastest plan, added: a smaller regret is not significant."""
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
    #: Why times are not compared, None if they are.
    not_comparable: str | None
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    regret: Regret | None
    #: The timeline of a run of the plan; the bytes of checkpoints and tapes are from another run.
    timeline: tuple[Event, ...]

    @property
    def off(self) -> list[str]:
        """The names of the quantities outside the tolerance."""
        return [row.quantity for row in self.rows if row.verdict is Verdict.OFF]

    @property
    def noisy(self) -> list[str]:
        """The names of the quantities whose rounds spread by more than the tolerance, which are not judged."""
        return [row.quantity for row in self.rows if row.verdict is Verdict.NOISY]


def seconds_by_kind(events: Iterable[Event]) -> dict[str, float]:
    """Return the seconds of each kind of action: forward, recompute, record, backward, write, read, ..."""
    seconds: dict[str, float] = {}
    for event in events:
        kind = kind_of(event)
        seconds[kind] = seconds.get(kind, 0.0) + event.end - event.start
    return seconds
