"""A claim of the paper beside what the model gives for it; the verdict is computed from the two."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ckptplan.paper.claims.readings import Reading
from ckptplan.paper.setting import PaperSetting

#: How a value is shown. 'overhead' is a share with a sign, 'times' a ratio.
Unit = Literal["steps", "overhead", "share", "times", "count", "states", "exponent"]


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


def make_claim(
    setting: PaperSetting, *, inputs: Iterable[str] = (), fitted: Iterable[str] = (), **fields: Any
) -> Claim:
    """Return a claim whose model value depends on ``inputs``; which nobody published is looked up."""
    assumed = tuple(field for field in inputs if _is_assumed(setting, field))
    return Claim(**{"equations": None, **fields}, assumed=assumed, fitted=tuple(fitted))


def _is_assumed(setting: PaperSetting, field: str) -> bool:
    if field in FITTED_MEMORY:
        return True
    owner, name = field.split(".")
    if owner == "workload":
        basis = setting.workload.basis.get(name)
        return basis is None or basis.kind == "assumed"
    source = setting.profile.sources.get(name)
    return source is None or source.grade == "X"
