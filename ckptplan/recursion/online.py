"""Chooses the states that are held while a sequence of unknown length runs (docs/online.md).

With s slots, states are offered in order, and the sequence may end after any step. Then each gap between two
held states is reversed, the last one first: the gap after the j-th state, from 0, with the s - j slots that are
free by then. Binomial checkpointing (``revolve``) reverses C(n + k, n) steps with n slots so that none runs
more than k times without a tape.

**Guarantee.** Level r is the lengths T with C(s + r - 1, s) <= T < C(s + r, s). Its milestones are q(0) = 0 and

    q(j + 1) = q(j) + C(s - j + r - 1, r - 1),  0 <= j < s - 1.

Milestones are held until their level ends. As a level has s of them, a slot is free for the next one, or holds
a state that is no milestone; and q(1) is the first state that the level offers, since the level also begins at
C(s + r - 1, s). With the milestones alone, gap j has at most C(s - j + r - 1, r - 1) steps, so that they run
r - 1 times more; the last one is long enough since these numbers add up to C(s + r, s) - 1. So **no step needs
to run more than r times without a tape, for every T below C(s + r, s)**. No rule does better: whichever states
are held, gaps that allow so few runs have no more than C(s + r, s) - 1 steps in all. (A schedule that knows T
records the last step when it first runs, and reaches one step more.)

**Rule.** A state that is no milestone replaces the held state without which the reversal would run the fewest
steps if the sequence ended after the next step. It is not held if that saves no steps. One such comparison
costs O(s). It is made at milestones, s a level, and when a share of the average gap has passed since the last
one, at most once a step. Apart from milestones, this costs O(s^2 log(T / s)) in all for T well above s. This
vanishes beside T steps if T is far above s^2; for T of a few times s it is O(s T).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import comb

from ckptplan.recursion.revolve import count_recomputed, least_sweeps

#: A state is compared with those that are held once this share of the average gap has passed.
_PATIENCE = 1 / 16


@lru_cache(maxsize=2**14)
def _count_gap(steps: int, slots: int) -> int:
    return count_recomputed(steps, chunk=1, slots=slots)


def count_advances(held: Sequence[int], steps: int, *, slots: int) -> int:
    """Return how many steps run without a tape, the first sweep included, with one tape at a time.

    Arguments:
        held: the states held when the sequence ends, ascending from 0.
        steps: T.
        slots: the states that may be held at a time.
    """
    ends = [*held[1:], steps]
    gaps = zip(held, ends, strict=True)
    return steps + sum(_count_gap(end - start, slots - number) for number, (start, end) in enumerate(gaps))


def bound_advances(steps: int, *, slots: int) -> int:
    """Return the least r with C(slots + r, slots) > steps: no step runs more than r times without a tape."""
    return least_sweeps(steps + 1, slots)


def list_milestones(slots: int) -> Iterator[tuple[int, int]]:
    """Yield each milestone after state 0 with its level, ascending, without end; nothing for a single slot."""
    level = 1
    while slots > 1:
        state = 0
        for number in range(slots - 1):
            state += comb(slots - number + level - 1, level - 1)
            yield state, level
        level += 1


class Snapshots:
    """The states that are held, for ``slots`` at a time, while the sequence runs."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        #: Ascending, from the initial state.
        self.held = [0]
        #: How often states were compared.
        self.questions = 0
        #: The milestones of the current level. Holding them is enough for the guarantee.
        self.fixed = {0}
        self._milestones = list_milestones(slots)
        self._next, self._level = next(self._milestones, (0, 0))
        #: The last state that was held or compared.
        self._last_compared = 0

    def offer(self, state: int) -> int | None:
        """Offer the next state, from 1; return the state to drop, maybe this one, or None if a slot is free."""
        is_milestone = state == self._next
        if is_milestone:
            self._pass_milestone(state)
        if len(self.held) < self.slots:
            self._last_compared = state
            self.held.append(state)
            return None
        if not is_milestone and state - self._last_compared < _PATIENCE * state / self.slots:
            return state
        self._last_compared = state
        place = self._find_dispensable(state, needed=is_milestone)
        if place is None:
            return state
        dropped = self.held.pop(place)
        self.held.append(state)
        return dropped

    def settle(self, steps: int) -> list[int]:
        """Return the states to reverse T = ``steps`` steps from: the milestones alone, if this costs less."""
        milestones = [state for state in self.held if state in self.fixed]
        return min((self.held, milestones), key=lambda held: count_advances(held, steps, slots=self.slots))

    def _pass_milestone(self, state: int) -> None:
        level = self._level
        if state == comb(self.slots + level - 1, self.slots):
            self.fixed = {0}
        self.fixed.add(state)
        self._next, self._level = next(self._milestones)

    def _find_dispensable(self, state: int, *, needed: bool) -> int | None:
        """Return the place of the state to drop; None to drop the offered one, unless it is ``needed``."""
        self.questions += 1
        held, slots = self.held, self.slots
        ends = [*held[1:], state]
        gaps = [end - start for start, end in zip(held, ends, strict=True)]
        # Without state n, gaps n-1 and n are one, and a slot more is free for each gap after them. All
        # costs are relative to the costs with all states, where the last gap has one step more.
        costs = [_count_gap(gap, slots - number) for number, gap in enumerate(gaps)]
        best, place = 0, None
        after = 0
        last = _count_gap(gaps[-1] + 1, 1) - costs[-1]
        for number in range(slots - 1, 0, -1):
            merged = _count_gap(gaps[number - 1] + gaps[number], slots - number + 1)
            change = merged - costs[number - 1] - costs[number] + after
            if held[number] not in self.fixed and ((needed and place is None) or change - last < best):
                best, place = change - last, number
            after += _count_gap(gaps[number], slots - number + 1) - costs[number]
        return place
