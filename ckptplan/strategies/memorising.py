"""The base class of the strategies of Gruslys et al. 2016, which solve one table for all budgets."""

from __future__ import annotations

from math import gcd

import numpy as np

from ckptplan.cost.exact import Cost
from ckptplan.model.budget import Budget
from ckptplan.model.progress import Progress
from ckptplan.model.split import Where
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.action_costs import ActionCosts
from ckptplan.recursion.memorisation import Memorisation
from ckptplan.recursion.schedule_tree import grow_tree
from ckptplan.recursion.table_problem import WORK
from ckptplan.recursion.tables import CELLS
from ckptplan.recursion.tree import Part, UnitSizes
from ckptplan.strategies.solved import Choose, Solution, Solved, make_solution


class Memorising(Solved):
    """A strategy with local memory only. It never beats ``optimal``, so it is searched only when named."""

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
        # Memory for all tapes, or for all states, is enough.
        stored = sizes if self.internal else UnitSizes(sizes.tape, sizes.state)
        units = min(units, stored.state + costs.steps * stored.tape)
        actions = ActionCosts.of(costs)
        # If actions are free, steps are counted, which is exact.
        table = Memorisation(
            recompute=costs.recompute_seconds if any(actions) else 1.0,
            actions=actions,
            steps=costs.steps,
            units=units,
            sizes=sizes,
            hidden=self.hidden,
            internal=self.internal,
            progress=progress,
        )
        row = table.first_row()
        # Each budget that allows a faster schedule than all smaller budgets.
        places = np.flatnonzero(np.isfinite(row) & (row < np.concatenate([[np.inf], row[:-1]])))
        if not len(places):
            return None
        place = choose(
            Cost(
                seconds=costs.sweep_seconds + row[places] * (1.0 if any(actions) else costs.recompute_seconds),
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
            # The first state is held until its tape is recorded, and only tapes after that.
            least = min(least, max(state, 2 * tape))
        return costs.resident_bytes + least


def _convert_to_units(costs: StepCosts, budget: Budget, *, steps: int) -> tuple[int, UnitSizes, int]:
    """Return the bytes of a unit, the sizes in units, and the number of useful units of memory."""
    # A single step needs only its tape.
    unit = gcd(costs.state_bytes, costs.tape_bytes) if steps > 1 else costs.tape_bytes
    sizes = UnitSizes(-(-costs.state_bytes // unit), costs.tape_bytes // unit)
    # No schedule holds more than a state and a tape for each step.
    units = steps * (sizes.tape + sizes.state)
    if budget.local_bytes is not None:
        units = min(units, max(0, budget.local_bytes - costs.resident_bytes) // unit)
    return unit, sizes, units


def _is_affordable(steps: int, units: int) -> bool:
    return steps**2 * (units + 1) <= WORK["thorough"] and (steps + 1) * (units + 1) <= CELLS
