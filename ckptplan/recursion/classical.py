"""Solves the classical problem: one tape, s local states, and remote states read any number of times.

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

from functools import lru_cache, partial
from math import inf

import numpy as np

from ckptplan.model.progress import Progress
from ckptplan.model.split import Choice, Where
from ckptplan.recursion import revolve
from ckptplan.recursion.pricing import Tally, set_tally
from ckptplan.recursion.problem import Candidate, Problem, SolvedProblem
from ckptplan.recursion.revolve import binomial_decision, make_revolve_tree
from ckptplan.recursion.table_problem import prove_bound
from ckptplan.recursion.tables import PartValues, Values, choose_store
from ckptplan.recursion.tree import Decision, Part, Tree, UnitSizes, grow_tree

#: Longest sequence of the classical case; the work rises with T^2, with a small constant.
_CLASSICAL = {"glance": 10_000, "quick": 30_000, "thorough": 200_000}
#: Limits for a whole front of memories: on closed forms, and on the steps of all classical tables together.
_BINOMIALS = 2_000
_CLASSICAL_IN_ALL = {"glance": 30_000, "quick": 120_000, "thorough": 600_000}
#: Many splits are examined in pieces of this many lengths; a piece is examined completely or skipped. With
#: fewer pieces than this, it is quicker to examine all splits.
_PIECE, _FEW_PIECES = 64, 512


def is_classical(*, units: int, sizes: UnitSizes) -> bool:
    """Return whether one tape fits but two do not, and a state is no larger than a tape."""
    return sizes.tape <= units < 2 * sizes.tape and sizes.state <= sizes.tape


class SingleTape(PartValues):
    """Values of parts with all units; ``unstored``, ``local`` and ``remote`` have shape (steps + 1,)."""

    def __post_init__(self, progress: Progress | None) -> None:
        last = self.steps
        self.slots = (self.units - self.sizes.tape) // self.sizes.state
        lengths = np.arange(last + 1)
        recomputed, saves = revolve.count_at(lengths, chunk=np.array([1]), slots=np.array([self.slots]))
        prices = self.prices
        a, k, s, load = prices.actions
        #: owned(t), the first state in one of the slots; saturated counts become infinite.
        self.local = np.where(recomputed >= revolve.MOST, np.inf, recomputed * prices.recompute)
        self.local += np.maximum(lengths - 1, 0) * (a + load) + lengths * k + np.maximum(saves - 1, 0) * s
        self.unstored, self.remote = np.zeros(last + 1), np.zeros(last + 1)
        #: The first y with the least sum of far(t).
        self.splits = np.zeros(last + 1, dtype=np.int64)
        local = self.local.tolist()
        back, fetch_price = a + prices.read, prices.fetch_price
        rests = np.full(last + 1, np.inf)  # free(t - y), in the order of descending t - y
        rests[last] = 0
        heads = np.full(last + 1, float(back))
        for t in range(1, last + 1):
            remote = local[t] + fetch_price if t > 1 else k
            if t > 1:
                # far(t) = min(owned(t), min over y of free(t - y) + (a + y r + r_d + far(y)))
                least, place = _find_least_sum(rests[last - t + 1 : last], heads[1:t])
                remote, self.splits[t] = min(remote, least), place + 1
            self.remote[t] = remote
            heads[t] = remote + (t * prices.recompute + back)
            if progress is not None and t % 4096 == 0:
                progress(t * t, last * last)
            # free(t) = min(s + owned(t), w + far(t))
            self.unstored[t] = rests[last - t] = min(local[t] + s, prices.write + remote) if t > 1 else k

    def decide(self, part: Part) -> Decision:
        """Return the decision that attains the value of a part; ties are broken in a fixed order."""
        where, steps, _, _ = part
        if steps == 1 or where is Where.LOCAL:
            return binomial_decision(part, self.sizes)
        value = self.unstored[steps] if where is Where.UNSTORED else self.remote[steps]
        prices = self.prices
        fetch_price = prices.save if where is Where.UNSTORED else prices.fetch_price
        if self.local[steps] + fetch_price == value:
            return Decision(Choice.FETCH if fetch_price < prices.save else Choice.CHECKPOINT)
        if where is Where.UNSTORED:
            return choose_store(self.decide, part)
        return Decision(Choice.SPLIT, int(self.splits[steps]))


def _find_least_sum(rests: Values, heads: Values) -> tuple[float, int]:
    """Return the least element of ``rests + heads``, and its place.

    ``rests`` falls and ``heads`` rises, so the last rest and the first head of a piece bound its sums.
    """
    begin, end = 0, len(rests)
    if end >= _FEW_PIECES * _PIECE:
        first_heads = heads[::_PIECE]
        last_rests = np.append(rests[_PIECE - 1 :: _PIECE], rests[-1])[: len(first_heads)]
        least = np.min(rests[::_PIECE] + first_heads)
        open_pieces = np.flatnonzero(last_rests + first_heads <= least)
        begin, end = int(open_pieces[0]) * _PIECE, (int(open_pieces[-1]) + 1) * _PIECE
    sums = rests[begin:end] + heads[begin:end]
    place = int(np.argmin(sums))
    return float(sums[place]), begin + place


#: A cache, as the search of each objective needs the same tables.
_cached = lru_cache(maxsize=64)(SingleTape)


def is_short(problem: Problem) -> bool:
    """Return whether the sequence is short enough; without remote memory a closed form serves any length."""
    return problem.prices.write == inf or problem.steps <= _CLASSICAL[problem.effort]


def covers_actions(problem: Problem) -> bool:
    """Return whether this case is exact: with free saves, and local loads that cost no more than remote ones.

    Then all schedules with equally many pieces have equally many runs and loads, and only recomputation and
    transfers tell them apart. Otherwise a schedule with more of these and fewer saves can be better.
    """
    return not problem.prices.save and problem.prices.load <= problem.prices.read


def solve_classical(problem: Problem) -> SolvedProblem:
    """Return the single-tape optimum for the budget, or for each number of slots within it.

    If saves cost time, the schedules need not be optimal, and prices give the bound.
    """
    most = count_slots(problem)
    counts = _slot_counts(problem, most)
    list_candidates = _list_binomials if problem.prices.write == inf else _list_single_tapes
    candidates, optimum = list_candidates(problem, counts)
    covered = covers_actions(problem) and problem.recursion_is_exact
    return SolvedProblem(
        candidates=candidates,
        least_extra=optimum if covered else prove_bound(problem),
        exact=covered and (len(counts) > most or not problem.front),
    )


def count_slots(problem: Problem) -> int:
    """Return how many states fit in local memory beside one tape, at most one for each step."""
    return min(problem.steps, (problem.units - problem.sizes.tape) // problem.sizes.state)


def _slot_counts(problem: Problem, most: int) -> list[int]:
    """Return the numbers of slots to solve for: the most and, for a front, smaller ones too."""
    if not problem.front:
        return [most]
    few = _BINOMIALS if problem.prices.write == inf else _CLASSICAL_IN_ALL[problem.effort] // problem.steps
    if most < few:
        return list(range(most, -1, -1))
    spread = np.geomspace(1, most, max(few - 2, 1)).astype(int).tolist()
    return sorted({0, most, *spread}, reverse=True)


def _list_binomials(problem: Problem, counts: list[int]) -> tuple[list[Candidate], float]:
    """Return binomial checkpointing in local memory alone, for any number of steps, and the least cost."""
    slots = np.array(counts)
    steps, (a, k, s, back) = problem.steps, problem.prices.actions
    recomputed, saves = revolve.count_at(np.array([steps]), chunk=np.array([1]), slots=slots)
    extra = recomputed * problem.prices.recompute + saves * s + ((steps - 1) * (a + back) + steps * k)
    extra = np.where(recomputed < revolve.MOST, extra, inf)
    sweeps = revolve.count_sweeps_at(np.array([steps]), slots=np.maximum(slots, 1))
    listed = revolve.is_listable(steps, slots=slots, sweeps=sweeps) & (extra < inf)
    candidates = [
        Candidate(
            extra=float(extra[place]),
            local_bytes=counts[place] * problem.state_bytes + problem.tape_bytes,
            build=partial(
                _build_binomial,
                problem,
                slots=counts[place],
                recomputed=int(recomputed[place]),
                saves=int(saves[place]),
            ),
        )
        for place in np.flatnonzero(listed).tolist()
    ]
    return candidates, float(extra[0])


def _build_binomial(problem: Problem, *, slots: int, recomputed: int, saves: int) -> Tree:
    """Return binomial checkpointing in single steps, with its counts."""
    splits = problem.steps - 1
    counts = Tally(
        recomputed_steps=recomputed,
        advances=splits,
        chunks=problem.steps,
        local_saves=saves,
        local_loads=splits,
        local_bytes=min(slots, splits) * problem.state_bytes + problem.tape_bytes,
    )
    tree = make_revolve_tree(slots, steps=problem.steps)
    set_tally(tree, counts, state_bytes=problem.state_bytes, tape_bytes=problem.tape_bytes)
    return tree


def _list_single_tapes(problem: Problem, counts: list[int]) -> tuple[list[Candidate], float]:
    """Return the classical optimum for each number of slots, and the least cost."""
    tables = [_cached_single_tape(problem, slots) for slots in counts]
    candidates = [
        Candidate(
            extra=float(table.unstored[-1]),
            local_bytes=slots * problem.state_bytes + problem.tape_bytes,
            build=partial(
                grow_tree, Part(Where.UNSTORED, problem.steps, table.units), table.decide, sizes=table.sizes
            ),
        )
        for slots, table in zip(counts, tables, strict=True)
        if table.unstored[-1] < inf
    ]
    return candidates, float(tables[0].unstored[-1])


def _cached_single_tape(problem: Problem, slots: int) -> SingleTape:
    # With a tape as large as a state, units count slots, and one unit is the tape's.
    return _cached(
        steps=problem.steps,
        units=slots + 1,
        sizes=UnitSizes(1, 1),
        prices=problem.prices,
        progress=None if problem.front else problem.progress,
    )


def clear_caches() -> None:
    """Drop the cached tables, e.g. before a time measurement."""
    _cached.cache_clear()
