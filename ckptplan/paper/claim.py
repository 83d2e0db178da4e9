"""A claim of the paper beside what the model gives for it; the verdict is computed from the two."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ckptplan.paper.setting import Setting

#: How a value is shown. 'overhead' is a share with a sign, 'times' a ratio.
Unit = Literal["steps", "overhead", "share", "times", "count", "states", "exponent"]

#: How 'not significant', 'almost' and the like are read, where the paper gives no number: up to a tenth.
SLIGHT = 0.10
#: How 'unaffected' is read: up to one per cent.
UNAFFECTED = 0.01


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The numbers that a statement of the paper admits: a range, each end included or not."""

    low: float = -math.inf
    high: float = math.inf
    low_included: bool = True
    high_included: bool = True

    def admits(self, value: float) -> bool:
        """Return whether a value is in the range, but for the rounding of floating point."""
        value, low, high = (_rounded(number) for number in (value, self.low, self.high))
        above = value >= low if self.low_included else value > low
        below = value <= high if self.high_included else value < high
        return above and below


def exactly(value: float) -> Reading:
    """Read 'is ...'."""
    return Reading(low=value, high=value)


def more_than(value: float) -> Reading:
    """Read 'more than ...'."""
    return Reading(low=value, low_included=False)


def less_than(value: float) -> Reading:
    """Read 'less than ...'."""
    return Reading(high=value, high_included=False)


def at_most(value: float) -> Reading:
    """Read 'up to ...'."""
    return Reading(high=value)


def at_least(value: float) -> Reading:
    """Read 'from ... on'."""
    return Reading(low=value)


def between(low: float, high: float) -> Reading:
    """Read 'between ... and ...'."""
    return Reading(low=low, high=high)


def about(value: float, *, digit: float) -> Reading:
    """Read 'about ...': whatever is rounded to the value at its last printed ``digit``."""
    return Reading(low=value - digit / 2, high=value + digit / 2)


def largest_on_a_grid(steps: int) -> Reading:
    """Read a largest T: it fits and twice as much does not.

    The paper tries few lengths, of which it reports 400, 2,000 and 4,000.
    """
    return Reading(low=steps, high=2 * steps, high_included=False)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement of the paper, its reading, and the model's number."""

    name: str
    #: Where it stands: 'abstract' or a section.
    section: str
    quote: str
    #: What is compared, in the words of this project.
    subject: str
    unit: Unit
    #: What the paper says of it, as short as it can be quoted.
    paper: str
    reading: Reading
    #: By the exact model.
    model: float
    #: The same by the printed equations, where there is an equation.
    equations: float | None
    #: What the model's number rests on: inputs that nobody published, and those chosen to meet this claim.
    assumed: tuple[str, ...]
    fitted: tuple[str, ...]
    #: Why the two differ, or what the agreement is worth.
    why: str

    @property
    def agrees(self) -> bool:
        """Whether the model's number is one that the statement admits."""
        return self.reading.admits(self.model)

    @property
    def verdict(self) -> str:
        """'agrees', 'agrees by fit' (an input was chosen to meet the claim) or 'disagrees'."""
        if not self.agrees:
            return "disagrees"
        return "agrees by fit" if self.fitted else "agrees"


#: Inputs that a largest size depends on.
MEMORY = ("workload.resident_bytes", "workload.resident_bytes_per_step", "profile.local_bytes")
#: Of those, the ones chosen so that largest T agree with the paper's Figure 2 (workloads/paper-snn.toml).
FITTED_MEMORY = MEMORY[:2]
#: Inputs that the time of recomputing depends on.
COMPUTE = tuple(f"workload.{name}_seconds" for name in ("forward", "backward", "recompute"))
#: Inputs that the time of transfers depends on.
TRANSFERS = (
    "profile.write_bytes_per_second",
    "profile.read_bytes_per_second",
    "profile.synchronisation_seconds",
    "profile.latency_seconds",
)


def claim(setting: Setting, *, inputs: Iterable[str] = (), fitted: Iterable[str] = (), **fields: Any) -> Claim:
    """Return a claim whose model value depends on ``inputs``; which nobody published is looked up."""
    assumed = tuple(field for field in inputs if _is_assumed(setting, field))
    return Claim(**{"equations": None, **fields}, assumed=assumed, fitted=tuple(fitted))


def _is_assumed(setting: Setting, field: str) -> bool:
    if field in FITTED_MEMORY:
        return True
    owner, name = field.split(".")
    if owner == "workload":
        basis = setting.workload.basis.get(name)
        return basis is None or basis.kind == "assumed"
    source = setting.profile.sources.get(name)
    return source is None or source.grade == "X"


def _rounded(value: float) -> float:
    """Keep nine digits: 0.1 and the quotient 0.36 / 3.6 are the same number."""
    return float(f"{value:.9g}")
