"""A claim of the paper, the model's number for it, and the verdict computed from the two.

Statements of the paper are read as ranges of numbers. The claims of section V share counts and descriptions at
its length T = 4096.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ckptplan.paper.figures.study import STUDY_STEPS
from ckptplan.paper.setting import PaperSetting, Point
from ckptplan.units import format_seconds

#: 'Not significant', 'almost' and similar words without a number are read as up to 10 %.
SLIGHT = 0.10
#: 'Unaffected' is read as up to 1 %.
UNAFFECTED = 0.01


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The numbers that a statement of the paper admits: a range, each end included or not."""

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
    """Read 'at least ...'."""
    return Reading(low=value)


def between(low: float, high: float) -> Reading:
    """Read 'between ... and ...'."""
    return Reading(low=low, high=high)


def about(value: float, *, digit: float) -> Reading:
    """Read 'about ...': every number that rounds to the value at its last printed ``digit``."""
    return Reading(low=value - digit / 2, high=value + digit / 2)


def largest_on_a_grid(steps: int) -> Reading:
    """Read a largest T: it fits, and twice as many steps do not.

    The paper reports few lengths: 400, 2,000 and 4,000.
    """
    return Reading(low=steps, high=2 * steps, high_included=False)


def _rounded(value: float) -> float:
    """Return nine significant digits, by which 0.1 and the quotient 0.36 / 3.6 are equal."""
    return float(f"{value:.9g}")


def count_states(setting: PaperSetting, held: Point | int) -> float:
    """Return a point's local peak, or ``held`` bytes, less the resident bytes, in states."""
    local = held if isinstance(held, int) else held.local_peak_bytes
    return (local - setting.costs.resident_bytes) / setting.costs.state_bytes


def count_checkpoints(chunk: int) -> int:
    """Return the number of checkpoints for chunks of ``chunk`` steps: one before each chunk but the first."""
    return -(-STUDY_STEPS // chunk) - 1


def describe_point(point: Point) -> str:
    """Return 'Double with chunk_size 16, remote_chunk_size 256 (34.42 ms)'."""
    parameters = ", ".join(f"{name} {value}" for name, value in point.parameters.items())
    return f"{point.strategy.capitalize()} with {parameters} ({format_seconds(point.seconds)})"


#: How a value is shown. 'overhead' is a share with a sign, 'times' a ratio.
Unit = Literal["steps", "overhead", "share", "times", "count", "states", "exponent"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement of the paper, how it is read, and the model's number."""

    name: str
    #: Where the paper says it: 'abstract' or a section.
    section: str
    quote: str
    #: What is compared, in this project's terms.
    subject: str
    unit: Unit
    #: The paper's value, quoted as briefly as possible.
    paper: str
    reading: Reading
    #: The exact model's number.
    model: float
    #: The number by the paper's printed equations; None where the paper prints none.
    equations: float | None
    #: Inputs behind the model's number that are not published, and inputs chosen to meet this claim.
    assumed: tuple[str, ...]
    fitted: tuple[str, ...]
    #: Why the two differ, or what the agreement is worth.
    why: str
    #: Whether ``model`` is an input of the workload, so that the verdict says nothing of the model.
    judges_input: bool = False

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


def make_claim(
    setting: PaperSetting,
    *,
    name: str,
    section: str,
    quote: str,
    subject: str,
    unit: Unit,
    paper: str,
    reading: Reading,
    model: float,
    equations: float | None = None,
    inputs: Iterable[str] = (),
    fitted: Iterable[str] = (),
    why: str,
    judges_input: bool = False,
) -> Claim:
    """Return a claim; ``assumed`` are those of ``inputs`` that ``setting`` gives no published source for.

    ``inputs`` are the fields that the model's number depends on, as 'workload.forward_seconds'. The other
    arguments are fields of ``Claim``.
    """
    return Claim(
        name=name,
        section=section,
        quote=quote,
        subject=subject,
        unit=unit,
        paper=paper,
        reading=reading,
        model=model,
        equations=equations,
        assumed=tuple(field for field in inputs if _is_assumed(setting, field)),
        fitted=tuple(fitted),
        why=why,
        judges_input=judges_input,
    )


def _is_assumed(setting: PaperSetting, field: str) -> bool:
    if field in FITTED_MEMORY:
        return True
    owner, name = field.split(".")
    if owner == "workload":
        basis = setting.workload.basis.get(name)
        return basis is None or basis.kind == "assumed"
    source = setting.profile.sources.get(name)
    return source is None or source.grade == "X"
