"""A plan that is kept while its inputs change: what it would cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ckptplan.model.budget import Budget
from ckptplan.model.goal import Model
from ckptplan.model.step_costs import StepCosts
from ckptplan.schedule.simulator import play
from ckptplan.search.answer import Answer, ClosedFormAnswer
from ckptplan.strategies.protocol import Strategy


@dataclass(frozen=True, kw_only=True)
class FixedPlan:
    """An answer whose parameters, and decisions where it has some, stay as they are."""

    answer: Answer
    model: Model

    @property
    def strategy(self) -> Strategy:
        """The strategy of the plan."""
        return self.answer.strategy

    def at(self, costs: StepCosts, budget: Budget) -> tuple[float, bool]:
        """Return the seconds at other costs, and whether it keeps the budgets there."""
        cost = self.answer.cost(costs, self.model)
        local = self._local_peak_bytes(costs, int(cost.local_peak_bytes[0]))
        fits = (budget.local_bytes is None or local <= budget.local_bytes) and (
            budget.remote_bytes is None or int(cost.remote_peak_bytes[0]) <= budget.remote_bytes
        )
        return float(cost.seconds[0]), fits

    def attainable_seconds(self, costs: StepCosts, budget: Budget) -> float | None:
        """Return the seconds at other costs if a search there looks at this very setting, and it fits.

        So the best plan there takes no longer. (Growing chunks are searched at one growth, which the sizes
        determine: what another growth attains, the search need not.)
        """
        if not isinstance(self.answer, ClosedFormAnswer):
            return None
        strategy = self.answer.strategy
        box = strategy.candidates(costs=costs, budget=budget)
        setting = strategy.clamp(self.answer.parameters, steps=costs.steps)
        if box is None or any(not box.low[name] <= value <= box.high[name] for name, value in setting.items()):
            return None
        seconds, fits = self.at(costs, budget)
        return seconds if fits else None

    def _local_peak_bytes(self, costs: StepCosts, counted: int) -> int:
        """Return the local peak; played where chunks grow faster than checkpoints make room for them.

        The closed form is too low then.
        """
        sizes: Mapping[str, int] = self.answer.parameters
        if not self.strategy.is_closed_form or "state_units" not in sizes:
            return counted
        growth = Fraction(sizes["state_units"], sizes["tape_units"])
        if growth <= Fraction(costs.state_bytes, costs.tape_bytes):
            return counted
        actions = self.strategy.actions(self.answer.parameters, steps=costs.steps)
        return play(actions, costs=costs).local_peak_bytes

    def seconds_at(self, samples: Mapping[str, npt.NDArray[Any]], costs: list[StepCosts]) -> npt.NDArray[Any]:
        """Return the seconds for many costs of the elementary actions, given as columns and one by one."""
        exact = self.strategy.is_closed_form and self.model == "exact"
        if not exact or costs[0].overlaps_compute:
            return np.array([float(self.answer.cost(one, self.model).seconds[0]) for one in costs])
        totals = self.answer.totals(costs[0])
        seconds: npt.NDArray[Any] = (
            costs[0].steps
            * (samples["forward_seconds"] + samples["record_overhead_seconds"] + samples["backward_seconds"])
            + totals.recomputed_steps * samples["recompute_seconds"]
            + totals.remote_writes * samples["write_seconds"]
            + totals.remote_reads * samples["read_seconds"]
            + totals.messages * samples["message_seconds"]
        )
        return seconds
