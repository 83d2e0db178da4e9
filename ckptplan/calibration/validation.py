"""Defines the result of a validation: predicted and measured quantities, each with a verdict."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal, Self

from ckptplan.calibration.backend import Environment
from ckptplan.calibration.fit import Sample
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


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """How far predictions may be off, besides the noise of the rounds."""

    #: Share of a time.
    time: float = 0.1
    #: Share of base's time by which the time added to it may be off: 0.03 for 3 points.
    overhead: float = 0.03
    #: Share of the live peak.
    memory: float = 0.05


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
        shared_seconds: float = 0.0,
        small: float = SMALL,
    ) -> Self:
        """Return the row of a time.

        It may be off by the tolerance plus the spread of the rounds, which must not exceed the tolerance.

        Arguments:
            quantity: the name of the quantity.
            predicted: the predicted time.
            sample: the measured times.
            tolerance: the share by which the time may be off.
            whole: the time of the run that it is part of.
            shared_seconds: seconds that the prediction counts in one of two rows, and a run in either.
            small: the share of the run below which the time is not judged.
        """
        measured, noise = sample.median, sample.spread
        allowed = tolerance + noise + (shared_seconds / measured if measured else 0.0)
        if max(predicted, measured) < small * whole:
            verdict = Verdict.SMALL
        elif noise > tolerance:
            verdict = Verdict.NOISY
        else:
            verdict = Verdict.OK if abs(predicted - measured) <= allowed * measured else Verdict.OFF
        return cls(
            quantity=quantity,
            unit="seconds",
            predicted=predicted,
            measured=measured,
            verdict=verdict,
            allowed=allowed,
            noise=noise,
        )

    @classmethod
    def overhead(cls, *, predicted: float, ratios: Sample, tolerance: float) -> Self:
        """Return the row of the time added to base's, which is judged in points.

        +18 % predicted and +7.5 % measured are 10.5 points apart, though the times differ by only 10 %.

        Arguments:
            predicted: the predicted time over base's, less one.
            ratios: the measured time over base's, round by round.
            tolerance: the difference that is allowed besides the noise of the ratios, as a share of the plan's
                time: 0.03 for 3 points where the plan takes as long as base.
        """
        measured = ratios.median - 1
        noise = ratios.spread * ratios.median
        tolerance *= max(1.0, ratios.median)
        if noise > tolerance:
            verdict = Verdict.NOISY
        else:
            verdict = Verdict.OK if abs(predicted - measured) <= tolerance + noise else Verdict.OFF
        return cls(
            quantity="overhead",
            unit="share",
            predicted=predicted,
            measured=measured,
            verdict=verdict,
            allowed=tolerance + noise,
            noise=noise,
            in_points=True,
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
    """The best plan of a strategy, with its measured times and the verdict on its predicted one."""

    strategy: str
    parameters: dict[str, int]
    seconds: Sample
    row: Row
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
        """The spreads of the chosen and of the fastest plan, added; 0 if they are the same plan."""
        return 0.0 if self.own is self.best else self.own.seconds.spread + self.best.seconds.spread

    @property
    def allowed(self) -> float:
        """The ratio that is allowed: 1.03, plus the noise."""
        return 1 + REGRET + self.noise

    @property
    def verdict(self) -> Verdict:
        """The verdict on the ratio, which is too noisy to judge if either plan's time is."""
        if Verdict.NOISY in (self.own.row.verdict, self.best.row.verdict):
            return Verdict.NOISY
        return Verdict.OK if self.ratio <= self.allowed else Verdict.OFF

    def named(self, verdict: Verdict) -> list[str]:
        """Return the names of what has a verdict. The chosen plan's own time is a row of the validation."""
        others = [one.row for one in self.contenders if one is not self.own]
        regret = ["decision regret"] if self.verdict is verdict else []
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
    def noisy(self) -> list[str]:
        """The names of the quantities whose rounds spread by more than the tolerance, which are not judged."""
        return self._named(Verdict.NOISY)

    def _named(self, verdict: Verdict) -> list[str]:
        rows = [row.quantity for row in self.rows if row.verdict is verdict]
        return rows + ([] if self.regret is None else self.regret.named(verdict))
