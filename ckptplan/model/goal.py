"""Defines the goal of a plan: the objective, the limits, and the strategies to choose from."""

from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from ckptplan.model.budget import Budget
from ckptplan.model.checked import (
    IF_ANY,
    IF_GIVEN,
    CheckedModel,
    FirstFault,
    Headroom,
    Limit,
    Name,
    PositiveBytes,
    Share,
)

#: What to minimise; 'balanced' is the knee of the front of time and memory.
ObjectiveName: TypeAlias = Literal["time", "memory", "balanced"]
#: The cost model used for the choice: exact, or the paper's printed equations.
Model: TypeAlias = Literal["exact", "paper"]
#: The caches that the first sweep keeps (docs/cache.md). 'all': of all steps. 'last': of the last K steps.
#: 'segment': as 'last', and every earlier segment keeps its caches when it is swept again. 'none': of recorded
#: steps. 'offloaded': of the last segment, while the caches of earlier segments move to remote memory and back.
CacheName: TypeAlias = Literal["all", "last", "segment", "none", "offloaded"]
#: How much work the search for optimal schedules may do.
EffortName: TypeAlias = Literal["quick", "thorough"]


class Goal(CheckedModel):
    """The objective and the limits of a plan. Raises InputError."""

    noun: ClassVar[str] = "goal"

    objective: ObjectiveName = "time"
    model: Model = Field(
        default="exact", description="the cost model that chose: exact, or the printed equations"
    )
    max_overhead: Share | None = Field(default=None, description="largest overhead allowed, as a share")
    local_bytes: PositiveBytes | None = Field(
        default=None, description="local budget of one unit, headroom taken off"
    )
    headroom: Annotated[Headroom, IF_ANY] = Field(
        default=0.0, description="share of local memory left free, of which local_bytes is the rest"
    )
    remote_bytes: Limit = Field(default=None, description="remote budget in all; none: unbounded")
    strategies: Annotated[tuple[Name, ...], FirstFault()] = Field(
        default=(), max_length=1000, description="the strategies that were compared"
    )
    cache: Annotated[CacheName | None, IF_GIVEN] = Field(
        default=None, description="the caches that plans have to keep; none: what is best"
    )
    effort: EffortName = Field(default="quick", description="how much work the search for optimal schedules is")

    @property
    def budget(self) -> Budget:
        """The byte budget of each tier."""
        return Budget(local_bytes=self.local_bytes, remote_bytes=self.remote_bytes)
