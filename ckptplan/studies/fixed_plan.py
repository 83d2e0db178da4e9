"""A plan that is kept while its inputs change: what it would cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ckptplan.model.budget import Budget
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.schedule.simulator import play
from ckptplan.search.question import Answer
from ckptplan.strategies.protocol import Model, Strategy
from ckptplan.strategies.solved import Solution, seen, tree_of


@dataclass(frozen=True, kw_only=True)
class KeptPlan:
    """A strategy with its parameters, and its decisions where it has some."""

    strategy: Strategy
    parameters: Parameters
    solution: Solution | None
    model: Model

    def at(self, costs: StepCosts, budget: Budget) -> tuple[float, bool]:
        """Return the seconds at other costs, and whether it keeps the budgets there."""
        seconds, local, remote = self._cost(costs)
        fits = (budget.local_bytes is None or local <= budget.local_bytes) and (
            budget.remote_bytes is None or remote <= budget.remote_bytes
        )
        return seconds, fits

    def attained(self, costs: StepCosts, budget: Budget) -> float | None:
        """Return the seconds at other costs if a search there looks at this very setting, and it fits.

        So the best plan there takes no longer. (Growing chunks are searched at one growth, which the sizes
        determine: what another growth attains, the search need not.)
        """
        if self.solution is not None:
            return None
        box = self.strategy.candidates(costs=costs, budget=budget)
        setting = self.strategy.clamp(self.parameters, steps=costs.steps)
        if box is None or any(not box.low[name] <= value <= box.high[name] for name, value in setting.items()):
            return None
        seconds, fits = self.at(costs, budget)
        return seconds if fits else None

    def _cost(self, costs: StepCosts) -> tuple[float, int, int]:
        if self.solution is not None:
            tree = tree_of(self.parameters, self.solution.splits, steps=costs.steps)
            trace = seen(tree, costs=costs)
            return trace.seconds, trace.local_peak_bytes, trace.remote_peak_bytes
        cost = self.strategy.cost(self.parameters, costs=costs, model=self.model)
        local = int(cost.local_peak_bytes[0])
        if self._outgrown(costs):
            actions = self.strategy.actions(self.parameters, steps=costs.steps)
            local = play(actions, costs=costs).local_peak_bytes
        return float(cost.seconds[0]), local, int(cost.remote_peak_bytes[0])

    def _outgrown(self, costs: StepCosts) -> bool:
        """Return whether chunks grow faster than checkpoints make room, so that the closed form is too low."""
        sizes: Mapping[str, int] = self.parameters
        if "state_units" not in sizes:
            return False
        return Fraction(sizes["state_units"], sizes["tape_units"]) > Fraction(
            costs.state_bytes, costs.tape_bytes
        )

    def seconds_at(self, samples: Mapping[str, npt.NDArray[Any]], costs: list[StepCosts]) -> npt.NDArray[Any]:
        """Return the seconds for many costs of the elementary actions, given as columns and one by one."""
        if self.solution is not None or self.model == "paper" or costs[0].overlaps_compute:
            return np.array([self._cost(one)[0] for one in costs])
        point = self.strategy.point(self.parameters, steps=costs[0].steps)
        counts = self.strategy.counts(low=point, high=point, steps=costs[0].steps)
        seconds: npt.NDArray[Any] = (
            costs[0].steps
            * (samples["forward_seconds"] + samples["record_overhead_seconds"] + samples["backward_seconds"])
            + counts.recomputed_steps[0] * samples["recompute_seconds"]
            + counts.states_written[0] * samples["write_seconds"]
            + counts.states_read[0] * samples["read_seconds"]
            + counts.messages[0] * samples["message_seconds"]
        )
        return seconds


def kept_plan(answer: Answer, *, model: Model) -> KeptPlan:
    """Return an answer as a plan that can be kept."""
    return KeptPlan(
        strategy=answer.strategy,
        parameters=answer.best.parameters,
        solution=answer.best.solution,
        model=model,
    )
