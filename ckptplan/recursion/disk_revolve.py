"""Remote checkpoints in the first sweep only, binomial checkpointing between them (Aupy et al. 2016).

With s local slots, a segment of y steps costs its way back, y steps run again, and the binomial count
R(y). Both are convex in y, so that the segments are as long as each other but for a step, and the last
part, which is never loaded, is longer by one sweep. What is left is to choose their number: convex, too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from math import comb
from typing import NamedTuple

from ckptplan.model.budget import Budget
from ckptplan.model.split import Choice, Where
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion import revolve
from ckptplan.recursion.problem import Candidate
from ckptplan.recursion.schedule_tree import Tree, grow_tree
from ckptplan.recursion.single_tape import binomial_decision
from ckptplan.recursion.tree import Decision, Part, UnitSizes

#: Steps run again that a time can still be told of.
_COUNTABLE = 4 * 10**15
#: Steps up to which a slot or two can be counted.
MOST_STEPS = 1_000_000


class Segments(NamedTuple):
    """``number`` segments, ``longer`` of them with a step more than ``length``, before a last part."""

    number: int
    length: int
    longer: int
    last: int
    #: Steps run again in all.
    again: int


class Binomials:
    """The counts of one number of slots, for any number of steps up to ``steps``."""

    def __init__(self, slots: int, steps: int) -> None:
        self.slots = slots
        #: C(s + k, s) for k = 0, 1, ...: what can be reversed in k sweeps.
        self.reaches: Sequence[int] = _reaches(slots, steps)

    def sweeps(self, steps: int) -> int:
        """Return the least k that suffices."""
        return bisect_left(self.reaches, steps)

    def again(self, steps: int) -> int:
        """Return the steps run again."""
        sweeps = self.sweeps(steps)
        if sweeps == len(self.reaches):
            return revolve.MOST
        return sweeps * steps - comb(self.slots + sweeps, self.slots + 1)


def _reaches(slots: int, steps: int) -> Sequence[int]:
    if slots == 1:
        # A step more for each sweep: as many as the steps, which need not be listed.
        return range(1, steps + 1)
    reaches = [1]
    while reaches[-1] < steps and slots:
        reaches.append(comb(slots + len(reaches), slots))
    return reaches


def segment_candidates(costs: StepCosts, budget: Budget, *, remote: bool) -> Iterator[Candidate]:
    """Return the best segments for several numbers of local slots; without remote memory, none at all."""
    buffers = 2 * costs.state_bytes if costs.overlaps_compute and remote else 0
    most = costs.steps - 1
    if budget.local_bytes is not None:
        free = budget.local_bytes - costs.resident_bytes - buffers - costs.tape_bytes
        most = -1 if free < 0 else min(most, free // costs.state_bytes)
    if most < 0:
        return
    room = costs.steps if budget.remote_bytes is None else budget.remote_bytes // costs.remote_state_bytes
    transfer = costs.write_seconds + costs.read_seconds + 2 * costs.message_seconds
    # All slots are quickest; fewer are for those who ask for less memory.
    for slots in sorted({most, 0, *(2**k for k in range(most.bit_length()))}, reverse=True):
        found = choose_segments(
            steps=costs.steps,
            slots=slots,
            transfer=transfer,
            recompute=costs.recompute_seconds,
            most=room if remote else 0,
        )
        if found is not None and found.again <= _COUNTABLE and _is_listable(found, slots):
            yield Candidate(
                extra=found.number * transfer + found.again * costs.recompute_seconds,
                local_bytes=slots * costs.state_bytes + costs.tape_bytes,
                build=partial(make_segments_tree, slots, found, steps=costs.steps),
                remote_states=found.number,
            )


def _is_listable(segments: Segments, slots: int) -> bool:
    longest = max(segments.length + 1, segments.last)
    return longest <= 2 or revolve.is_listable(longest, slots)


def choose_segments(
    *, steps: int, slots: int, transfer: float, recompute: float, most: int | None = None
) -> Segments | None:
    """Return the segments that cost least; ``transfer`` is what writing and reading one state costs.

    None where ``most`` segments are too few without a slot, or where too few slots cannot be counted.
    """
    most = steps - 1 if most is None else min(most, steps - 1)
    if slots < 1:
        if most < steps - 1:
            return None
        return Segments(number=steps - 1, length=1, longer=0, last=1, again=steps - 1)
    # A slot or two reach so slowly that their binomials would be as many as the steps.
    if slots < 3 and steps > MOST_STEPS:
        return None
    binomials = Binomials(slots, steps)

    @cache
    def segments(count: int) -> Segments:
        return _balance(binomials, steps=steps, count=count)

    def cost(count: int) -> float:
        return count * transfer + segments(count).again * recompute

    return segments(_minimise_convex(cost, 0, most))


def _minimise_convex(value: Callable[[int], float], low: int, high: int) -> int:
    while low < high:
        middle = (low + high) // 2
        if value(middle) <= value(middle + 1):
            high = middle
        else:
            low = middle + 1
    return low


def _balance(binomials: Binomials, *, steps: int, count: int) -> Segments:
    """Make the last part longer as long as that costs less than the same step in a segment."""
    if count == 0:
        return Segments(0, 0, 0, steps, binomials.again(steps))
    low, high = 1, steps - count
    while low < high:
        last = (low + high) // 2
        longest = -(-(steps - last) // count)
        if binomials.sweeps(last + 1) < 1 + binomials.sweeps(longest):
            low = last + 1
        else:
            high = last
    length, longer = divmod(steps - low, count)
    again = (
        binomials.again(low)
        + (steps - low)
        + longer * binomials.again(length + 1)
        + (count - longer) * binomials.again(length)
    )
    return Segments(count, length, longer, low, again)


def make_segments_tree(slots: int, segments: Segments, *, steps: int) -> Tree:
    """Return the schedule of such segments."""
    # Slots and the tape in units: a tape is as large as no slot, so that slots alone are counted.
    sizes = UnitSizes(1, 1)
    units = slots + 1
    plain = segments.number - segments.longer
    left = [(segments.length, plain), (segments.length + 1, segments.longer)]
    cuts: dict[int, Decision] = {}
    rest = steps
    for length, count in left:
        if count:
            cuts[rest] = Decision(Choice.SEGMENTS, length, count)
            rest -= length * count

    def decide(part: Part) -> Decision:
        if part.where is Where.UNSTORED and part.steps in cuts:
            return cuts[part.steps]
        return binomial_decision(part, sizes)

    return grow_tree(Part(Where.UNSTORED, steps, units), decide, sizes=sizes)
