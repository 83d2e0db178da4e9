"""What the strategies of Gruslys et al. share: a table for all budgets, and their own count beside ours."""

from __future__ import annotations

from math import gcd

import numpy as np

from ckptplan.cost.exact import Cost
from ckptplan.model.budget import Budget
from ckptplan.model.progress import Progress
from ckptplan.model.split import Where
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.memorisation import Memorisation
from ckptplan.recursion.schedule_tree import grow_tree
from ckptplan.recursion.table_problem import WORK
from ckptplan.recursion.tables import CELLS
from ckptplan.recursion.tree import Part, UnitSizes
from ckptplan.strategies.solved import Choose, Solution, Solved, make_solution


class Memorising(Solved):
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
        front: bool = False,
        progress: Progress | None = None,
    ) -> Solution | None:
        unit, sizes, units = _convert_to_units(costs, budget, steps=costs.steps)
        if units < sizes.tape or not _is_affordable(costs.steps, units):
            return None
        # With all tapes, or all states, nothing is gained by more.
        kept = sizes if self.internal else UnitSizes(sizes.tape, sizes.state)
        units = min(units, kept.state + costs.steps * kept.tape)
        table = Memorisation(
            steps=costs.steps,
            units=units,
            sizes=sizes,
            hidden=self.hidden,
            internal=self.internal,
            progress=progress,
        )
        row = np.full(units + 1, np.inf)
        if sizes.state <= units:
            row[sizes.state :] = table.local[costs.steps, : units + 1 - sizes.state]
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
        root = Part(Where.UNSTORED, costs.steps, int(places[place]))
        return make_solution(grow_tree(root, table.decide, sizes=sizes), costs=costs)

    def has_schedule(self, *, costs: StepCosts, budget: Budget, effort: str = "quick") -> bool:
        if budget.local_bytes is not None and budget.local_bytes < self.least_local_bytes(costs):
            return False
        return _is_affordable(costs.steps, _convert_to_units(costs, budget, steps=costs.steps)[2])

    def least_local_bytes(self, costs: StepCosts) -> int:
        state, tape = costs.state_bytes, costs.tape_bytes
        least = tape if costs.steps == 1 else tape + state
        if costs.steps == 2 and self.internal:
            # The first state is held until its tape is recorded, and nothing but tapes after that.
            least = min(least, max(state, 2 * tape))
        return costs.resident_bytes + least


def _convert_to_units(costs: StepCosts, budget: Budget, *, steps: int) -> tuple[int, UnitSizes, int]:
    """Return the bytes of a unit, the sizes in units, and the units of memory that are of use."""
    # A single step has its tape and nothing else.
    unit = gcd(costs.state_bytes, costs.tape_bytes) if steps > 1 else costs.tape_bytes
    sizes = UnitSizes(-(-costs.state_bytes // unit), costs.tape_bytes // unit)
    # A state and a tape for each step are more than ever helps.
    units = steps * (sizes.tape + sizes.state)
    if budget.local_bytes is not None:
        units = min(units, max(0, budget.local_bytes - costs.resident_bytes) // unit)
    return unit, sizes, units


def _is_affordable(steps: int, units: int) -> bool:
    return steps**2 * (units + 1) <= WORK["thorough"] and (steps + 1) * (units + 1) <= CELLS
