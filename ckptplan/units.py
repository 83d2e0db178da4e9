"""Parses quantities with units into SI base units, and formats them for people.

Inside the program everything is in bytes, seconds and bytes per second. ``KiB`` is 1,024 bytes and
``kB`` is 1,000; ``KB`` is refused because people use it for both. Numbers without a unit are in base units.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal

from ckptplan.errors import InputError, did_you_mean, quote_value, refuse

_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
#: The largest number of bytes that 64-bit integers count exactly.
MAX_BYTES = 2**62
#: The longest sequence that can be planned.
MAX_STEPS = 10**12

_BYTE_UNITS: Mapping[str, Decimal] = {
    **{unit: Decimal(1000) ** power for power, unit in enumerate(_DECIMAL)},
    **{unit: Decimal(1024) ** power for power, unit in enumerate(_BINARY)},
}
_RATE_UNITS: Mapping[str, Decimal] = {f"{unit}/s": size for unit, size in _BYTE_UNITS.items()}
_FLOP_UNITS: Mapping[str, Decimal] = {
    f"{prefix}FLOP/s": Decimal(1000) ** power for power, prefix in enumerate(("", "k", "M", "G", "T", "P"))
}
_TIME_UNITS: Mapping[str, Decimal] = {
    "s": Decimal(1),
    "ms": Decimal("1e-3"),
    "us": Decimal("1e-6"),
    "\u00b5s": Decimal("1e-6"),  # the micro sign
    "\u03bcs": Decimal("1e-6"),  # the Greek letter
    "ns": Decimal("1e-9"),
}
_WAIT_UNITS: Mapping[str, Decimal] = {
    **_TIME_UNITS, "min": Decimal(60), "h": Decimal(3600), "d": Decimal(86400)
}  # fmt: skip
_SHARE_UNITS: Mapping[str, Decimal] = {"": Decimal(1), "%": Decimal("0.01")}
_QUANTITY = re.compile(
    r"([+-]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][+-]?\d{1,3})?)\s*((?![\d.])\S*)", re.ASCII
)
#: The most characters of a number and its unit; the time to parse them rises with the square.
_MOST_CHARACTERS = 200

ACCEPTED_BYTES = "a whole number of bytes, as 638976, '624 KiB' or '64 GB'"
ACCEPTED_SECONDS = "a time, as 1.5e-6, '1.5 us' or '2 ms'"
ACCEPTED_RATE = "bytes per second, as 2e10, '20 GB/s' or '450 MiB/s'"
ACCEPTED_FLOP_RATE = "operations per second, as 1.95e13 or '19.5 TFLOP/s'"
ACCEPTED_DURATION = "a time, as '90 s', '45 min', '8 h' or '2 d'"
ACCEPTED_FRACTION = "a share of zero or more, as 0.1 or '10%'"
ACCEPTED_HEADROOM = "a share of local memory from 0 to below 1, as 0.1 or '10%'"


def parse_bytes(value: object) -> int:
    """Return a size in bytes. Raises InputError for an unknown unit or a fraction of a byte."""
    number = _parse(value, units=_BYTE_UNITS, accepted=ACCEPTED_BYTES)
    if number != number.to_integral_value():
        fault = "less than one" if 0 < number < 1 else f"not a whole number of bytes; say {math.floor(number)}"
        raise refuse(value, f"is {number:f} B, {fault}", accepted=ACCEPTED_BYTES)
    if abs(number) > MAX_BYTES:
        raise refuse(value, "is too large", accepted="sizes up to 2**62 bytes")
    return int(number)


def parse_seconds(value: object) -> float:
    """Return a time in seconds. Raises InputError."""
    return _finite(value, _parse(value, units=_TIME_UNITS, accepted=ACCEPTED_SECONDS))


def parse_rate(value: object) -> float:
    """Return a transfer rate in bytes per second. Raises InputError, also for bits per second."""
    return _finite(value, _parse(value, units=_RATE_UNITS, accepted=ACCEPTED_RATE))


def parse_flop_rate(value: object) -> float:
    """Return a rate of floating-point operations per second. Raises InputError."""
    return _finite(value, _parse(value, units=_FLOP_UNITS, accepted=ACCEPTED_FLOP_RATE))


def parse_duration(value: object) -> float:
    """Return a time in seconds that may take hours or days, as '8 h'. Raises InputError."""
    return _finite(value, _parse(value, units=_WAIT_UNITS, accepted=ACCEPTED_DURATION))


def parse_fraction(value: object) -> float:
    """Return a share, 0.1 for both ``0.1`` and ``'10%'``. Raises InputError if negative."""
    number = _finite(value, _parse(value, units=_SHARE_UNITS, accepted=ACCEPTED_FRACTION))
    if isinstance(value, str) and number > 1 and "%" not in value:
        raise refuse(
            value,
            f"would be {number:.0%}; say '{value.strip()}%' or '{number:.0%}'",
            accepted=ACCEPTED_FRACTION,
        )
    if number < 0:
        raise refuse(value, "is negative", accepted=ACCEPTED_FRACTION)
    return number


def parse_headroom(value: object) -> float:
    """Return the share of a memory that is left free, 0.1 for both ``0.1`` and ``'10%'``.

    Raises InputError if it is negative, or if nothing of the memory would remain.
    """
    number = _finite(value, _parse(value, units=_SHARE_UNITS, accepted=ACCEPTED_HEADROOM))
    if not 0 <= number < 1:
        unmarked = isinstance(value, str) and "%" not in value and 1 <= number < 100
        hint = f"; did you mean '{value}%'?" if unmarked else ""
        raise refuse(value, f"is out of range{hint}", accepted=ACCEPTED_HEADROOM)
    return number


def parse_optional_bytes(value: object) -> int | None:
    """Return a size in bytes, None for 'unbounded'. Raises InputError."""
    return None if value == "unbounded" else parse_bytes(value)


def parse_limit(value: object, *, field: str, or_else: str = "") -> int:
    """Return a memory limit in bytes. Raises InputError that names ``field``, also if it is not positive.

    ``or_else`` names another accepted value for the message, as ", or 'auto'".
    """
    try:
        limit = parse_bytes(value)
    except InputError as error:
        raise InputError(
            error.message, field=field, value=value, accepted=f"{error.accepted}{or_else}"
        ) from None
    if limit <= 0:
        raise refuse(value, "is not positive", field=field, accepted=f"a size, as '2 GiB'{or_else}")
    return limit


def _parse(value: object, *, units: Mapping[str, Decimal], accepted: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise refuse(value, "is not a number", accepted=accepted)
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{value} is not a finite number", value=value, accepted=accepted)
    if isinstance(value, int) and value.bit_length() > 200:
        raise refuse(value, "is too large", accepted=accepted)
    if not isinstance(value, str):
        return Decimal(repr(value))
    text = value.strip()
    match = _QUANTITY.fullmatch(text) if len(text) <= _MOST_CHARACTERS else None
    if match is None:
        raise refuse(value, "is not a number with a unit", accepted=accepted)
    number, unit = match.groups()
    if unit and unit not in units:
        raise refuse(
            value, f"has the unknown unit {quote_value(unit)}.{_unit_hint(unit, units)}", accepted=accepted
        )
    return Decimal(number) * units.get(unit, Decimal(1))


#: Word -> the unit that it means.
_WORDS = {
    "byte": "B",
    "day": "d",
    "hour": "h",
    "hr": "h",
    "minute": "min",
    "min": "min",
    "second": "s",
    "sec": "s",
}


def _unit_hint(unit: str, units: Mapping[str, Decimal]) -> str:
    stem, slash, per = unit.partition("/")
    if stem == "KB" and f"kB{slash}{per}" in units:
        return f" Say 'kB{slash}{per}' for 1,000 or 'KiB{slash}{per}' for 1,024 bytes."
    if stem.endswith(("bit", "bits", "bps")) or (stem.endswith("b") and per == "s"):
        return f" These are bits; divide by 8 and say bytes{' per second' if 'B/s' in units else ''}."
    return (
        did_you_mean(_WORDS.get(unit.casefold().removesuffix("s"), unit), units)
        or f" Units are {', '.join(filter(None, units))}."
    )


def _finite(value: object, number: Decimal) -> float:
    result = float(number)
    if not math.isfinite(result):
        raise refuse(value, "is too large", accepted="a finite number")
    return result


#: A size that is no whole number of kB counts as given in kB if it has at most this many digits.
_MOST_DIGITS = 4
#: The size that decides whether messages use decimal or binary units (``sizes_like``).
_LIKE: ContextVar[float] = ContextVar("like", default=0)


@contextmanager
def sizes_like(size: float | None) -> Iterator[None]:
    """Within the block, write sizes in the units of a size that the user gave: in MB if it was '2 MB'.

    None leaves the units as they are.
    """
    token = _LIKE.set(_LIKE.get() if size is None else size)
    try:
        yield
    finally:
        _LIKE.reset(token)


def format_bytes(value: float, *, like: float | None = None) -> str:
    """Format a size in binary units, as '609.4 KiB', or in decimal ones if ``like`` is: '200 kB'.

    Without ``like``, the size given to ``sizes_like`` decides.
    """
    if are_decimal(like):
        return _scaled(value, base=1000, units=_DECIMAL)
    return _scaled(value, base=1024, units=_BINARY)


def format_limit(least: int, *, like: int) -> str:
    """Format a size, rounded up from ``least`` bytes, as text for ``parse_bytes``: '44.5 kB' or '43.5 KiB'.

    The units are those of ``like``. Rounding adds less than 3 %.
    """
    if are_decimal(like):
        unit = 10 ** max(0, len(str(least)) - 3)
        return format_bytes(-(-least // unit) * unit, like=like)
    power = max(0, (least // 10).bit_length() - 1) // 10
    # A quarter of a KiB, and of larger units, is a whole number of bytes.
    parts = 4 if power else 1
    return f"{-(-least * parts // 1024**power) / parts:.7g} {_BINARY[power]}"


def share_limit(limit: int, share: float) -> int:
    """Return a share of a limit in bytes, rounded down by at most 1 %, so that it prints in the same units."""
    part = max(1, int(limit * share))
    unit = 10 ** max(0, len(str(part)) - 3)
    # Fewer than 1,000 bytes are no decimal unit.
    return part // unit * unit if are_decimal(limit) and unit >= 1000 else part


def are_decimal(like: float | None = None) -> bool:
    """Return whether ``like``, or else the size of ``sizes_like``, was given in decimal units.

    It then has no more digits than in binary units, and few if it is no whole number of kB, as '19.4 kB'.
    """
    size = int(_LIKE.get() if like is None else like)
    digits = _count_digits(Decimal(size))
    if size < 1000 or (size % 1000 and digits > _MOST_DIGITS):
        return False
    binary = Decimal(size)
    while binary >= 1024:
        binary /= 1024
        if _count_digits(binary) < digits:
            return False
    return True


def _count_digits(number: Decimal) -> int:
    """Return the digits of a positive number without zeros at its ends."""
    return len(f"{number:f}".replace(".", "").strip("0"))


def format_rate(value: float) -> str:
    """Format a transfer rate in decimal units, as data sheets do: '20 GB/s'."""
    return _scaled(value, base=1000, units=("B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"))


def format_seconds(value: float) -> str:
    """Format a time: '34.42 ms'."""
    if value == 0:
        return "0 s"
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= size * 0.99995:
            return f"{_significant(value / size)} {unit}"
    return f"{_significant(value / 1e-9)} ns"


def format_flop_rate(value: float) -> str:
    """Format a rate of operations: '19.5 TFLOP/s'."""
    return _scaled(value, base=1000, units=("FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"))


def format_flops(value: float) -> str:
    """Format a number of operations: '33.6 MFLOP'."""
    return _scaled(value, base=1000, units=("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def format_duration(value: float) -> str:
    """Format a time that may take hours or days: '34.42 ms', '45 min', '8.2 h'."""
    for size, unit, least in ((86400.0, "d", 172800.0), (3600.0, "h", 3600.0), (60.0, "min", 120.0)):
        if value >= least:
            return f"{float(f'{value / size:.3g}'):,g} {unit}"
    return format_seconds(value)


def format_wait(value: float) -> str:
    """Format an estimate of the time that something takes: 'about 40 s', 'about 3 min', 'about 1.5 h'."""
    if value < 10:
        return f"about {max(1, round(value))} s"
    if value < 100:
        return f"about {5 * round(value / 5)} s"
    return f"about {round(value / 60)} min" if value < 5400 else f"about {value / 3600:.1f} h"


def format_percent(value: float) -> str:
    """Format a share as a signed percentage: '+16.7 %'."""
    percent = value * 100
    if percent == 0:
        return "0 %"
    if abs(percent) < 0.01:
        return "+<0.01 %" if percent > 0 else "->0.01 %"
    return f"{percent:+.3g} %" if abs(percent) < 0.1 else f"{percent:+,.1f} %"


def format_share(value: float) -> str:
    """Format a share as an unsigned percentage: '1.2 %'."""
    return f"{_significant(round(value * 100, 2 if value < 0.01 else 1))} %"


def format_threads(value: int) -> str:
    """Format a number of threads: 'one thread', '4 threads'."""
    return "one thread" if value == 1 else f"{value:,} threads"


def format_things(count: int, thing: str) -> str:
    """Format a number of things: '1 step', '1,472 steps'."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def format_count(value: int) -> str:
    """Format a count: '1,472'."""
    return f"{value:,}"


def _scaled(value: float, *, base: int, units: tuple[str, ...]) -> str:
    power = 0
    while abs(value) >= base and power < len(units) - 1:
        value /= base
        power += 1
    return f"{_significant(value)} {units[power]}"


def _significant(value: float) -> str:
    """Format a number with four significant digits and no trailing zeros."""
    if abs(value) >= 9999.5:
        return f"{value:,.0f}"
    return f"{float(f'{value:.4g}'):g}"
