"""What the strategies of Gruslys et al. share: a table for all budgets, and their own count beside ours."""

from __future__ import annotations

from math import gcd

import numpy as np

from ckptplan.cost.exact import Cost
from ckptplan.model.budget import Budget
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.memorisation import Memorisation
from ckptplan.recursion.search import grown
from ckptplan.recursion.solver import WORK
from ckptplan.recursion.tree import Part, Sizes, Where
from ckptplan.strategies.solved import Choose, Progress, Solution, SolvedStrategy, solution_of


class Memorising(SolvedStrategy):
    """Local memory only; never better than ``optimal``, which is why they are not searched unasked."""

    by_default = False
    hidden: bool
    internal: bool

    def solve(
        self,
        *,
        costs: StepCosts,
        budget: Budget,
        choose: Choose,
        effort: str = "quick",
        progress: Progress | None = None,
    ) -> Solution | None:
        unit = gcd(costs.state_bytes, costs.tape_bytes)
        sizes = Sizes(costs.state_bytes // unit, costs.tape_bytes // unit)
        # A state and a tape for each step are more than ever helps.
        units = costs.steps * (sizes.tape + sizes.state)
        if budget.local_bytes is not None:
            units = min(units, max(0, budget.local_bytes - costs.resident_bytes) // unit)
        if units < sizes.tape or costs.steps**2 * (units + 1) > WORK["thorough"]:
            return None
        table = Memorisation(
            steps=costs.steps, units=units, sizes=sizes, hidden=self.hidden, internal=self.internal
        )
        row = np.full(units + 1, np.inf)
        if sizes.state <= units:
            row[sizes.state :] = table.owned[costs.steps, : units + 1 - sizes.state]
        if costs.steps == 1:
            row[sizes.tape :] = 0
        # Each budget that allows a quicker schedule than the ones below it.
        places = np.flatnonzero(np.isfinite(row) & (row < np.concatenate([[np.inf], row[:-1]])))
        if not len(places):
            return None
        place = choose(
            Cost(
                seconds=costs.base_seconds + row[places] * costs.recompute_seconds,
                local_peak_bytes=places * unit + costs.resident_bytes,
                remote_peak_bytes=np.zeros_like(places),
            )
        )
        if place is None:
            return None
        root = Part(Where.FREE, costs.steps, int(places[place]))
        return solution_of(grown(root, table.decide, sizes=sizes), costs=costs)
