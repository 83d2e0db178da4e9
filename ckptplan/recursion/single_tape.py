"""Solves the single-tape problem: one tape, s local states, and remote states read any number of times.

With a single tape no step is recorded ahead of its turn. So binomial checkpointing reverses a part whose
first state is local, in closed form, and (R1) to (R3) of docs/optimality.md become one recursion over t, for
the full memory. With R the binomial count of steps and S that of saves (``revolve``), a, k, s and l the costs
of actions (``tables``), and all three values k for t = 1:

    owned(t) = R(t) r + (t - 1) (a + l) + t k + (S(t) - 1) s
    far(t)   = min of  min(s, l) + owned(t);  a + y r + r_d + free(t - y) + far(y), 1 <= y < t
    free(t)  = min of  s + owned(t);  w + far(t)

This is the optimum if saves are free and a local load costs no more than a remote one: all schedules then have
equally many pieces, runs and loads. Otherwise it is the cost of a schedule.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ckptplan.model.split import Choice, Where
from ckptplan.recursion import revolve
from ckptplan.recursion.problem import FREE, ActionCosts
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
        actions: what actions cost besides their steps.
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
        actions: ActionCosts = FREE,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.steps, self.units, self.sizes = steps, units, sizes
        self.recompute, self.write, self.read = recompute, write, read
        self.actions, self.hold = actions, actions.hold(write=write, read=read)
        self.slots = (units - sizes.tape) // sizes.state
        lengths = np.arange(steps + 1)
        recomputed, saves = revolve.count_at(lengths, chunk=np.array([1]), slots=np.array([self.slots]))
        a, k, s, back = actions
        #: owned(t), the first state in one of the slots; saturated counts become infinite.
        self.local = np.where(recomputed >= revolve.MOST, np.inf, recomputed * recompute)
        if any(actions):
            pieces = np.maximum(lengths - 1, 0)
            self.local += pieces * (a + back) + lengths * k + np.maximum(saves - 1, 0) * s
        self.unstored, self.remote = np.zeros(steps + 1), np.zeros(steps + 1)
        self._fill(progress)

    def _fill(self, progress: Callable[[int, int], None] | None) -> None:
        last, local = self.steps, self.local.tolist()
        a, k, s, _ = self.actions
        back, hold = a + self.read, self.hold
        rests = np.full(last + 1, np.inf)  # free(t - y), in the order of descending t - y
        rests[last] = 0
        heads = np.full(last + 1, float(back))
        for t in range(1, last + 1):
            remote = local[t] + hold if t > 1 else k
            if t > 1:
                # far(t) = min(owned(t), min over y of free(t - y) + (a + y r + r_d + far(y)))
                remote = min(remote, _least_sum(rests[last - t + 1 : last], heads[1:t]))
            self.remote[t] = remote
            heads[t] = remote + (t * self.recompute + back)
            if progress is not None and t % 4096 == 0:
                progress(t * t, last * last)
            # free(t) = min(s + owned(t), w + far(t))
            self.unstored[t] = rests[last - t] = min(local[t] + s, self.write + remote) if t > 1 else k

    def decide(self, part: Part) -> Decision:
        """Return the decision that attains the value of a part; ties are broken in a fixed order."""
        where, steps, _ = part
        if steps == 1 or where is Where.LOCAL:
            return binomial_decision(part, self.sizes)
        value = self.unstored[steps] if where is Where.UNSTORED else self.remote[steps]
        hold = self.actions.save if where is Where.UNSTORED else self.hold
        if self.local[steps] + hold == value:
            return Decision(Choice.FETCH if hold < self.actions.save else Choice.CHECKPOINT)
        if where is Where.UNSTORED:
            return Decision(Choice.OFFLOAD)
        lengths = np.arange(1, steps)
        heads = self.remote[1:steps] + (lengths * self.recompute + (self.actions.advance + self.read))
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
