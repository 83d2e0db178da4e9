"""Double checkpointing: remote checkpoints far apart, local ones between two of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ckptplan.cost import paper
from ckptplan.cost.arrays import ceil_div
from ckptplan.cost.exact import Cost, Counts
from ckptplan.model.budget import Budget
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.strategies.protocol import Box, Columns, Room, Strategy
from ckptplan.strategies.two_levels import chunk_within_segment, clamp_two_levels, levels


class Double(Strategy):
    """Section III-E of the paper; a remote checkpoint is read once and held while its segment is reversed."""

    name = "double"
    rank = 4
    parameter_names = ("chunk_size", "remote_chunk_size")
    summary = "remote checkpoints, local ones recomputed between them"

    def candidates(self, *, costs: StepCosts, budget: Budget) -> Box | None:
        room = Room.within(budget, costs=costs)
        least = ceil_div(costs.steps, room.remote_checkpoints + 1)
        most = min(costs.steps, room.tapes * (room.local_checkpoints + 1))
        if room.tapes < 1 or most < least:
            return None
        return Box(
            low={"chunk_size": 1, "remote_chunk_size": least},
            high={"chunk_size": room.tapes, "remote_chunk_size": most},
        )

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        two = levels(low=low, high=high, steps=steps)
        return Counts(
            recomputed_steps=two.recomputed_steps,
            states_moved=two.outer,
            messages=two.outer,
            tapes=low["chunk_size"],
            local_checkpoints=two.inner,
            remote_checkpoints=two.outer,
        )

    def paper(self, *, low: Columns, high: Columns, costs: StepCosts) -> Cost:
        communications = paper.communications_double(T=costs.steps, remote_chunk_size=high["remote_chunk_size"])
        return Cost(
            seconds=paper.time_double(
                T_standard=paper.standard_seconds(costs),
                T_refwd=paper.recompute_seconds(costs),
                T_c=paper.transfer_seconds(costs),
                T_s=costs.message_seconds,
                N_c=communications,
            ),
            local_peak_bytes=paper.memory_double(
                chunk_size=low["chunk_size"],
                inner_checkpoints=ceil_div(low["remote_chunk_size"], high["chunk_size"]),
                M_s=costs.state_bytes,
                M_a=costs.tape_bytes,
                M_others=costs.resident_bytes,
            ),
            remote_peak_bytes=communications // 2 * costs.remote_state_bytes,
        )

    def admits(self, *, low: Columns, high: Columns, steps: int) -> npt.NDArray[np.bool_]:
        return chunk_within_segment(low=low, high=high)

    def clamp(self, parameters: Parameters, *, steps: int) -> Parameters:
        return clamp_two_levels(parameters, steps=steps)


STRATEGY = Double()
