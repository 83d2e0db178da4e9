"""Implements Nested: Double with its outer checkpoints in local memory."""

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
from ckptplan.schedule.actions import Action, Advance, Free, Load, Save, Tier
from ckptplan.schedule.segments import cut_range, reverse_locally
from ckptplan.strategies.closed_form import Box, Capacity, ClosedForm
from ckptplan.strategies.protocol import Columns
from ckptplan.strategies.two_levels import TwoLevels

_LEVELS = TwoLevels(segment="segment_size")


class Nested(ClosedForm):
    """Two levels of local checkpoints, as nested ``torch.utils.checkpoint`` calls execute; not in the paper."""

    name = "nested"
    rank = 5
    parameter_names = ("chunk_size", "segment_size")

    def candidates(self, *, costs: StepCosts, budget: Budget) -> Box | None:
        capacity = Capacity.within(budget, costs=costs)
        least = ceil_div(costs.steps, capacity.local_checkpoints + 1)
        most = min(costs.steps, capacity.tapes * (capacity.local_checkpoints + 1))
        if capacity.tapes < 1 or most < least:
            return None
        return Box(
            low={"chunk_size": 1, "segment_size": least},
            high={"chunk_size": capacity.tapes, "segment_size": most},
        )

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        two = _LEVELS.levels(low=low, high=high, steps=steps)
        none = np.zeros_like(two.outer)
        return Counts(
            recomputed_steps=two.recomputed_steps,
            remote_writes=none,
            remote_reads=none,
            messages=none,
            advances=two.chunks - 1,
            chunks=two.chunks,
            local_saves=two.shared_checkpoints,
            local_loads=two.chunks - 1,
            largest_message=none,
            tapes=low["chunk_size"],
            local_checkpoints=two.outer + two.inner,
            remote_checkpoints=none,
        )

    def admits(self, *, low: Columns, high: Columns, steps: int) -> npt.NDArray[np.bool_]:
        return _LEVELS.chunk_within_segment(low=low, high=high)

    def clamp(self, parameters: Parameters, *, steps: int) -> Parameters:
        return _LEVELS.clamp(parameters, steps=steps)

    def actions(
        self, parameters: Parameters, *, steps: int, splits: Sequence[Split] | None = None
    ) -> Iterator[Action]:
        chunk, segment = parameters["chunk_size"], parameters["segment_size"]
        ends = cut_range(0, steps, segment)
        for end in ends:
            start = max(0, end - segment)
            yield Save(start, Tier.LOCAL)
            yield Advance(start, end)
        yield from reverse_locally(ends[-1] if ends else 0, steps, chunk)
        for end in reversed(ends):
            start = max(0, end - segment)
            yield Load(start, Tier.LOCAL)
            # The outer checkpoint serves as the segment's first inner one, if the segment has any.
            held = end - start > chunk
            if not held:
                yield Free(start, Tier.LOCAL)
            yield from reverse_locally(start, end, chunk, held=held)


STRATEGY = Nested()
