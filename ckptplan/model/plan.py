"""A plan: the strategy, its parameters, what it will cost and why that is believed."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from ckptplan.errors import InputError, shown
from ckptplan.model.checked import Checked
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.quantities import Bytes, Limit, Name, PositiveBytes, Seconds, Share, Steps
from ckptplan.model.record import Parameters
from ckptplan.model.split import Split
from ckptplan.model.workload import Workload
from ckptplan.units import MAX_BYTES

KIND = "ckptplan.plan"
#: Version of the plan format; raised when a reader of the old one would misunderstand the new.
SCHEMA_VERSION: Literal[2] = 2

_Events = Annotated[int, Field(strict=True, ge=0, le=MAX_BYTES)]


def _parameters(value: object) -> Parameters:
    if isinstance(value, Parameters):
        return value
    if not isinstance(value, dict):
        raise InputError(f"{shown(value)} is not an object", value=value)
    return Parameters(value)


def _as_dict(parameters: Parameters) -> dict[str, int]:
    return dict(parameters)


class _Record:
    """What records share: they also read as mappings, and unknown fields are refused on loading."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    def keys(self) -> Iterable[str]:
        """Return the names of the fields."""
        return self.__dict__.keys()

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    def __contains__(self, name: object) -> bool:
        return name in self.__dict__

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __len__(self) -> int:
        return len(self.__dict__)


@dataclass(frozen=True, kw_only=True)
class PaperPrediction(_Record):
    """What the paper's printed equations say of the same strategy and parameters."""

    seconds: Annotated[Seconds, Field(description="time of one batch, eq. (5), (7), (9) or (12)")]
    overhead: Annotated[float, Field(description="share of base's time that is added")]
    local_peak_bytes: Annotated[Bytes, Field(description="per unit, eq. (2), (4), (6), (8) or (11), bytes")]


@dataclass(frozen=True, kw_only=True)
class Predicted(_Record):
    """What the plan will cost. Local bytes are per unit, remote bytes in all."""

    seconds: Annotated[Seconds, Field(description="time of one batch: forward, recompute, transfer, backward")]
    overhead: Annotated[float, Field(ge=0, description="seconds over those of base, less one")]
    local_peak_bytes: Annotated[Bytes, Field(description="peak on one unit, resident and workspace included")]
    remote_peak_bytes: Annotated[Bytes, Field(description="peak of remote memory, all units together")]
    recomputed_steps: Annotated[_Events, Field(description="steps run a second or third time")]
    remote_writes: Annotated[_Events, Field(description="states written to remote memory")]
    remote_reads: Annotated[_Events, Field(description="states read from remote memory")]
    messages: Annotated[_Events, Field(description="messages to and from remote memory, both ways together")]
    paper: Annotated[
        PaperPrediction | None, Field(description="the printed equations; none where the paper has none")
    ] = None


class Goal(Checked):
    """What a plan is chosen for. Raises InputError."""

    noun: ClassVar[str] = "goal"

    objective: Literal["time", "memory", "balanced"] = "time"
    model: Annotated[
        Literal["exact", "paper"],
        Field(description="the cost model that chose: exact, or the printed equations"),
    ] = "exact"
    max_overhead: Annotated[Share | None, Field(description="largest overhead allowed, as a share")] = None
    local_bytes: Annotated[PositiveBytes | None, Field(description="local budget of one unit")] = None
    remote_bytes: Annotated[Limit, Field(description="remote budget in all; none: unbounded")] = None
    strategies: Annotated[tuple[str, ...], Field(description="the strategies that were compared")] = ()
    effort: Annotated[
        Literal["quick", "thorough"], Field(description="how much work the search for optimal schedules is")
    ] = "quick"


@dataclass(frozen=True, kw_only=True)
class BasisEntry(_Record):
    """One reason to believe, or to doubt, a predicted number."""

    field: Annotated[str, Field(description="the number meant, as 'profile.local_bytes'")]
    kind: Literal["sourced", "derived", "measured", "assumed", "stated"]
    text: str


@dataclass(frozen=True, kw_only=True)
class Provenance(_Record):
    """Which program made the plan, when and how."""

    version: Annotated[str, Field(description="version of ckptplan")]
    command: str
    date: Annotated[str, Field(description="UTC, ISO 8601")]


@dataclass(frozen=True, kw_only=True)
class Bound(_Record):
    """What is proved of the time of every legal schedule within the same budget."""

    least_seconds: Annotated[Seconds, Field(description="no schedule takes less than this")]
    gap: Annotated[float, Field(ge=0, description="share of the plan's seconds that lies above")]


class Plan(Checked):
    """A chosen strategy as data: JSON of kind ``ckptplan.plan``. Raises InputError."""

    noun: ClassVar[str] = "plan"

    kind: Literal["ckptplan.plan"] = "ckptplan.plan"
    schema_version: Literal[2] = SCHEMA_VERSION
    strategy: Name
    parameters: Annotated[
        Parameters,
        BeforeValidator(_parameters),
        PlainSerializer(_as_dict, return_type=dict[str, int]),
        WithJsonSchema({"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}}),
        Field(description="chunk_size, nb_local, remote_chunk_size, segment_size: those that the strategy has"),
    ]
    steps: Steps
    goal: Goal = Goal()
    predicted: Predicted
    splits: Annotated[
        tuple[Split, ...] | None,
        Field(description="decisions by part of the schedule; none where parameters say it all"),
    ] = None
    regular: Annotated[
        bool, Field(description="whether loops with fixed strides, or a static graph, can run the schedule")
    ] = True
    bound: Annotated[Bound | None, Field(description="none where nothing was proved")] = None
    workload: Workload
    profile: HardwareProfile
    estimate_basis: tuple[BasisEntry, ...] = ()
    provenance: Provenance

    model_config = ConfigDict(arbitrary_types_allowed=True)

    @model_validator(mode="after")
    def _steps_are_those_of_the_workload(self) -> Self:
        if self.steps != self.workload.steps:
            raise InputError(
                f"{self.steps} is not the workload's {self.workload.steps}", field="steps", value=self.steps
            )
        return self
