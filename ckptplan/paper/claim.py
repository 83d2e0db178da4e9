"""A claim of the paper, the model's number for it, and the verdict computed from the two.

Statements of the paper are read as ranges of numbers. A claim is declared by ``says``: it holds what the paper
says and how that is read, and the function below it computes what the model says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ckptplan.paper.setting import PaperSetting

#: 'Not significant', 'almost' and similar words without a number are read as up to 10 %.
SLIGHT = 0.10
#: 'Unaffected' is read as up to 1 %.
UNAFFECTED = 0.01
#: Inputs that determine the largest size that fits.
MEMORY = ("workload.resident_bytes", "workload.resident_bytes_per_step", "profile.local_bytes")
#: Those of them chosen to match the largest T of the paper's Figure 2 (workloads/paper-snn.toml).
FITTED_MEMORY = MEMORY[:2]
#: Inputs that determine the time of compute.
COMPUTE = tuple(f"workload.{name}_seconds" for name in ("forward", "backward", "recompute"))
#: Inputs that determine the time of transfers.
TRANSFERS = (
    "profile.write_bytes_per_second",
    "profile.read_bytes_per_second",
    "profile.synchronisation_seconds",
    "profile.latency_seconds",
)

#: How a value is shown. 'overhead' is a share with a sign, 'times' a ratio.
Unit = Literal["steps", "overhead", "share", "times", "count", "states", "exponent"]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The numbers that words of the paper admit, quoted briefly: a range, each end included or not."""

    words: str
    unit: Unit
    low: float = -math.inf
    high: float = math.inf
    low_included: bool = True
    high_included: bool = True

    def admits(self, value: float) -> bool:
        """Return whether a value is in the range, up to floating-point rounding."""
        value, low, high = (_rounded(number) for number in (value, self.low, self.high))
        above = value >= low if self.low_included else value > low
        below = value <= high if self.high_included else value < high
        return above and below


def exactly(value: float, unit: Unit, words: str) -> Reading:
    """Read 'is ...'."""
    return Reading(words=words, unit=unit, low=value, high=value)


def more_than(value: float, unit: Unit, words: str) -> Reading:
    """Read 'more than ...'."""
    return Reading(words=words, unit=unit, low=value, low_included=False)


def less_than(value: float, unit: Unit, words: str) -> Reading:
    """Read 'less than ...'."""
    return Reading(words=words, unit=unit, high=value, high_included=False)


def at_most(value: float, unit: Unit, words: str) -> Reading:
    """Read 'no more than ...'."""
    return Reading(words=words, unit=unit, high=value)


def about(value: float, unit: Unit, words: str, *, digit: float) -> Reading:
    """Read 'about ...': every number that rounds to the value at its last printed ``digit``."""
    return Reading(words=words, unit=unit, low=value - digit / 2, high=value + digit / 2)


def largest_on_a_grid(steps: int) -> Reading:
    """Read a largest T: it fits, and twice as many steps do not.

    The paper reports few lengths: 400, 2,000 and 4,000.
    """
    return Reading(words=f"{steps:,}", unit="steps", low=steps, high=2 * steps, high_included=False)


def _rounded(value: float) -> float:
    """Return nine significant digits, by which 0.1 and the quotient 0.36 / 3.6 are equal."""
    return float(f"{value:.9g}")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What the model says of a statement."""

    #: What is compared, in this project's terms.
    subject: str
    #: The exact model's number.
    model: float
    #: The number by the paper's printed equations; None where the paper prints none.
    equations: float | None = None
    #: The fields that the model's number depends on, as 'workload.forward_seconds'.
    inputs: tuple[str, ...] = ()
    #: Inputs chosen to meet this claim.
    fitted: tuple[str, ...] = ()
    #: Why the two differ, or what the agreement is worth.
    why: str
    #: Whether ``model`` is an input of the workload, so that the verdict says nothing of the model.
    judges_input: bool = False


@dataclass(frozen=True, kw_only=True)
class Claim(Finding):
    """One statement of the paper, how it is read, and what was found."""

    number: int
    name: str
    #: Where the paper says it: 'abstract' or a section.
    section: str
    quote: str
    reading: Reading
    #: Those of the inputs that are not published.
    assumed: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Whether the statement admits the model's number."""
        return self.reading.admits(self.model)

    @property
    def verdict(self) -> str:
        """The verdict: 'agrees', 'agrees by fit' (an input was chosen to meet the claim) or 'disagrees'."""
        if not self.agrees:
            return "disagrees"
        return "agrees by fit" if self.fitted else "agrees"


#: Computes what the model says of a statement.
Finder: TypeAlias = Callable[[PaperSetting], Finding]
#: By name, in the order of the paper's sections: makes a claim for a setting.
CLAIMS: dict[str, Callable[[PaperSetting], Claim]] = {}


def says(
    section: str,
    quote: str,
    reading: Reading | Callable[[PaperSetting], Reading],
    *,
    steps: int | None = None,
) -> Callable[[Finder], Finder]:
    """Declare a claim that is named as the function below it, which is called at T = ``steps`` if given."""

    def declare(find: Finder) -> Finder:
        name, number = find.__name__.replace("_", "-"), len(CLAIMS) + 1

        def make(setting: PaperSetting) -> Claim:
            there = setting if steps is None else setting.replace(steps=steps)
            found = find(there)
            return Claim(
                **vars(found),
                number=number,
                name=name,
                section=section,
                quote=quote,
                reading=reading if isinstance(reading, Reading) else reading(there),
                assumed=tuple(field for field in found.inputs if _is_assumed(setting, field)),
            )

        CLAIMS[name] = make
        return find

    return declare


def _is_assumed(setting: PaperSetting, field: str) -> bool:
    """Return whether ``setting`` gives no published source for an input."""
    if field in FITTED_MEMORY:
        return True
    owner, name = field.split(".")
    if owner == "workload":
        basis = setting.workload.basis.get(name)
        return basis is None or basis.kind == "assumed"
    source = setting.profile.sources.get(name)
    return source is None or source.grade == "X"
