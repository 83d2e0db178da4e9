"""Defines the goal of a plan: the objective, the limits, and the strategies to choose from."""

from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from ckptplan.model.budget import Budget
from ckptplan.model.checked import IF_ANY, CheckedModel, FirstFault, Headroom, Limit, Name, PositiveBytes, Share

#: What to minimise; 'balanced' is the knee of the front of time and memory.
ObjectiveName: TypeAlias = Literal["time", "memory", "balanced"]
#: The cost model used for the choice: exact, or the paper's printed equations.
Model: TypeAlias = Literal["exact", "paper"]
#: How much work the search for optimal schedules may do.
EffortName: TypeAlias = Literal["quick", "thorough"]


class Goal(CheckedModel):
    """The objective and the limits of a plan. Raises InputError."""

    noun: ClassVar[str] = "goal"

    objective: ObjectiveName = "time"
    model: Annotated[
        Model,
        Field(description="the cost model that chose: exact, or the printed equations"),
    ] = "exact"
    max_overhead: Annotated[Share | None, Field(description="largest overhead allowed, as a share")] = None
    local_bytes: Annotated[
        PositiveBytes | None, Field(description="local budget of one unit, headroom taken off")
    ] = None
    headroom: Annotated[
        Headroom, IF_ANY, Field(description="share of local memory left free, of which local_bytes is the rest")
    ] = 0.0
    remote_bytes: Annotated[Limit, Field(description="remote budget in all; none: unbounded")] = None
    strategies: Annotated[
        tuple[Name, ...], FirstFault(), Field(max_length=1000, description="the strategies that were compared")
    ] = ()
    effort: Annotated[EffortName, Field(description="how much work the search for optimal schedules is")] = (
        "quick"
    )

    @property
    def budget(self) -> Budget:
        """The byte budget of each tier."""
        return Budget(local_bytes=self.local_bytes, remote_bytes=self.remote_bytes)
