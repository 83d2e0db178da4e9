"""Quantities: what is accepted at the edge, and what it means in SI base units."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptplan.errors import InputError
from ckptplan.units import (
    format_bytes,
    format_limit,
    format_percent,
    format_rate,
    format_seconds,
    format_things,
    format_wait,
    parse_bytes,
    parse_duration,
    parse_fraction,
    parse_limit,
    parse_rate,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (638976, 638976),
        ("638976", 638976),
        ("624 KiB", 638976),
        ("624KiB", 638976),
        ("624 kB", 624000),
        ("1.5 KiB", 1536),
        ("64 GB", 64 * 10**9),
        ("64 GiB", 64 * 2**30),
        ("1e3 B", 1000),
        (" 2 TiB ", 2**41),
        (2.0, 2),
        (".5 kB", 500),
        ("+7", 7),
    ],
)
def test_bytes(text: Any, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("624 KB", "Say 'kB' for 1,000 or 'KiB' for 1,024"),
        ("624 Kib", "Did you mean 'KiB'"),
        ("8 Gbit", r"These are bits; divide by 8 and say bytes\."),
        ("8 bits", r"These are bits; divide by 8 and say bytes\."),
        ("1.5 B", "whole number of bytes"),
        (0.5, "whole number of bytes"),
        ("0.0001 kB", "whole number of bytes"),
        ("many", "not a number"),
        ("", "not a number"),
        ("1 2 B", "not a number"),
        ("٣ KiB", "not a number"),
        ("1_000", "unit"),
        ("nan", "not a number"),
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        (True, "not a number"),
        (None, "not a number"),
        ([1], "not a number"),
        ("9" * 30, "too large"),
        pytest.param(10**5000, "too large", id="5,000 digits"),
        ("9" * 5000, "not a number"),
        ("1e999", "too large"),
    ],
)
def test_bytes_refused(text: Any, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        parse_bytes(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.5 us", 1.5e-6),
        ("1.5 µs", 1.5e-6),
        ("1.5 μs", 1.5e-6),
        ("2ms", 2e-3),
        ("3", 3.0),
        (4e-9, 4e-9),
        ("10 ns", 1e-8),
    ],
)
def test_seconds(text: Any, expected: float) -> None:
    assert parse_seconds(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("20 GB/s", 2e10), ("450 MiB/s", 450 * 2**20), (1e9, 1e9), ("2e10", 2e10)]
)
def test_rates(text: Any, expected: float) -> None:
    assert parse_rate(text) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("20 Gb/s", "bits; divide by 8 and say bytes per second"),
        ("20 GB", "Did you mean 'GB/s'"),
        ("5 KB/s", "Say 'kB/s'"),
        ("1e400", "too large"),
    ],
)
def test_rates_refused(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        parse_rate(text)


@pytest.mark.parametrize(
    ("unit", "told"),
    [("hours", "h"), ("hrs", "h"), ("minutes", "min"), ("seconds", "s"), ("Days", "d"), ("msec", "ms")],
)
def test_a_word_for_a_unit_suggests_the_unit(unit: str, told: str) -> None:
    with pytest.raises(InputError, match=f"has the unknown unit '{unit}'. Did you mean '{told}'"):
        parse_duration(f"8 {unit}")


@pytest.mark.parametrize("value", [0, -5, "-5 kB"])
def test_a_limit_that_is_not_positive_is_named(value: Any) -> None:
    with pytest.raises(InputError, match=f"memory: {value!r} is not positive"):
        parse_limit(value, field="memory")


@pytest.mark.parametrize(
    ("text", "expected"), [("10%", 0.1), ("10 %", 0.1), (0.1, 0.1), ("0", 0.0), ("150%", 1.5)]
)
def test_fractions(text: Any, expected: float) -> None:
    assert parse_fraction(text) == expected


@pytest.mark.parametrize("text", ["-1%", -0.5, "ten", "1 kB"])
def test_fractions_refused(text: Any) -> None:
    with pytest.raises(InputError):
        parse_fraction(text)


@given(st.integers(0, 2**61))
def test_bytes_as_a_number_or_as_its_text(value: int) -> None:
    """A whole number of bytes survives as a number, as text and in kB of three decimals."""
    assert parse_bytes(value) == parse_bytes(str(value)) == parse_bytes(f"{value} B") == value
    assert parse_bytes(f"{value // 1000}.{value % 1000:03d} kB") == value


@pytest.mark.parametrize(
    "text", ["1 B", "200 kB", "500 KiB", "624 KiB", "1000 KiB", "1.5 MB", "3 MB", "64 MB", "2 GiB", "80 GB"]
)
def test_a_size_is_shown_as_it_was_given(text: str) -> None:
    size = parse_bytes(text)
    assert format_bytes(size, like=size) == text


@given(st.integers(1, 2**50), st.sampled_from([200_000, 2**20, 500 * 1024, 12_345]))
def test_a_limit_can_be_typed_as_it_is_shown(least: int, like: int) -> None:
    """It is enough, in the unit of the limit that was given, and hardly more than enough."""
    text = format_limit(least, like=like)
    assert least <= parse_bytes(text) <= 1.03 * least
    assert text.endswith(("kB", "MB", "GB", "TB", "PB", " B") if like == 200_000 else ("iB", " B"))


@given(st.floats(0, 1e12))
def test_seconds_are_taken_as_given(value: float) -> None:
    assert parse_seconds(value) == value
    assert parse_seconds(repr(value)) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_bytes(0), "0 B"),
        (format_bytes(1023), "1023 B"),
        (format_bytes(638976), "624 KiB"),
        (format_bytes(64e9), "59.6 GiB"),
        (format_bytes(64e9, like=200_000), "64 GB"),
        (format_bytes(64e9, like=2**20), "59.6 GiB"),
        (format_bytes(64e9, like=500 * 1024), "59.6 GiB"),
        (format_bytes(64e9, like=1536), "59.6 GiB"),
        (format_bytes(64e9, like=19_400), "64 GB"),
        (format_bytes(64e9, like=1_234_567), "59.6 GiB"),
        (format_bytes(2**80), "1,048,576 EiB"),
        (format_things(1, "byte"), "1 byte"),
        (format_things(1472, "step"), "1,472 steps"),
        (format_rate(2e10), "20 GB/s"),
        (format_seconds(0), "0 s"),
        (format_seconds(0.03442068), "34.42 ms"),
        (format_seconds(1.5e-6), "1.5 us"),
        (format_seconds(3e-9), "3 ns"),
        (format_seconds(0.99999), "1 s"),
        (format_seconds(123456.0), "123,456 s"),
        (format_wait(0.2), "about 1 s"),
        (format_wait(42), "about 40 s"),
        (format_wait(150), "about 2 min"),
        (format_wait(7000), "about 1.9 h"),
        (format_percent(0), "0 %"),
        (format_percent(0.1671508), "+16.7 %"),
        (format_percent(20.08), "+2,008.0 %"),
        (format_percent(-0.05), "-5.0 %"),
        (format_percent(-0.0000123), "->0.01 %"),
        (format_percent(0.0005), "+0.05 %"),
        (format_percent(0.0000123), "+<0.01 %"),
    ],
)
def test_people_see_human_units(text: str, expected: str) -> None:
    assert text == expected
