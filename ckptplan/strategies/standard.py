"""Implements Standard: a local checkpoint before each chunk; each chunk but the last runs again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ckptplan.cost import paper
from ckptplan.cost.arrays import ceil_div
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
    checkpoints = paper.nb_checkpoints(T=costs.steps, chunk_size=high["chunk_size"])
    seconds = paper.standard_seconds(costs)
    return Cost(
        seconds=np.full(len(checkpoints), seconds),
        local_peak_bytes=paper.memory_standard(
            chunk_size=low["chunk_size"],
            nb_checkpoints=checkpoints,
            M_s=costs.state_bytes,
            M_a=costs.tape_bytes,
            M_others=costs.resident_bytes,
        ),
        remote_peak_bytes=np.zeros_like(checkpoints),
    )


class Standard(ClosedForm):
    """A local checkpoint before each chunk; each chunk but the last runs again.

    Section III-B of the paper; chunks of ``chunk_size`` steps, the ragged one first.
    """

    name = "standard"
    rank = 1
    parameter_names = ("chunk_size",)
    printed = staticmethod(_printed)

    def candidates(self, *, costs: StepCosts, budget: Budget) -> Box | None:
        capacity = Capacity.within(budget, costs=costs)
        # There must be room for n - 1 checkpoints: ceil(T / c) - 1 <= room.
        least = ceil_div(costs.steps, capacity.local_checkpoints + 1)
        if capacity.tapes < least:
            return None
        return Box(low={"chunk_size": least}, high={"chunk_size": capacity.tapes})

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        # A longer chunk has a longer tape, but fewer checkpoints and less recomputation.
        fewest_checkpoints = ceil_div(steps, high["chunk_size"]) - 1
        none = np.zeros_like(fewest_checkpoints)
        return Counts(
            recomputed_steps=steps - high["chunk_size"],
            remote_writes=none,
            remote_reads=none,
            messages=none,
            advances=fewest_checkpoints,
            chunks=fewest_checkpoints + 1,
            local_saves=fewest_checkpoints,
            local_loads=fewest_checkpoints,
            largest_message=none,
            tapes=low["chunk_size"],
            local_checkpoints=fewest_checkpoints,
            remote_checkpoints=none,
        )

    def clamp(self, parameters: Parameters, *, steps: int) -> Parameters:
        return Parameters(chunk_size=min(parameters["chunk_size"], steps))

    def actions(
        self, parameters: Parameters, *, steps: int, splits: Sequence[Split] | None = None
    ) -> Iterator[Action]:
        return reverse_locally(0, steps, parameters["chunk_size"])


STRATEGIES = (Standard(),)
