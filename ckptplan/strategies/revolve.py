"""Binomial checkpointing in local memory: with s checkpoints, no step is run again more often than it must."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import ceil_div
from ckptplan.cost.exact import Counts
from ckptplan.model.budget import Budget
from ckptplan.model.record import Parameters
from ckptplan.model.split import Split
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion import revolve
from ckptplan.schedule.actions import Action
from ckptplan.strategies.closed_form import Box, Capacity, ClosedForm
from ckptplan.strategies.protocol import Columns


class Revolve(ClosedForm):
    """Griewank and Walther 2000, with chunks of ``chunk_size`` steps in place of single ones."""

    name = "revolve"
    rank = 8
    parameter_names = ("chunk_size", "nb_local")
    always_regular = False

    def candidates(self, *, costs: StepCosts, budget: Budget) -> Box | None:
        capacity = Capacity.within(budget, costs=costs)
        if capacity.tapes < 1:
            return None
        return Box(
            low={"chunk_size": 1, "nb_local": 1},
            high={"chunk_size": capacity.tapes, "nb_local": max(1, capacity.local_checkpoints)},
        )

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        # Longer chunks and more checkpoints both leave less to run again.
        again = revolve.count_recomputed_at(np.array([steps]), chunk=high["chunk_size"], slots=high["nb_local"])
        none = np.zeros_like(again)
        return Counts(
            recomputed_steps=again,
            remote_writes=none,
            remote_reads=none,
            messages=none,
            largest_message=none,
            tapes=low["chunk_size"],
            local_checkpoints=np.minimum(low["nb_local"], ceil_div(steps, high["chunk_size"]) - 1),
            remote_checkpoints=none,
        )

    def admits(self, *, low: Columns, high: Columns, steps: int) -> npt.NDArray[np.bool_]:
        """Leave out slots that nothing fills, and what runs more steps again than can be counted."""
        useful: npt.NDArray[np.bool_] = low["nb_local"] <= np.maximum(1, ceil_div(steps, low["chunk_size"]) - 1)
        if steps < 2**31:
            # No step is run again T times.
            return useful
        again = revolve.count_recomputed_at(np.array([steps]), chunk=high["chunk_size"], slots=high["nb_local"])
        admitted: npt.NDArray[np.bool_] = (again < revolve.MOST) & useful
        return admitted

    def clamp(self, parameters: Parameters, *, steps: int) -> Parameters:
        return Parameters(
            chunk_size=min(parameters["chunk_size"], steps), nb_local=min(parameters["nb_local"], steps)
        )

    def regular(self, parameters: Parameters, *, steps: int) -> bool:
        # With a checkpoint before each chunk it is Standard.
        return steps <= parameters["chunk_size"] * (parameters["nb_local"] + 1)

    def actions(
        self, parameters: Parameters, *, steps: int, splits: Sequence[Split] | None = None
    ) -> Iterator[Action]:
        return revolve.make_binomial_tree(
            steps=steps, chunk=parameters["chunk_size"], slots=parameters["nb_local"]
        ).actions()


STRATEGY = Revolve()
