"""The axes of a front: the range worth a look, with round ticks on all four sides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptplan.report.labels import wrap
from ckptplan.report.sizes import Size
from ckptplan.report.ticks import byte_powers, round_decimal, round_ticks, spaced
from ckptplan.studies.pareto import ParetoFront
from ckptplan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Overheads up to here are drawn to scale, those above in powers of ten.
_LINEAR = 0.01
#: Overheads up to here are always in sight: three times base's time.
_WORTH = 2.0
#: The roundest first.
_SHARES = tuple(
    factor * 10.0**power for factors in ((1,), (5,), (2,)) for power in range(-2, 9) for factor in factors
)


@dataclass(frozen=True, kw_only=True)
class Window:
    """The range of memory beside what stays, in bytes, and of overheads, that is worth a look."""

    memory: tuple[float, float]
    overhead: tuple[float, float]


def find_window(front: ParetoFront) -> Window:
    """Return the range from the best plans of small budgets to that of base's speed."""
    added = np.asarray(front.overhead)
    memory = np.maximum(1, np.asarray(front.local_peak_bytes) - front.resident_bytes)
    place = front.place_within(front.budget_bytes)
    budgeted = 0.0 if place is None else float(added[place])
    # Some room above the best plan, and never only the plan itself.
    top = max(_WORTH, 3 * budgeted, 2 * float(added.min()))
    top = min(top, max(1.3 * max(float(one.overhead.max()) for one in front.by_strategy.values()), 0.02))
    seen = memory[added <= top]
    most = max(int(one.local_peak_bytes[-1]) for one in front.by_strategy.values()) - front.resident_bytes
    least, fastest = float(seen.min()), float(max(most, seen.max()))
    room = max(1.25, (fastest / least) ** 0.06)
    bottom = float(added.min())
    return Window(
        memory=(least / room, fastest * room),
        overhead=(-0.1 * _LINEAR if bottom < 0.05 * top else bottom / 1.5, max(2 * _LINEAR, top)),
    )


def scale(axes: Axes, window: Window) -> None:
    """Set the scales and limits."""
    axes.set_xscale("log")
    axes.set_xlim(*window.memory)
    axes.set_yscale("symlog", linthresh=_LINEAR, linscale=0.5)
    axes.set_ylim(*window.overhead)


def mark(axes: Axes, front: ParetoFront, window: Window, size: Size) -> None:
    """Set ticks and labels of all four sides, as many as the size has room for."""
    from matplotlib.ticker import NullLocator

    dot = axes.figure.dpi / 72 * size.points
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    one = ", one unit" if front.profile.units > 1 else ""
    sizes = byte_powers(*window.memory, place=_across(axes), gap=6.5 * dot)
    axes.set_xticks(sizes, [format_bytes(value) for value in sizes])
    axes.set_xlabel(f"local memory for checkpoints and tapes{one}")
    low, high = window.overhead
    shares = spaced(
        [share for share in (0.0, *_SHARES) if max(0.0, low) <= share <= high], place=_up(axes), gap=1.5 * dot
    )
    axes.set_yticks(shares, [f"{100 * share:+,.0f} %" if share else "0" for share in shares])
    axes.set_ylabel(f"time over base's {format_seconds(front.base_seconds)}")
    _mark_all_memory(axes, front, window, size)
    _mark_seconds(axes, front, window, dot)


def _across(axes: Axes) -> Any:
    low, high = axes.get_xlim()
    return lambda value: axes.bbox.width * log(value / low) / log(high / low)


def _up(axes: Axes) -> Any:
    return lambda value: float(axes.transData.transform((axes.get_xlim()[0], value))[1])


def _mark_all_memory(axes: Axes, front: ParetoFront, window: Window, size: Size) -> None:
    """Set the upper axis: memory in all."""
    from matplotlib.ticker import NullLocator

    dot = axes.figure.dpi / 72 * size.points

    resident = front.resident_bytes
    if not resident:
        return
    across = _across(axes)
    low, high = (resident + end for end in window.memory)
    ticks = _roundest(
        round_ticks(low, high, place=lambda value: across(max(value, low) - resident), gap=6.5 * dot),
        is_round=lambda value: value % 2 ** (int(log(value, 2)) - 4) == 0,
    )
    # Where checkpoints are a trifle beside what stays, all ticks would read the same.
    named = {format_bytes(tick): tick for tick in reversed(ticks)}
    if len(named) < 2:
        words = f"{axes.get_xlabel()}, beside {format_bytes(resident)} that stay"
        figure: Any = axes.get_figure(root=True)
        axes.set_xlabel(wrap(figure, words, width=axes.bbox.width, points=size.points))
        return
    upper = axes.secondary_xaxis("top")
    upper.set_xticks([tick - resident for tick in named.values()], list(named))
    upper.xaxis.set_minor_locator(NullLocator())
    upper.set_xlabel(f"in all, with {format_bytes(resident)} that stay")


def _mark_seconds(axes: Axes, front: ParetoFront, window: Window, dot: float) -> None:
    """Set the right axis: time."""
    from matplotlib.ticker import NullLocator

    base, up = front.base_seconds, _up(axes)
    low, high = (base * (1 + max(0.0, end)) for end in window.overhead)
    ticks = _roundest(
        round_ticks(low, high, place=lambda value: up(value / base - 1), gap=2 * dot, roundest=round_decimal),
        is_round=lambda value: float(f"{value:.2e}") == value,
    )
    named = {format_seconds(tick): tick for tick in reversed(ticks)}
    right = axes.secondary_yaxis("right")
    right.set_yscale("symlog", linthresh=_LINEAR, linscale=0.5)
    right.set_yticks([tick / base - 1 for tick in named.values()], list(named))
    right.yaxis.set_minor_locator(NullLocator())
    right.set_ylabel("time a batch")


def _roundest(ticks: list[float], *, is_round: Callable[[float], bool]) -> list[float]:
    """Return the round ones of some ticks, or all if fewer than three are."""
    chosen = [tick for tick in ticks if is_round(tick)]
    return chosen if len(chosen) > 2 else ticks


def note(axes: Axes, text: str, *, right: bool = True) -> None:
    """Write into an upper corner, below what is there."""
    above = sum(1 + other.get_text().count("\n") for other in axes.texts if other.get_gid() == f"note {right}")
    axes.annotate(
        text, (1 if right else 0, 1), xycoords="axes fraction",
        xytext=(-4 if right else 4, -4 - 1.3 * above * float(_points())), textcoords="offset points",
        ha="right" if right else "left", va="top", parse_math=False, gid=f"note {right}", zorder=7,
    ).set_in_layout(False)  # fmt: skip


def _points() -> float:
    from matplotlib import rcParams

    return float(rcParams["font.size"])
