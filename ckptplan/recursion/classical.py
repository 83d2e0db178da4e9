"""The classical problem, one tape and some slots: its optimum for each number of slots that is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from math import inf

import numpy as np

from ckptplan.recursion import bounds, revolve
from ckptplan.recursion.ask import Ask
from ckptplan.recursion.disk_revolve import Segments, segments_tree
from ckptplan.recursion.problem import Candidate, Solved
from ckptplan.recursion.search import grown
from ckptplan.recursion.single_tape import SingleTape
from ckptplan.recursion.tree import Part, Sizes, Where

#: Steps of the classical case: its work rises with T, and with T^2 but slowly.
_CLASSICAL = {"glance": 10_000, "quick": 30_000, "thorough": 200_000}
#: Closed forms, and steps of all classical tables together, where smaller memories are asked for, too.
_BINOMIALS = 2_000
_CLASSICAL_IN_ALL = {"glance": 30_000, "quick": 120_000, "thorough": 600_000}


#: A question asks for the same tables once for each objective.
_cached = lru_cache(maxsize=64)(SingleTape)


def is_short(ask: Ask) -> bool:
    """Return whether the classical problem can be solved: without remote memory there is a closed form."""
    return ask.problem.write == inf or ask.problem.steps <= _CLASSICAL[ask.effort]


def classical(ask: Ask) -> Solved:
    """Return the optimum, with a single tape, for the budget or for each number of slots within it."""
    problem, most = ask.problem, min(ask.problem.steps, _room_for_states(ask))
    counts = _slot_counts(ask, most)
    if problem.write == inf:
        again = revolve.again(problem.steps, chunk=1, slots=most)
        return Solved(
            candidates=list(_binomials(ask, counts)),
            least_extra=again * problem.recompute if most else inf,
            exact=len(counts) > most or not ask.front,
        )
    optimum = float(_single_tape(ask, most).free[problem.steps])
    return Solved(
        candidates=list(_single_tapes(ask, counts)),
        least_extra=bounds.of_optimum(problem, optimum),
        exact=problem.covered and (len(counts) > most or not ask.front),
    )


def _room_for_states(ask: Ask) -> int:
    """Return the states that there is room for beside one tape."""
    return (ask.units - ask.sizes.tape) // ask.sizes.state


def _slot_counts(ask: Ask, most: int) -> list[int]:
    """Return the numbers of slots to look at: the most, and fewer where smaller memories are asked for."""
    if not ask.front:
        return [most]
    few = _BINOMIALS if ask.problem.write == inf else _CLASSICAL_IN_ALL[ask.effort] // ask.problem.steps
    if most < few:
        return list(range(most, -1, -1))
    spread = np.geomspace(1, most, max(few - 2, 1)).astype(int).tolist()
    return sorted({0, most, *spread}, reverse=True)


def _binomials(ask: Ask, counts: list[int]) -> Iterator[Candidate]:
    """Return binomial checkpointing in local memory alone, for any number of steps."""
    steps = ask.problem.steps
    for slots in counts:
        again = revolve.again(steps, chunk=1, slots=slots)
        if again < revolve.MOST and revolve.is_told(steps, slots):
            yield Candidate(
                extra=again * ask.problem.recompute,
                local_bytes=slots * ask.problem.state_bytes + ask.problem.tape_bytes,
                build=partial(segments_tree, slots, Segments(0, 0, 0, steps, again), steps=steps),
            )


def _single_tapes(ask: Ask, counts: list[int]) -> Iterator[Candidate]:
    """Return the classical optimum for each number of slots."""
    problem = ask.problem
    for slots in counts:
        table = _single_tape(ask, slots)
        extra = float(table.free[problem.steps])
        if extra < inf:
            root = Part(Where.FREE, problem.steps, table.units)
            yield Candidate(
                extra=extra,
                local_bytes=slots * problem.state_bytes + problem.tape_bytes,
                build=partial(grown, root, table.decide, sizes=table.sizes),
            )


def _single_tape(ask: Ask, slots: int) -> SingleTape:
    # A tape as large as a state and one slot each: slots alone are counted.
    return _cached(
        steps=ask.problem.steps,
        units=slots + 1,
        sizes=Sizes(1, 1),
        recompute=ask.problem.recompute,
        write=ask.problem.write,
        read=ask.problem.read,
        progress=None if ask.front else ask.progress,
    )


def forget() -> None:
    """Keep no table of earlier questions; for those who measure time."""
    _cached.cache_clear()
