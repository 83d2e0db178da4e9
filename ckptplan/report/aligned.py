"""Numbers of a column as texts that align: the same unit and decimals where they are of similar size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ckptplan.units import format_bytes, format_count, format_percent, format_rate, format_seconds

#: Numbers of a column have one unit if the largest is less than this many times the smallest.
_SIMILAR = 1000.0
#: No number has more digits before its point than this one.
_LARGE = 1e6


def align_seconds(values: Sequence[float]) -> list[str]:
    """Format times: '33.40 ms' below '32.34 ms'."""
    return _align(values, format_seconds, {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9})


def align_bytes(values: Sequence[float]) -> list[str]:
    """Format sizes in binary units: '624.0 KiB' below '638.1 KiB'."""
    return _align(values, format_bytes, {unit: 1024.0**i for i, unit in enumerate(_BINARY)})


def align_rates(values: Sequence[float]) -> list[str]:
    """Format transfer rates in decimal units: '20.0 GB/s' below '63.5 GB/s'."""
    return _align(values, format_rate, {f"{unit}/s": 1000.0**i for i, unit in enumerate(_DECIMAL)})


def align_percents(values: Sequence[float]) -> list[str]:
    """Format shares as signed percentages."""
    return _pad_units([format_percent(value) for value in values])


def align_counts(values: Sequence[float]) -> list[str]:
    """Format counts: '1,472'."""
    return [format_count(int(value)) for value in values]


def align_ratios(values: Sequence[float]) -> list[str]:
    """Format ratios with three decimals: '1.116'."""
    return [f"{value:.3f}" for value in values]


_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB")


def _align(
    values: Sequence[float], format_one: Callable[[float], str], units: Mapping[str, float]
) -> list[str]:
    """Return the numbers in the unit of the smallest if all are similar, else each in its own."""
    sizes = [abs(value) for value in values if value]
    unit = format_one(min(sizes, default=0.0)).rpartition(" ")[2]
    if not sizes or max(sizes) >= min(_SIMILAR * min(sizes), _LARGE * units[unit]):
        return _pad_units([format_one(value) for value in values])
    decimals = max(_count_decimals(value / units[unit]) for value in values)
    return [f"{value / units[unit]:,.{decimals}f} {unit}" for value in values]


def _count_decimals(value: float) -> int:
    """Return the decimals that four significant digits of a number need."""
    return len(f"{float(f'{value:.4g}'):f}".rstrip("0").partition(".")[2])


def _pad_units(texts: Sequence[str]) -> list[str]:
    """Return texts with short units padded, so that numbers flush right end at the same place."""
    units = [text.rpartition(" ")[2] if " " in text else "" for text in texts]
    widest = max(map(len, units), default=0)
    return [f"{text}{' ' * (widest - len(unit))}" for text, unit in zip(texts, units, strict=True)]
