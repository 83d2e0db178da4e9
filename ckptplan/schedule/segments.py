"""Pieces that schedules are made of: ranges cut into chunks, and one segment reversed locally."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier

_LOCAL = Tier.LOCAL


def cut_range(start: int, stop: int, size: int) -> range:
    """Return where the chunks of a range end, but for the last one; the ragged chunk comes first.

    Chunk i of ``[start, *cuts, stop]`` runs from entry i to entry i+1.
    """
    earlier = -(-(stop - start) // size) - 1
    return range(stop - earlier * size, stop, size)


def reverse_locally(start: int, stop: int, size: int, *, held: bool = False) -> Iterator[Action]:
    """Run and reverse one segment in chunks of ``size`` steps, the ragged one first."""
    return reverse_between(start, stop, cut_range(start, stop, size), held=held)


def reverse_between(start: int, stop: int, ends: Sequence[int], *, held: bool = False) -> Iterator[Action]:
    """Run and reverse one segment with a local checkpoint before each chunk but the last.

    ``ends`` are where the chunks end, ascending, but for the last one, which is recorded at once. The
    working state is that of ``start``. With ``held`` it is also in a local slot already, which is freed with
    the others.
    """
    first = start
    for end in ends:
        if first > start or not held:
            yield Save(first, _LOCAL)
        yield Advance(first, end)
        first = end
    yield Record(first, stop)
    yield Backward(first, stop)
    for number in range(len(ends) - 1, -1, -1):
        first, end = ends[number - 1] if number else start, ends[number]
        yield Load(first, _LOCAL)
        yield Free(first, _LOCAL)
        yield Record(first, end)
        yield Backward(first, end)
