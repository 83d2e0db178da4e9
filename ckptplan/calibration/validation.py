"""Defines the result of a validation: predicted and measured quantities, each with a verdict."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field

from ckptplan.calibration.backend import Environment
from ckptplan.calibration.estimate import Estimate
from ckptplan.model.checked import CheckedModel
from ckptplan.model.display import Displayed
from ckptplan.model.plan import Plan
from ckptplan.schedule.timeline import Event

#: A part of a run below this share of it is shown but not judged.
SMALL = 0.005
#: The factor by which the bandwidth of copies may vary over time.
FACTOR = 2.0
#: How much longer the chosen plan may take than the quickest one measured, as a share, besides the noise.
REGRET = 0.03
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


_Share = Annotated[float, Field(strict=True, ge=0, description="a share, as 0.1")]


class Tolerances(CheckedModel):
    """How far predictions may be off, besides what intervals allow. Raises InputError."""

    #: Share of a time.
    tolerance: _Share = 0.1
    #: Share of base's time by which the time added to it may be off: 0.03 for 3 points.
    overhead_tolerance: _Share = 0.03
    #: Share of the live peak.
    memory_tolerance: _Share = 0.05


@dataclass(frozen=True, kw_only=True)
class Row:
    """One quantity, predicted and measured."""

    quantity: str
    unit: Unit
    predicted: float | None
    measured: float
    verdict: Verdict
    #: How far it may be off before it is off for certain; None if nothing is compared.
    allowed: float | None = None
    #: Half of the interval of the rounds, as a share; None if it was counted, not timed.
    noise: float | None = None
    #: Whether the bias is a difference in points instead of a share, as the noise and what is allowed then are.
    in_points: bool = False

    @property
    def bias(self) -> float | None:
        """Predicted over measured, less one; ``in_points``, predicted less measured.

        Positive if the prediction is too high. None if nothing was predicted, or if only one of both is zero.
        """
        if self.in_points:
            return None if self.predicted is None else self.predicted - self.measured
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
    def judged(
        cls,
        quantity: str,
        *,
        predicted: Estimate,
        measured: Estimate,
        tolerance: float,
        unit: Unit = "seconds",
        small: bool = False,
    ) -> Self:
        """Return the row of a measured quantity, by the joint interval of prediction and measurement.

        Two numbers are as far apart as the larger is above the smaller: as a share of it, or in points if the
        unit is a share. It is off if all of both intervals are farther apart than the tolerance, and ok if the
        measurement alone shows that it is not. Else it is too noisy to judge.

        Arguments:
            quantity: the name of the quantity.
            predicted: the prediction, with the interval that the calibration's times allow.
            measured: the measurement, with the interval of its rounds.
            tolerance: how far it may be off.
            unit: the unit; a 'share' is judged in points.
            small: whether it is too small a part of a run to be judged.
        """
        points = unit == "share"
        lower, upper = sorted((predicted, measured), key=lambda one: one.value)
        gap = _distance(lower.value, upper.value, points=points)
        own = (measured.high - measured.low) / 2 if points else measured.spread
        allowed = tolerance + gap - _distance(lower.high, upper.low, points=points)
        if small:
            verdict = Verdict.SMALL
        elif gap > allowed:
            verdict = Verdict.OFF
        else:
            settled = own <= tolerance and gap <= tolerance + own
            verdict = Verdict.OK if settled else Verdict.NOISY
        return cls(
            quantity=quantity,
            unit=unit,
            predicted=predicted.value,
            measured=measured.value,
            verdict=verdict,
            allowed=allowed,
            noise=own,
            in_points=points,
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


#: Nothing is quicker than this, in seconds.
_LEAST = 1e-12


def _distance(lower: float, upper: float, *, points: bool) -> float:
    """Return how far the upper of two numbers is above the lower; below zero if it is not."""
    return upper - lower if points else max(upper, _LEAST) / max(lower, _LEAST) - 1


@dataclass(frozen=True, kw_only=True)
class Contender:
    """The best plan of a strategy, with its measured seconds by round and the verdict on its predicted ones."""

    strategy: str
    parameters: dict[str, int]
    seconds: tuple[float, ...]
    row: Row
    #: Other strategies whose best plan has the same schedule, which ran only once.
    same: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Regret:
    """How much longer the chosen plan, the first one, took than the fastest of all measured plans."""

    contenders: tuple[Contender, ...]

    @property
    def own(self) -> Contender:
        """The plan that was chosen."""
        return self.contenders[0]

    @property
    def best(self) -> Contender:
        """The plan over which the chosen one takes longest, in the middle of the rounds; maybe itself."""
        return max(self.contenders, key=lambda one: self._compare(one).value)

    @property
    def row(self) -> Row:
        """The time of the chosen plan over that of the fastest in the same round, judged: 1.03 is allowed."""
        return Row.judged(
            "decision regret",
            predicted=Estimate.exactly(1.0),
            measured=self._compare(self.best),
            tolerance=REGRET,
            unit="share",
        )

    def _compare(self, other: Contender) -> Estimate:
        return Estimate.of_ratios(
            one / theirs for one, theirs in zip(self.own.seconds, other.seconds, strict=True)
        )

    def named(self, verdict: Verdict) -> list[str]:
        """Return the names of what has a verdict. The chosen plan's own time is a row of the validation."""
        others = [one.row for one in self.contenders if one is not self.own]
        regret = ["decision regret"] if self.row.verdict is verdict else []
        return [*(row.quantity for row in others if row.verdict is verdict), *regret]


@dataclass(frozen=True, kw_only=True)
class Validation(Displayed):
    """The result of a validation."""

    cell: str
    environment: Environment
    repeats: int
    tolerances: Tolerances
    #: Why times are not compared, None if they are.
    not_comparable: str | None
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    regret: Regret | None
    #: The timeline of a run of the plan; the bytes of checkpoints and tapes are from another run.
    timeline: tuple[Event, ...]
    #: Whether Ctrl-C ended it: the rows are those of what was measured before.
    interrupted: bool = False
    #: What was validated.
    plan: Plan | None = None

    @property
    def off(self) -> list[str]:
        """The names of the quantities outside the tolerance."""
        return self._named(Verdict.OFF)

    @property
    def pace(self) -> float | None:
        """How many times as long as predicted the plan took, if base took as many times as long.

        The machine is then slower, or quicker, than when it was calibrated, and the plan is as good as before.
        None if neither time is outside the tolerance, if they are off by different shares, or if the overhead
        is off.
        """
        rows = {row.quantity: row for row in self.rows}
        if not {"total", "base", "overhead"} <= rows.keys() or rows["overhead"].verdict is Verdict.OFF:
            return None
        times = [rows[name] for name in ("total", "base")]
        own, base = (row.measured / row.predicted if row.predicted else 0.0 for row in times)
        alike = min(own, base) > 0 and max(own, base) <= (1 + self.tolerances.tolerance) * min(own, base)
        if not alike or (own > 1) != (base > 1) or all(row.verdict is not Verdict.OFF for row in times):
            return None
        return own

    @property
    def noisy(self) -> list[str]:
        """The names of the quantities whose intervals are too wide to judge them."""
        return self._named(Verdict.NOISY)

    def _named(self, verdict: Verdict) -> list[str]:
        rows = [row.quantity for row in self.rows if row.verdict is verdict]
        return rows + ([] if self.regret is None else self.regret.named(verdict))
