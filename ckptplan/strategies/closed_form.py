"""The base class of strategies that a few parameters determine, whose cost is a closed form.

One closed form serves as a bound and as a value. For a box of parameters from ``low`` to ``high`` it gives
lower bounds that hold everywhere in the box; for a point, where ``low`` equals ``high``, these bounds are the
exact values. With these alone, the search finds the optimum and proves it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import Integers
from ckptplan.cost.exact import Cost, Counts, price
from ckptplan.cost.overlap import TransferTiming, least_overlapped_seconds, overlapped_seconds
from ckptplan.model.budget import Budget
from ckptplan.model.goal import Model
from ckptplan.model.prediction import COUNTS, Totals
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.strategies.protocol import Columns, Splits, Strategy, no_equation

#: Parameter name -> its first and its last value.
Ranges: TypeAlias = Mapping[str, tuple[int, int]]
#: The parameters that sizes determine.
SIZE_NAMES = ("state_units", "tape_units")


class ClosedForm(Strategy):
    """A strategy whose cost is a formula of a few integers.

    ``printed`` takes ``low``, ``high`` and ``costs`` and evaluates the paper's equations. One that
    ``moves_states`` has ``transfers`` and ``bound_last_write``.
    """

    is_closed_form = True
    always_regular = True
    moves_states = False

    def ranges(self, *, costs: StepCosts, budget: Budget) -> Ranges:
        """Return ranges that contain every setting that can keep the budget; one may be empty.

        Unless overridden, a chunk is at most as long as all tapes that the budget holds, there are at most as
        many slots as checkpoints, and other parameters are at most T. The search finds which settings keep the
        budget.
        """
        tapes, checkpoints, _ = count_room(budget, costs=costs)
        most = {"chunk_size": tapes, "nb_local": max(1, checkpoints)}
        return {name: (1, most.get(name, costs.steps)) for name in self.parameter_names}

    @abstractmethod
    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        """Return lower bounds of the counts in each box, and the exact counts if ``low`` equals ``high``.

        Each column has shape (n,); its values are within the range of ``clamp``. docs/equations.md tabulates
        the counts.
        """

    def transfers(self, point: Columns, *, costs: StepCosts) -> TransferTiming:
        """Return when transfers are due at each point."""
        raise NotImplementedError(f"{self.name} moves states and does not say when")

    def bound_last_write(self, high: Columns) -> Integers:
        """Return the most states that the last write moves in each box."""
        raise NotImplementedError(f"{self.name} moves states and does not bound how many")

    def clamp(self, parameters: Parameters, *, steps: int) -> Parameters:
        return Parameters(
            {name: value if name in SIZE_NAMES else min(value, steps) for name, value in parameters.items()}
        )

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
            return self.printed(low=low, high=high, costs=costs.charged)
        counts = self.counts(low=low, high=high, steps=costs.steps)
        return self._price(counts, low=low, high=high, costs=costs)

    def _price(self, counts: Counts, *, low: Columns, high: Columns, costs: StepCosts) -> Cost:
        cost, moves = price(counts, costs), costs.overlaps_compute and self.moves_states
        if not moves and not costs.chunk_bytes:
            return cost
        is_point = np.logical_and.reduce([low[name] == high[name] for name in self.parameter_names])
        # Of a box, the number of chunks is a lower bound, and tapes that are held together are of one chunk.
        several = np.where(is_point, counts.chunks < costs.steps, counts.tapes > 1)
        cost = replace(cost, local_peak_bytes=cost.local_peak_bytes + costs.chunk_bytes * several)
        if not moves:
            return cost
        seconds = np.where(
            is_point,
            overlapped_seconds(self.transfers(low, costs=costs), counts=counts, costs=costs),
            least_overlapped_seconds(counts, costs, last_states=self.bound_last_write(high)),
        )
        return replace(cost, seconds=seconds)

    def cost(self, parameters: Parameters, *, costs: StepCosts, model: Model = "exact") -> Cost:
        point = self.point(parameters, steps=costs.steps)
        return self.evaluate(low=point, high=point, costs=costs, model=model)

    def totals(self, parameters: Parameters, *, costs: StepCosts, splits: Splits = None) -> Totals:
        point = self.point(parameters, steps=costs.steps)
        counts = self.counts(low=point, high=point, steps=costs.steps)
        cost = self._price(counts, low=point, high=point, costs=costs)
        return Totals(
            seconds=float(cost.seconds[0]),
            local_peak_bytes=int(cost.local_peak_bytes[0]),
            remote_peak_bytes=int(cost.remote_peak_bytes[0]),
            **{name: int(getattr(counts, name)[0]) for name in COUNTS},
        )

    def point(self, parameters: Parameters, *, steps: int) -> Columns:
        """Return one setting as columns of length one, clamped. Raises InputError for wrong names."""
        self.check_names(parameters)
        clamped = self.clamp(parameters, steps=steps)
        return {name: np.array([clamped[name]], dtype=np.int64) for name in self.parameter_names}


def count_room(budget: Budget, *, costs: StepCosts) -> tuple[int, int, int]:
    """Return how many tapes, local checkpoints and remote ones a budget holds, each counted alone, up to T."""
    free, remote = budget.local_bytes, budget.remote_bytes
    if free is not None:
        free = max(0, free - costs.resident_bytes)
    sizes = ((free, costs.tape_bytes), (free, costs.state_bytes), (remote, costs.remote_state_bytes))
    tapes, local, moved = (
        costs.steps if room is None else min(costs.steps, room // size) for room, size in sizes
    )
    return tapes, local, moved
