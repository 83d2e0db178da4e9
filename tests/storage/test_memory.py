"""Law: what is free is told in few digits, and stays the same while it changes a little."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckptplan.storage import memory
from ckptplan.storage.memory import round_down


@given(free=st.integers(0, 10**12), changes=st.lists(st.floats(0.9, 1.15), max_size=5))
def test_room_stays_the_same_while_what_is_free_changes_a_little(free: int, changes: list[float]) -> None:
    """Also where a rounded share of it would change: at the edges of its digits."""
    memory._steady.clear()
    found = memory.keep_steady("disk", free)
    assert found <= free
    if free > 100:
        assert all(memory.keep_steady("disk", int(free * change)) == found for change in changes)
    assert memory.keep_steady("disk", found // 2) <= found // 2
    assert memory.keep_steady("disk", 4 * free) >= 3 * free


def test_a_rounded_size_has_few_digits() -> None:
    assert [round_down(size) for size in (0, 9, 123, 98_765)] == [0, 9, 120, 98_000]
    assert round_down(98_765, digits=1) == 90_000
