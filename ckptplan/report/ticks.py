"""Ticks at round numbers, as many as have room: powers of two for bytes, 1, 2 and 5 for times."""

from __future__ import annotations

from collections.abc import Callable, Iterable

#: From a value to its place on the picture, in any unit of length.
Place = Callable[[float], float]


def round_binary(low: float, high: float) -> float:
    """Return the roundest number in a range of sizes: the multiple of the largest power of two."""
    if low <= 0 <= high:
        return 0.0
    power = 1.0
    while power <= high:
        power *= 2
    while True:
        multiple = power * -(-low // power)
        if low <= multiple <= high:
            return multiple
        power /= 2


def round_decimal(low: float, high: float) -> float:
    """Return the roundest number in a range: the multiple of the largest power of ten, else of 5 or 2 of it."""
    if low <= 0 <= high:
        return 0.0
    exponent = 1
    while 10.0**exponent > high:
        exponent -= 1
    while 10.0 ** (exponent + 1) <= high:
        exponent += 1
    while True:
        for factor in (10, 5, 2, 1):
            # Negative powers of ten are no exact numbers: divide by the positive ones.
            unit = factor * 10.0**exponent
            multiple = -(-low // unit) * factor
            value = multiple * 10.0**exponent if exponent >= 0 else multiple / 10.0**-exponent
            if low <= value <= high:
                return float(value)
        exponent -= 1


def round_ticks(
    low: float,
    high: float,
    *,
    place: Place,
    gap: float,
    roundest: Callable[[float, float], float] = round_binary,
) -> list[float]:
    """Return round numbers from ``low`` to ``high``, each at least ``gap`` from the next on the picture.

    Of any range without a tick, the roundest number is taken first. ``place`` must grow with the value.
    """
    if not low < high or place(high) - place(low) < 0:
        return [low]
    value = roundest(low, high)
    found = [value]
    below, above = _reach(low, value, place, -gap), _reach(value, high, place, gap)
    if below is not None:
        found = round_ticks(low, below, place=place, gap=gap, roundest=roundest) + found
    if above is not None:
        found += round_ticks(above, high, place=place, gap=gap, roundest=roundest)
    return found


def _reach(low: float, high: float, place: Place, gap: float) -> float | None:
    """Return the value that is a gap above ``low`` (below ``high`` if negative), None if there is no room."""
    fixed = place(low) if gap > 0 else place(high)
    if place(high) - place(low) <= abs(gap):
        return None
    inside, outside = (high, low) if gap > 0 else (low, high)
    for _ in range(60):
        middle = (inside + outside) / 2
        if abs(place(middle) - fixed) >= abs(gap):
            inside = middle
        else:
            outside = middle
    return inside if low < inside < high else None


def spaced(candidates: Iterable[float], *, place: Place, gap: float) -> list[float]:
    """Return the candidates that keep a distance from all earlier ones, in ascending order."""
    chosen: list[float] = []
    for value in candidates:
        if all(abs(place(value) - place(other)) >= gap for other in chosen):
            chosen.append(value)
    return sorted(chosen)


def byte_steps(high: float, *, most: int) -> list[float]:
    """Return sizes from 0 up to ``high``, at most ``most`` of them, at equal steps of a power of two."""
    step = 1
    while high // step + 1 > max(2, most):
        step *= 2
    return [float(size) for size in range(0, int(high) + 1, step)]


def byte_powers(low: float, high: float, *, place: Place, gap: float) -> list[float]:
    """Return powers of two for a logarithmic axis, at equal factors and as many as have room.

    A range with fewer than two of them has round sizes.
    """
    if low > 0 and high < 2.0**64:
        for power in range(1, 64):
            sizes = [2.0**exponent for exponent in range(0, 64, power) if low <= 2.0**exponent <= high]
            if len(sizes) < 2:
                break
            if place(sizes[1]) - place(sizes[0]) >= gap:
                return sizes
    return round_ticks(low, high, place=place, gap=gap)
