"""Defines the cost of a schedule, the prediction of a plan, its proven bound, and the basis of each number."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from pydantic import Field

from ckptplan.model.checked import IF_ANY, Bytes, JoinedText, Seconds, Text
from ckptplan.model.record import MappingRecord
from ckptplan.units import MAX_BYTES


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Seconds, peaks and counts of a whole schedule.

    Local bytes are per unit and include the resident ones; remote bytes count all units.
    ``recomputed_steps`` counts all runs of steps after their first. ``recomputed_without_cache`` counts the
    runs among them that find no cache, and so take as long as a first run. ``remote_writes`` and
    ``remote_reads`` count states, and ``messages`` counts both directions together. ``offloaded_caches`` counts
    the steps whose caches move to remote memory and back. ``advances``, ``chunks`` (recorded runs of steps),
    ``local_saves`` and ``local_loads`` count actions.
    """

    seconds: float
    local_peak_bytes: int
    remote_peak_bytes: int
    recomputed_steps: int
    recomputed_without_cache: int = 0
    remote_writes: int
    remote_reads: int
    offloaded_caches: int = 0
    messages: int
    advances: int
    chunks: int
    local_saves: int
    local_loads: int


#: The fields of ``Totals`` that are counts.
COUNTS = tuple(field.name for field in fields(Totals) if not field.name.endswith(("seconds", "bytes")))
_Events = Annotated[int, Field(strict=True, ge=0, le=MAX_BYTES)]


@dataclass(frozen=True, kw_only=True)
class PaperPrediction(MappingRecord):
    """The prediction of the paper's printed equations for the same strategy and parameters."""

    seconds: Annotated[Seconds, Field(description="time of one batch, eq. (5), (7), (9) or (12)")]
    overhead: Annotated[float, Field(description="share of base's time that is added")]
    local_peak_bytes: Annotated[Bytes, Field(description="per unit, eq. (2), (4), (6), (8) or (11), bytes")]


@dataclass(frozen=True, kw_only=True)
class Predicted(MappingRecord):
    """The predicted cost of a plan. Local bytes are per unit; remote bytes are the total."""

    seconds: Annotated[Seconds, Field(description="time of one batch: forward, recompute, transfer, backward")]
    overhead: Annotated[float, Field(ge=0, description="seconds over those of base, less one")]
    local_peak_bytes: Annotated[Bytes, Field(description="peak on one unit, resident and workspace included")]
    remote_peak_bytes: Annotated[Bytes, Field(description="peak of remote memory, all units together")]
    recomputed_steps: Annotated[_Events, Field(description="steps run a second or third time")]
    recomputed_without_cache: Annotated[
        _Events, Field(description="those of them that take as long as a first run, without a cache")
    ] = 0
    remote_writes: Annotated[_Events, Field(description="states written to remote memory")]
    remote_reads: Annotated[_Events, Field(description="states read from remote memory")]
    offloaded_caches: Annotated[
        _Events, IF_ANY, Field(description="steps whose caches move to remote memory and back")
    ] = 0
    messages: Annotated[_Events, Field(description="messages to and from remote memory, both ways together")]
    paper: Annotated[
        PaperPrediction | None, Field(description="the printed equations; none where the paper has none")
    ] = None


#: The totals that a plan states; how often each action occurs follows from its schedule.
STATED = tuple(field.name for field in fields(Predicted) if field.name in Totals.__annotations__)


@dataclass(frozen=True, kw_only=True)
class Bound(MappingRecord):
    """A proven lower bound on the time of every legal schedule within the same budget."""

    least_seconds: Annotated[Seconds, Field(description="no schedule takes less than this")]
    gap: Annotated[float, Field(ge=0, description="share of the plan's seconds that lies above")]


@dataclass(frozen=True, kw_only=True)
class BasisEntry(MappingRecord):
    """One reason to believe, or to doubt, a predicted number."""

    field: Annotated[Text, Field(description="the number meant, as 'profile.local_bytes'")]
    kind: Literal["sourced", "derived", "measured", "assumed", "estimated", "stated"]
    text: JoinedText
