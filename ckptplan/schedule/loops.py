"""Describes schedules as nests of loops, and expands them to actions.

A nest is a sequence of actions and loops. Steps and states in the body of a loop count from its offset: with
``Loop(4, 12, 4, (Save(0, LOCAL), Advance(0, 4)))``, states 4 and 8 are saved, and steps 4 to 11 run. A nest
does not grow with the number of steps, and is easy to execute in any language.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, TypeAlias

from ckptplan.schedule.actions import (
    Action,
    Advance,
    Backward,
    Free,
    Load,
    Record,
    Save,
    Tier,
    Transfer,
)

_LOCAL, _REMOTE = Tier.LOCAL, Tier.REMOTE


@dataclass(frozen=True, slots=True)
class Loop:
    """Do ``body`` at each offset of ``range(start, stop, stride)``; loops backwards have a negative stride."""

    start: int
    stop: int
    stride: int
    body: Nest


Nest: TypeAlias = tuple["Loop | Action", ...]
#: Functions that shift an action by a number of steps. Each action of a schedule is made by one of them.
_SHIFTED: Mapping[type, Callable[[Any, int], Action]] = {
    Advance: lambda action, by: Advance(action.start + by, action.stop + by, action.cached),
    Record: lambda action, by: Record(action.start + by, action.stop + by),
    Backward: lambda action, by: Backward(action.start + by, action.stop + by),
    Save: lambda action, by: Save(action.state + by, action.tier),
    Load: lambda action, by: Load(action.state + by, action.tier),
    Free: lambda action, by: Free(action.state + by, action.tier),
    Transfer: lambda action, by: Transfer(
        tuple(state + by for state in action.states),
        action.source,
        action.target,
        action.caches and (action.caches[0] + by, action.caches[1] + by),
    ),
}


@dataclass(frozen=True, slots=True)
class Run:
    """``count`` consecutive chunks of ``length`` steps each."""

    length: int
    count: int = 1


Body: TypeAlias = Callable[[int], Nest]


def expand(nest: Nest, offset: int = 0) -> Iterator[Action]:
    """Yield the actions of a nest that begins at step ``offset``."""
    for item in nest:
        if not isinstance(item, Loop):
            yield _SHIFTED[type(item)](item, offset)
            continue
        places = range(offset + item.start, offset + item.stop, item.stride)
        if any(isinstance(part, Loop) for part in item.body):
            for place in places:
                yield from expand(item.body, place)
            continue
        # Innermost loops yield nearly all actions, so look up the functions before the loop.
        body = [(_SHIFTED[type(part)], part) for part in item.body]
        for place in places:
            for shifted, part in body:
                yield shifted(part, place)


def cut_evenly(stop: int, size: int) -> tuple[tuple[Run, ...], int]:
    """Cut the steps before ``stop`` into chunks; return all chunks but the last, and the length of the last.

    Each chunk has ``size`` steps, except that the first may be shorter.
    """
    earlier = -(-stop // size) - 1
    last = min(size, stop)
    first = stop - last - (earlier - 1) * size
    if not earlier or first == size:
        return ((Run(size, earlier),) if earlier else ()), last
    return (Run(first), *((Run(size, earlier - 1),) if earlier > 1 else ())), last


def group_chunks(ends: Sequence[int], stop: int) -> tuple[tuple[Run, ...], int]:
    """Group chunks with these ``ends``, ascending; return the runs, and the length of the last chunk."""
    lengths = [end - start for start, end in pairwise((0, *ends))]
    runs = tuple(Run(length, len(list(group))) for length, group in groupby(lengths))
    return runs, stop - (ends[-1] if ends else 0)


def reverse_chunks(runs: Iterable[Run], last: int, *, held: bool = False) -> Nest:
    """Run and reverse steps with a local checkpoint before each chunk but the last, which is recorded at once.

    ``runs`` are the chunks before the last. The working state is the state before the first step. With ``held``
    it is already in a local slot, which is freed like the others.
    """
    runs = tuple(runs)
    if not runs:
        return (*((Free(0, _LOCAL),) if held else ()), *_record(last))
    (first, *others), begin = runs, 0
    sweep: Nest = ()
    if held:
        sweep, begin = (Advance(0, first.length),), first.length
        others = [Run(first.length, first.count - 1), *others] if first.count > 1 else others
    sweep += _forwards(others if held else runs, _save_and_advance(_LOCAL), begin=begin)
    before = sum(run.length * run.count for run in runs)
    return (*sweep, *_shift(_record(last), before), *_backwards(runs, lambda length: _fetch(_LOCAL, length)))


def reverse_segments(
    steps: int,
    size: int,
    *,
    tier: Tier,
    reverse: Callable[[int, bool], Nest],
    offloads_caches: bool = False,
) -> Nest:
    """Run and reverse all steps in segments of ``size`` steps with a checkpoint each, the ragged one first.

    ``reverse(length, held)`` returns the nest that reverses a segment from the state before it. With ``held``
    this state is also in a local slot, which the nest frees. With ``offloads_caches`` the caches of each
    segment move to remote memory in one message, and remote checkpoints wait in a local slot to move with them.
    """
    runs, last = cut_evenly(steps, size)
    is_local = tier is _LOCAL
    moved = () if is_local else (0,)

    def sweep(length: int) -> Nest:
        return (*_save_and_advance(_LOCAL)(length), Transfer(moved, _LOCAL, _REMOTE, (0, length)))

    def come_back(length: int) -> Nest:
        if offloads_caches:
            caches = Transfer(moved, _REMOTE, _LOCAL, (0, length))
            return (caches, Load(0, _LOCAL), *reverse(length, True))
        freed = () if is_local else (Free(0, tier),)
        return (Load(0, tier), *freed, *reverse(length, is_local))

    return (
        *_forwards(runs, sweep if offloads_caches else _save_and_advance(tier)),
        *_shift(reverse(last, False), steps - last),
        *_backwards(runs, come_back),
    )


def reverse_batches(steps: int, size: int, *, slots: int, offloads_caches: bool = False) -> Nest:
    """Run and reverse all steps in chunks, whose checkpoints move to remote memory ``slots`` at a time.

    The last ``slots`` checkpoints stay local. The first chunk and the first batch may be shorter. With
    ``offloads_caches`` the caches of the chunks move with their checkpoints, when the last chunk has run.
    """
    runs, last = cut_evenly(steps, size)
    chunks = sum(run.count for run in runs)
    remote = max(0, chunks - slots)
    first_chunk = runs[0].length if runs else size
    # Batches of chunks, the ragged batch first, and then the chunks whose checkpoints stay local.
    batches = -(-remote // slots)
    first = remote - (batches - 1) * slots
    moved = first_chunk + (remote - 1) * size if remote else 0
    leading = first_chunk + (first - 1) * size if remote else 0
    local_runs = runs if not remote else ((Run(size, chunks - remote),) if chunks > remote else ())

    def sweep(count: int, length: int) -> Nest:
        states, place = _list_states(count, length, size)
        if offloads_caches:
            chunks = _forwards(_lead(length, size, count), _save_and_advance(_LOCAL))
            return (*chunks, Transfer(states, _LOCAL, _REMOTE, (0, length + (count - 1) * size)))
        return (
            *_forwards(_lead(length, size, count - 1), _save_and_advance(_LOCAL)),
            *_shift((Save(0, _LOCAL),), place),
            Transfer(states, _LOCAL, _REMOTE),
            Advance(place, place + (size if count > 1 else length)),
        )

    def come_back(count: int, length: int) -> Nest:
        states, _ = _list_states(count, length, size)
        caches = (0, length + (count - 1) * size) if offloads_caches else None
        chunks = _backwards(_lead(length, size, count), lambda chunk: _fetch(_LOCAL, chunk))
        return (Transfer(states, _REMOTE, _LOCAL, caches), *chunks)

    others = (Run(slots * size, batches - 1),) if batches > 1 else ()
    return (
        *(sweep(first, first_chunk) if remote else ()),
        *_forwards(others, lambda _: sweep(slots, size), begin=leading),
        *_forwards(local_runs, _save_and_advance(_LOCAL), begin=moved),
        *_shift(_record(last), steps - last),
        *_backwards(local_runs, lambda length: _fetch(_LOCAL, length), begin=moved),
        *_backwards(others, lambda _: come_back(slots, size), begin=leading),
        *(come_back(first, first_chunk) if remote else ()),
    )


def _lead(first: int, size: int, count: int) -> tuple[Run, ...]:
    """Return ``count`` chunks: one of ``first`` steps, then chunks of ``size`` steps."""
    if first == size:
        return (Run(size, count),) if count else ()
    return (Run(first), *((Run(size, count - 1),) if count > 1 else ())) if count else ()


def _list_states(count: int, first: int, size: int) -> tuple[tuple[int, ...], int]:
    """Return the states before ``count`` chunks, the first of which has ``first`` steps, and the last one."""
    states = (0, *range(first, first + (count - 1) * size, size))
    return states, states[-1]


def keep_last(nest: Nest, *, steps: int, cached: int) -> Nest:
    """Return a nest in which the first sweep keeps only the caches of the last ``cached`` steps.

    Every later run keeps the caches of its steps, which are reversed before any other run needs their memory.
    The first sweep ends at the first Record action.

    Arguments:
        nest: a schedule that keeps all caches, whose runs repeat either all of their steps or none.
        steps: T, the number of time steps.
        cached: K, the number of steps, at the end of the sequence, whose caches the first sweep keeps.
    """
    if cached >= steps:
        return nest
    sweep = next(place for place, item in enumerate(nest) if isinstance(item, Record))
    return (*_drop_caches(nest[:sweep], steps - cached), *nest[sweep:])


def _drop_caches(nest: Nest, first: int) -> Nest:
    """Return a forward sweep that keeps no caches of steps before ``first``."""
    items: list[Loop | Action] = []
    for item in nest:
        if isinstance(item, Advance) and item.start < first:
            items.append(Advance(item.start, item.stop, max(0, item.stop - first)))
        elif isinstance(item, Loop) and item.start < first:
            # Rounds that keep no cache, one round that keeps some caches, and rounds that keep all.
            stride, number = item.stride, len(range(item.start, item.stop, item.stride))
            without = min(number, (first - item.start) // stride)
            items += _repeat(item.start, without, stride, _drop_caches(item.body, stride))
            place = item.start + without * stride
            if without < number:
                items += _shift(_drop_caches(item.body, first - place), place)
            items += _repeat(place + stride, number - without - 1, stride, item.body)
        else:
            items.append(item)
    return tuple(items)


def _save_and_advance(tier: Tier) -> Body:
    return lambda length: (Save(0, tier), Advance(0, length))


def _fetch(tier: Tier, length: int) -> Nest:
    """Load a checkpoint, free it, and reverse the chunk after it."""
    return (Load(0, tier), Free(0, tier), *_record(length))


def _record(length: int) -> Nest:
    return (Record(0, length), Backward(0, length))


def _forwards(runs: Iterable[Run], body: Body, *, begin: int = 0) -> Nest:
    """Repeat ``body(length)`` for each chunk, from step ``begin`` on."""
    items: list[Loop | Action] = []
    for run in runs:
        items += _repeat(begin, run.count, run.length, body(run.length))
        begin += run.length * run.count
    return tuple(items)


def _backwards(runs: Iterable[Run], body: Body, *, begin: int = 0) -> Nest:
    """Repeat ``body(length)`` for each chunk, from the last chunk back to step ``begin``."""
    runs = tuple(runs)
    stop = begin + sum(run.length * run.count for run in runs)
    items: list[Loop | Action] = []
    for run in reversed(runs):
        items += _repeat(stop - run.length, run.count, -run.length, body(run.length))
        stop -= run.length * run.count
    return tuple(items)


def _repeat(start: int, count: int, stride: int, body: Nest) -> Nest:
    """Return a loop of ``count`` rounds; a single one needs no loop."""
    if count == 1:
        return _shift(body, start)
    return (Loop(start, start + count * stride, stride, body),) if count > 0 else ()


def _shift(nest: Nest, by: int) -> Nest:
    """Return a nest that begins ``by`` steps later."""
    return tuple(
        Loop(item.start + by, item.stop + by, item.stride, item.body)
        if isinstance(item, Loop)
        else _SHIFTED[type(item)](item, by)
        for item in nest
    )
