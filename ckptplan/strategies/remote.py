"""Remote checkpointing: as standard, but each checkpoint goes to remote memory and comes back."""

from __future__ import annotations

import numpy as np

from ckptplan.cost import paper
from ckptplan.cost.arrays import ceil_div
from ckptplan.cost.exact import Cost, Counts
from ckptplan.model.budget import Budget
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.strategies.protocol import Box, Columns, Room, Strategy


class Remote(Strategy):
    """Section III-C of the paper; a checkpoint a message, through the workspace."""

    name = "remote"
    rank = 2
    parameter_names = ("chunk_size",)
    summary = "every checkpoint in remote memory"

    def candidates(self, *, costs: StepCosts, budget: Budget) -> Box | None:
        room = Room.within(budget, costs=costs)
        least = ceil_div(costs.steps, room.remote_checkpoints + 1)
        if room.tapes < least:
            return None
        return Box(low={"chunk_size": least}, high={"chunk_size": room.tapes})

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        fewest_checkpoints = ceil_div(steps, high["chunk_size"]) - 1
        return Counts(
            recomputed_steps=steps - high["chunk_size"],
            states_moved=fewest_checkpoints,
            messages=fewest_checkpoints,
            tapes=low["chunk_size"],
            local_checkpoints=np.zeros_like(fewest_checkpoints),
            remote_checkpoints=fewest_checkpoints,
        )

    def paper(self, *, low: Columns, high: Columns, costs: StepCosts) -> Cost:
        checkpoints = paper.nb_checkpoints(T=costs.steps, chunk_size=high["chunk_size"])
        return Cost(
            seconds=paper.time_remote(
                T_standard=paper.standard_seconds(costs),
                T_c=paper.transfer_seconds(costs),
                T_s=costs.message_seconds,
                nb_checkpoints=checkpoints,
            ),
            local_peak_bytes=paper.memory_remote(
                chunk_size=low["chunk_size"],
                M_s=costs.state_bytes,
                M_a=costs.tape_bytes,
                M_others=costs.resident_bytes,
            ),
            remote_peak_bytes=checkpoints * costs.remote_state_bytes,
        )

    def clamp(self, parameters: Parameters, *, steps: int) -> Parameters:
        return Parameters(chunk_size=min(parameters["chunk_size"], steps))


STRATEGY = Remote()
