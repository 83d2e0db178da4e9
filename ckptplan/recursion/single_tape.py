"""The classical problem: room for one tape, s local states, and remote memory read as often as wanted.

With a single tape nothing is recorded ahead of its turn. So a part whose first state is local is reversed
by binomial checkpointing in closed form, and what is left is one recursion over t, for the full memory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ckptplan.model.split import Choice, Where
from ckptplan.recursion import revolve
from ckptplan.recursion.tables import Values
from ckptplan.recursion.tree import Decision, Part, UnitSizes

#: Lengths of a piece of which all splits are looked at, or none.
_PIECE = 64


def is_classical(*, units: int, sizes: UnitSizes) -> bool:
    """Return whether there is room for one tape and never for two, nor for fewer states than slots."""
    return sizes.tape <= units < 2 * sizes.tape and sizes.state <= sizes.tape


class SingleTape:
    """Values of parts with all units; remote memory is unused where ``write`` is infinite."""

    def __init__(
        self,
        *,
        steps: int,
        units: int,
        sizes: UnitSizes,
        recompute: float,
        write: float,
        read: float,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.steps, self.units, self.sizes = steps, units, sizes
        self.recompute, self.write, self.read = recompute, write, read
        self.slots = (units - sizes.tape) // sizes.state
        lengths = np.arange(steps + 1)
        again = revolve.count_recomputed_at(lengths, chunk=np.array([1]), slots=np.array([self.slots]))
        #: With the first state in one of the slots; saturated counts are of no use.
        self.local = np.where(again >= revolve.MOST, np.inf, again * recompute)
        self.unstored, self.remote = np.zeros(steps + 1), np.zeros(steps + 1)
        self._fill(progress)

    def _fill(self, progress: Callable[[int, int], None] | None) -> None:
        last, local = self.steps, self.local.tolist()
        rests = np.full(last + 1, np.inf)  # of t - y steps, in the order of falling t - y
        rests[last] = 0
        again = np.full(last + 1, float(self.read))
        for t in range(1, last + 1):
            remote = local[t] if t > 1 else 0.0
            if t > 1:
                remote = min(remote, _least_sum(rests[last - t + 1 : last], again[1:t]))
            self.remote[t] = remote
            again[t] = remote + (t * self.recompute + self.read)
            if progress is not None and t % 4096 == 0:
                progress(t * t, last * last)
            self.unstored[t] = rests[last - t] = min(local[t], self.write + remote) if t > 1 else 0.0

    def decide(self, part: Part) -> Decision:
        """Return the decision that attains the value of a part; of several, always the same."""
        where, steps, _ = part
        if steps == 1 or where is Where.LOCAL:
            return binomial_decision(part, self.sizes)
        value = self.unstored[steps] if where is Where.UNSTORED else self.remote[steps]
        if self.local[steps] == value:
            return Decision(Choice.CHECKPOINT)
        if where is Where.UNSTORED:
            return Decision(Choice.OFFLOAD)
        lengths = np.arange(1, steps)
        again = self.remote[1:steps] + (lengths * self.recompute + self.read)
        return Decision(Choice.SPLIT, int(np.argmin(self.unstored[steps - 1 : 0 : -1] + again)) + 1)


def binomial_decision(part: Part, sizes: UnitSizes) -> Decision:
    """Return what binomial checkpointing does with the local memory of a part, of which a tape needs some."""
    if part.steps == 1:
        return Decision(Choice.TAPE)
    if part.where is not Where.LOCAL:
        return Decision(Choice.CHECKPOINT)
    length = revolve.split(part.steps, 1 + (part.units - sizes.tape) // sizes.state)
    # The last step needs no checkpoint of its own.
    last = length == part.steps - 1
    return Decision(Choice.SPLIT_RECORD, part.steps) if last else Decision(Choice.SPLIT, length)


def _least_sum(rests: Values, again: Values) -> float:
    """Return the least sum; ``rests`` fall and ``again`` rises, which bounds each piece by its ends."""
    pieces = len(rests) // _PIECE
    if pieces < 8:
        return float(np.min(rests + again))
    whole = pieces * _PIECE
    first = again[:whole:_PIECE]
    best = float(np.min(rests[:whole:_PIECE] + first))
    open_ = np.flatnonzero(rests[_PIECE - 1 : whole : _PIECE] + first < best)
    if len(open_):
        begin, end = open_[0] * _PIECE, (open_[-1] + 1) * _PIECE
        best = min(best, float(np.min(rests[begin:end] + again[begin:end])))
    if whole < len(rests):
        best = min(best, float(np.min(rests[whole:] + again[whole:])))
    return best
