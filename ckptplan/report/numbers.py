"""Writes the numbers of fields as text. The end of a field's name determines the unit of its numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ckptplan import units
from ckptplan.wording import escape_controls

#: Lines do not break at the space in '34 ms' and 'chunk_size 16', which is a no-break space meanwhile.
_BESIDE_NUMBER = re.compile(r"(?<=\d) (?=\S)|(?<=[\w=]) (?=\d)|(?<=\w) (?== )")
NO_BREAK = "\u00a0"
#: The numbers of a column share one unit if the largest is less than this many times the smallest.
_SIMILAR = 1000.0
#: Upper limit on numbers in a shared unit, so that they have at most six digits before the point.
_LARGE = 1e6


def keep_numbers(text: str) -> str:
    """Escape controls, and put no-break spaces between numbers and their units or names."""
    return _BESIDE_NUMBER.sub(NO_BREAK, escape_controls(text))


def format_price(price: float) -> str:
    """Return a price with two digits after the point, more for a small one: '12.40', '0.0031'."""
    return f"{price:,.2f}" if price >= 0.1 or price == 0 else f"{price:.2g}"


def format_energy(joules: float) -> str:
    """Return an energy in joules, or in kilowatt-hours from 0.1 kWh on."""
    value, unit = (joules / 3.6e6, "kWh") if joules >= 3.6e5 else (joules, "J")
    return f"{float(f'{value:.3g}'):,g} {unit}"


#: The format of a number, by the end of its field's name. The first ending that matches is used.
_FORMATS: dict[str, Callable[[float], str]] = {
    "headroom": units.format_share,
    "efficiency": units.format_share,
    "uncertainty": units.format_share,
    "share": units.format_share,
    **dict.fromkeys(("overhead", "over_best"), units.format_percent),
    **dict.fromkeys(("over_least", "over_optimum", "over_revolve"), "{:.3f}".format),
    "bytes_per_second": units.format_rate,
    "flops_per_second": units.format_flop_rate,
    "bytes_per_step": units.format_bytes,
    "bytes_once": units.format_bytes,
    "bytes": units.format_bytes,
    "seconds": units.format_seconds,
    "flops": units.format_flops,
    "watts": "{:g} W".format,
    "run_price": format_price,
    "joules": format_energy,
}
#: The parser of each format whose numbers can share a unit.
_PARSERS: dict[Callable[[float], str], Callable[[str], float]] = {
    units.format_bytes: units.parse_bytes,
    units.format_seconds: units.parse_seconds,
    units.format_rate: units.parse_rate,
}


def has_unit(field: str) -> bool:
    """Return whether the name of a field determines the unit of its numbers."""
    return field.endswith(tuple(_FORMATS))


def format_field(field: str, value: object) -> str:
    """Return the value of a field with its unit."""
    if value is None:
        return "unbounded" if field == "remote_bytes" else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _find_format(field)(value) if isinstance(value, (int, float)) else str(value)


def align_numbers(field: str, values: Sequence[float]) -> list[str]:
    """Return the numbers of a column of a table as text, in one unit with equal decimals if they are similar.

    '50.00 ms' stands above '33.40 ms'. If the numbers differ too much, each has its own unit.
    """
    form = _find_format(field)
    sizes = [abs(value) for value in values if value]
    if form in _PARSERS and sizes:
        unit = form(min(sizes)).rpartition(" ")[2]
        size = _PARSERS[form](f"1 {unit}")
        if max(sizes) < min(_SIMILAR * min(sizes), _LARGE * size):
            decimals = max(_count_decimals(value / size) for value in values)
            return [f"{value / size:,.{decimals}f} {unit}" for value in values]
    return _pad_units([form(value) for value in values])


def _find_format(field: str) -> Callable[[float], str]:
    return next((form for ending, form in _FORMATS.items() if field.endswith(ending)), "{:,}".format)


def _count_decimals(value: float) -> int:
    """Return the decimals that four significant digits of a number need."""
    return len(f"{float(f'{value:.4g}'):f}".rstrip("0").partition(".")[2])


def _pad_units(texts: Sequence[str]) -> list[str]:
    """Return texts with short units padded, so that the numbers of a right-aligned column are aligned."""
    endings = [text.rpartition(" ")[2] if " " in text else "" for text in texts]
    widest = max(map(len, endings), default=0)
    return [f"{text}{' ' * (widest - len(unit))}" for text, unit in zip(texts, endings, strict=True)]
