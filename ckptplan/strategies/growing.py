"""Implements Standard with chunks that grow towards the start: equal recomputation, less memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ckptplan.cost.exact import Counts
from ckptplan.model.budget import Budget
from ckptplan.model.record import Parameters
from ckptplan.model.split import Split
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion import growing
from ckptplan.schedule.actions import Action
from ckptplan.schedule.segments import reverse_between
from ckptplan.strategies.closed_form import Box, Capacity, ClosedForm
from ckptplan.strategies.protocol import Columns


class Growing(ClosedForm):
    """Standard with chunks that grow towards the start: equal recomputation, less memory.

    The last chunk has ``chunk_size`` steps, the j-th before it floor(j state_units / tape_units) more.
    """

    name = "growing"
    rank = 6
    parameter_names = ("chunk_size", "state_units", "tape_units")
    always_regular = False

    def candidates(self, *, costs: StepCosts, budget: Budget) -> Box | None:
        capacity = Capacity.within(budget, costs=costs)
        if capacity.tapes < 1:
            return None
        p, q = growing.growth_ratio(state=costs.state_bytes, tape=costs.tape_bytes)
        fixed = {"state_units": p, "tape_units": q}
        return Box(low={"chunk_size": 1, **fixed}, high={"chunk_size": capacity.tapes, **fixed})

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        total = np.full_like(high["chunk_size"], steps)
        checkpoints = (
            growing.count_chunks(total, chunk=high["chunk_size"], p=high["state_units"], q=high["tape_units"])
            - 1
        )
        none = np.zeros_like(checkpoints)
        return Counts(
            recomputed_steps=steps - high["chunk_size"],
            remote_writes=none,
            remote_reads=none,
            messages=none,
            advances=checkpoints,
            chunks=checkpoints + 1,
            local_saves=checkpoints,
            local_loads=checkpoints,
            largest_message=none,
            tapes=low["chunk_size"],
            local_checkpoints=checkpoints,
            remote_checkpoints=none,
        )

    def clamp(self, parameters: Parameters, *, steps: int) -> Parameters:
        return Parameters({**parameters, "chunk_size": min(parameters["chunk_size"], steps)})

    def regular(self, parameters: Parameters, *, steps: int) -> bool:
        return parameters["chunk_size"] >= steps

    def actions(
        self, parameters: Parameters, *, steps: int, splits: Sequence[Split] | None = None
    ) -> Iterator[Action]:
        chunk, p, q = (parameters[name] for name in self.parameter_names)
        return reverse_between(0, steps, growing.list_chunk_ends(0, steps, chunk=chunk, p=p, q=q))


STRATEGIES = (Growing(),)
