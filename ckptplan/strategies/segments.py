"""Implements Base, Standard, Remote, Double and their kin: chunks in segments, each with a checkpoint.

Symbols of the formulas below, with their names in the code:

    T           steps                       c, rc       chunk_size, and the steps of a segment
    n           chunks in all               L0          the steps of the first segment, which may be shorter
    q, v        states that move together, and segments whose checkpoints never move (``batch_of``)
    f, r        forward_seconds, recompute_seconds      o, b        record_overhead_seconds, backward_seconds
    a, k        advance_seconds, chunk_seconds          s, l        save_seconds, load_seconds

A *box* is a set of settings: ``low`` and ``high`` have the least and the largest value of each parameter. If
they are equal, the box is a *point*. Functions of a box return bounds that hold at all of its points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ckptplan.cost import paper
from ckptplan.cost.arrays import Integers, ceil_div
from ckptplan.cost.exact import Cost, Counts
from ckptplan.cost.overlap import SweepEnds, Transfers, TransferTiming
from ckptplan.errors import InputError
from ckptplan.model.budget import Budget
from ckptplan.model.goal import CacheName
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion import growing
from ckptplan.recursion.growing import CachedGrowth
from ckptplan.recursion.tree import CACHE_UNITS, OFFLOADED_STEPS
from ckptplan.schedule.actions import Tier
from ckptplan.schedule.loops import (
    Nest,
    Run,
    cut_evenly,
    group_chunks,
    keep_last,
    reverse_batches,
    reverse_chunks,
    reverse_segments,
)
from ckptplan.strategies.closed_form import SIZE_NAMES, ClosedForm, Ranges, count_room
from ckptplan.strategies.protocol import CACHED_STEPS, Columns, Splits


class Base(ClosedForm):
    """Plain backpropagation through time: keep every tape, recompute nothing.

    Section III-A of the paper.
    """

    name = "base"
    rank = 0
    parameter_names = ()
    # Its caches are part of the tapes, whatever choice a caller makes.
    cache_choices = ("all", "last", "segment", "none", "offloaded")

    @staticmethod
    def printed(*, low: Columns, high: Columns, costs: StepCosts) -> Cost:
        memory = paper.memory_base(T=costs.steps, M_a=costs.tape_bytes, M_others=costs.resident_bytes)
        return Cost(
            seconds=np.array([paper.base_seconds(costs)]),
            local_peak_bytes=np.array([memory]),
            remote_peak_bytes=np.zeros(1, dtype=np.int64),
        )

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        return Counts(
            recomputed_steps=np.zeros(1, dtype=np.int64), chunks=np.array([1]), tapes=np.array([steps])
        )

    def least_cached(self, point: Columns, *, steps: int) -> Integers:
        return np.full(1, steps, dtype=np.int64)

    def loops(self, parameters: Parameters, *, steps: int) -> Nest:
        return reverse_chunks((), steps)


class Segmented(ClosedForm):
    """Chunks of c = ``chunk_size`` steps in segments of rc steps, the ragged ones first.

    ``segment`` is the name of the parameter that has the length rc; a strategy without this parameter has a
    single segment. A segment's checkpoint is held until the segment is reversed: in remote memory if states are
    moved, where it is read once, else in local memory. Inside a segment each chunk but the last has a local
    checkpoint, and runs again. A strategy with one level of checkpoints is a special case: its segments are
    single chunks, or the whole sequence.
    """

    segment: ClassVar[str] = "segment_size"
    cache_choices: ClassVar[tuple[CacheName, ...]] = ("all", "last", "none", "offloaded")
    cache_names: ClassVar[tuple[str, ...]] = (CACHED_STEPS, OFFLOADED_STEPS)

    @property
    def has_two_levels(self) -> bool:
        """Whether chunks and segments have lengths of their own."""
        return self.segment != "chunk_size" and self.segment in self.parameter_names

    def ranges(self, *, costs: StepCosts, budget: Budget) -> Ranges:
        ranges = super().ranges(costs=costs, budget=budget)
        if not self.has_two_levels:
            return ranges
        tapes, local, remote = count_room(budget, costs=costs)
        # There must be room for S - 1 checkpoints: ceil(T / rc) - 1 <= room.
        least = ceil_div(costs.steps, (remote if self.moves_states else local) + 1)
        return {**ranges, self.segment: (least, min(costs.steps, tapes * (local + 1)))}

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        """Return the counts of S = ceil(T/rc) segments, the first of L0 = T - (S-1) rc steps.

        A segment is swept once without tapes and then reversed, which runs g(L) = 2L - c steps again if L > c,
        else L: in both cases g(L) = 2L - min(c, L). The last one is part of the first sweep and recomputes
        rc - c steps. So (rc-c) + (S-2) g(rc) + g(L0) steps run again, which is

            2T - rc - (S-1) c - min(c, L0).

        It is T - c for a single segment, where rc = L0 = T, and for c = rc, and never below T - c. States that
        move in batches (``batch_of``) are saved locally first, and the last of them stay there.
        """
        undivided = self.count_undivided(high, steps=steps)
        chunks, recomputed = undivided, steps - high["chunk_size"]
        zero = np.zeros(1, dtype=np.int64)
        # Checkpoints of segments, and of chunks inside the longest segment.
        outer, inner = (chunks - 1, zero) if self.moves_states else (zero, chunks - 1)
        saves = outer if self.moves_batches else inner
        if self.has_two_levels:
            chunks, recomputed, outer, inner, saves = self._count_two_levels(
                undivided, low=low, high=high, steps=steps
            )
        batch, kept = self.batch_of(high)
        moved = np.maximum(0, outer - kept) if self.moves_states else zero
        # More slots keep more states local and make larger messages, but take more memory.
        least_batch, least_kept = self.batch_of(low)
        return Counts(
            recomputed_steps=recomputed,
            remote_writes=moved,
            remote_reads=moved,
            messages=2 * (ceil_div(moved, batch) if self.moves_batches else moved),
            advances=chunks - 1,
            chunks=chunks,
            local_saves=saves,
            local_loads=saves if self.moves_states else chunks - 1,
            largest_message=np.minimum(least_batch, moved),
            tapes=low["chunk_size"],
            local_checkpoints=inner + (np.minimum(outer, least_kept) if self.moves_states else outer),
            remote_checkpoints=moved,
        )

    def _count_two_levels(
        self, undivided: Integers, *, low: Columns, high: Columns, steps: int
    ) -> tuple[Integers, Integers, Integers, Integers, Integers]:
        """Return five counts: chunks, recomputed steps, checkpoints of segments and of chunks, and local saves.

        Checkpoints are the most that are held at a time.
        """
        fewest_segments = ceil_div(steps, high[self.segment])
        most_segments = ceil_div(steps, low[self.segment])
        is_point = low[self.segment] == high[self.segment]
        # The first segment has L0 steps, which only a point determines. Longer chunks are fewer.
        first = np.where(is_point, steps - (most_segments - 1) * low[self.segment], 1)
        within = self.count_chunks(low[self.segment], point=high)
        within_first = self.count_chunks(first, point=high)
        outer = fewest_segments - 1
        # Cutting the sequence into segments does not save chunks.
        chunks = np.maximum(outer * within + within_first, undivided)
        recomputed = np.maximum(
            self._bound_recomputed_by_term(low, high, fewest_segments=fewest_segments, steps=steps),
            self._bound_recomputed_in_box(low, high, steps=steps),
        )
        if self.moves_states:
            saves = np.maximum(outer * (within - 1) + within_first - 1, undivided - most_segments)
        else:
            # A segment's outer checkpoint serves as its first inner one. S - 1 outer checkpoints are saved, all
            # inner ones of the last segment, and all inner ones but one of each other segment.
            between = np.maximum(0, outer - 1) * np.maximum(0, within - 2)
            in_first = np.where(outer > 0, np.maximum(0, within_first - 2), 0)
            saves = np.maximum(outer + (within - 1) + between + in_first, ceil_div(undivided, 2) - 1)
        return chunks, recomputed, outer, within - 1, saves

    def count_undivided(self, point: Columns, *, steps: int) -> Integers:
        """Return the number of chunks without segments, or a lower bound."""
        return self.count_chunks(np.full_like(point["chunk_size"], steps), point=point)

    def count_chunks(self, length: Integers, *, point: Columns) -> Integers:
        """Return the number of chunks in segments of these lengths."""
        chunks: Integers = ceil_div(length, point["chunk_size"])
        return chunks

    def _bound_recomputed_by_term(
        self, low: Columns, high: Columns, *, fewest_segments: Integers, steps: int
    ) -> Integers:
        """Bound the recomputed steps, term by term of the sum in ``counts``. The bound is exact at a point."""
        most_segments = ceil_div(steps, low[self.segment])
        longest_first = steps - (fewest_segments - 1) * low[self.segment]
        chunk = high["chunk_size"]
        # At a point, (S-1) c < T. In a wide box the product can exceed 2T, which is no bound, and even 2**63.
        recorded_at_once = np.minimum(most_segments - 1, 2 * steps // chunk + 1) * chunk
        recomputed = 2 * steps - high[self.segment] - recorded_at_once - np.minimum(chunk, longest_first)
        least: Integers = np.maximum(recomputed, steps - chunk)
        return least

    def _bound_recomputed_in_box(self, low: Columns, high: Columns, *, steps: int) -> Integers:
        """Bound the recomputed steps as a whole. In wide boxes this is closer: where rc is large, S is small.

        For any T, (S-1) c + min(c, L0) <= c (T-c) / rc + c, with equality at L0 = c. So at least
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

    def admits(self, *, low: Columns, high: Columns, steps: int) -> npt.NDArray[np.bool_] | None:
        # The shortest chunk fits in the longest segment.
        return low["chunk_size"] <= high[self.segment] if self.has_two_levels else None

    def bound_offloaded(self, low: Columns, high: Columns, *, steps: int) -> tuple[Integers, Integers]:
        ends = (self._count_kept(end) for end in (high, low))
        fewest, most = (np.maximum(0, steps - kept) for kept in ends)
        return fewest, most

    def _count_kept(self, point: Columns) -> Integers:
        """Return the steps whose caches stay local: those of the last segment, and of checkpoints that stay."""
        kept: Integers = (1 + self.batch_of(point)[1]) * point[self.segment]
        return kept

    def offload(self, counts: Counts, *, low: Columns, high: Columns, steps: int) -> Counts:
        """Return the counts if the caches of all segments but the last ones move to remote memory.

        Every step that runs again finds its cache. If the strategy moves states, a segment's checkpoint moves
        with the caches. It is saved in local memory before, and loaded from there, which saves the first chunk
        of its segment a save. The largest message has the caches of y steps, which are in local memory before
        the last segment runs:

            y = min(q rc, T - (1 + v) rc).
        """
        longest, shortest = high[self.segment], low[self.segment]
        segments = ceil_div(steps, longest)
        fewest, _ = self.bound_offloaded(low, high, steps=steps)
        counts = replace(
            counts,
            caches=steps - high[OFFLOADED_STEPS],
            moving_caches=np.minimum(fewest, self.batch_of(low)[0] * shortest),
            offloaded_caches=low[OFFLOADED_STEPS],
        )
        if not self.moves_states:
            return replace(counts, messages=2 * (segments - 1))
        if self.moves_batches:
            return counts
        within = self.count_chunks(longest, point=high)
        within_first = self.count_chunks(np.maximum(1, steps - (segments - 1) * longest), point=high)
        # A chunk that is a whole segment has no checkpoint of its own.
        unsaved = np.maximum(0, segments - 2) * (within == 1) + (segments > 1) * (within_first == 1)
        return replace(
            counts,
            local_saves=counts.local_saves + unsaved * (longest == shortest),
            local_loads=counts.local_loads + segments - 1,
        )

    def clamp(self, parameters: Parameters, *, steps: int) -> Parameters:
        # c <= T and c <= rc <= T, and cached_steps is at least c, or rc with two levels.
        clamped = dict(super().clamp(parameters, steps=steps))
        longest = clamped["chunk_size"]
        if self.has_two_levels:
            longest = clamped[self.segment] = max(longest, clamped[self.segment])
        if OFFLOADED_STEPS in clamped:
            clamped.pop(CACHED_STEPS, None)
            kept = (1 + clamped.get("nb_local", 0)) * longest
            clamped[OFFLOADED_STEPS] = steps - kept
            if kept >= steps:
                del clamped[OFFLOADED_STEPS]
        if clamped.get(CACHED_STEPS, steps) < longest:
            clamped[CACHED_STEPS] = longest
        return super().clamp(Parameters(clamped), steps=steps)

    def name_cache(self, parameters: Parameters, *, splits: Splits = None) -> CacheName:
        if OFFLOADED_STEPS in parameters:
            return "offloaded"
        cached = parameters.get(CACHED_STEPS)
        if cached is None:
            return "all"
        if self.has_two_levels:
            return "segment"
        return "none" if cached == parameters["chunk_size"] else "last"

    def least_cached(self, point: Columns, *, steps: int) -> Integers:
        longest = point["chunk_size"]
        if self.has_two_levels:
            longest = np.maximum(longest, point[self.segment])
        least: Integers = np.minimum(longest, steps)
        return least

    def transfers(self, point: Columns, *, costs: StepCosts) -> TransferTiming:
        """Return when transfers are due if each segment's first state is written once and read once.

        q states move at a time, and the last v stay local. With y = L0 for one state, else rc, z = f + o + b,
        and u(L) = (N - 1) (s + a + l + k) + k, the actions that reverse L steps in N chunks (states that move
        in batches also take s before the sweep, and l before the reversal), the compute between two writes,
        between the last write and the first read, and between two reads takes

            gap     = q (rc f + a)
            turn    = y f + a + v (rc f + a) + rc z + (rc - c) r + u(rc) + v (rc (o + b) + g(rc) r + u(rc))
            between = q (rc (o + b) + g(rc) r + u(rc))

        Each step of a segment whose cache the first sweep does not keep adds f - r to the reversal.
        """
        if OFFLOADED_STEPS in point:
            return self._time_offloaded(point, costs=costs)
        chunk, segment = point["chunk_size"], point[self.segment]
        batch, kept = self.batch_of(point)
        checkpoints = ceil_div(costs.steps, segment) - 1
        first = costs.steps - checkpoints * segment
        moved = np.maximum(0, checkpoints - kept)
        messages = ceil_div(moved, batch)
        # States of the first, ragged message; its last one is saved before segment number first_states - 1.
        first_states = np.maximum(1, moved - (messages - 1) * batch)
        forward, backward = costs.forward_seconds, costs.record_overhead_seconds + costs.backward_seconds
        a, k = costs.advance_seconds, costs.chunk_seconds
        forth, back = (a + costs.save_seconds, costs.load_seconds) if self.moves_batches else (a, 0.0)
        # In a segment, each chunk but the last has a checkpoint and a run.
        chunk_actions = costs.save_seconds + a + costs.load_seconds + k
        actions = (self.count_chunks(segment, point=point) - 1) * chunk_actions + k
        # The last segment is part of the first sweep; all its chunks but the last run again.
        last = segment * (forward + backward) + (segment - chunk) * costs.recompute_seconds + actions
        # g(rc) steps run again to reverse a segment of which no tape is left (``counts``); c <= rc at a point.
        again = (2 * segment - chunk) * costs.recompute_seconds
        reversal = segment * backward + again + actions + back
        first_gap = batch * segment + np.where(first_states == 1, first - segment, 0)
        turn = (np.where(moved == 1, first, segment) + kept * segment) * forward + (a + kept * forth)
        # Steps before ``stop`` have no cache, and each adds f - r to the reversal of its segment.
        stop = costs.steps - point.get(CACHED_STEPS, np.full_like(chunk, costs.steps))
        gained = costs.forward_seconds - costs.recompute_seconds
        # Segments up to this step are reversed between two reads, the segments of one message at a time.
        moved_steps, batch_steps = costs.steps - (1 + kept) * segment, batch * segment
        turn = turn + gained * np.clip(stop - moved_steps, 0, kept * segment)
        second = np.maximum(0, stop - (moved_steps - np.maximum(0, messages - 1) * batch_steps))
        later = np.maximum(0, second - batch_steps)
        # The first message is ragged. The message that was written last is read first.
        has_first, others = (messages > 1).astype(np.int64), np.maximum(messages - 2, 0)
        # The other messages whose steps all lack caches, and one message of which only some steps lack them.
        all_lacking = np.minimum(others, later // batch_steps)
        some_lacking = np.minimum(others - all_lacking, 1)
        return TransferTiming(
            writes=(
                Transfers(has_first, first_states, first_gap * forward + batch * forth),
                Transfers(others, batch, batch * segment * forward + batch * forth),
            ),
            turn=Transfers(
                np.minimum(messages, 1),
                np.where(messages > 1, batch, first_states),
                turn + last + kept * reversal,
            ),
            reads=(
                Transfers(all_lacking, batch, batch * reversal + gained * batch_steps),
                Transfers(some_lacking, batch, batch * reversal + gained * (later - all_lacking * batch_steps)),
                Transfers(others - all_lacking - some_lacking, batch, batch * reversal),
                Transfers(has_first, first_states, batch * reversal + gained * np.minimum(second, batch_steps)),
            ),
        )

    def _time_offloaded(self, point: Columns, *, costs: StepCosts) -> TransferTiming:
        """Return when transfers are due if the caches of each segment move, with its checkpoint or without it.

        A message leaves when its q segments have run. With the symbols of ``transfers``,

            gap     = q (rc f + a + s)
            turn    = v (rc f + a + s) + rc z + (rc - c) r + u(rc) + v (rc (o + b) + (2 rc - c) r + u(rc) + l)
            between = q (rc (o + b) + (2 rc - c) r + u(rc) + l), less s of the first chunk
        """
        chunk, segment = point["chunk_size"], point[self.segment]
        batch, kept = self.batch_of(point)
        moved = np.maximum(0, ceil_div(costs.steps, segment) - 1 - kept)
        messages = ceil_div(moved, batch)
        # The first message is ragged.
        first_states = np.maximum(1, moved - (messages - 1) * batch)
        first_caches = costs.steps - (1 + kept + (messages - 1) * batch) * segment
        backward = costs.record_overhead_seconds + costs.backward_seconds
        a, k, s, back = costs.advance_seconds, costs.chunk_seconds, costs.save_seconds, costs.load_seconds
        chunks = self.count_chunks(segment, point=point)
        actions = (chunks - 1) * (s + a + back + k) + k
        sweep = segment * costs.forward_seconds + a + s
        last = (
            segment * (costs.forward_seconds + backward) + (segment - chunk) * costs.recompute_seconds + actions
        )
        again = (2 * segment - chunk) * costs.recompute_seconds
        reversal = segment * backward + again + actions + back - (chunks > 1) * s
        states, first_states = (number * self.moves_states for number in (batch, first_states))
        has_first, others, caches = (
            (messages > 1).astype(np.int64),
            np.maximum(0, messages - 2),
            batch * segment,
        )
        is_only = messages <= 1
        return TransferTiming(
            writes=(
                Transfers(has_first, first_states, batch * sweep, first_caches),
                Transfers(others, states, batch * sweep, caches),
            ),
            turn=Transfers(
                np.minimum(messages, 1),
                np.where(is_only, first_states, states),
                kept * (sweep + reversal) + last,
                np.where(is_only, first_caches, caches),
            ),
            reads=(
                Transfers(others, states, batch * reversal, caches),
                Transfers(has_first, first_states, batch * reversal, first_caches),
            ),
        )

    def bound_ends(self, low: Columns, high: Columns, *, steps: int) -> SweepEnds:
        """Return bounds from the lengths of the last segment, rc, and of the first one, L0 = T - (S-1) rc.

        The checkpoint of a segment is written before its steps have run, its caches when all have.
        """
        shortest, longest = np.minimum(low[self.segment], steps), high[self.segment]
        fewest, most = (ceil_div(steps, end) for end in (longest, shortest))
        first = np.clip(steps - (most - 1) * longest, 0, steps - shortest)
        longest_first = np.minimum(longest, steps - (fewest - 1) * shortest)
        batch, kept = self.batch_of(high)
        offloads = OFFLOADED_STEPS in high
        moved = np.maximum(0, steps - (1 + kept) * longest)
        return SweepEnds(
            states=batch * self.moves_states,
            first_caches=longest_first + (batch - 1) * longest if offloads else 0,
            last_caches=steps - low[OFFLOADED_STEPS] if offloads else 0,
            before_first=first if offloads else 0,
            before_second=first + shortest if offloads else first,
            before_last=moved if offloads else np.maximum(0, moved - longest),
            at_turn=shortest,
            after_first=moved,
            after_last_two=first + shortest,
            after_last=first,
        )

    @property
    def moves_batches(self) -> bool:
        """Whether ``nb_local`` checkpoints share a message; as many checkpoints stay in local memory."""
        return "nb_local" in self.parameter_names

    def batch_of(self, point: Columns) -> tuple[Integers, Integers]:
        """Return how many states move together, and how many checkpoints of segments never move."""
        if self.moves_batches:
            return point["nb_local"], point["nb_local"]
        return np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64)

    def loops(self, parameters: Parameters, *, steps: int) -> Nest:
        return keep_last(
            self.reverse_all(parameters, steps), steps=steps, cached=parameters.get(CACHED_STEPS, steps)
        )

    def reverse_all(self, parameters: Parameters, steps: int) -> Nest:
        """Return the loops of a schedule that keeps all caches."""

        def reverse(length: int, held: bool) -> Nest:
            runs, last = self.cut(length, parameters)
            return reverse_chunks(runs, last, held=held)

        return reverse_segments(
            steps,
            parameters.get(self.segment, steps),
            tier=Tier.REMOTE if self.moves_states else Tier.LOCAL,
            reverse=reverse,
            offloads_caches=OFFLOADED_STEPS in parameters,
        )

    def cut(self, length: int, parameters: Parameters) -> tuple[tuple[Run, ...], int]:
        """Return the chunks of a segment but the last one, and the length of the last one."""
        return cut_evenly(length, parameters["chunk_size"])


class Standard(Segmented):
    """A local checkpoint before each chunk; each chunk but the last runs again.

    Section III-B of the paper; chunks of ``chunk_size`` steps, the ragged one first.
    """

    name = "standard"
    rank = 1
    parameter_names = ("chunk_size",)
    segment = "chunk_size"

    @staticmethod
    def printed(*, low: Columns, high: Columns, costs: StepCosts) -> Cost:
        checkpoints = paper.nb_checkpoints(T=costs.steps, chunk_size=high["chunk_size"])
        return paper.price(costs, chunk_size=low["chunk_size"], checkpoints=checkpoints)


class Remote(Segmented):
    """Standard with every checkpoint in remote memory.

    Section III-C of the paper; each checkpoint is one message, by way of the workspace.
    """

    name = "remote"
    rank = 2
    parameter_names = ("chunk_size",)
    segment = "chunk_size"
    moves_states = True

    @staticmethod
    def printed(*, low: Columns, high: Columns, costs: StepCosts) -> Cost:
        moves = 2 * paper.nb_checkpoints(T=costs.steps, chunk_size=high["chunk_size"])
        # The checkpoint that is being moved.
        return paper.price(costs, chunk_size=low["chunk_size"], checkpoints=1, states=moves, N_c=moves)


class Hierarchical(Segmented):
    """Checkpoints move to and from remote memory in batches.

    Section III-D of the paper; the last ``nb_local`` checkpoints never leave local memory.
    """

    name = "hierarchical"
    rank = 3
    parameter_names = ("chunk_size", "nb_local")
    segment = "chunk_size"
    moves_states = True

    @staticmethod
    def printed(*, low: Columns, high: Columns, costs: StepCosts) -> Cost:
        checkpoints = paper.nb_checkpoints(T=costs.steps, chunk_size=high["chunk_size"])
        batches = {"nb_checkpoints": checkpoints, "nb_local": high["nb_local"]}
        return paper.price(
            costs,
            chunk_size=low["chunk_size"],
            checkpoints=low["nb_local"],
            states=paper.states_hierarchical(**batches),
            N_c=paper.communications_hierarchical(**batches),
        )

    def admits(self, *, low: Columns, high: Columns, steps: int) -> npt.NDArray[np.bool_]:
        # More slots than checkpoints cost nothing and save nothing: ties go to fewer slots.
        most_checkpoints = ceil_div(steps, low["chunk_size"])
        useful: npt.NDArray[np.bool_] = low["nb_local"] <= most_checkpoints
        return useful

    def reverse_all(self, parameters: Parameters, steps: int) -> Nest:
        return reverse_batches(
            steps,
            parameters["chunk_size"],
            slots=parameters["nb_local"],
            offloads_caches=OFFLOADED_STEPS in parameters,
        )


class Double(Segmented):
    """Remote checkpoints far apart, and local checkpoints between them.

    Section III-E of the paper; a remote checkpoint is read once and held while its segment is reversed.
    """

    name = "double"
    rank = 4
    parameter_names = ("chunk_size", "remote_chunk_size")
    cache_choices = ("all", "segment", "offloaded")
    segment = "remote_chunk_size"
    moves_states = True

    @staticmethod
    def printed(*, low: Columns, high: Columns, costs: StepCosts) -> Cost:
        moves = paper.communications_double(T=costs.steps, remote_chunk_size=high["remote_chunk_size"])
        return paper.price(
            costs,
            chunk_size=low["chunk_size"],
            checkpoints=ceil_div(low["remote_chunk_size"], high["chunk_size"]),
            states=moves,
            N_c=moves,
            T_refwd=paper.recompute_seconds(costs),
        )


class Nested(Segmented):
    """Double with its outer checkpoints in local memory.

    Two levels of local checkpoints, as nested ``torch.utils.checkpoint`` calls execute; not in the paper.
    """

    name = "nested"
    rank = 5
    parameter_names = ("chunk_size", "segment_size")
    cache_choices = ("all", "segment", "offloaded")


class Growing(Segmented):
    """Standard with chunks that grow towards the start: equal recomputation, less memory.

    The last chunk has ``chunk_size`` steps, the j-th before it floor(j state_units / tape_units) more. If steps
    have caches of ``cache_units``, chunks also grow by the caches that are released (``recursion/growing.py``).
    """

    name = "growing"
    rank = 6
    parameter_names: ClassVar[tuple[str, ...]] = ("chunk_size", "state_units", "tape_units")
    # Chunks of different lengths move caches in messages of different sizes: double-growing has equal ones.
    cache_choices: ClassVar[tuple[CacheName, ...]] = ("all", "last", "none")
    cache_names: ClassVar[tuple[str, ...]] = (CACHE_UNITS, CACHED_STEPS)
    always_regular = False

    def ranges(self, *, costs: StepCosts, budget: Budget) -> Ranges:
        if costs.cache_bytes:
            growth = CachedGrowth.of(
                state=costs.state_bytes, tape=costs.tape_bytes, cache=costs.cache_bytes
            )._asdict()
        else:
            p, q = growing.growth_ratio(state=costs.state_bytes, tape=costs.tape_bytes)
            growth = {"state": p, "tape": q}
        sizes = {f"{name}_units": (units, units) for name, units in growth.items()}
        return {**super().ranges(costs=costs, budget=budget), **sizes}

    def count_chunks(self, length: Integers, *, point: Columns) -> Integers:
        sizes = [point[name] for name in SIZE_NAMES if name in point]
        if len(sizes) < len(SIZE_NAMES):
            return growing.count_chunks(length, chunk=point["chunk_size"], p=sizes[0], q=sizes[1])
        growth = CachedGrowth(*(int(size[0]) for size in sizes))
        return growth.count_chunks(length, chunk=point["chunk_size"], cached=self.cached_within(length, point))

    def cached_within(self, length: Any, point: Mapping[str, Any]) -> Any:
        """Return how many steps, at the end of a segment, have caches when the segment is reversed."""
        return point.get(CACHED_STEPS, length)

    def check_names(self, parameters: Parameters) -> None:
        super().check_names(parameters)
        if CACHE_UNITS not in parameters and {CACHED_STEPS, OFFLOADED_STEPS} & set(parameters):
            raise InputError("is missing: the length of chunks depends on it", field=CACHE_UNITS)

    def is_regular(self, parameters: Parameters, *, steps: int) -> bool:
        return parameters["chunk_size"] >= parameters.get(self.segment, steps)

    def cut(self, length: int, parameters: Parameters) -> tuple[tuple[Run, ...], int]:
        chunk, *sizes = (parameters[name] for name in ("chunk_size", *SIZE_NAMES) if name in parameters)
        if len(sizes) < len(SIZE_NAMES):
            ends = growing.list_chunk_ends(length, chunk=chunk, p=sizes[0], q=sizes[1])
        else:
            cached = self.cached_within(length, parameters)
            ends = CachedGrowth(*sizes).list_chunk_ends(length, chunk=chunk, cached=cached)
        return group_chunks(ends, length)


class DoubleGrowing(Growing):
    """Double with chunks that grow within each segment: equal recomputation, less memory.

    Segments of ``remote_chunk_size`` steps, as in Double, each cut into chunks as in Growing.
    """

    name = "double-growing"
    rank = 7
    parameter_names = ("chunk_size", "remote_chunk_size", "state_units", "tape_units")
    cache_choices = ("all", "segment", "offloaded")
    cache_names = (CACHE_UNITS, CACHED_STEPS, OFFLOADED_STEPS)
    segment = "remote_chunk_size"
    moves_states = True

    def count_undivided(self, point: Columns, *, steps: int) -> Integers:
        # Chunks that grow by caches take long to count, and their number only matters for costs of actions.
        if CACHE_UNITS in point:
            return np.ones_like(point["chunk_size"])
        return super().count_undivided(point, steps=steps)

    def cached_within(self, length: Any, point: Mapping[str, Any]) -> Any:
        # K is at least the length of a segment, and a segment that is swept again keeps all its caches.
        return length


STRATEGIES = (Base(), Standard(), Remote(), Hierarchical(), Double(), Nested(), Growing(), DoubleGrowing())
