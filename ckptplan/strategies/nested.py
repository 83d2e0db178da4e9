"""Nested checkpointing: double with its outer checkpoints kept in local memory as well."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import ceil_div
from ckptplan.cost.exact import Counts
from ckptplan.model.budget import Budget
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.strategies.protocol import Box, Columns, Room, Strategy
from ckptplan.strategies.two_levels import chunk_within_segment, clamp_two_levels, levels


class Nested(Strategy):
    """Not in the paper; what nested ``torch.utils.checkpoint`` calls execute."""

    name = "nested"
    rank = 5
    parameter_names = ("chunk_size", "remote_chunk_size")
    summary = "two levels of local checkpoints, two recomputations"

    def candidates(self, *, costs: StepCosts, budget: Budget) -> Box | None:
        room = Room.within(budget, costs=costs)
        least = ceil_div(costs.steps, room.local_checkpoints + 1)
        most = min(costs.steps, room.tapes * (room.local_checkpoints + 1))
        if room.tapes < 1 or most < least:
            return None
        return Box(
            low={"chunk_size": 1, "remote_chunk_size": least},
            high={"chunk_size": room.tapes, "remote_chunk_size": most},
        )

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        two = levels(low=low, high=high, steps=steps)
        none = np.zeros_like(two.outer)
        return Counts(
            recomputed_steps=two.recomputed_steps,
            states_moved=none,
            messages=none,
            tapes=low["chunk_size"],
            local_checkpoints=two.outer + two.inner,
            remote_checkpoints=none,
        )

    def admits(self, *, low: Columns, high: Columns, steps: int) -> npt.NDArray[np.bool_]:
        return chunk_within_segment(low=low, high=high)

    def clamp(self, parameters: Parameters, *, steps: int) -> Parameters:
        return clamp_two_levels(parameters, steps=steps)


STRATEGY = Nested()
