"""One table for all budgets of sequences that memorise hidden states, tapes, or both, in local memory only.

Over states that are in a local slot, with r the cost of running a step again, and a, k, s and l those of
actions (``recursion/tables.py``),

    G(t, m) = 0 if t = 1 and M_a <= m;  else min of
              G(t - 1, m - M_a) if M_s <= m - M_a or t = 2, the chunk goes on;
              s + C(t - 1, m - M_a - M_s), the chunk ends, and the next state is stored again;
    C(t, m) = min of  k + G(t, m + M_s);
              a + y r + l + C(y, m) + s + C(t - y, m - M_s),  1 <= y < t, if hidden states are memorised;
              a + y r + l + C(y, m) + k + G(t - y, m),  1 <= y < t, if tapes are memorised or y = t - 1.

If tapes are not memorised, G is infinite for t > 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ckptplan.model.progress import Progress
from ckptplan.model.split import Choice, Where
from ckptplan.recursion.tables import PartValues, Splits, Values, shift
from ckptplan.recursion.tree import Decision, Part


@dataclass(kw_only=True, eq=False)
class Memorisation(PartValues):
    """Values of parts whose first state is in a local slot: ``local`` is C and ``chunk`` is G, for all units.

    Hidden states are memorised if ``hidden``, internal ones (tapes) if ``internal``. Both tables have shape
    (steps + 1, units + 1).
    """

    hidden: bool
    internal: bool

    def __post_init__(self, progress: Progress | None) -> None:
        steps, (state, tape, _) = self.steps, self.sizes
        shape = (steps + 1, self.units + 1)
        self.local, self.chunk = np.full(shape, np.inf), np.full(shape, np.inf)
        rests, heads = np.full(shape, np.inf), np.full(shape, np.inf)
        splits = Splits(rests, heads)
        a, k, s, back = self.prices.actions
        for t in range(1, steps + 1):
            local, chunk, rest = self.local[t], self.chunk[t], rests[steps - t]
            if t == 1:
                chunk[tape:] = 0
            elif self.internal:
                np.copyto(chunk, shift(self._follow(t - 1), tape))
            np.copyto(local, shift(chunk + k, -state))
            if t > 1:
                np.minimum(local, splits.least(t, 1, t), out=local)
            np.add(local, t * self.prices.recompute + (a + back), out=heads[t])
            if self.hidden:
                np.copyto(rest, shift(local + s, state))
            if self.internal or t == 1:
                np.minimum(rest, chunk + k, out=rest)
            if progress is not None and t % 64 == 0:
                progress(t * t, steps * steps)

    def first_row(self) -> Values:
        """Return the least cost of the whole sequence, whose first state is not stored yet, for every m."""
        return self._follow(self.steps, opened=self.prices.chunk)

    def _follow(self, left: int, *, opened: float = 0.0) -> Values:
        """Return the cost of ``left`` steps after a step: its chunk goes on, at cost ``opened``, or ends."""
        held = shift(self.local[left] + self.prices.save, self.sizes.state)
        goes_on = self.chunk[left] + opened
        if left > 1:
            # There must be room for a state, except at the end.
            goes_on[: self.sizes.state] = np.inf
        row: Values = np.minimum(held, goes_on)
        return row

    def decide(self, part: Part) -> Decision:
        """Return the decision that attains the value of a part."""
        where, steps, units, _ = part
        state, prices = self.sizes.state, self.prices
        if where is not Where.LOCAL:
            # The whole sequence, or the steps after a chunk that has ended.
            held = self.local[steps, units - state] + prices.save if state <= units else np.inf
            if self.chunk[steps, units] + prices.chunk <= held:
                return self._decide_chunk(steps, units)
            return Decision(Choice.CHECKPOINT)
        room = min(units + state, self.units)
        if self.chunk[steps, room] + prices.chunk == self.local[steps, units]:
            return self._decide_chunk(steps, room)
        return self._decide_split(steps, units)

    def _decide_chunk(self, steps: int, units: int) -> Decision:
        """Return how many steps of a part to record at once: until storing the next state costs less."""
        state, tape, _ = self.sizes
        for length in range(1, steps):
            after, left = steps - length, units - length * tape
            if left >= state and self.local[after, left - state] + self.prices.save < self.chunk[after, left]:
                return Decision(Choice.RECORD, length)
        return Decision(Choice.TAPE)

    def _decide_split(self, steps: int, units: int) -> Decision:
        state, prices = self.sizes.state, self.prices
        back = prices.advance + prices.load
        heads = self.local[1:steps, units] + (np.arange(1, steps) * prices.recompute + back)
        least, decision = np.inf, Decision(Choice.SPLIT)
        if self.hidden and state <= units:
            sums = self.local[steps - 1 : 0 : -1, units - state] + prices.save + heads
            place = int(np.argmin(sums))
            least, decision = sums[place], Decision(Choice.SPLIT, place + 1)
        taped = self.chunk[steps - 1 : 0 : -1, units] + prices.chunk
        if not self.internal:
            taped[:-1] = np.inf
        place = int(np.argmin(taped + heads))
        if taped[place] + heads[place] < least:
            recorded = self._decide_chunk(steps - place - 1, units).length or steps - place - 1
            decision = Decision(Choice.SPLIT_RECORD, place + 1 + recorded, recorded)
        return decision
