"""Schedules as nests of loops: what they expand to, and how few they are."""

from __future__ import annotations

from itertools import islice

import pytest

from ckptplan.schedule.actions import Advance, Backward, Free, Load, Record, Save, Tier
from ckptplan.schedule.loops import (
    Loop,
    Nest,
    Run,
    cut_evenly,
    expand,
    keep_last,
    reverse_batches,
    reverse_chunks,
    reverse_segments,
)

LOCAL, REMOTE = Tier.LOCAL, Tier.REMOTE


def reverse_evenly(steps: int, size: int) -> Nest:
    return reverse_chunks(*cut_evenly(steps, size))


@pytest.mark.parametrize(
    ("steps", "size", "runs", "last"),
    [
        (10, 4, (Run(2), Run(4)), 4),
        (12, 4, (Run(4, 2),), 4),
        (8, 4, (Run(4),), 4),
        (5, 4, (Run(1),), 4),
        (4, 4, (), 4),
        (4, 9, (), 4),
        (10**12, 1, (Run(1, 10**12 - 1),), 1),
    ],
)
def test_cuts_put_the_ragged_chunk_first(steps: int, size: int, runs: tuple[Run, ...], last: int) -> None:
    assert cut_evenly(steps, size) == (runs, last)


def test_equal_chunks_are_a_loop_in_each_direction() -> None:
    assert reverse_evenly(10, 4) == (
        Save(0, LOCAL), Advance(0, 2), Save(2, LOCAL), Advance(2, 6),
        Record(6, 10), Backward(6, 10),
        Load(2, LOCAL), Free(2, LOCAL), Record(2, 6), Backward(2, 6),
        Load(0, LOCAL), Free(0, LOCAL), Record(0, 2), Backward(0, 2),
    )  # fmt: skip
    sweep, *recorded, reversal = reverse_evenly(16, 4)
    assert sweep == Loop(0, 12, 4, (Save(0, LOCAL), Advance(0, 4)))
    assert recorded == [Record(12, 16), Backward(12, 16)]
    assert reversal == Loop(8, -4, -4, (Load(0, LOCAL), Free(0, LOCAL), Record(0, 4), Backward(0, 4)))


@pytest.mark.parametrize("steps", [100, 10**12])
def test_a_nest_is_as_short_for_a_long_sequence_as_for_a_short_one(steps: int) -> None:
    """Nothing is listed, so the longest sequences that fit a machine begin at once."""
    nests = {
        "standard": reverse_evenly(steps, 3),
        "double": reverse_segments(
            steps,
            7,
            tier=REMOTE,
            reverse=lambda length, _: reverse_evenly(length, 3),
        ),
        "hierarchical": reverse_batches(steps, 3, slots=4),
    }
    for nest in nests.values():
        assert count_items(nest) < 100
        assert next(expand(nest)) == Save(0, REMOTE if nest is nests["double"] else LOCAL)
        assert len(list(islice(expand(nest), 40))) == 40


def count_items(nest: Nest) -> int:
    return sum(1 + count_items(item.body) if isinstance(item, Loop) else 1 for item in nest)


@pytest.mark.parametrize("cached", range(3, 24))
def test_the_first_sweep_keeps_the_last_caches(cached: int) -> None:
    """Of each action that runs before a step is recorded, and of no other."""
    nests = {
        "standard": reverse_evenly(23, 3),
        "nested": reverse_segments(
            23, 3, tier=LOCAL, reverse=lambda length, held: reverse_chunks((), length, held=held)
        ),
        "hierarchical": reverse_batches(23, 2, slots=3),
    }
    for nest in nests.values():
        before, after = list(expand(nest)), list(expand(keep_last(nest, steps=23, cached=cached)))
        first = next(place for place, action in enumerate(before) if isinstance(action, Record))
        assert before[first:] == after[first:]
        for plain, action in zip(before[:first], after[:first], strict=True):
            if isinstance(plain, Advance) and plain.start < 23 - cached:
                assert action == Advance(plain.start, plain.stop, max(0, plain.stop - (23 - cached)))
            else:
                assert action == plain
