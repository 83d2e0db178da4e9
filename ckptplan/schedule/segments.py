"""Building blocks of schedules: cuts ranges into chunks, and reverses a segment in local memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier

_LOCAL = Tier.LOCAL


def cut_range(start: int, stop: int, size: int) -> range:
    """Return the ends of all chunks of a range except the last; the ragged chunk comes first.

    Chunk i of ``[start, *cuts, stop]`` runs from entry i to entry i+1.
    """
    earlier = -(-(stop - start) // size) - 1
    return range(stop - earlier * size, stop, size)


def reverse_locally(start: int, stop: int, size: int, *, held: bool = False) -> Iterator[Action]:
    """Run and reverse one segment in chunks of ``size`` steps, the ragged one first."""
    return reverse_between(start, stop, cut_range(start, stop, size), held=held)


def reverse_between(start: int, stop: int, ends: Sequence[int], *, held: bool = False) -> Iterator[Action]:
    """Run and reverse one segment with a local checkpoint before each chunk but the last.

    ``ends`` are the ends of all chunks but the last, ascending; the last chunk is recorded at once. The
    working state is that of ``start``. With ``held`` it is already in a local slot too, which is freed like
    the others.
    """
    if held and not ends:
        yield Free(start, _LOCAL)
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


def reverse_in_segments(
    steps: int, size: int, *, tier: Tier, reverse: Callable[[int, int, bool], Iterator[Action]]
) -> Iterator[Action]:
    """Run and reverse all steps in segments of ``size`` steps with a checkpoint each, the ragged one first.

    ``reverse`` yields the actions that reverse the steps from its first to its second argument, from the state
    before them. The third one is true if this state is also in a local slot, which the segment then frees.
    """
    ends = cut_range(0, steps, size)
    # No list: the longest sequences that fit a machine have billions of segments.
    for end in ends:
        start = max(0, end - size)
        yield Save(start, tier)
        yield Advance(start, end)
    yield from reverse(ends[-1] if ends else 0, steps, False)
    for end in reversed(ends):
        start = max(0, end - size)
        yield Load(start, tier)
        if tier is not _LOCAL:
            yield Free(start, tier)
        yield from reverse(start, end, tier is _LOCAL)
