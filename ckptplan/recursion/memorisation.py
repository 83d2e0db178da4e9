"""Solves BPTT-HSM, -ISM and -MSM (Gruslys et al. 2016): memorise hidden states, tapes, or both.

The schedules keep the laws of docs/schedule-format.md: a run cannot restart from a tape, so a chunk whose tapes
are kept is followed by a checkpoint, which costs memory. Over states that are in a local slot, with r the cost
of running a step again, and a, k, s and l those of actions (``tables``),

    G(t, m) = 0 if t = 1 and M_a <= m;  else min of
              G(t - 1, m - M_a) if M_s <= m - M_a or t = 2, the chunk goes on;
              s + C(t - 1, m - M_a - M_s), the chunk ends, and the next state is stored again;
    C(t, m) = min of  k + G(t, m + M_s);
              a + y r + l + C(y, m) + s + C(t - y, m - M_s),  1 <= y < t, if hidden states are memorised;
              a + y r + l + C(y, m) + k + G(t - y, m),  1 <= y < t, if tapes are memorised or y = t - 1.

If tapes are not memorised, G is infinite for t > 1. ``count_forward_operations`` counts as the paper does
instead.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ckptplan.model.split import Choice, Where
from ckptplan.recursion.problem import FREE, ActionCosts
from ckptplan.recursion.tables import Splits, Values, shift
from ckptplan.recursion.tree import Decision, Part, UnitSizes


class Memorisation:
    """Least cost beyond the first sweep of every part whose first state is in a local slot, for all units.

    Arguments:
        steps: T, the longest part.
        units: the most units of free local memory.
        sizes: units of a state and of a tape.
        hidden: whether hidden states may be memorised.
        internal: whether internal states (tapes) may be memorised.
        recompute: cost of running a step again.
        actions: what actions cost besides their steps.
        progress: called with the work done and the total work.

    ``local`` is C and ``chunk`` is G; both have shape (steps + 1, units + 1).
    """

    def __init__(
        self,
        *,
        steps: int,
        units: int,
        sizes: UnitSizes,
        hidden: bool,
        internal: bool,
        recompute: float = 1.0,
        actions: ActionCosts = FREE,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.steps, self.units, self.sizes = steps, units, sizes
        self.hidden, self.internal = hidden, internal
        self.recompute, self.actions = recompute, actions
        state, tape = sizes
        shape = (steps + 1, units + 1)
        self.local, self.chunk = np.full(shape, np.inf), np.full(shape, np.inf)
        rests, heads = np.full(shape, np.inf), np.full(shape, np.inf)
        splits = Splits(rests, heads)
        a, k, s, back = actions
        for t in range(1, steps + 1):
            local, chunk, rest = self.local[t], self.chunk[t], rests[steps - t]
            if t == 1:
                chunk[tape:] = 0
            elif internal:
                np.copyto(chunk, shift(self._after_step(t - 1), tape))
            np.copyto(local, shift(chunk + k, -state))
            if t > 1:
                np.minimum(local, splits.least(t), out=local)
            np.add(local, t * recompute + (a + back), out=heads[t])
            if hidden:
                np.copyto(rest, shift(local + s, state))
            if internal or t == 1:
                np.minimum(rest, chunk + k, out=rest)
            if progress is not None and t % 64 == 0:
                progress(t * t, steps * steps)

    def first_row(self) -> Values:
        """Return the least cost of the whole sequence, whose first state is not stored yet, for every m."""
        held = shift(self.local[self.steps] + self.actions.save, self.sizes.state)
        row: Values = np.minimum(held, self._goes_on(self.steps) + self.actions.chunk)
        return row

    def _after_step(self, rest: int) -> Values:
        """Return the cost of the steps behind a step of an open chunk, for every m."""
        held = shift(self.local[rest] + self.actions.save, self.sizes.state)
        after: Values = np.minimum(held, self._goes_on(rest))
        return after

    def _goes_on(self, rest: int) -> Values:
        """Return the cost of an open chunk that goes on; there must be room for a state, except at the end."""
        row: Values = self.chunk[rest].copy()
        if rest > 1:
            row[: self.sizes.state] = np.inf
        return row

    def decide(self, part: Part) -> Decision:
        """Return the decision that attains the value of a part."""
        where, steps, units = part
        state = self.sizes.state
        if where is not Where.LOCAL:
            # The whole sequence, or what follows a chunk that has ended.
            held = self.local[steps, units - state] + self.actions.save if state <= units else np.inf
            if self._goes_on(steps)[units] + self.actions.chunk <= held:
                return self._record(steps, units)
            return Decision(Choice.CHECKPOINT)
        room = min(units + state, self.units)
        if self.chunk[steps, room] + self.actions.chunk == self.local[steps, units]:
            return self._record(steps, room)
        return self._decide_split(steps, units)

    def _record(self, steps: int, units: int) -> Decision:
        length = self._chunk_length(steps, units)
        return Decision(Choice.TAPE) if length == steps else Decision(Choice.RECORD, length)

    def _chunk_length(self, steps: int, units: int) -> int:
        """Return how many steps of a part to record at once."""
        state, tape = self.sizes
        for length in range(1, steps):
            rest, left = steps - length, units - length * tape
            goes_on = self.chunk[rest, left] if rest == 1 or left >= state else np.inf
            if left >= state and self.local[rest, left - state] + self.actions.save < goes_on:
                return length
        return steps

    def _decide_split(self, steps: int, units: int) -> Decision:
        state = self.sizes.state
        lengths = np.arange(1, steps)
        back = self.actions.advance + self.actions.load
        heads = self.local[1:steps, units] + (lengths * self.recompute + back)
        least, decision = np.inf, Decision(Choice.SPLIT)
        if self.hidden and state <= units:
            sums = self.local[steps - 1 : 0 : -1, units - state] + self.actions.save + heads
            place = int(np.argmin(sums))
            least, decision = sums[place], Decision(Choice.SPLIT, place + 1)
        taped = self.chunk[steps - 1 : 0 : -1, units] + self.actions.chunk
        if not self.internal:
            taped[:-1] = np.inf
        place = int(np.argmin(taped + heads))
        if taped[place] + heads[place] < least:
            recorded = self._chunk_length(steps - place - 1, units)
            decision = Decision(Choice.SPLIT_RECORD, place + 1 + recorded, recorded)
        return decision


def count_forward_operations(*, steps: int, units: int, alpha: int, hidden: bool, internal: bool) -> float:
    """Return C(t, m) as the paper counts: forward operations, including the first sweep and each recording.

    ``units`` counts states, including the segment's start and excluding the tape being worked on. A stored
    tape takes ``alpha`` units and also restores the state behind it. For the paper's internal state
    memorisation, with tapes only, set ``alpha`` to 1 and let ``units`` count tapes.
    """
    table = np.full((steps + 1, units + 1), np.inf)
    table[0] = 0
    for t in range(1, steps + 1):
        row = table[t]
        if hidden:
            # Run all t steps, reverse the last one at once, and start again with t - 1.
            row[1:] = t + table[t - 1, 1:]
        np.minimum(row, _least(table, t, alpha=alpha, hidden=hidden, internal=internal), out=row)
        if hidden:
            row[0] = np.inf
    return float(table[steps, units])


def _least(table: Values, t: int, *, alpha: int, hidden: bool, internal: bool) -> Values:
    lengths = np.arange(1, t + 1)[:, None]
    least = np.full(table.shape[1], np.inf)
    if internal:
        rests = np.full((t, table.shape[1]), np.inf)
        rests[:, alpha:] = table[t - 1 :: -1][:t, : max(0, table.shape[1] - alpha)]
        np.minimum(least, (lengths + rests + table[:t]).min(axis=0), out=least)
    if hidden and t > 1:
        rests = np.full((t - 1, table.shape[1]), np.inf)
        rests[:, 1:] = table[t - 1 : 0 : -1, :-1]
        np.minimum(least, (lengths[:-1] + rests + table[1:t]).min(axis=0), out=least)
    return least
