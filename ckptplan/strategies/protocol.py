"""What a strategy is: its parameters, the range worth searching, and its closed form.

A closed form is written once and serves twice. Given a box of parameters, ``low`` to ``high``, it
returns lower bounds that hold everywhere in the box; given a point (``low`` equal to ``high``) these
bounds are the exact values. The search needs nothing else to find the optimum and to prove it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import Integers
from ckptplan.cost.exact import Cost, Counts, price
from ckptplan.cost.overlap import Rhythm, least_overlapped_seconds, overlapped_seconds
from ckptplan.errors import InputError
from ckptplan.model.budget import Budget
from ckptplan.model.record import Parameters
from ckptplan.model.split import Split
from ckptplan.model.step_costs import StepCosts
from ckptplan.schedule.actions import Action

#: Parameter name -> one value a box (or a point), int64 arrays of shape (n,).
Columns = Mapping[str, Integers]
Model = Literal["exact", "paper"]


@dataclass(frozen=True, kw_only=True)
class Box:
    """A range of parameters, both ends included, that holds every setting worth considering."""

    low: Mapping[str, int]
    high: Mapping[str, int]


class Strategy(ABC):
    """One way to place checkpoints.

    To add a strategy, add a module to this package that ends in ``STRATEGY = MyStrategy()``.
    """

    #: What users type.
    name: ClassVar[str]
    #: Whether it is searched when no strategy is named.
    by_default: ClassVar[bool] = True
    #: Place in the order that breaks ties and sorts tables (docs/search.md).
    rank: ClassVar[int]
    #: Names of the integers that determine the schedule, in the order that breaks ties.
    parameter_names: ClassVar[tuple[str, ...]]

    @abstractmethod
    def candidates(self, *, costs: StepCosts, budget: Budget) -> Box | None:
        """Return a box holding every setting that can keep the budget, None if there is none.

        The box may hold settings that break the budget: the search checks each.
        """

    @abstractmethod
    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        """Return lower bounds of the counts in each box; the exact counts where low equals high.

        The rows of the table in docs/equations.md. Ends are within what ``clamp`` returns.
        """

    @property
    def printed(self) -> bool:
        """Whether the paper prints equations for the strategy."""
        return type(self).paper is not Strategy.paper

    def paper(self, *, low: Columns, high: Columns, costs: StepCosts) -> Cost:
        """Return the same bounds of the paper's printed equations. Raises InputError if it has none."""
        raise InputError("the paper prints no equation for this strategy", field="model", value=self.name)

    def rhythm(self, point: Columns, *, costs: StepCosts) -> Rhythm:
        """Return when transfers fall due at each point; not overridden where there are none."""
        raise NotImplementedError(f"{self.name} moves nothing")

    @property
    def moves(self) -> bool:
        """Whether any of its schedules moves a state to remote memory."""
        return type(self).rhythm is not Strategy.rhythm

    @abstractmethod
    def actions(
        self, parameters: Parameters, *, steps: int, splits: Sequence[Split] | None = None
    ) -> Iterator[Action]:
        """Return the schedule of a clamped setting, one action at a time.

        ``splits`` are a plan's decisions, for strategies that need more than parameters.
        """

    @property
    def always_regular(self) -> bool:
        """Whether each of its schedules is regular."""
        return type(self).regular is Strategy.regular

    def regular(self, parameters: Parameters, *, steps: int) -> bool:
        """Return whether loops with fixed strides, or a static graph, can run the schedule."""
        return True

    def admits(self, *, low: Columns, high: Columns, steps: int) -> npt.NDArray[np.bool_] | None:
        """Return which boxes hold a legal setting, None where all do."""
        return None

    def clamp(self, parameters: Parameters, *, steps: int) -> Parameters:
        """Return the setting that is executed: a chunk longer than the sequence is the sequence."""
        return parameters

    def evaluate(self, *, low: Columns, high: Columns, costs: StepCosts, model: Model) -> Cost:
        """Return the bounds of either cost model. Raises InputError if it has none for this strategy."""
        if model == "paper":
            return self.paper(low=low, high=high, costs=costs)
        counts = self.counts(low=low, high=high, steps=costs.steps)
        cost = price(counts, costs)
        if not costs.overlaps_compute or not self.moves:
            return cost
        is_point = np.logical_and.reduce([low[name] == high[name] for name in self.parameter_names])
        seconds = np.where(
            is_point,
            overlapped_seconds(
                self.rhythm(low, costs=costs), recomputed_steps=counts.recomputed_steps, costs=costs
            ),
            least_overlapped_seconds(counts, costs),
        )
        return replace(cost, seconds=seconds)

    def cost(self, parameters: Parameters, *, costs: StepCosts, model: Model = "exact") -> Cost:
        """Return the cost of one setting, as arrays of one element. Raises InputError."""
        point = self.point(parameters, steps=costs.steps)
        return self.evaluate(low=point, high=point, costs=costs, model=model)

    def check(self, parameters: Parameters, *, steps: int, splits: Sequence[Split] | None = None) -> None:
        """Raise InputError unless these are the strategy's parameters, and none would be clamped.

        ``splits`` must tell the whole schedule, where the strategy needs them.
        """
        self.point(parameters, steps=steps)
        clamped = self.clamp(parameters, steps=steps)
        if clamped != parameters:
            raise InputError(
                f"{dict(parameters)} is not a setting for {steps} steps",
                field="parameters",
                value=dict(parameters),
                accepted=f"{dict(clamped)}, for one" if clamped else "none",
            )

    def point(self, parameters: Parameters, *, steps: int) -> Columns:
        """Return one setting as columns of length one, clamped. Raises InputError for wrong names."""
        if tuple(parameters) != self.parameter_names:
            raise InputError(
                f"{self.name} takes {', '.join(self.parameter_names) or 'no parameters'}",
                field="parameters",
                value=dict(parameters),
            )
        clamped = self.clamp(parameters, steps=steps)
        return {name: np.array([clamped[name]], dtype=np.int64) for name in self.parameter_names}


@dataclass(frozen=True, kw_only=True)
class Room:
    """How many tapes, local and remote checkpoints a budget has room for, each on its own."""

    tapes: int
    local_checkpoints: int
    remote_checkpoints: int

    @classmethod
    def within(cls, budget: Budget, *, costs: StepCosts) -> Room:
        """No schedule holds more than T of any; a budget below the resident bytes holds none."""
        steps = costs.steps
        free = None if budget.local_bytes is None else max(0, budget.local_bytes - costs.resident_bytes)
        remote = budget.remote_bytes
        return cls(
            tapes=steps if free is None else min(steps, free // costs.tape_bytes),
            local_checkpoints=steps if free is None else min(steps, free // costs.state_bytes),
            remote_checkpoints=steps if remote is None else min(steps, remote // costs.remote_state_bytes),
        )
