"""Implements Double, Double-growing and Nested: chunks inside segments, and recomputed steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ckptplan.cost import paper
from ckptplan.cost.arrays import Integers, ceil_div
from ckptplan.cost.exact import Cost, Counts
from ckptplan.cost.overlap import TransferBounds, TransferTiming
from ckptplan.model.budget import Budget
from ckptplan.model.record import Parameters
from ckptplan.model.split import Split
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion import growing
from ckptplan.schedule.actions import Action, Advance, Free, Load, Save, Tier
from ckptplan.schedule.segments import cut_range, reverse_between, reverse_locally
from ckptplan.strategies.closed_form import Box, Capacity, ClosedForm
from ckptplan.strategies.protocol import Columns


@dataclass(frozen=True, kw_only=True)
class Levels:
    """Lower bounds in each box, exact at points: checkpoints of both levels, recomputed steps, chunks.

    ``inner`` is the number of checkpoints in one segment, ``checkpoints`` in all segments together.
    ``shared_checkpoints`` counts those of both levels if a segment's outer one serves as its first inner one.
    """

    outer: Integers
    inner: Integers
    recomputed_steps: Integers
    chunks: Integers
    checkpoints: Integers
    shared_checkpoints: Integers


@dataclass(frozen=True, kw_only=True)
class TwoLevels:
    """Chunks of ``chunk_size`` steps inside segments, whose length is the parameter named ``segment``."""

    segment: str

    def levels(self, *, low: Columns, high: Columns, steps: int) -> Levels:
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
        return Levels(
            outer=outer,
            inner=within - 1,
            recomputed_steps=np.maximum(
                self._recomputed(low, high, fewest_segments=fewest_segments, steps=steps),
                self._recomputed_between(low, high, steps=steps),
            ),
            chunks=chunks,
            checkpoints=np.maximum(outer * (within - 1) + within_first - 1, undivided - most_segments),
            shared_checkpoints=np.maximum(
                # s - 1 outer ones; of the inner ones, all in the last segment, all but one in the others.
                outer
                + (within - 1)
                + np.maximum(0, outer - 1) * np.maximum(0, within - 2)
                + np.where(outer > 0, np.maximum(0, within_first - 2), 0),
                ceil_div(undivided, 2) - 1,
            ),
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

    def chunk_within_segment(self, *, low: Columns, high: Columns) -> npt.NDArray[np.bool_]:
        """Return which boxes contain a legal setting: the shortest chunk fits in the longest segment."""
        legal: npt.NDArray[np.bool_] = low["chunk_size"] <= high[self.segment]
        return legal

    def clamp(self, parameters: Parameters, *, steps: int) -> Parameters:
        """Return the setting with c <= T and c <= rc <= T."""
        chunk = min(parameters["chunk_size"], steps)
        segment = min(max(parameters[self.segment], chunk), steps)
        return Parameters({"chunk_size": chunk, self.segment: segment})

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


def count_segment_recomputed(length: Integers, chunk: Integers) -> Integers:
    """Return g(L) of ``levels``: the steps that run again to reverse a segment without any tape left."""
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


class RemoteSegments(ClosedForm):
    """Segments with a remote checkpoint each, which is read once and held while the segment is reversed.

    Subclasses say how a segment is cut into chunks (``levels_of``) and reversed.
    """

    levels_of: ClassVar[TwoLevels]

    @abstractmethod
    def reverse_segment(self, start: int, end: int, parameters: Parameters) -> Iterator[Action]:
        """Yield the actions that reverse steps start..end-1, from the state before them."""

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        two = self.levels_of.levels(low=low, high=high, steps=steps)
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
        return self.levels_of.chunk_within_segment(low=low, high=high)

    def bound_transfers(self, *, low: Columns, high: Columns, steps: int) -> TransferBounds:
        return self.levels_of.bound_transfers(low=low, high=high, steps=steps)

    def clamp(self, parameters: Parameters, *, steps: int) -> Parameters:
        return Parameters({**parameters, **self.levels_of.clamp(parameters, steps=steps)})

    def actions(
        self, parameters: Parameters, *, steps: int, splits: Sequence[Split] | None = None
    ) -> Iterator[Action]:
        segment = parameters["remote_chunk_size"]
        ends = cut_range(0, steps, segment)
        for end in ends:
            start = max(0, end - segment)
            yield Save(start, Tier.REMOTE)
            yield Advance(start, end)
        yield from self.reverse_segment(ends[-1] if ends else 0, steps, parameters)
        for end in reversed(ends):
            start = max(0, end - segment)
            yield Load(start, Tier.REMOTE)
            yield Free(start, Tier.REMOTE)
            yield from self.reverse_segment(start, end, parameters)


class Double(RemoteSegments):
    """Remote checkpoints far apart, and local checkpoints between them.

    Section III-E of the paper; a remote checkpoint is read once and held while its segment is reversed.
    """

    name = "double"
    rank = 4
    parameter_names = ("chunk_size", "remote_chunk_size")
    printed = staticmethod(_printed)
    levels_of = TwoLevels(segment="remote_chunk_size")
    transfers = levels_of.transfers

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

    def reverse_segment(self, start: int, end: int, parameters: Parameters) -> Iterator[Action]:
        return reverse_locally(start, end, parameters["chunk_size"])


_SEGMENTS = TwoLevels(segment="segment_size")


class Nested(ClosedForm):
    """Double with its outer checkpoints in local memory.

    Two levels of local checkpoints, as nested ``torch.utils.checkpoint`` calls execute; not in the paper.
    """

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
        two = _SEGMENTS.levels(low=low, high=high, steps=steps)
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
        return _SEGMENTS.chunk_within_segment(low=low, high=high)

    def clamp(self, parameters: Parameters, *, steps: int) -> Parameters:
        return _SEGMENTS.clamp(parameters, steps=steps)

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


class _GrowingLevels(TwoLevels):
    """Segments that are cut into chunks which grow towards their start."""

    def count_chunks(self, length: Integers, *, point: Columns) -> Integers:
        return growing.count_chunks(
            length, chunk=point["chunk_size"], p=point["state_units"], q=point["tape_units"]
        )


class DoubleGrowing(RemoteSegments):
    """Double with chunks that grow within each segment: equal recomputation, less memory.

    Segments of ``remote_chunk_size`` steps, as in Double, each cut into chunks as in Growing.
    """

    name = "double-growing"
    rank = 7
    parameter_names = ("chunk_size", "remote_chunk_size", "state_units", "tape_units")
    always_regular = False
    levels_of = _GrowingLevels(segment="remote_chunk_size")
    transfers = levels_of.transfers

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

    def regular(self, parameters: Parameters, *, steps: int) -> bool:
        return parameters["chunk_size"] >= parameters["remote_chunk_size"]

    def reverse_segment(self, start: int, end: int, parameters: Parameters) -> Iterator[Action]:
        chunk, _, p, q = (parameters[name] for name in self.parameter_names)
        return reverse_between(start, end, growing.list_chunk_ends(start, end, chunk=chunk, p=p, q=q))


STRATEGIES = (Double(), Nested(), DoubleGrowing())
