"""Prices a plan that stays the same while its inputs change."""

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
    """An answer whose parameters and decisions stay the same."""

    answer: Answer
    model: Model

    @property
    def strategy(self) -> Strategy:
        """The strategy of the plan."""
        return self.answer.strategy

    def at(self, costs: StepCosts, budget: Budget) -> tuple[float, bool]:
        """Return the seconds at other costs, and whether the plan keeps the budgets there."""
        cost = self.answer.cost(costs, self.model)
        local = self._local_peak_bytes(costs, int(cost.local_peak_bytes[0]))
        fits = (budget.local_bytes is None or local <= budget.local_bytes) and (
            budget.remote_bytes is None or int(cost.remote_peak_bytes[0]) <= budget.remote_bytes
        )
        return float(cost.seconds[0]), fits

    def attainable_seconds(self, costs: StepCosts, budget: Budget) -> float | None:
        """Return the seconds at other costs if this setting fits and the search there includes it, else None.

        Then the best plan there takes no longer. (Growing chunks are searched for the one growth that the sizes
        determine, so a setting with another growth is not included.)
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
        """Return the local peak, by simulation if chunks grow faster than the sizes allow.

        Then freed checkpoints do not make enough room, and the closed form is too low.
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
        """Return the seconds for many samples of the costs, shape (n,).

        The samples are given twice: as columns of shape (n,), and as a list of n costs.
        """
        exact = self.strategy.is_closed_form and self.model == "exact"
        if not exact or costs[0].overlaps_compute:
            return np.array([float(self.answer.cost(sample, self.model).seconds[0]) for sample in costs])
        totals = self.answer.totals(costs[0])
        seconds: npt.NDArray[Any] = (
            costs[0].steps
            * (samples["forward_seconds"] + samples["record_overhead_seconds"] + samples["backward_seconds"])
            + totals.recomputed_steps * samples["recompute_seconds"]
            + totals.remote_writes * samples["write_seconds"]
            + totals.remote_reads * samples["read_seconds"]
            + totals.messages * samples["message_seconds"]
            + totals.advances * samples["advance_seconds"]
            + totals.chunks * samples["chunk_seconds"]
            + totals.local_saves * samples["save_seconds"]
            + totals.local_loads * samples["load_seconds"]
        )
        return seconds
