"""Implements plain backpropagation through time: keep every tape, recompute nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ckptplan.cost import paper
from ckptplan.cost.exact import Cost, Counts
from ckptplan.model.budget import Budget
from ckptplan.model.record import Parameters
from ckptplan.model.split import Split
from ckptplan.model.step_costs import StepCosts
from ckptplan.schedule.actions import Action
from ckptplan.schedule.segments import reverse_locally
from ckptplan.strategies.closed_form import Box, Capacity, ClosedForm
from ckptplan.strategies.protocol import Columns


def _printed(*, low: Columns, high: Columns, costs: StepCosts) -> Cost:
    return Cost(
        seconds=np.array([paper.base_seconds(costs)]),
        local_peak_bytes=np.array(
            [paper.memory_base(T=costs.steps, M_a=costs.tape_bytes, M_others=costs.resident_bytes)]
        ),
        remote_peak_bytes=np.zeros(1, dtype=np.int64),
    )


class Base(ClosedForm):
    """Plain backpropagation through time: keep every tape, recompute nothing.

    Section III-A of the paper.
    """

    name = "base"
    rank = 0
    parameter_names = ()
    printed = staticmethod(_printed)

    def candidates(self, *, costs: StepCosts, budget: Budget) -> Box | None:
        capacity = Capacity.within(budget, costs=costs)
        return Box(low={}, high={}) if capacity.tapes >= costs.steps else None

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        none = np.zeros(1, dtype=np.int64)
        return Counts(
            recomputed_steps=none,
            remote_writes=none,
            remote_reads=none,
            messages=none,
            advances=none,
            chunks=none + 1,
            local_saves=none,
            local_loads=none,
            largest_message=none,
            tapes=none + steps,
            local_checkpoints=none,
            remote_checkpoints=none,
        )

    def actions(
        self, parameters: Parameters, *, steps: int, splits: Sequence[Split] | None = None
    ) -> Iterator[Action]:
        return reverse_locally(0, steps, steps)


STRATEGIES = (Base(),)
