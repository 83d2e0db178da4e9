"""Defines a plan: the strategy, its parameters, the predicted cost, and the basis of the prediction."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema, model_validator

from ckptplan.errors import InputError, refuse
from ckptplan.model.budget import find_memory
from ckptplan.model.checked import CheckedModel, FirstFault, JoinedText, Name, Steps, Text
from ckptplan.model.display import DrawnOnFigure
from ckptplan.model.goal import CacheName, Goal
from ckptplan.model.prediction import BasisEntry, Bound, Predicted
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.record import MappingRecord, Parameters
from ckptplan.model.split import Split
from ckptplan.model.workload import Workload
from ckptplan.units import (
    are_decimal,
    format_bytes,
    format_count,
    format_percent,
    format_seconds,
    sizes_like,
)

KIND = "ckptplan.plan"
#: Version of the plan format; increased when a reader of the old one would misread the new one.
SCHEMA_VERSION: Literal[3] = 3


def _to_parameters(value: object) -> Parameters:
    if isinstance(value, Parameters):
        return value
    if not isinstance(value, dict):
        raise refuse(value, "is not an object")
    return Parameters(value)


@dataclass(frozen=True, kw_only=True)
class Provenance(MappingRecord):
    """The program version that made the plan, its command, and the date."""

    version: Annotated[Text, Field(description="version of ckptplan")]
    command: JoinedText
    date: Annotated[Text, Field(description="UTC, ISO 8601")]


#: The integers that determine a schedule.
ScheduleParameters = Annotated[
    Parameters,
    BeforeValidator(_to_parameters),
    PlainSerializer(dict, return_type=dict[str, int]),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}}),
]
_KEPT_CACHES = (
    "the caches that stay until they are used: of all steps, of the last cached_steps, of these and of each "
    "segment that is swept again, of recorded steps only, or of all but the first offloaded_steps, whose "
    "caches move to remote memory and back"
)


class RegularPlan(CheckedModel):
    """A schedule that loops with fixed strides, or a static graph, can run. Raises InputError."""

    noun: ClassVar[str] = "regular plan"

    strategy: Name
    parameters: ScheduleParameters = Field(description="the integers that determine the schedule")
    cache: CacheName = Field(default="all", description=_KEPT_CACHES)
    predicted: Predicted

    model_config = ConfigDict(arbitrary_types_allowed=True)


class Plan(DrawnOnFigure, CheckedModel):
    """A chosen strategy as data: JSON of kind ``ckptplan.plan``. Raises InputError."""

    noun: ClassVar[str] = "plan"

    kind: Literal["ckptplan.plan"] = "ckptplan.plan"
    schema_version: Literal[3] = SCHEMA_VERSION
    strategy: Name
    parameters: ScheduleParameters = Field(
        description="the integers that determine the schedule: those that the strategy has"
    )
    cache: CacheName = Field(default="all", description=_KEPT_CACHES)
    steps: Steps
    goal: Goal = Goal()
    predicted: Predicted
    splits: Annotated[tuple[Split, ...], FirstFault()] | None = Field(
        default=None, description="decisions by part of the schedule; none where parameters say it all"
    )
    regular: RegularPlan | None = Field(
        default=None,
        description="the best plan that loops with fixed strides can run, and these loops; none where no such "
        "plan was compared, or none fits",
    )
    bound: Bound | None = Field(default=None, description="none where nothing was proved")
    workload: Workload
    profile: HardwareProfile
    estimate_basis: Annotated[tuple[BasisEntry, ...], FirstFault()] = Field(default=(), max_length=1000)
    provenance: Provenance

    model_config = ConfigDict(arbitrary_types_allowed=True)

    def __str__(self) -> str:
        """Return the plan in two lines: what to run, and what it is predicted to cost."""
        parameters = ", ".join(f"{name} {value}" for name, value in self.parameters.items())
        workload, profile, predicted = self.workload, self.profile, self.predicted
        steps = f"T = {format_count(self.steps)}"
        with sizes_like(find_given_memory(self)):
            # The description of a call within a memory limit gives the time steps if the plan's are longer.
            job = (
                f"{workload.name} within a limit of memory, {workload.description or steps}"
                if workload.limited
                else f"{workload.name} on {profile.name}, {steps}"
            )
            return (
                f"{' '.join(filter(None, (self.strategy, parameters)))}: {job}\n"
                f"{format_seconds(predicted.seconds)} a batch, {format_percent(predicted.overhead)} over base; "
                f"{format_bytes(predicted.local_peak_bytes)} local, "
                f"{format_bytes(predicted.remote_peak_bytes)} remote"
            )

    def __repr__(self) -> str:
        """Return the plan in one line, without its numbers in full."""
        return f"<Plan {'; '.join(str(self).splitlines())}>"

    @property
    def is_regular(self) -> bool:
        """Whether loops with fixed strides, or a static graph, can run the schedule of the plan itself."""
        of_this_plan = self.strategy, self.parameters
        return self.regular is not None and of_this_plan == (self.regular.strategy, self.regular.parameters)

    @property
    def drops_caches(self) -> bool:
        """Whether a run keeps the caches of some of its steps only."""
        return self.cache not in ("all", "offloaded")

    @property
    def moves_caches(self) -> bool:
        """Whether caches move to remote memory."""
        return self.cache == "offloaded"

    @model_validator(mode="after")
    def _steps_are_those_of_the_workload(self) -> Self:
        if self.steps != self.workload.steps:
            raise InputError(
                f"{self.steps} is not the workload's {self.workload.steps}", field="steps", value=self.steps
            )
        return self


def find_given_memory(plan: Plan) -> int:
    """Return the local memory, in bytes, that the user gave; sizes are shown in its units.

    It is the limit of a call, or the memory from which the headroom was taken. A point of a front has its own
    peak as its budget, so its sizes are shown in the units of the machine.
    """
    budget, machine = plan.goal.local_bytes or plan.profile.local_budget_bytes, plan.profile.local_bytes
    is_own_peak = budget == plan.predicted.local_peak_bytes and not are_decimal(budget)
    # The budget of a call is less than its limit: a margin stays free, and room for a loss of the outputs.
    if plan.workload.limited or is_own_peak:
        return machine
    return find_memory(budget, plan.goal.headroom, machine=machine)
