"""Hierarchical checkpointing: checkpoints move to and from remote memory in batches."""

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


class Hierarchical(Strategy):
    """Section III-D of the paper; the last ``nb_local`` checkpoints never leave local memory."""

    name = "hierarchical"
    rank = 3
    parameter_names = ("chunk_size", "nb_local")
    summary = "batches of checkpoints to and from remote memory"

    def candidates(self, *, costs: StepCosts, budget: Budget) -> Box | None:
        room = Room.within(budget, costs=costs)
        if room.tapes < 1:
            return None
        return Box(
            low={"chunk_size": 1, "nb_local": 1},
            high={"chunk_size": room.tapes, "nb_local": max(1, room.local_checkpoints)},
        )

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        checkpoints = ceil_div(steps, high["chunk_size"]) - 1
        # More slots keep more at home and fill larger messages, but take more memory.
        moved = np.maximum(0, checkpoints - high["nb_local"])
        return Counts(
            recomputed_steps=steps - high["chunk_size"],
            states_moved=moved,
            messages=ceil_div(moved, high["nb_local"]),
            tapes=low["chunk_size"],
            local_checkpoints=np.minimum(low["nb_local"], checkpoints),
            remote_checkpoints=moved,
        )

    def paper(self, *, low: Columns, high: Columns, costs: StepCosts) -> Cost:
        checkpoints = paper.nb_checkpoints(T=costs.steps, chunk_size=high["chunk_size"])
        states = paper.states_hierarchical(nb_checkpoints=checkpoints, nb_local=high["nb_local"])
        return Cost(
            seconds=paper.time_hierarchical(
                T_standard=paper.standard_seconds(costs),
                T_c=paper.transfer_seconds(costs),
                T_s=costs.message_seconds,
                N_c=paper.communications_hierarchical(nb_checkpoints=checkpoints, nb_local=high["nb_local"]),
                states=states,
            ),
            local_peak_bytes=paper.memory_hierarchical(
                chunk_size=low["chunk_size"],
                nb_local=low["nb_local"],
                M_s=costs.state_bytes,
                M_a=costs.tape_bytes,
                M_others=costs.resident_bytes,
            ),
            remote_peak_bytes=states // 2 * costs.remote_state_bytes,
        )

    def admits(self, *, low: Columns, high: Columns, steps: int) -> npt.NDArray[np.bool_]:
        # More slots than checkpoints cost and save nothing, so that ties never go to them.
        most_checkpoints = ceil_div(steps, low["chunk_size"])
        useful: npt.NDArray[np.bool_] = low["nb_local"] <= most_checkpoints
        return useful

    def clamp(self, parameters: Parameters, *, steps: int) -> Parameters:
        return Parameters(
            chunk_size=min(parameters["chunk_size"], steps), nb_local=min(parameters["nb_local"], steps)
        )


STRATEGY = Hierarchical()
