"""The base class of strategies that a few parameters determine, whose cost is a closed form.

One closed form serves as a bound and as a value. For a box of parameters from ``low`` to ``high`` it gives
lower bounds that hold everywhere in the box; for a point, where ``low`` equals ``high``, these bounds are the
exact values. With these alone, the search finds the optimum and proves it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ckptplan.cost.exact import Cost, Counts, price
from ckptplan.cost.overlap import (
    TransferBounds,
    TransferTiming,
    least_overlapped_seconds,
    overlapped_seconds,
)
from ckptplan.model.budget import Budget
from ckptplan.model.goal import Model
from ckptplan.model.prediction import Totals
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.strategies.protocol import Columns, Strategy, no_equation


@dataclass(frozen=True, kw_only=True)
class Box:
    """A range of parameters, both ends included, that contains every useful setting."""

    low: Mapping[str, int]
    high: Mapping[str, int]


class ClosedForm(Strategy):
    """A strategy whose cost is a formula of a few integers.

    ``printed`` takes ``low``, ``high`` and ``costs`` and evaluates the paper's equations. ``transfers`` takes
    a point and ``costs`` and returns when transfers are due there; a strategy that has it has
    ``bound_transfers``, too.
    """

    is_closed_form = True
    always_regular = True
    #: When transfers are due at each point; None if the strategy uses no remote memory.
    transfers: ClassVar[Callable[..., TransferTiming] | None] = None

    @abstractmethod
    def candidates(self, *, costs: StepCosts, budget: Budget) -> Box | None:
        """Return a box that contains every setting that can keep the budget, None if no setting can.

        The box may contain settings that exceed the budget: the search checks each.
        """

    @property
    def moves_states(self) -> bool:
        return self.transfers is not None

    @abstractmethod
    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        """Return lower bounds of the counts in each box, and the exact counts if ``low`` equals ``high``.

        Each column has shape (n,); its values are within the range of ``clamp``. docs/equations.md tabulates
        the counts.
        """

    def bound_transfers(self, *, low: Columns, high: Columns, steps: int) -> TransferBounds:
        """Return what is known of the transfers of every setting in each box."""
        raise NotImplementedError(f"{self.name} has transfers without bounds")

    def regular(self, parameters: Parameters, *, steps: int) -> bool:
        """Return whether loops with fixed strides, or a static graph, can run the schedule."""
        return True

    def admits(self, *, low: Columns, high: Columns, steps: int) -> npt.NDArray[np.bool_] | None:
        """Return which boxes contain a legal setting, shape (n,), or None if all do."""
        return None

    def evaluate(self, *, low: Columns, high: Columns, costs: StepCosts, model: Model) -> Cost:
        """Return bounds by the given cost model, shape (n,). Raises InputError if the strategy lacks it."""
        if model == "paper":
            if self.printed is None:
                raise no_equation(self.name)
            return self.printed(low=low, high=high, costs=costs)
        counts = self.counts(low=low, high=high, steps=costs.steps)
        return self._price(counts, low=low, high=high, costs=costs)

    def _price(self, counts: Counts, *, low: Columns, high: Columns, costs: StepCosts) -> Cost:
        cost = price(counts, costs)
        if not costs.overlaps_compute or self.transfers is None:
            return cost
        is_point = np.logical_and.reduce([low[name] == high[name] for name in self.parameter_names])
        seconds = np.where(
            is_point,
            overlapped_seconds(self.transfers(low, costs=costs), counts=counts, costs=costs),
            least_overlapped_seconds(
                counts, self.bound_transfers(low=low, high=high, steps=costs.steps), costs
            ),
        )
        return replace(cost, seconds=seconds)

    def cost(self, parameters: Parameters, *, costs: StepCosts, model: Model = "exact") -> Cost:
        """Return the cost of one setting, as arrays of one element. Raises InputError."""
        point = self.point(parameters, steps=costs.steps)
        return self.evaluate(low=point, high=point, costs=costs, model=model)

    def totals(self, parameters: Parameters, *, costs: StepCosts) -> Totals:
        """Return the cost of one setting by the exact model. Raises InputError."""
        point = self.point(parameters, steps=costs.steps)
        counts = self.counts(low=point, high=point, steps=costs.steps)
        cost = self._price(counts, low=point, high=point, costs=costs)
        return Totals(
            seconds=float(cost.seconds[0]),
            local_peak_bytes=int(cost.local_peak_bytes[0]),
            remote_peak_bytes=int(cost.remote_peak_bytes[0]),
            recomputed_steps=int(counts.recomputed_steps[0]),
            remote_writes=int(counts.remote_writes[0]),
            remote_reads=int(counts.remote_reads[0]),
            messages=int(counts.messages[0]),
            advances=int(counts.advances[0]),
            chunks=int(counts.chunks[0]),
            local_saves=int(counts.local_saves[0]),
            local_loads=int(counts.local_loads[0]),
        )

    def point(self, parameters: Parameters, *, steps: int) -> Columns:
        """Return one setting as columns of length one, clamped. Raises InputError for wrong names."""
        self.check_names(parameters)
        clamped = self.clamp(parameters, steps=steps)
        return {name: np.array([clamped[name]], dtype=np.int64) for name in self.parameter_names}


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """How many tapes, local checkpoints and remote checkpoints a budget holds, each counted alone."""

    tapes: int
    local_checkpoints: int
    remote_checkpoints: int

    @classmethod
    def within(cls, budget: Budget, *, costs: StepCosts) -> Capacity:
        """Return the capacity, at most T of each; a budget below the resident bytes holds none."""
        steps = costs.steps
        free = None if budget.local_bytes is None else max(0, budget.local_bytes - costs.resident_bytes)
        remote = budget.remote_bytes
        return cls(
            tapes=steps if free is None else min(steps, free // costs.tape_bytes),
            local_checkpoints=steps if free is None else min(steps, free // costs.state_bytes),
            remote_checkpoints=steps if remote is None else min(steps, remote // costs.remote_state_bytes),
        )
