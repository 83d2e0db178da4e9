"""Tables fit the console: words and numbers stay whole, and no column vanishes without a word."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptplan.report.blocks import Cell, Field, Table
from ckptplan.report.console import split_pieces
from ckptplan.report.fields import align_bytes, align_percents, align_rates, align_seconds
from tests.support import told

FIELDS = (
    Field("strategy"),
    Field("parameters", wraps="late"),
    Field("time", form=align_seconds),
    Field("over base", short="over\nbase", right=True, priority=2),
    Field("local", form=align_bytes, priority=1),
    Field("what it is", wraps="early"),
)
ROWS = (
    ("double-growing", Cell("chunk_size 9, remote_chunk_size 460", short="chunk 9, remote_chunk 460"),
     33.4e-3, "+13.3 %", 638976, "two levels of checkpoints"),
    ("base", None, 29.49e-3, "0 %", 4541337, "the tape of every step, at https://example.org/a/long/address"),
)  # fmt: skip


def printed(width: int, *, fields: tuple[Field, ...] = FIELDS) -> str:
    names = [one.name for one in FIELDS]
    return told([Table.of(fields, (dict(zip(names, row, strict=True)) for row in ROWS))], width=width)


@given(st.integers(30, 160))
@settings(deadline=None)
def test_words_are_whole_and_columns_are_shown_or_named_at_every_width(width: int) -> None:
    shown, _, hint = printed(width).partition("\nLeft out in ")
    assert set(shown.split()) <= {*printed(1000).split(), "chunk", "remote_chunk"}
    for column in FIELDS:
        told = " ".join(hint.split())
        there = all(word in shown for word in column.heading.split()) or column.wraps == "early"
        assert there != (column.heading in told), column.heading
    # Only what cannot be broken is longer than a line.
    assert all(len(line) <= max(width, 45) for line in shown.splitlines())


def test_the_hint_says_how_to_see_the_rest() -> None:
    assert "Left out in 45 columns: over base" in printed(45)
    needed = int(re.findall(r"(\d+) columns or", " ".join(printed(45).split()))[0])
    assert "Left out" not in printed(needed)
    assert "Left out" in printed(needed - 1)


def test_titles_and_cells_are_shortened_before_they_break() -> None:
    """A wide console has the names as they are typed, on one line."""
    assert "double-growing  chunk_size 9, remote_chunk_size 460  33.40 ms    +13.3 %" in printed(160)
    assert "double-growing chunk 9, remote_chunk 460 33.40 ms" in printed(70, fields=FIELDS[:-1])


def small(*records: tuple[str, str]) -> list[str]:
    fields = (Field("name"), Field("n", right=True))
    return told([Table.of(fields, ({"name": name, "n": n} for name, n in records))]).splitlines()


def test_colours_and_controls_of_other_people_take_no_room() -> None:
    lines = small(("\x1b[31mred", "1"), ("x", "22"))
    assert lines == ["name          n", "\\x1b[31mred   1", "x            22"]


def test_wide_characters_align() -> None:
    assert small(("網路", "1"), ("net", "2")) == ["name  n", "網路  1", "net   2"]


@pytest.mark.parametrize(
    ("line", "pieces"),
    [
        ("chunk_size 9, remote_chunk_size 460", ["chunk_size 9, ", "remote_chunk_size 460"]),
        ("T = 4,096 time steps", ["T = 4,096 time ", "steps"]),
        ("34.42 ms, +6.4 % time", ["34.42 ms, ", "+6.4 % ", "time"]),
        ("a plain sentence", ["a ", "plain ", "sentence"]),
        ("", []),
    ],
)
def test_numbers_stay_with_their_units_and_names(line: str, pieces: list[str]) -> None:
    assert split_pieces(line) == pieces


def test_numbers_of_a_column_have_one_unit_and_as_many_decimals_as_any_needs() -> None:
    assert align_seconds([0.05, 0.0334, 0.03234]) == ["50.00 ms", "33.40 ms", "32.34 ms"]
    assert align_bytes([638976, 653414, 4541337]) == ["624.0 KiB", "638.1 KiB", "4,434.9 KiB"]
    assert align_bytes([1024, 2048]) == ["1 KiB", "2 KiB"]
    assert align_rates([20e9, 6.9e9]) == ["20.0 GB/s", "6.9 GB/s"]
    assert align_percents([0.0, 0.096]) == ["0 %", "+9.6 %"]


def test_numbers_far_apart_keep_their_own_units_which_align() -> None:
    assert align_bytes([512, 80 * 2**30]) == ["512 B  ", "80 GiB"]
    assert [len(text) - text.index(" ") for text in align_seconds([2e-9, 1.0])] == [3, 3]


@given(st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=8))
def test_four_digits_of_every_number_survive(values: list[float]) -> None:
    units = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
    for value, text in zip(values, align_seconds(values), strict=True):
        number, unit = text.split()
        assert float(number.replace(",", "")) * units[unit] == pytest.approx(value, rel=6e-4)
