"""Tables fit the console: words and numbers stay whole, and a line names the columns that are left out."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptplan.report.blocks import Field, Table
from ckptplan.report.numbers import align_numbers, format_field
from tests.support import told

FIELDS = (
    Field("strategy"),
    Field("parameters", wraps=True),
    Field("seconds", "time"),
    Field("overhead", "over base", priority=2),
    Field("local_peak_bytes", "local", priority=1),
    Field("description", "what it is", wraps=True),
)
ROWS = (
    ("double-growing", "chunk_size 9, remote_chunk_size 460", 33.4e-3, 0.133, 638976, "two checkpoint levels"),
    ("base", None, 29.49e-3, 0.0, 4541337, "the tape of every step, as in any [bold]plain[/bold] loop"),
)  # fmt: skip


def printed(width: int) -> str:
    names = [field.name for field in FIELDS]
    return told([Table.of(FIELDS, (dict(zip(names, row, strict=True)) for row in ROWS))], width=width)


@pytest.mark.parametrize(
    ("width", "left_out"), [(60, "over base, local"), (80, "over base"), (100, ""), (160, "")]
)
def test_a_table_fits_and_names_the_columns_that_it_leaves_out(width: int, left_out: str) -> None:
    shown, _, hint = printed(width).partition(f"\nLeft out in {width} columns: ")
    assert " ".join(hint.split()).partition(";")[0] == left_out
    assert ("+13.3 %" in shown) == ("over base" not in left_out)
    assert ("624 KiB" in shown) == ("local" not in left_out)
    assert all(len(line) <= max(width, 69) for line in shown.splitlines())
    assert set(shown.split()) <= set(printed(1000).split())
    if width == 160:
        assert "double-growing  chunk_size 9, remote_chunk_size 460  33.40 ms    +13.3 %" in shown
    elif hint:
        needed = int(re.findall(r"(\d+) columns or format='csv' show all", " ".join(hint.split()))[0])
        assert "Left out" not in printed(needed)
        assert "Left out" in printed(needed - 1)


def test_numbers_stay_with_their_units_and_names_in_texts_of_several_lines() -> None:
    facts = Table.of((Field("text", wraps=True),), [{"text": "chunk_size 9, remote_chunk_size 460: 34 ms"}])
    assert told([facts], width=24).splitlines() == ["text", "chunk_size 9,", "remote_chunk_size 460:", "34 ms"]


def test_controls_of_other_people_are_shown_and_wide_characters_align() -> None:
    fields = (Field("name"), Field("n", right=True))
    records = ({"name": name, "n": n} for name, n in (("\x1b[31mred", "1"), ("網路", "22")))
    lines = told([Table.of(fields, records)]).splitlines()
    assert lines == ["name          n", "\\x1b[31mred   1", "網路         22"]


@given(st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=8))
def test_four_digits_of_every_number_survive(values: list[float]) -> None:
    units = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
    for value, text in zip(values, align_numbers("seconds", values), strict=True):
        number, unit = text.split()
        assert float(number.replace(",", "")) * units[unit] == pytest.approx(value, rel=6e-4)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("remote_bytes", None, "unbounded"),
        ("power_watts", None, "none"),
        ("overlaps_compute", True, "yes"),
        ("headroom", 0.1, "10 %"),
        ("resident_bytes_per_step", 96, "96 B"),
        ("float32_flops_per_second", 19.5e12, "19.5 TFLOP/s"),
        ("steps", 4096, "4,096"),
        ("timed_on", "ipu-mk2", "ipu-mk2"),
    ],
)
def test_the_name_of_a_field_says_how_its_value_is_written(field: str, value: object, text: str) -> None:
    assert format_field(field, value) == text
