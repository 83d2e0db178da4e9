"""Implements Double with chunks that grow within each segment: equal recomputation, less memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import Integers, ceil_div
from ckptplan.cost.exact import Counts
from ckptplan.cost.overlap import TransferBounds
from ckptplan.model.budget import Budget
from ckptplan.model.record import Parameters
from ckptplan.model.split import Split
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion import growing
from ckptplan.schedule.actions import Action, Advance, Free, Load, Save, Tier
from ckptplan.schedule.segments import cut_range, reverse_between
from ckptplan.strategies.closed_form import Box, Capacity, ClosedForm
from ckptplan.strategies.protocol import Columns
from ckptplan.strategies.two_levels import TwoLevels


class _GrowingLevels(TwoLevels):
    """Segments that are cut into chunks which grow towards their start."""

    def count_chunks(self, length: Integers, *, point: Columns) -> Integers:
        return growing.count_chunks(
            length, chunk=point["chunk_size"], p=point["state_units"], q=point["tape_units"]
        )


_LEVELS = _GrowingLevels(segment="remote_chunk_size")


class DoubleGrowing(ClosedForm):
    """Segments of ``remote_chunk_size`` steps, as in Double, each cut into chunks as in Growing."""

    name = "double-growing"
    rank = 7
    parameter_names = ("chunk_size", "remote_chunk_size", "state_units", "tape_units")
    always_regular = False
    transfers = _LEVELS.transfers

    def candidates(self, *, costs: StepCosts, budget: Budget) -> Box | None:
        capacity = Capacity.within(budget, costs=costs)
        least = ceil_div(costs.steps, capacity.remote_checkpoints + 1)
        if capacity.tapes < 1:
            return None
        p, q = growing.growth_ratio(state=costs.state_bytes, tape=costs.tape_bytes)
        fixed = {"state_units": p, "tape_units": q}
        return Box(
            low={"chunk_size": 1, "remote_chunk_size": least, **fixed},
            high={"chunk_size": capacity.tapes, "remote_chunk_size": costs.steps, **fixed},
        )

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        two = _LEVELS.levels(low=low, high=high, steps=steps)
        return Counts(
            recomputed_steps=two.recomputed_steps,
            remote_writes=two.outer,
            remote_reads=two.outer,
            messages=2 * two.outer,
            advances=two.chunks - 1,
            chunks=two.chunks,
            local_saves=two.checkpoints,
            local_loads=two.checkpoints,
            largest_message=np.minimum(1, two.outer),
            tapes=low["chunk_size"],
            local_checkpoints=two.inner,
            remote_checkpoints=two.outer,
        )

    def admits(self, *, low: Columns, high: Columns, steps: int) -> npt.NDArray[np.bool_]:
        return _LEVELS.chunk_within_segment(low=low, high=high)

    def bound_transfers(self, *, low: Columns, high: Columns, steps: int) -> TransferBounds:
        return _LEVELS.bound_transfers(low=low, high=high, steps=steps)

    def clamp(self, parameters: Parameters, *, steps: int) -> Parameters:
        return Parameters({**parameters, **_LEVELS.clamp(parameters, steps=steps)})

    def regular(self, parameters: Parameters, *, steps: int) -> bool:
        return parameters["chunk_size"] >= parameters["remote_chunk_size"]

    def actions(
        self, parameters: Parameters, *, steps: int, splits: Sequence[Split] | None = None
    ) -> Iterator[Action]:
        chunk, segment, p, q = (parameters[name] for name in self.parameter_names)
        ends = cut_range(0, steps, segment)
        for end in ends:
            start = max(0, end - segment)
            yield Save(start, Tier.REMOTE)
            yield Advance(start, end)
        last = ends[-1] if ends else 0
        yield from reverse_between(last, steps, growing.list_chunk_ends(last, steps, chunk=chunk, p=p, q=q))
        for end in reversed(ends):
            start = max(0, end - segment)
            yield Load(start, Tier.REMOTE)
            yield Free(start, Tier.REMOTE)
            yield from reverse_between(start, end, growing.list_chunk_ends(start, end, chunk=chunk, p=p, q=q))


STRATEGY = DoubleGrowing()
