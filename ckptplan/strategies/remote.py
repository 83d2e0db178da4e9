"""Implements Remote: Standard with every checkpoint in remote memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ckptplan.cost import paper
from ckptplan.cost.arrays import ceil_div
from ckptplan.cost.exact import Cost, Counts
from ckptplan.cost.overlap import TransferBounds, TransferTiming
from ckptplan.model.budget import Budget
from ckptplan.model.record import Parameters
from ckptplan.model.split import Split
from ckptplan.model.step_costs import StepCosts
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier
from ckptplan.schedule.segments import cut_range
from ckptplan.strategies.closed_form import Box, Capacity, ClosedForm
from ckptplan.strategies.protocol import Columns


def _printed(*, low: Columns, high: Columns, costs: StepCosts) -> Cost:
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


def _transfers(point: Columns, *, costs: StepCosts) -> TransferTiming:
    # With e = r + o + b, z = f + o + b, and y = c1 (the first chunk) for one message, else c:
    #   gap = c f + a;  turn = y f + a + c z + k;  between = c e + k;  last = c1 e + k
    chunk = point["chunk_size"]
    checkpoints = ceil_div(costs.steps, chunk) - 1
    first = costs.steps - checkpoints * chunk
    reverse_seconds = costs.recompute_seconds + costs.record_overhead_seconds + costs.backward_seconds
    last_seconds = costs.forward_seconds + costs.record_overhead_seconds + costs.backward_seconds
    # A run of steps before each checkpoint but the first, and a recorded chunk after each read.
    a, k = costs.advance_seconds, costs.chunk_seconds
    one = np.ones_like(chunk)
    return TransferTiming(
        messages=checkpoints,
        first_states=one,
        states=one,
        first_gap=first * costs.forward_seconds + a,
        gap=chunk * costs.forward_seconds + a,
        turn=np.where(checkpoints == 1, first, chunk) * costs.forward_seconds + a + chunk * last_seconds + k,
        between_reads=chunk * reverse_seconds + k,
    )


class Remote(ClosedForm):
    """Standard with every checkpoint in remote memory.

    Section III-C of the paper; each checkpoint is one message, by way of the workspace.
    """

    name = "remote"
    rank = 2
    parameter_names = ("chunk_size",)
    printed = staticmethod(_printed)
    transfers = staticmethod(_transfers)

    def candidates(self, *, costs: StepCosts, budget: Budget) -> Box | None:
        capacity = Capacity.within(budget, costs=costs)
        least = ceil_div(costs.steps, capacity.remote_checkpoints + 1)
        if capacity.tapes < least:
            return None
        return Box(low={"chunk_size": least}, high={"chunk_size": capacity.tapes})

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        fewest_checkpoints = ceil_div(steps, high["chunk_size"]) - 1
        return Counts(
            recomputed_steps=steps - high["chunk_size"],
            remote_writes=fewest_checkpoints,
            remote_reads=fewest_checkpoints,
            messages=2 * fewest_checkpoints,
            advances=fewest_checkpoints,
            chunks=fewest_checkpoints + 1,
            local_saves=np.zeros_like(fewest_checkpoints),
            local_loads=np.zeros_like(fewest_checkpoints),
            largest_message=np.minimum(1, fewest_checkpoints),
            tapes=low["chunk_size"],
            local_checkpoints=np.zeros_like(fewest_checkpoints),
            remote_checkpoints=fewest_checkpoints,
        )

    def bound_transfers(self, *, low: Columns, high: Columns, steps: int) -> TransferBounds:
        # The last write starts where the chunk before the last one does.
        return TransferBounds(
            last_states=1,
            steps_before=np.maximum(0, steps - 2 * high["chunk_size"]),
            steps_after=np.minimum(steps, 2 * low["chunk_size"]),
            advances_before=np.maximum(0, ceil_div(steps, low["chunk_size"]) - 2),
            saves_before=0,
        )

    def clamp(self, parameters: Parameters, *, steps: int) -> Parameters:
        return Parameters(chunk_size=min(parameters["chunk_size"], steps))

    def actions(
        self, parameters: Parameters, *, steps: int, splits: Sequence[Split] | None = None
    ) -> Iterator[Action]:
        chunk = parameters["chunk_size"]
        ends = cut_range(0, steps, chunk)
        for end in ends:
            start = max(0, end - chunk)
            yield Save(start, Tier.REMOTE)
            yield Advance(start, end)
        last = ends[-1] if ends else 0
        yield Record(last, steps)
        yield Backward(last, steps)
        for end in reversed(ends):
            start = max(0, end - chunk)
            yield Load(start, Tier.REMOTE)
            yield Free(start, Tier.REMOTE)
            yield Record(start, end)
            yield Backward(start, end)


STRATEGIES = (Remote(),)
