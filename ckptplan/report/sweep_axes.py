"""Axes that the lines and the heat map of a sweep share: values of an input, shares and sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptplan.report.labels import renderer_of
from ckptplan.report.ticks import byte_steps, spaced
from ckptplan.studies.axes import Axis, Value
from ckptplan.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: A logarithmic scale from this ratio of the largest value to the least.
_WIDE = 8
#: A scale of shares that is linear up to 1 % from this share on.
_MUCH = 1.0
_LINEAR = 0.01


def place_values(values: Sequence[Value]) -> list[float]:
    """Return where values stand on an axis: at their logarithms, themselves, or one beside the other."""
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values) or len(set(numbers)) < len(values):
        return [float(i) for i in range(len(values))]
    if min(numbers) > 0 and max(numbers) / min(numbers) >= _WIDE:
        return [log(number) for number in numbers]
    return [float(number) for number in numbers]


def mark_values(axes: Axes, axis: Axis, values: Sequence[Value], places: Sequence[float], *, up: bool) -> None:
    """Set ticks at values of an input, as many as have room, the first and the last among them."""
    from matplotlib.text import Text
    from matplotlib.ticker import NullLocator

    figure: Any = axes.get_figure(root=True)
    words = [axis.kind.show(value) for value in values]
    renderer = renderer_of(figure)

    def extent(word: str) -> float:
        box = Text(0, 0, word, figure=figure).get_window_extent(renderer)
        return float(box.height * 1.5 if up else box.width * 1.25)

    gap = max(extent(word) for word in sorted(words, key=len)[-3:])
    length = axes.bbox.height if up else axes.bbox.width
    low, high = axes.get_ylim() if up else axes.get_xlim()
    halves = _halve(len(values))
    chosen = spaced(
        [places[i] for i in halves], place=lambda value: length * (value - low) / (high - low), gap=gap
    )
    names = dict(zip(places, words, strict=True))
    (axes.set_yticks if up else axes.set_xticks)(chosen, [names[place] for place in chosen])
    (axes.yaxis if up else axes.xaxis).set_minor_locator(NullLocator())
    (axes.set_ylabel if up else axes.set_xlabel)(axis.name)


def _halve(count: int) -> list[int]:
    """Return places in the order in which ticks are chosen: the ends, the middle, the quarters, ..."""
    order = dict.fromkeys([0, count - 1])
    parts = 2
    while len(order) < count:
        order |= dict.fromkeys(round(i * (count - 1) / parts) for i in range(parts + 1))
        parts *= 2
    return list(order)


def format_quantity(quantity: str) -> Callable[[float], str]:
    """Return how a share or a size is written."""
    if quantity == "local_peak_bytes":
        return format_bytes
    return lambda share: f"{100 * share:+,.4g} %" if abs(share) > 1e-12 else "0"


def quantity_ticks(quantity: str, low: float, high: float, *, most: int) -> list[float]:
    """Return round values of a share or a size in a range, at most about ``most``."""
    if quantity == "local_peak_bytes":
        return [tick for tick in byte_steps(high, most=2 * most) if tick >= low]
    if is_wide(quantity, high):
        wanted = [0.0, *(factor * 10.0**power for power in range(-2, 7) for factor in (1, 2, 5))]
        ticks = [tick for tick in wanted if low <= tick <= high]
        return ticks[:: -(-len(ticks) // most)] if len(ticks) > most else ticks
    from matplotlib.ticker import MaxNLocator

    found = MaxNLocator(most, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [float(tick) for tick in np.asarray(found) if low <= tick <= high]


def is_wide(quantity: str, high: float) -> bool:
    """Return whether shares span so much that small ones would vanish on a linear scale."""
    return quantity == "overhead" and high > _MUCH


def symlog() -> dict[str, float]:
    """Return the scale of shares that span much."""
    return {"linthresh": _LINEAR, "linscale": 0.5}
