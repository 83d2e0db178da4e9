"""Gruslys et al. 2016: memorisation of hidden states, of internal states (tapes), or of both.

As executed here, under the laws of docs/schedule-format.md: a tape is no restart state, so that a step whose
tape is kept is followed by a checkpoint, which is paid for. ``count_forward_operations`` counts as
the paper does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ckptplan.model.split import Choice, Where
from ckptplan.recursion.tables import Splits, Values, shift
from ckptplan.recursion.tree import Decision, Part, UnitSizes


class Memorisation:
    """Least steps run again of every part whose first state is in a local slot, for all units at once."""

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
        again = np.full((steps + 1, width), np.inf)
        splits = Splits(self._rests, again)
        for t in range(1, steps + 1):
            local = self.local[t]
            if t == 1:
                local[max(0, tape - state) :] = 0
            else:
                np.copyto(local, splits.least(t))
                if internal:
                    np.minimum(local, shift(self._after_tape(t - 1), tape - state), out=local)
            np.add(local, t, out=again[t])
            rest = self._rests[steps - t]
            if hidden:
                np.copyto(rest, shift(local, state))
            if internal or t == 1:
                np.minimum(rest, shift(self._after_tape(t - 1), tape), out=rest)
            if progress is not None and t % 64 == 0:
                progress(t * t, steps * steps)

    def _after_tape(self, rest: int) -> Values:
        """Return the least of the steps behind a kept tape, their first state stored anew."""
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
        again = self.local[1:steps, units] + lengths
        if self.hidden and state <= units:
            sums = self.local[steps - 1 : 0 : -1, units - state] + again
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
        return Decision(Choice.SPLIT_RECORD, int(np.argmin(rests + again)) + 2)

    def _after_tapes(self, stop: int, units: int) -> Values:
        """Return the least of 0, 1, ... steps behind a kept tape, up to ``stop``, with so many units left."""
        state, tape = self.sizes
        least = np.full(stop, np.inf)
        if units >= state:
            least[:] = self.local[:stop, units - state]
        if units >= tape:
            least[1:2] = 0
        least[0] = 0
        return least


def count_forward_operations(*, steps: int, units: int, alpha: int, hidden: bool, internal: bool) -> float:
    """Return C(t, m) as the paper counts: forward operations, the first sweep and each recording included.

    ``units`` are states, the segment's start included, the tape that is worked on not included; a stored
    tape takes ``alpha`` of them and also restores the state behind it. With tapes only, as in the paper's
    internal state memorisation, let alpha be 1 and ``units`` count tapes.
    """
    table = np.full((steps + 1, units + 1), np.inf)
    table[0] = 0
    for t in range(1, steps + 1):
        row = table[t]
        if hidden:
            # The last step is recorded and reversed at once; what lies before it starts anew.
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
