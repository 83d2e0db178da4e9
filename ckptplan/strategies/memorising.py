"""The strategies of Gruslys et al. 2016 (BPTT-HSM, BPTT-ISM, BPTT-MSM): one table for all budgets.

They memorise hidden states, tapes, or both. The schedules keep the laws of docs/schedule-format.md: a run
cannot restart from a tape, so a chunk whose tapes are kept is followed by a checkpoint, which costs memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import gcd

from ckptplan.model.budget import Budget
from ckptplan.model.split import Where
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.problem import (
    Candidate,
    Family,
    Prices,
    as_family,
    choose_within,
    list_improving,
    most_units,
)
from ckptplan.recursion.tree import Part, UnitSizes, grow_tree
from ckptplan.strategies.solved import BudgetRange, IsBeaten, Solved, Task


class Memorising(Solved):
    """A strategy with local memory only. It never beats ``optimal``, so it is searched only when named."""

    by_default = False
    hidden: bool
    internal: bool

    def find(self, task: Task) -> list[Family]:
        _, _, units = _convert_to_units(task.costs, task.budget)
        candidates = self._tabulate(task, units) if units <= most_units(task.costs.steps) else []
        return [as_family(candidates, task.costs)]

    def list_ranges(
        self, task: Task, *, is_beaten: IsBeaten, budgets: Sequence[int] | None = None
    ) -> Iterator[BudgetRange]:
        costs = task.costs
        _, _, units = _convert_to_units(costs, Budget())
        candidates = self._tabulate(task, min(units, most_units(costs.steps)))
        if budgets is not None:
            candidates = choose_within(
                candidates, [local_bytes - costs.resident_bytes for local_bytes in budgets]
            )
        yield BudgetRange(
            answers=[self.answer_with(candidate.build(), costs=costs) for candidate in candidates]
        )

    def _tabulate(self, task: Task, units: int) -> list[Candidate]:
        """Return a schedule for each budget that allows a faster one than all smaller budgets."""
        costs = task.costs
        unit, sizes, _ = _convert_to_units(costs, Budget())
        if units < sizes.tape:
            return []
        # Memory for all tapes, or for all states, is enough.
        stored = sizes if self.internal else UnitSizes(sizes.tape, sizes.state)
        units = min(units, stored.state + costs.steps * stored.tape)
        prices, scale = Prices.of(costs), 1.0
        if not any(prices.actions):
            # Without costs of actions, count steps: integers are exact.
            prices, scale = replace(prices, recompute=1.0), prices.recompute
        from ckptplan.recursion.memorising import Memorisation

        table = Memorisation(
            prices=prices,
            steps=costs.steps,
            units=units,
            sizes=sizes,
            hidden=self.hidden,
            internal=self.internal,
            progress=task.progress,
        )
        tree = grow_tree(Part(Where.UNSTORED, costs.steps, units), table.decide, sizes=sizes)
        candidates = list_improving(table.first_row(), tree, unit=unit)
        return [replace(candidate, extra=candidate.extra * scale) for candidate in candidates]

    def has_schedule(self, task: Task) -> bool:
        costs, budget = task.costs, task.budget
        if budget.local_bytes is not None and budget.local_bytes < self.least_local_bytes(costs):
            return False
        return _convert_to_units(costs, budget)[2] <= most_units(costs.steps)

    def least_local_bytes(self, costs: StepCosts) -> int:
        state, tape = costs.state_bytes, costs.tape_bytes
        least = tape if costs.steps == 1 else tape + state
        if costs.steps == 2 and self.internal:
            # The first state is held until its tape is recorded, and only tapes after that.
            least = min(least, max(state, 2 * tape))
        return costs.resident_bytes + least


def _convert_to_units(costs: StepCosts, budget: Budget) -> tuple[int, UnitSizes, int]:
    """Return the bytes of a unit, the sizes in units, and the number of useful units of memory."""
    steps = costs.steps
    # A single step needs only its tape.
    unit = gcd(costs.state_bytes, costs.tape_bytes) if steps > 1 else costs.tape_bytes
    sizes = UnitSizes(-(-costs.state_bytes // unit), costs.tape_bytes // unit)
    # No schedule holds more than a state and a tape for each step.
    units = steps * (sizes.tape + sizes.state)
    if budget.local_bytes is not None:
        units = min(units, max(0, budget.local_bytes - costs.resident_bytes) // unit)
    return unit, sizes, units


class BpttHsm(Memorising):
    """Memorises hidden states only: binomial checkpointing (Gruslys et al. 2016).

    BPTT-HSM of the paper, executed under the laws of docs/schedule-format.md.
    """

    name = "bptt-hsm"
    rank = 21
    hidden = True
    internal = False


class BpttIsm(Memorising):
    """Memorises internal states (tapes) only (Gruslys et al. 2016).

    BPTT-ISM of the paper, executed under the laws of docs/schedule-format.md.
    """

    name = "bptt-ism"
    rank = 22
    hidden = False
    internal = True


class BpttMsm(Memorising):
    """Memorises hidden or internal states (Gruslys et al. 2016).

    BPTT-MSM of the paper, executed under the laws of docs/schedule-format.md.
    """

    name = "bptt-msm"
    rank = 23
    hidden = True
    internal = True


STRATEGIES = (BpttHsm(), BpttIsm(), BpttMsm())
