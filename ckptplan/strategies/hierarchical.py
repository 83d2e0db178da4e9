"""Implements Hierarchical: chunks whose checkpoints move to and from remote memory in batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ckptplan.cost import paper
from ckptplan.cost.arrays import ceil_div
from ckptplan.cost.exact import Cost, Counts
from ckptplan.cost.overlap import TransferBounds, TransferTiming
from ckptplan.model.budget import Budget
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer
from ckptplan.schedule.segments import cut_range
from ckptplan.strategies.closed_form import Box, Capacity, ClosedForm
from ckptplan.strategies.protocol import Columns, Splits


def _print_hierarchical(*, low: Columns, high: Columns, costs: StepCosts) -> Cost:
    checkpoints = paper.nb_checkpoints(T=costs.steps, chunk_size=high["chunk_size"])
    states = paper.states_hierarchical(nb_checkpoints=checkpoints, nb_local=high["nb_local"])
    return Cost(
        seconds=paper.time_hierarchical(
            N_c=paper.communications_hierarchical(nb_checkpoints=checkpoints, nb_local=high["nb_local"]),
            states=states,
            **paper.times(costs),
        ),
        local_peak_bytes=paper.memory_hierarchical(
            chunk_size=low["chunk_size"], nb_local=low["nb_local"], **paper.sizes(costs)
        ),
        remote_peak_bytes=states // 2 * costs.remote_state_bytes,
    )


class Hierarchical(ClosedForm):
    """Checkpoints move to and from remote memory in batches.

    Section III-D of the paper; the last ``nb_local`` checkpoints never leave local memory.
    """

    name = "hierarchical"
    rank = 3
    parameter_names = ("chunk_size", "nb_local")
    printed = staticmethod(_print_hierarchical)
    moves_states = True

    def candidates(self, *, costs: StepCosts, budget: Budget) -> Box | None:
        capacity = Capacity.within(budget, costs=costs)
        return Box.of(chunk_size=(1, capacity.tapes), nb_local=(1, max(1, capacity.local_checkpoints)))

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        checkpoints = ceil_div(steps, high["chunk_size"]) - 1
        # More slots keep more states local and make larger messages, but take more memory.
        moved = np.maximum(0, checkpoints - high["nb_local"])
        return Counts(
            recomputed_steps=steps - high["chunk_size"],
            remote_writes=moved,
            remote_reads=moved,
            messages=2 * ceil_div(moved, high["nb_local"]),
            advances=checkpoints,
            chunks=checkpoints + 1,
            local_saves=checkpoints,
            local_loads=checkpoints,
            largest_message=np.minimum(low["nb_local"], moved),
            tapes=low["chunk_size"],
            local_checkpoints=np.minimum(low["nb_local"], checkpoints),
            remote_checkpoints=moved,
        )

    def transfers(self, point: Columns, *, costs: StepCosts) -> TransferTiming:
        # With q = nb_local, e = r + o + b, z = f + o + b, and y = c1 (the first chunk) for one state, else c:
        #   gap = q c f + q (s + a);  between = q c e + q (l + k)
        #   turn = (y + q c) f + a + q (s + a) + c z + k + between
        chunk, batch = point["chunk_size"], point["nb_local"]
        checkpoints = ceil_div(costs.steps, chunk) - 1
        first = costs.steps - checkpoints * chunk
        moved = np.maximum(0, checkpoints - batch)
        messages = ceil_div(moved, batch)
        # States of the first, ragged batch; its last one is saved before chunk number first_states - 1.
        first_states = np.maximum(1, moved - (messages - 1) * batch)
        forward, reverse_seconds = (
            costs.forward_seconds,
            costs.recompute_seconds + costs.record_overhead_seconds + costs.backward_seconds,
        )
        last_seconds = chunk * (forward + costs.record_overhead_seconds + costs.backward_seconds)
        whole_batch = batch * chunk
        # Each checkpoint is saved, and a run follows it; later it is loaded, and its chunk is recorded.
        a, k, s = costs.advance_seconds, costs.chunk_seconds, costs.save_seconds
        forth, back = s + a, costs.load_seconds + k
        return TransferTiming(
            messages=messages,
            first_states=first_states,
            states=batch,
            first_gap=np.where(first_states == 1, whole_batch - chunk + first, whole_batch) * forward
            + batch * forth,
            gap=whole_batch * forward + batch * forth,
            turn=(np.where(moved == 1, first, chunk) + whole_batch) * forward
            + (a + batch * forth)
            + (last_seconds + k)
            + (whole_batch * reverse_seconds + batch * back),
            between_reads=whole_batch * reverse_seconds + batch * back,
        )

    def bound_transfers(self, *, low: Columns, high: Columns, steps: int) -> TransferBounds:
        # The last write moves a whole batch, or the only one. It starts where a chunk does that nb_local + 1
        # chunks follow. In a wide box the product can exceed 2**63.
        most = np.minimum(high["nb_local"] + 2, steps // high["chunk_size"] + 1) * high["chunk_size"]
        least = np.minimum(low["nb_local"] + 2, steps // low["chunk_size"] + 1) * low["chunk_size"]
        # Every state that moves is saved before it does.
        moved = np.maximum(0, ceil_div(steps, low["chunk_size"]) - 1 - low["nb_local"])
        return TransferBounds(
            last_states=high["nb_local"],
            steps_before=np.maximum(0, steps - most),
            steps_after=np.minimum(steps, least),
            advances_before=np.maximum(0, moved - 1),
            saves_before=moved,
        )

    def admits(self, *, low: Columns, high: Columns, steps: int) -> npt.NDArray[np.bool_]:
        # More slots than checkpoints cost nothing and save nothing: ties go to fewer slots.
        most_checkpoints = ceil_div(steps, low["chunk_size"])
        useful: npt.NDArray[np.bool_] = low["nb_local"] <= most_checkpoints
        return useful

    def actions(self, parameters: Parameters, *, steps: int, splits: Splits = None) -> Iterator[Action]:
        chunk, slots = parameters["chunk_size"], parameters["nb_local"]
        ends = cut_range(0, steps, chunk)
        starts = [max(0, end - chunk) for end in ends]
        away = max(0, len(ends) - slots)
        # Batch b holds the checkpoints from number batches[b] - slots (or 0) to batches[b]; ragged first.
        batches = range(away - (ceil_div(away, slots) - 1) * slots, away + 1, slots) if away else range(0)
        for number, (start, end) in enumerate(zip(starts, ends, strict=True), start=1):
            yield Save(start, Tier.LOCAL)
            if number in batches:
                yield Transfer(tuple(starts[max(0, number - slots) : number]), Tier.LOCAL, Tier.REMOTE)
            yield Advance(start, end)
        last = ends[-1] if ends else 0
        yield Record(last, steps)
        yield Backward(last, steps)
        for number in range(len(ends), 0, -1):
            if number in batches:
                yield Transfer(tuple(starts[max(0, number - slots) : number]), Tier.REMOTE, Tier.LOCAL)
            start, end = starts[number - 1], ends[number - 1]
            yield Load(start, Tier.LOCAL)
            yield Free(start, Tier.LOCAL)
            yield Record(start, end)
            yield Backward(start, end)


STRATEGIES = (Hierarchical(),)
