"""A claim of the paper, the model's number for it, and the verdict computed from the two."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ckptplan.paper.claims.readings import Reading
from ckptplan.paper.setting import PaperSetting

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
