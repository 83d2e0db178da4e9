"""Implements Disk-Revolve and Periodic: remote segments, each read once, with Revolve inside.

With segments of y_1, ..., y_n steps before a last part of y_0 steps, which is never read, w + r_d the cost of a
transfer both ways, and R(y) the binomial count for y steps and s local slots (``recursion/revolve.py``), the
cost beyond the first sweep is

    R(y_0) r + sum over i of (w + r_d + y_i r + R(y_i) r).

**Disk-Revolve.** A part of up to C(s + k, s) steps runs none of them more than k times. So k runs of a step,
the first sweep not counted, are enough for C(s + k, s) steps of the last part and C(s + k - 1, s) steps of each
segment. With the least k that is enough for all T steps,

    R(y_0) + sum over i of (y_i + R(y_i)) = k T - C(s + k, s + 1) - n C(s + k - 1, s + 1),

which no other cut into n segments undercuts (Aupy et al. 2016).

**Periodic.** Segments of L = p c steps (a period of p chunks of c steps), the first of T - (n - 1) L steps.
In chunks of c steps, no cut into n segments of whole chunks runs fewer steps again than

    k T - c C(s + k, s + 1) - n c C(s + k - 1, s + 1)

with the least k that is enough for ceil(T / c) chunks. Both searches use it as the bound of a box.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import Integers, ceil_div
from ckptplan.cost.exact import Counts
from ckptplan.cost.overlap import SweepEnds, Transfers, TransferTiming
from ckptplan.model.budget import Budget
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion import revolve
from ckptplan.schedule.actions import Action, Tier
from ckptplan.schedule.loops import Nest, cut_evenly, reverse_chunks, reverse_segments
from ckptplan.strategies.closed_form import ClosedForm, Ranges, count_room
from ckptplan.strategies.protocol import Columns, Splits


class Parts(NamedTuple):
    """The parts of each schedule: chunks, slots, the numbers of two kinds of segments, and the steps of parts.

    Columns have shape (n,), ``number`` (2, n), and ``steps`` (3, n): of the last part, and of a segment of
    either kind in the order of the sequence.
    """

    chunk: Integers
    slots: Integers
    number: Integers
    steps: Integers

    def count_actions(self) -> tuple[Integers, Integers]:
        """Return the steps that run again while each part is reversed, and the states that are saved."""
        return revolve.count_at(self.steps, chunk=self.chunk, slots=self.slots)

    def most_pieces(self) -> Integers:
        """Return the chunks of the longest part that occurs."""
        last, *segments = ceil_div(self.steps, self.chunk)
        most: Integers = np.maximum(last, (np.minimum(self.number, 1) * segments).max(axis=0))
        return most


class RemoteRevolve(ClosedForm):
    """Segments of up to two lengths in remote memory, read once, each reversed by Revolve."""

    always_regular = False
    moves_states = True

    @abstractmethod
    def cut(self, point: Columns, *, steps: int) -> Parts:
        """Return the parts of each schedule."""

    @abstractmethod
    def count_segments(self, low: Columns, high: Columns, *, steps: int) -> tuple[Integers, Integers]:
        """Return the fewest and the most segments in each box."""

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        ones = np.ones_like(high["nb_local"])
        chunk, slots = high.get("chunk_size", ones), high["nb_local"]
        fewest, most = self.count_segments(low, high, steps=steps)
        chunks = ceil_div(steps, chunk)
        again, saves, held = 0 * ones, 0 * ones, self.least_held(low, high, steps=steps)
        is_point = np.logical_and.reduce([low[name] == high[name] for name in self.parameter_names])
        if not is_point.all():
            bounds = (column[~is_point] for column in (chunk, slots, np.minimum(most, chunks - 1)))
            again[~is_point] = count_least(steps, *bounds)
        if is_point.any():
            parts = self.cut({name: column[is_point] for name, column in low.items()}, steps=steps)
            part_recomputed, part_saves = parts.count_actions()
            again[is_point] = _sum_recomputed(parts, part_recomputed)
            saves[is_point] = part_saves[0] + (parts.number * part_saves[1:]).sum(axis=0)
            held[is_point] = np.minimum(parts.slots, parts.most_pieces() - 1)
        return Counts(
            recomputed_steps=again,
            remote_writes=fewest,
            remote_reads=fewest,
            messages=2 * fewest,
            # Each chunk but the last has a run, and a local load or a remote read.
            advances=chunks - 1,
            chunks=chunks,
            local_saves=saves,
            local_loads=np.maximum(0, chunks - 1 - most),
            largest_message=np.minimum(fewest, 1),
            tapes=low.get("chunk_size", ones),
            local_checkpoints=held,
            remote_checkpoints=fewest,
        )

    @abstractmethod
    def least_held(self, low: Columns, high: Columns, *, steps: int) -> Integers:
        """Return the fewest local checkpoints at a time in each box."""

    def transfers(self, point: Columns, *, costs: StepCosts) -> TransferTiming:
        """Return when transfers are due: of the segments of one kind, and then of the other kind."""
        parts = self.cut(point, steps=costs.steps)
        again, saves = parts.count_actions()
        pieces = ceil_div(parts.steps, parts.chunk)
        # The seconds of reversing each part: the last one after its forward run, the others after their read.
        reverse = parts.steps * (costs.record_overhead_seconds + costs.backward_seconds)
        reverse = reverse + again * costs.recompute_seconds + pieces * costs.chunk_seconds
        reverse = reverse + (pieces - 1) * (costs.advance_seconds + costs.load_seconds)
        reverse = reverse + saves * costs.save_seconds
        gaps = parts.steps[1:] * costs.forward_seconds + costs.advance_seconds
        between = reverse[1:] + parts.steps[1:] * costs.recompute_seconds
        first, second = parts.number
        has_any, state = np.minimum(first, 1), np.ones_like(first)
        turn = np.where(second > 0, gaps[1], gaps[0]) + parts.steps[0] * costs.forward_seconds + reverse[0]
        return TransferTiming(
            writes=(
                Transfers(np.where(second > 0, first, first - has_any), state, gaps[0]),
                Transfers(np.maximum(second - 1, 0), state, gaps[1]),
            ),
            turn=Transfers(has_any, state, turn),
            reads=(Transfers(first - has_any, state, between[0]), Transfers(second, state, between[1])),
        )

    def bound_ends(self, low: Columns, high: Columns, *, steps: int) -> SweepEnds:
        return SweepEnds(at_turn=self.least_last(low, high, steps=steps))

    @abstractmethod
    def least_last(self, low: Columns, high: Columns, *, steps: int) -> Integers:
        """Return the fewest steps of the last part in each box."""

    def actions(self, parameters: Parameters, *, steps: int, splits: Splits = None) -> Iterator[Action]:
        parts = self.cut(self.point(parameters, steps=steps), steps=steps)
        chunk = int(parts.chunk[0])
        cuts = [
            (ceil_div(length, chunk), number)
            for length, number in zip(parts.steps[1:, 0].tolist(), parts.number[:, 0].tolist(), strict=True)
        ]
        return revolve.make_revolve_tree(int(parts.slots[0]), cuts, steps=steps, chunk=chunk).actions()


def _sum_recomputed(parts: Parts, recomputed: Integers) -> Integers:
    """Return the steps that run again: within each part, and in one run of each segment; saturated."""
    segments = parts.steps[1:] + recomputed[1:]
    rough = recomputed[0] + (parts.number * segments.astype(np.float64)).sum(axis=0)
    countable = rough < revolve.MOST
    exact = recomputed[0] + (parts.number * np.where(countable, segments, 0)).sum(axis=0)
    return np.where(countable, exact, revolve.MOST)


def count_least(steps: int, chunk: Integers, slots: Integers, number: Integers) -> Integers:
    """Return a lower bound on the steps that run again with up to ``number`` remote segments of whole chunks.

    Arrays of shape (n,).
    """
    pieces = ceil_div(steps, chunk)
    level = revolve.find_level(pieces, slots=slots, number=number)
    again = level.count_recomputed(np.full_like(pieces, steps), chunk=chunk, number=number)
    least: Integers = np.where(pieces > 1, np.maximum(0, again), 0)
    return least


class DiskRevolve(RemoteRevolve):
    """Remote checkpoints in the first sweep only, Revolve between them.

    Disk-Revolve of Aupy, Herrmann, Hovland and Robert 2016, with one tape at a time, in closed form.
    """

    name = "disk-revolve"
    rank = 9
    parameter_names = ("nb_local", "nb_parts")

    def ranges(self, *, costs: StepCosts, budget: Budget) -> Ranges:
        remote = count_room(budget, costs=costs)[2]
        return {**super().ranges(costs=costs, budget=budget), "nb_parts": (1, min(costs.steps, remote + 1))}

    def count_segments(self, low: Columns, high: Columns, *, steps: int) -> tuple[Integers, Integers]:
        return low["nb_parts"] - 1, high["nb_parts"] - 1

    def is_regular(self, parameters: Parameters, *, steps: int) -> bool:
        # With a segment for each step it equals Remote, with a slot for each step Standard.
        slots, parts = parameters["nb_local"], parameters["nb_parts"]
        return parts == steps or (parts == 1 and steps <= slots + 1)

    def loops(self, parameters: Parameters, *, steps: int) -> Nest:
        return _loop_evenly(steps, chunk=1, segment=1 if parameters["nb_parts"] > 1 else steps)

    def admits(self, *, low: Columns, high: Columns, steps: int) -> npt.NDArray[np.bool_]:
        # More slots than a part can use cost nothing and save nothing: ties go to fewer slots.
        useful: npt.NDArray[np.bool_] = low["nb_local"] + low["nb_parts"] - 1 <= steps
        return useful

    def least_held(self, low: Columns, high: Columns, *, steps: int) -> Integers:
        # If a step runs again more than once, a part has at least C(s + 1, s) = s + 1 steps, which use all
        # slots. Else s + n is T - 1 or T, and the last part has T - n steps.
        most = low["nb_local"] + high["nb_parts"] - 1
        least: Integers = low["nb_local"] - (most >= steps)
        return least

    def least_last(self, low: Columns, high: Columns, *, steps: int) -> Integers:
        # At one level, more slots make longer segments, and more segments leave a shorter last part (``cut``).
        ends = [
            revolve.find_level(
                np.full_like(end["nb_local"], steps), slots=end["nb_local"], number=end["nb_parts"] - 1
            )
            for end in (low, high)
        ]
        left = steps - (high["nb_parts"] - 1) * ends[1].before
        least: Integers = np.where(ends[0].runs == ends[1].runs, np.maximum(ends[0].before, left), 1)
        return least

    def cut(self, point: Columns, *, steps: int) -> Parts:
        slots, number = point["nb_local"], point["nb_parts"] - 1
        before = revolve.find_level(np.full_like(slots, steps), slots=slots, number=number).before
        # Segments are as long as k runs allow, or one step longer, so that the last part keeps the rest.
        last = np.maximum(before, steps - np.minimum(number, steps // before + 1) * before)
        length, longer = np.divmod(steps - last, np.maximum(number, 1))
        lengths = np.stack([last, np.maximum(1, length), length + 1])
        return Parts(np.ones_like(slots), slots, np.stack([number - longer, longer]), lengths)


class Periodic(RemoteRevolve):
    """Remote segments of equal length, each read once, with Revolve inside.

    Periodic checkpointing of Aupy and Herrmann 2017, with ``period`` chunks of ``chunk_size`` steps.
    """

    name = "periodic"
    rank = 10
    parameter_names = ("chunk_size", "period", "nb_local")

    def count_segments(self, low: Columns, high: Columns, *, steps: int) -> tuple[Integers, Integers]:
        fewest, most = (ceil_div(ceil_div(steps, end["chunk_size"]), end["period"]) - 1 for end in (high, low))
        return fewest, most

    def admits(self, *, low: Columns, high: Columns, steps: int) -> npt.NDArray[np.bool_]:
        chunks = ceil_div(steps, low["chunk_size"])
        used = np.maximum(1, np.minimum(high["period"], chunks) - 1)
        useful: npt.NDArray[np.bool_] = (low["period"] <= chunks) & (low["nb_local"] <= used)
        return useful

    def least_held(self, low: Columns, high: Columns, *, steps: int) -> Integers:
        chunks = ceil_div(steps, high["chunk_size"])
        least: Integers = np.minimum(low["nb_local"], np.minimum(low["period"], chunks) - 1)
        return least

    def least_last(self, low: Columns, high: Columns, *, steps: int) -> Integers:
        least: Integers = np.minimum(steps, low["chunk_size"] * low["period"])
        return least

    def cut(self, point: Columns, *, steps: int) -> Parts:
        chunk, period, slots = (point[name] for name in self.parameter_names)
        chunks = ceil_div(steps, chunk)
        segments = ceil_div(chunks, period) - 1
        length = np.minimum(np.minimum(period, chunks) * chunk, steps)
        # The first segment is ragged.
        number = np.stack([np.minimum(segments, 1), np.maximum(segments - 1, 0)])
        return Parts(chunk, slots, number, np.stack([length, steps - segments * length, length]))

    def is_regular(self, parameters: Parameters, *, steps: int) -> bool:
        return parameters["period"] <= parameters["nb_local"] + 1

    def loops(self, parameters: Parameters, *, steps: int) -> Nest:
        chunk = parameters["chunk_size"]
        return _loop_evenly(steps, chunk=chunk, segment=parameters["period"] * chunk)


def _loop_evenly(steps: int, *, chunk: int, segment: int) -> Nest:
    """Return the loops of remote segments, in each of which every chunk but the last has a local checkpoint."""

    def reverse(length: int, _: bool) -> Nest:
        return reverse_chunks(*cut_evenly(length, chunk))

    return reverse_segments(steps, segment, tier=Tier.REMOTE, reverse=reverse)


STRATEGIES = (DiskRevolve(), Periodic())
