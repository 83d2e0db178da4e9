"""Pieces that schedules are made of: ranges cut into chunks, and one segment reversed locally."""

from __future__ import annotations

from collections.abc import Iterator

from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier

_LOCAL = Tier.LOCAL


def cuts(start: int, stop: int, size: int) -> range:
    """Return where the chunks of a range end, but for the last one; the ragged chunk comes first.

    Chunk i of ``[start, *cuts, stop]`` runs from entry i to entry i+1.
    """
    earlier = -(-(stop - start) // size) - 1
    return range(stop - earlier * size, stop, size)


def reverse_locally(start: int, stop: int, size: int, *, held: bool = False) -> Iterator[Action]:
    """Run and reverse one segment with a local checkpoint before each chunk but the last.

    The working state is that of ``start``. With ``held`` it is also in a local slot already, which is
    freed with the others. The last chunk is recorded at once.
    """
    ends = cuts(start, stop, size)
    if not ends:
        yield Record(start, stop)
        yield Backward(start, stop)
        return
    if not held:
        yield Save(start, _LOCAL)
    yield Advance(start, ends[0])
    for end in ends[:-1]:
        yield Save(end, _LOCAL)
        yield Advance(end, end + size)
    yield Record(ends[-1], stop)
    yield Backward(ends[-1], stop)
    for end in reversed(ends):
        first = max(start, end - size)
        yield Load(first, _LOCAL)
        yield Free(first, _LOCAL)
        yield Record(first, end)
        yield Backward(first, end)
