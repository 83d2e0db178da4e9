"""Solves BPTT-HSM, -ISM and -MSM (Gruslys et al. 2016): memorise hidden states, tapes, or both.

The schedules keep the laws of docs/schedule-format.md: a run cannot restart from a tape, so a step whose tape
is kept is followed by a checkpoint, which costs memory. Over states that are in a local slot,

    C(t, m) = min of  C(t - y, m - M_s) + y + C(y, m),             1 <= y < t, if hidden states are memorised;
                      D(t - y, m - M_a) + (y - 1) + C(y - 1, m),   1 <= y <= t, if tapes are memorised or y = t;

with C(1, m) = 0 for M_a <= m + M_s, and y = 1 in the second line using the slot of the first state. D is the
cost of the steps behind a kept tape, whose first state is stored again: D(t, m) = C(t, m - M_s), D(0, m) = 0,
and D(1, m) = 0 for M_a <= m. ``count_forward_operations`` counts as the paper does instead.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ckptplan.model.split import Choice, Where
from ckptplan.recursion.tables import Splits, Values, shift
from ckptplan.recursion.tree import Decision, Part, UnitSizes


class Memorisation:
    """Least recomputed steps of every part whose first state is in a local slot, for all units at once.

    Arguments:
        steps: T, the longest part.
        units: the most units of free local memory.
        sizes: units of a state and of a tape.
        hidden: whether hidden states may be memorised.
        internal: whether internal states (tapes) may be memorised.
        progress: called with the work done and the total work.

    ``local`` is C and has shape (steps + 1, units + 1).
    """

    def __init__(
        self,
        *,
        steps: int,
        units: int,
        sizes: UnitSizes,
        hidden: bool,
        internal: bool,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.steps, self.units, self.sizes = steps, units, sizes
        self.hidden, self.internal = hidden, internal
        state, tape = sizes
        width = units + 1
        self.local = np.full((steps + 1, width), np.inf)
        self.local[0] = 0
        self._rests = np.full((steps + 1, width), np.inf)
        heads = np.full((steps + 1, width), np.inf)
        splits = Splits(self._rests, heads)
        for t in range(1, steps + 1):
            local = self.local[t]
            if t == 1:
                local[max(0, tape - state) :] = 0
            else:
                np.copyto(local, splits.least(t))
                if internal:
                    np.minimum(local, shift(self._after_tape(t - 1), tape - state), out=local)
            np.add(local, t, out=heads[t])
            rest = self._rests[steps - t]
            if hidden:
                np.copyto(rest, shift(local, state))
            if internal or t == 1:
                np.minimum(rest, shift(self._after_tape(t - 1), tape), out=rest)
            if progress is not None and t % 64 == 0:
                progress(t * t, steps * steps)

    def _after_tape(self, rest: int) -> Values:
        """Return D(rest, m) for every m: the steps behind a kept tape, their first state stored again."""
        if rest == 0:
            return np.zeros(self.units + 1)
        held = shift(self.local[rest], self.sizes.state)
        if rest == 1:
            taped = np.where(np.arange(self.units + 1) >= self.sizes.tape, 0.0, np.inf)
            return np.minimum(held, taped)
        return held

    def decide(self, part: Part) -> Decision:
        """Return the decision that attains the value of a part."""
        where, steps, units = part
        state, tape = self.sizes
        if where is not Where.LOCAL:
            taped = steps == 1 and tape <= units
            return Decision(Choice.TAPE if taped else Choice.CHECKPOINT)
        if steps == 1:
            return Decision(Choice.TAPE)
        value = self.local[steps, units]
        lengths = np.arange(1, steps)
        heads = self.local[1:steps, units] + lengths
        if self.hidden and state <= units:
            sums = self.local[steps - 1 : 0 : -1, units - state] + heads
            place = int(np.argmin(sums))
            if sums[place] == value:
                return Decision(Choice.SPLIT, place + 1)
        if self.internal and units + state - tape >= 0:
            room = min(units + state - tape, self.units)
            if self._after_tape(steps - 1)[room] == value:
                return Decision(Choice.RECORD)
        rests = self._after_tapes(steps - 1, units - tape)[::-1]
        if not self.internal:
            rests[:-1] = np.inf
        return Decision(Choice.SPLIT_RECORD, int(np.argmin(rests + heads)) + 2)

    def _after_tapes(self, stop: int, units: int) -> Values:
        """Return D(0, units), D(1, units), ... up to before ``stop``."""
        state, tape = self.sizes
        least = np.full(stop, np.inf)
        if units >= state:
            least[:] = self.local[:stop, units - state]
        if units >= tape:
            least[1:2] = 0
        least[0] = 0
        return least


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
