"""Implements Double, Nested and Double-growing: chunks inside segments, and recomputed steps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ckptplan.cost import paper
from ckptplan.cost.arrays import Integers, ceil_div
from ckptplan.cost.exact import Cost, Counts
from ckptplan.cost.overlap import TransferBounds, TransferTiming
from ckptplan.model.budget import Budget
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion import growing
from ckptplan.schedule.actions import Action, Tier
from ckptplan.schedule.segments import reverse_between, reverse_in_segments, reverse_locally
from ckptplan.strategies.closed_form import Box, Capacity, ClosedForm
from ckptplan.strategies.protocol import Columns, Splits


class TwoLevels(ClosedForm):
    """Chunks of ``chunk_size`` steps inside segments, each with a checkpoint that is held while it is reversed.

    The parameter named ``segment`` is their length. If states are moved, the checkpoints of segments are in
    remote memory, and each is read once; else they are in local memory.
    """

    segment: ClassVar[str] = "remote_chunk_size"

    def candidates(self, *, costs: StepCosts, budget: Budget) -> Box | None:
        capacity = Capacity.within(budget, costs=costs)
        outer = capacity.remote_checkpoints if self.moves_states else capacity.local_checkpoints
        longest = min(costs.steps, capacity.tapes * (capacity.local_checkpoints + 1))
        lengths = (ceil_div(costs.steps, outer + 1), longest)
        return Box.of(**{"chunk_size": (1, capacity.tapes), self.segment: lengths})

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        """Return the counts for segments of rc steps, cut into chunks of c = chunk_size.

        There are s = ceil(T/rc) segments, the first of L0 = T - (s-1) rc steps. A segment is swept once
        without tapes and then reversed as in Standard, which runs g(L) = 2L - c steps again if L > c, else L:
        in both cases g(L) = 2L - min(c, L). The last one is part of the first sweep and recomputes rc - c
        steps. So (rc-c) + (s-2) g(rc) + g(L0) steps run again, which is

            2T - rc - (s-1) c - min(c, L0).

        This also holds for s = 1, where rc = L0 = T and T - c steps run again. It is never below T - c.
        """
        fewest_segments = ceil_div(steps, high[self.segment])
        most_segments = ceil_div(steps, low[self.segment])
        is_point = low[self.segment] == high[self.segment]
        # The first segment has L0 steps, which only a point determines. Longer chunks are fewer.
        first = np.where(is_point, steps - (most_segments - 1) * low[self.segment], 1)
        within = self.count_chunks(low[self.segment], point=high)
        within_first = self.count_chunks(first, point=high)
        # Cutting the sequence into segments does not save chunks.
        undivided = self.count_chunks(np.full_like(first, steps), point=high)
        outer = fewest_segments - 1
        chunks = np.maximum(outer * within + within_first, undivided)
        recomputed = np.maximum(
            self._recomputed(low, high, fewest_segments=fewest_segments, steps=steps),
            self._recomputed_between(low, high, steps=steps),
        )
        if self.moves_states:
            saves = np.maximum(outer * (within - 1) + within_first - 1, undivided - most_segments)
            return Counts(
                recomputed_steps=recomputed,
                remote_writes=outer,
                remote_reads=outer,
                messages=2 * outer,
                advances=chunks - 1,
                chunks=chunks,
                local_saves=saves,
                local_loads=saves,
                largest_message=np.minimum(1, outer),
                tapes=low["chunk_size"],
                local_checkpoints=within - 1,
                remote_checkpoints=outer,
            )
        # A segment's outer checkpoint serves as its first inner one.
        saves = np.maximum(
            # s - 1 outer ones; of the inner ones, all in the last segment, all but one in the others.
            outer
            + (within - 1)
            + np.maximum(0, outer - 1) * np.maximum(0, within - 2)
            + np.where(outer > 0, np.maximum(0, within_first - 2), 0),
            ceil_div(undivided, 2) - 1,
        )
        return Counts(
            recomputed_steps=recomputed,
            advances=chunks - 1,
            chunks=chunks,
            local_saves=saves,
            local_loads=chunks - 1,
            tapes=low["chunk_size"],
            local_checkpoints=outer + within - 1,
        )

    def count_chunks(self, length: Integers, *, point: Columns) -> Integers:
        """Return the number of chunks in segments of these lengths."""
        chunks: Integers = ceil_div(length, point["chunk_size"])
        return chunks

    def _recomputed(self, low: Columns, high: Columns, *, fewest_segments: Integers, steps: int) -> Integers:
        """Return the sum of bounds of its terms, which is exact at a point."""
        most_segments = ceil_div(steps, low[self.segment])
        longest_first = steps - (fewest_segments - 1) * low[self.segment]
        chunk = high["chunk_size"]
        # At a point, (s-1) c < T. In a wide box the product can exceed 2T, where it is useless, and 2**63.
        recorded_at_once = np.minimum(most_segments - 1, 2 * steps // chunk + 1) * chunk
        recomputed = 2 * steps - high[self.segment] - recorded_at_once - np.minimum(chunk, longest_first)
        least: Integers = np.maximum(recomputed, steps - chunk)
        return least

    def _recomputed_between(self, low: Columns, high: Columns, *, steps: int) -> Integers:
        """Return a bound of the whole sum, which is close in wide boxes: rc and s cannot both be large.

        For any T, (s-1) c + min(c, L0) <= c (T-c) / rc + c, with equality at L0 = c. So at least
        2T - c - (rc + c (T-c) / rc) steps run again. This falls with c for c <= rc, and the subtracted term is
        convex in rc, so it is largest at an end of the range of rc >= c.
        """
        longest = high[self.segment].astype(np.float64)
        chunk = np.minimum(high["chunk_size"], longest)
        shortest = np.maximum(low[self.segment], chunk)
        saved = np.maximum(
            shortest + chunk * (steps - chunk) / shortest, longest + chunk * (steps - chunk) / longest
        )
        # Two less than the sum covers rounding: 2T is at most 2 * 10**12, so float errors are far below one.
        least: Integers = np.floor(2 * steps - chunk - saved - 2).astype(np.int64)
        # The formula needs c <= rc. A chunk longer than the longest segment lowers the bound by the excess.
        weaker: Integers = least - np.maximum(0, high["chunk_size"] - high[self.segment])
        return weaker

    def admits(self, *, low: Columns, high: Columns, steps: int) -> npt.NDArray[np.bool_]:
        # The shortest chunk fits in the longest segment.
        legal: npt.NDArray[np.bool_] = low["chunk_size"] <= high[self.segment]
        return legal

    def clamp(self, parameters: Parameters, *, steps: int) -> Parameters:
        # c <= T and c <= rc <= T.
        chunk = min(parameters["chunk_size"], steps)
        segment = min(max(parameters[self.segment], chunk), steps)
        return Parameters({**parameters, "chunk_size": chunk, self.segment: segment})

    def transfers(self, point: Columns, *, costs: StepCosts) -> TransferTiming:
        """Return when transfers are due if each segment's first state is written once and read once.

        With z = f + o + b, y = L0 for one message, else rc, and u(L) = (N - 1) (s + a + l + k) + k for the
        actions that reverse L steps in N chunks:

            gap     = rc f + a
            turn    = y f + a + rc z + (rc - c) r + u(rc)
            between = rc (o + b) + g(rc) r + u(rc)
            last    = L0 (o + b) + g(L0) r + u(L0)
        """
        chunk, segment = point["chunk_size"], point[self.segment]
        checkpoints = ceil_div(costs.steps, segment) - 1
        first = costs.steps - checkpoints * segment
        forward = costs.forward_seconds
        reverse_seconds = costs.record_overhead_seconds + costs.backward_seconds
        # The last segment is part of the first sweep; all its chunks but the last run again.
        last_seconds = segment * (forward + reverse_seconds) + (segment - chunk) * costs.recompute_seconds
        # Actions: a run before each segment; in a segment, each chunk but the last has a checkpoint and a run.
        a, k = costs.advance_seconds, costs.chunk_seconds
        each = costs.save_seconds + a + costs.load_seconds + k
        whole_actions = (self.count_chunks(segment, point=point) - 1) * each + k
        one = np.ones_like(chunk)
        return TransferTiming(
            messages=checkpoints,
            first_states=one,
            states=one,
            first_gap=first * forward + a,
            gap=segment * forward + a,
            turn=np.where(checkpoints == 1, first, segment) * forward + a + last_seconds + whole_actions,
            between_reads=segment * reverse_seconds
            + count_segment_recomputed(segment, chunk) * costs.recompute_seconds
            + whole_actions,
        )

    def bound_transfers(self, *, low: Columns, high: Columns, steps: int) -> TransferBounds:
        """Return bounds for each box: the last write starts where the segment before the last one does."""
        return TransferBounds(
            last_states=1,
            steps_before=np.maximum(0, steps - 2 * high[self.segment]),
            steps_after=np.minimum(steps, 2 * low[self.segment]),
            advances_before=np.maximum(0, ceil_div(steps, low[self.segment]) - 2),
            saves_before=0,
        )

    def actions(self, parameters: Parameters, *, steps: int, splits: Splits = None) -> Iterator[Action]:
        return reverse_in_segments(
            steps,
            parameters[self.segment],
            tier=Tier.REMOTE if self.moves_states else Tier.LOCAL,
            reverse=partial(self.reverse_segment, parameters),
        )

    def reverse_segment(self, parameters: Parameters, start: int, end: int, held: bool) -> Iterator[Action]:
        """Yield the actions that reverse steps start..end-1, whose first state is ``held`` in a local slot."""
        return reverse_locally(start, end, parameters["chunk_size"], held=held)


def count_segment_recomputed(length: Integers, chunk: Integers) -> Integers:
    """Return g(L) of ``counts``: the steps that run again to reverse a segment without any tape left."""
    steps: Integers = 2 * length - np.minimum(chunk, length)
    return steps


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


class Double(TwoLevels):
    """Remote checkpoints far apart, and local checkpoints between them.

    Section III-E of the paper; a remote checkpoint is read once and held while its segment is reversed.
    """

    name = "double"
    rank = 4
    parameter_names = ("chunk_size", "remote_chunk_size")
    printed = staticmethod(_printed)
    moves_states = True


class Nested(TwoLevels):
    """Double with its outer checkpoints in local memory.

    Two levels of local checkpoints, as nested ``torch.utils.checkpoint`` calls execute; not in the paper.
    """

    name = "nested"
    rank = 5
    parameter_names = ("chunk_size", "segment_size")
    segment = "segment_size"


class DoubleGrowing(TwoLevels):
    """Double with chunks that grow within each segment: equal recomputation, less memory.

    Segments of ``remote_chunk_size`` steps, as in Double, each cut into chunks as in Growing.
    """

    name = "double-growing"
    rank = 7
    parameter_names = ("chunk_size", "remote_chunk_size", "state_units", "tape_units")
    always_regular = False
    moves_states = True

    def candidates(self, *, costs: StepCosts, budget: Budget) -> Box | None:
        capacity = Capacity.within(budget, costs=costs)
        least = ceil_div(costs.steps, capacity.remote_checkpoints + 1)
        p, q = growing.growth_ratio(state=costs.state_bytes, tape=costs.tape_bytes)
        return Box.of(
            chunk_size=(1, capacity.tapes),
            remote_chunk_size=(least, costs.steps),
            state_units=(p, p),
            tape_units=(q, q),
        )

    def count_chunks(self, length: Integers, *, point: Columns) -> Integers:
        return growing.count_chunks(
            length, chunk=point["chunk_size"], p=point["state_units"], q=point["tape_units"]
        )

    def regular(self, parameters: Parameters, *, steps: int) -> bool:
        return parameters["chunk_size"] >= parameters["remote_chunk_size"]

    def reverse_segment(self, parameters: Parameters, start: int, end: int, held: bool) -> Iterator[Action]:
        chunk, _, p, q = (parameters[name] for name in self.parameter_names)
        ends = growing.list_chunk_ends(start, end, chunk=chunk, p=p, q=q)
        return reverse_between(start, end, ends, held=held)


STRATEGIES = (Double(), Nested(), DoubleGrowing())
