"""Strategies that a few parameters determine: the range worth searching, and the closed form of the cost.

A closed form is written once and serves twice. Given a box of parameters, ``low`` to ``high``, it
returns lower bounds that hold everywhere in the box; given a point (``low`` equal to ``high``) these
bounds are the exact values. The search needs nothing else to find the optimum and to prove it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ckptplan.cost.exact import Cost, Counts, price
from ckptplan.cost.overlap import TransferTiming, least_overlapped_seconds, overlapped_seconds
from ckptplan.model.budget import Budget
from ckptplan.model.goal import Model
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.model.totals import Totals
from ckptplan.strategies.protocol import Columns, Strategy, no_equation


@dataclass(frozen=True, kw_only=True)
class Box:
    """A range of parameters, both ends included, that holds every setting worth considering."""

    low: Mapping[str, int]
    high: Mapping[str, int]


class ClosedForm(Strategy):
    """A strategy whose cost is a formula of a few integers.

    ``printed`` takes ``low``, ``high`` and ``costs`` and returns what ``evaluate`` does by the paper's
    equations. ``transfers`` takes a point and ``costs`` and returns when transfers fall due there.
    """

    is_closed_form = True
    always_regular = True
    #: When transfers fall due at each point, None where nothing ever moves to remote memory.
    transfers: ClassVar[Callable[..., TransferTiming] | None] = None

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

    def regular(self, parameters: Parameters, *, steps: int) -> bool:
        """Return whether loops with fixed strides, or a static graph, can run the schedule."""
        return True

    def admits(self, *, low: Columns, high: Columns, steps: int) -> npt.NDArray[np.bool_] | None:
        """Return which boxes hold a legal setting, None where all do."""
        return None

    def evaluate(self, *, low: Columns, high: Columns, costs: StepCosts, model: Model) -> Cost:
        """Return the bounds of either cost model. Raises InputError if it has none for this strategy."""
        if model == "paper":
            if self.printed is None:
                raise no_equation(self.name)
            return self.printed(low=low, high=high, costs=costs)
        counts = self.counts(low=low, high=high, steps=costs.steps)
        cost = price(counts, costs)
        if not costs.overlaps_compute or self.transfers is None:
            return cost
        is_point = np.logical_and.reduce([low[name] == high[name] for name in self.parameter_names])
        seconds = np.where(
            is_point,
            overlapped_seconds(
                self.transfers(low, costs=costs), recomputed_steps=counts.recomputed_steps, costs=costs
            ),
            least_overlapped_seconds(counts, costs),
        )
        return replace(cost, seconds=seconds)

    def cost(self, parameters: Parameters, *, costs: StepCosts, model: Model = "exact") -> Cost:
        """Return the cost of one setting, as arrays of one element. Raises InputError."""
        point = self.point(parameters, steps=costs.steps)
        return self.evaluate(low=point, high=point, costs=costs, model=model)

    def totals(self, parameters: Parameters, *, costs: StepCosts) -> Totals:
        """Return what one setting costs by the exact model. Raises InputError."""
        point = self.point(parameters, steps=costs.steps)
        counts = self.counts(low=point, high=point, steps=costs.steps)
        cost = self.evaluate(low=point, high=point, costs=costs, model="exact")
        return Totals(
            seconds=float(cost.seconds[0]),
            local_peak_bytes=int(cost.local_peak_bytes[0]),
            remote_peak_bytes=int(cost.remote_peak_bytes[0]),
            recomputed_steps=int(counts.recomputed_steps[0]),
            remote_writes=int(counts.remote_writes[0]),
            remote_reads=int(counts.remote_reads[0]),
            messages=int(counts.messages[0]),
        )

    def point(self, parameters: Parameters, *, steps: int) -> Columns:
        """Return one setting as columns of length one, clamped. Raises InputError for wrong names."""
        self.check_names(parameters)
        clamped = self.clamp(parameters, steps=steps)
        return {name: np.array([clamped[name]], dtype=np.int64) for name in self.parameter_names}


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """How many tapes, local and remote checkpoints a budget has room for, each on its own."""

    tapes: int
    local_checkpoints: int
    remote_checkpoints: int

    @classmethod
    def within(cls, budget: Budget, *, costs: StepCosts) -> Capacity:
        """No schedule holds more than T of any; a budget below the resident bytes holds none."""
        steps = costs.steps
        free = None if budget.local_bytes is None else max(0, budget.local_bytes - costs.resident_bytes)
        remote = budget.remote_bytes
        return cls(
            tapes=steps if free is None else min(steps, free // costs.tape_bytes),
            local_checkpoints=steps if free is None else min(steps, free // costs.state_bytes),
            remote_checkpoints=steps if remote is None else min(steps, remote // costs.remote_state_bytes),
        )
