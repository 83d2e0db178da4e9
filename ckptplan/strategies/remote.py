"""Implements Remote and Hierarchical: chunks whose checkpoints move to remote memory, alone or in batches."""

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
from ckptplan.schedule.segments import cut_range, reverse_in_segments, reverse_locally
from ckptplan.strategies.closed_form import Box, Capacity, ClosedForm
from ckptplan.strategies.protocol import Columns, Splits


def _print_remote(*, low: Columns, high: Columns, costs: StepCosts) -> Cost:
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


class Remote(ClosedForm):
    """Standard with every checkpoint in remote memory.

    Section III-C of the paper; each checkpoint is one message, by way of the workspace.
    """

    name = "remote"
    rank = 2
    parameter_names = ("chunk_size",)
    printed = staticmethod(_print_remote)
    moves_states = True

    def candidates(self, *, costs: StepCosts, budget: Budget) -> Box | None:
        capacity = Capacity.within(budget, costs=costs)
        least = ceil_div(costs.steps, capacity.remote_checkpoints + 1)
        return Box.of(chunk_size=(least, capacity.tapes))

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        fewest_checkpoints = ceil_div(steps, high["chunk_size"]) - 1
        return Counts(
            recomputed_steps=steps - high["chunk_size"],
            remote_writes=fewest_checkpoints,
            remote_reads=fewest_checkpoints,
            messages=2 * fewest_checkpoints,
            advances=fewest_checkpoints,
            chunks=fewest_checkpoints + 1,
            largest_message=np.minimum(1, fewest_checkpoints),
            tapes=low["chunk_size"],
            remote_checkpoints=fewest_checkpoints,
        )

    def transfers(self, point: Columns, *, costs: StepCosts) -> TransferTiming:
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
            turn=np.where(checkpoints == 1, first, chunk) * costs.forward_seconds
            + a
            + chunk * last_seconds
            + k,
            between_reads=chunk * reverse_seconds + k,
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

    def actions(self, parameters: Parameters, *, steps: int, splits: Splits = None) -> Iterator[Action]:
        chunk = parameters["chunk_size"]
        return reverse_in_segments(
            steps, chunk, tier=Tier.REMOTE, reverse=lambda start, end, _: reverse_locally(start, end, chunk)
        )


def _print_hierarchical(*, low: Columns, high: Columns, costs: StepCosts) -> Cost:
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


STRATEGIES = (Remote(), Hierarchical())
