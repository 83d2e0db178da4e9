"""Implements Double: remote checkpoints far apart, and local checkpoints between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ckptplan.cost import paper
from ckptplan.cost.arrays import ceil_div
from ckptplan.cost.exact import Cost, Counts
from ckptplan.cost.overlap import TransferBounds
from ckptplan.model.budget import Budget
from ckptplan.model.record import Parameters
from ckptplan.model.split import Split
from ckptplan.model.step_costs import StepCosts
from ckptplan.schedule.actions import Action, Advance, Free, Load, Save, Tier
from ckptplan.schedule.segments import cut_range, reverse_locally
from ckptplan.strategies.closed_form import Box, Capacity, ClosedForm
from ckptplan.strategies.protocol import Columns
from ckptplan.strategies.two_levels import TwoLevels

_LEVELS = TwoLevels(segment="remote_chunk_size")


def _printed(*, low: Columns, high: Columns, costs: StepCosts) -> Cost:
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


class Double(ClosedForm):
    """Section III-E of the paper; a remote checkpoint is read once and held while its segment is reversed."""

    name = "double"
    rank = 4
    parameter_names = ("chunk_size", "remote_chunk_size")
    printed = staticmethod(_printed)
    transfers = _LEVELS.transfers

    def candidates(self, *, costs: StepCosts, budget: Budget) -> Box | None:
        capacity = Capacity.within(budget, costs=costs)
        least = ceil_div(costs.steps, capacity.remote_checkpoints + 1)
        most = min(costs.steps, capacity.tapes * (capacity.local_checkpoints + 1))
        if capacity.tapes < 1 or most < least:
            return None
        return Box(
            low={"chunk_size": 1, "remote_chunk_size": least},
            high={"chunk_size": capacity.tapes, "remote_chunk_size": most},
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
        return _LEVELS.clamp(parameters, steps=steps)

    def actions(
        self, parameters: Parameters, *, steps: int, splits: Sequence[Split] | None = None
    ) -> Iterator[Action]:
        chunk, segment = parameters["chunk_size"], parameters["remote_chunk_size"]
        ends = cut_range(0, steps, segment)
        for end in ends:
            start = max(0, end - segment)
            yield Save(start, Tier.REMOTE)
            yield Advance(start, end)
        yield from reverse_locally(ends[-1] if ends else 0, steps, chunk)
        for end in reversed(ends):
            start = max(0, end - segment)
            yield Load(start, Tier.REMOTE)
            yield Free(start, Tier.REMOTE)
            yield from reverse_locally(start, end, chunk)


STRATEGY = Double()
