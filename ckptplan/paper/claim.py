"""A statement of the paper as a row of a table, with the model's number for it and a verdict.

A statement is read as a range of numbers. It agrees if the model's number is in this range.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from string import Formatter
from typing import Any, Literal, TypeAlias

from ckptplan.paper.setting import PaperSetting
from ckptplan.units import format_bytes, format_percent, format_seconds

#: Inputs that were chosen to match the largest T of the paper's Figure 2 (workloads/paper-snn.toml).
FITTED_MEMORY = ("workload.resident_bytes", "workload.resident_bytes_per_step")

#: The format of a value. 'overhead' is a share with a sign, 'times' a ratio.
Unit = Literal["steps", "overhead", "share", "times", "count", "states", "exponent"]


@dataclass(frozen=True)
class Reading:
    """The range of numbers that a phrase of the paper admits. Each end may be included or not.

    'About' a number admits every number that rounds to it at its last printed digit.
    """

    words: str
    unit: Unit
    low: float = -math.inf
    high: float = math.inf
    _: KW_ONLY
    low_included: bool = True
    high_included: bool = True

    def admits(self, value: float) -> bool:
        """Return whether a value is in the range, up to floating-point rounding."""
        # Compare nine significant digits, so that 0.1 and the quotient 0.36 / 3.6 are equal.
        value, low, high = (float(f"{number:.9g}") for number in (value, self.low, self.high))
        above = value >= low if self.low_included else value > low
        below = value <= high if self.high_included else value < high
        return above and below


#: The model's results for a statement, by name: the number ``model``; the number ``equations``, if the paper
#: prints equations for it; and values for the texts of the statement.
Computed: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Statement:
    """One statement of the paper: a row of the table of claims.

    ``subject`` and ``why`` are templates for ``Template``. They may use the results of ``compute`` and its
    ``setting``.
    """

    #: Where the paper says it: 'abstract' or a section.
    section: str
    quote: str
    #: The compared quantity, in this project's terms.
    subject: str
    compute: Callable[[PaperSetting], Computed]
    #: None if ``compute`` returns the reading, because it depends on the setting.
    reading: Reading | None
    _: KW_ONLY
    #: Why the model and the paper differ, or how much their agreement proves.
    why: str
    #: The T at which the number is computed; None for the setting's own T.
    steps: int | None = None
    #: The fields that the model's number depends on, as 'workload.forward_seconds'.
    inputs: tuple[str, ...] = ()
    #: The inputs that were chosen so that this claim holds.
    fitted: tuple[str, ...] = ()
    #: Whether the model's number is an input of the workload, so that the verdict does not test the model.
    judges_input: bool = False

    def evaluate(self, setting: PaperSetting, *, number: int, name: str) -> Claim:
        """Compute the model's number for ``setting``, and return the claim."""
        actual = setting if self.steps is None else setting.replace(steps=self.steps)
        computed = {"equations": None, "reading": self.reading, **self.compute(actual)}
        values = {field: computed[field] for field in ("model", "equations", "reading")}
        for field in ("subject", "why"):
            values[field] = Template().format(getattr(self, field), setting=actual, **computed)
        assumed = tuple(field for field in self.inputs if _is_assumed(setting, field))
        return Claim(**{**vars(self), **values}, number=number, name=name, assumed=assumed)


@dataclass(frozen=True, kw_only=True)
class Claim(Statement):
    """A statement with the model's number, and with complete texts."""

    number: int
    name: str
    reading: Reading
    #: The exact model's number.
    model: float
    #: The number by the paper's printed equations; None where the paper prints none.
    equations: float | None
    #: The inputs that are not published.
    assumed: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Whether the range of the statement contains the model's number."""
        return self.reading.admits(self.model)

    @property
    def verdict(self) -> str:
        """The verdict: 'agrees', 'agrees by fit' (an input was chosen to meet the claim) or 'disagrees'."""
        if not self.agrees:
            return "disagrees"
        return "agrees by fit" if self.fitted else "agrees"


class Template(Formatter):
    """Formats texts. The formats 'percent', 'seconds' and 'bytes' write a number with its unit."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return a value as text."""
        units = {"percent": format_percent, "seconds": format_seconds, "bytes": format_bytes}
        return units[format_spec](value) if format_spec in units else super().format_field(value, format_spec)


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
