"""Solves the single-tape problem: one tape, s local states, and remote states read any number of times.

With a single tape no step is recorded ahead of its turn. So binomial checkpointing reverses a part whose
first state is local, in closed form, and (R1) to (R3) of docs/optimality.md become one recursion over t, for
the full memory. With R the binomial count (``revolve``), and all three values 0 for t = 1:

    owned(t) = R(t) r
    far(t)   = min of  owned(t);  y r + r_d + free(t - y) + far(y), 1 <= y < t
    free(t)  = min of  owned(t);  w + far(t)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ckptplan.model.split import Choice, Where
from ckptplan.recursion import revolve
from ckptplan.recursion.tables import Values
from ckptplan.recursion.tree import Decision, Part, UnitSizes

#: Splits are examined in pieces of this many lengths; a piece is examined completely or skipped.
_PIECE = 64


def is_classical(*, units: int, sizes: UnitSizes) -> bool:
    """Return whether one tape fits but two do not, and a state is no larger than a tape."""
    return sizes.tape <= units < 2 * sizes.tape and sizes.state <= sizes.tape


class SingleTape:
    """Values of parts with all units.

    Arguments:
        steps: T, the longest part.
        units: units of local memory.
        sizes: units of a state and of a tape.
        recompute: cost of running a step again.
        write: cost of writing a state to remote memory; if infinite, remote memory is not used.
        read: cost of reading a state from remote memory.
        progress: called with the work done and the total work.

    ``unstored``, ``local`` and ``remote`` have shape (steps + 1,).
    """

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
        recomputed = revolve.count_recomputed_at(lengths, chunk=np.array([1]), slots=np.array([self.slots]))
        #: owned(t) = R(t) r, the first state in one of the slots; saturated counts become infinite.
        self.local = np.where(recomputed >= revolve.MOST, np.inf, recomputed * recompute)
        self.unstored, self.remote = np.zeros(steps + 1), np.zeros(steps + 1)
        self._fill(progress)

    def _fill(self, progress: Callable[[int, int], None] | None) -> None:
        last, local = self.steps, self.local.tolist()
        rests = np.full(last + 1, np.inf)  # free(t - y), in the order of descending t - y
        rests[last] = 0
        heads = np.full(last + 1, float(self.read))
        for t in range(1, last + 1):
            remote = local[t] if t > 1 else 0.0
            if t > 1:
                # far(t) = min(owned(t), min over y of free(t - y) + (y r + r_d + far(y)))
                remote = min(remote, _least_sum(rests[last - t + 1 : last], heads[1:t]))
            self.remote[t] = remote
            heads[t] = remote + (t * self.recompute + self.read)
            if progress is not None and t % 4096 == 0:
                progress(t * t, last * last)
            # free(t) = min(owned(t), w + far(t))
            self.unstored[t] = rests[last - t] = min(local[t], self.write + remote) if t > 1 else 0.0

    def decide(self, part: Part) -> Decision:
        """Return the decision that attains the value of a part; ties are broken in a fixed order."""
        where, steps, _ = part
        if steps == 1 or where is Where.LOCAL:
            return binomial_decision(part, self.sizes)
        value = self.unstored[steps] if where is Where.UNSTORED else self.remote[steps]
        if self.local[steps] == value:
            return Decision(Choice.CHECKPOINT)
        if where is Where.UNSTORED:
            return Decision(Choice.OFFLOAD)
        lengths = np.arange(1, steps)
        heads = self.remote[1:steps] + (lengths * self.recompute + self.read)
        return Decision(Choice.SPLIT, int(np.argmin(self.unstored[steps - 1 : 0 : -1] + heads)) + 1)


def binomial_decision(part: Part, sizes: UnitSizes) -> Decision:
    """Return the decision of binomial checkpointing for a part; a tape takes some of its local memory."""
    if part.steps == 1:
        return Decision(Choice.TAPE)
    if part.where is not Where.LOCAL:
        return Decision(Choice.CHECKPOINT)
    length = revolve.split(part.steps, 1 + (part.units - sizes.tape) // sizes.state)
    # The last step needs no checkpoint.
    last = length == part.steps - 1
    return Decision(Choice.SPLIT_RECORD, part.steps) if last else Decision(Choice.SPLIT, length)


def _least_sum(rests: Values, heads: Values) -> float:
    """Return the least element of ``rests + heads``.

    ``rests`` falls and ``heads`` rises, so the last rest and the first head of a piece bound its sums.
    """
    pieces = len(rests) // _PIECE
    if pieces < 8:
        return float(np.min(rests + heads))
    whole = pieces * _PIECE
    first = heads[:whole:_PIECE]
    best = float(np.min(rests[:whole:_PIECE] + first))
    open_ = np.flatnonzero(rests[_PIECE - 1 : whole : _PIECE] + first < best)
    if len(open_):
        begin, end = open_[0] * _PIECE, (open_[-1] + 1) * _PIECE
        best = min(best, float(np.min(rests[begin:end] + heads[begin:end])))
    if whole < len(rests):
        best = min(best, float(np.min(rests[whole:] + heads[whole:])))
    return best
