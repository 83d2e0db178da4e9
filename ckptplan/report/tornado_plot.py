"""The effect of each input as a tornado diagram: the largest effect first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptplan.report import style
from ckptplan.report.labels import set_legend, set_title, wrap
from ckptplan.report.sensitivity import find_change, format_values, sort_by_effect
from ckptplan.report.style import PAGE, Size, measure_text
from ckptplan.studies.sensitivity import Influence, Replanned, Sensitivity
from ckptplan.units import format_count, format_percent, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Factors drawn as bars; the others are marks within them.
_ENDS = (0.5, 2.0)
#: Two hues, of which one is much darker than the other.
_COLOURS = {0.5: style.ORANGE, 2.0: style.BLUE}
_LABELS = {0.5: "half the input", 2.0: "twice the input"}
_INNER_LABEL, _KEPT_LABEL = "0.8 and 1.25 times", "twice or half, plan kept"
#: Inputs that change the time by less than this are only named.
_TRIFLE = 0.0005
#: A bar this many times as long as those of all other inputs is cut.
_LONG = 5
#: Characters of the words beside the bars, in one line of a column of a paper.
_NARROW = 1.05


def draw_tornado(study: Sensitivity, size: Size = PAGE) -> Figure:
    """Return the picture, of the same data as the JSON document.

    Call it, and save the picture, within ``style.styled(size)``.
    """
    from matplotlib.figure import Figure

    influences = sort_by_effect(study)
    shown = [one for one in influences if _reach(one, study) >= _TRIFLE or _blocked(one)]
    figure = Figure(figsize=size.inches(3), layout="constrained")
    axes = figure.subplots()
    lines = set_title(figure, *_title(study, [one.name for one in influences if one not in shown]))
    if size.height is None:
        figure.set_figheight(1.2 + 0.16 * lines + 0.36 * max(1, len(shown)))
    limits = _limits(shown, study)
    handles = _draw(axes, shown, study, size=size, limits=limits)
    axes.axvline(0, color=style.BLACK, linewidth=0.8 * size.scale)
    between = ", " if size.height else "\n"
    names = [f"{one.name}{between}{format_values(one.axis, one.values)}" for one in shown]
    axes.set_yticks(range(len(shown)), names)
    axes.tick_params(axis="y", length=0)
    # Few bars on a slide are not made broader than they are long.
    axes.set_ylim(max(5 if size.height else 1, len(shown)) - 0.4, -0.6)
    axes.set_xlim(*limits)
    _scale(axes, size)
    ordered = [handles[label] for label in (*_LABELS.values(), _INNER_LABEL, _KEPT_LABEL) if label in handles]
    set_legend(figure, ordered)
    return figure


def _title(study: Sensitivity, trifles: list[str]) -> list[str]:
    best = study.best
    lines = [
        f"What each input does to the time of the best plan, {best.strategy} in {format_seconds(best.seconds)}",
        f"{study.workload.name} on {study.profile.name}, T = {format_count(study.workload.steps)}",
    ]
    if trifles:
        lines.append(f"changes under {100 * _TRIFLE:g} %: {', '.join(trifles)}")
    return lines


def _scale(axes: Axes, size: Size) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("time of the best plan against now (%)")
    axes.xaxis.set_major_locator(MaxNLocator(2 if size.width < PAGE.width else 7, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(
        lambda value, _: f"{value:+,g}".replace("-", "\N{MINUS SIGN}") if value else "0"
    )


def _reach(influence: Influence, study: Sensitivity) -> float:
    """Return the largest change of the time, as a share."""
    changes = [find_change(seconds, study.best) for point in influence.points for seconds in _times(point)]
    return max((abs(change) for change in changes), default=0.0)


def _times(point: Replanned) -> list[float]:
    """Return the times that are drawn for a factor: of the best plan, and of the present one."""
    times = [] if point.best is None else [point.best.seconds]
    return [*times, point.kept_seconds] if times and point.kept_fits and point.factor in _ENDS else times


def _blocked(influence: Influence) -> list[str]:
    return [f"{point.factor:g}" for point in influence.points if point.best is None]


def _limits(shown: list[Influence], study: Sensitivity) -> tuple[float, float]:
    """Return the ends of the axis in per cent: all bars, unless one is many times as long as all others."""
    reaches = sorted((_reach(one, study) for one in shown), reverse=True)
    longest = reaches[0] if reaches else 0.01
    if len(reaches) > 1 and reaches[1] > 0 and longest > _LONG * reaches[1]:
        longest = 2 * reaches[1]
    changes = [find_change(time, study.best) for one in shown for point in one.points for time in _times(point)]
    low, high = min((0.0, *changes)), max((0.0, *changes))
    room = 0.06 * max(longest, _TRIFLE)
    return 100 * (max(low, -longest) - room), 100 * (min(high, longest) + room)


def _draw(
    axes: Axes, influences: list[Influence], study: Sensitivity, *, size: Size, limits: tuple[float, float]
) -> dict[str, Any]:
    """Draw each input as a row of bars and marks; return the handles of the legend."""
    handles: dict[str, Any] = {}
    for row, influence in enumerate(influences):
        words = []
        for point in influence.points:
            if point.factor in _ENDS:
                words += _draw_end(axes, row, point, study, handles, limits=limits)
            elif point.best is not None:
                share = 100 * find_change(point.best.seconds, study.best)
                line = axes.vlines(
                    share, row - 0.31, row + 0.31, color=style.BLACK, linewidth=size.scale, zorder=3
                )
                line.set_label(_INNER_LABEL)
                handles.setdefault(_INNER_LABEL, line)
        if blocked := _blocked(influence):
            words.append(f"{' and '.join(blocked)} x: nothing fits")
        _beside(axes, row, words, size)
    return handles


def _draw_end(
    axes: Axes,
    row: int,
    point: Replanned,
    study: Sensitivity,
    handles: dict[str, Any],
    *,
    limits: tuple[float, float],
) -> list[str]:
    """Draw the bar of half or twice an input; return its strategy if that differs, and its end if it is cut."""
    if point.best is None:
        return []
    share = 100 * find_change(point.best.seconds, study.best)
    label = _LABELS[point.factor]
    bar = axes.barh(
        row, share, height=0.62, color=_COLOURS[point.factor], edgecolor=style.BLACK, linewidth=0.4,
        label=label,
    )  # fmt: skip
    handles.setdefault(label, bar)
    kept = 100 * find_change(point.kept_seconds, study.best)
    if point.kept_fits and abs(kept - share) > 0.05:
        (mark,) = axes.plot(
            kept, row, marker="D", markersize=0.55 * measure_text(), markerfacecolor="white",
            markeredgecolor=style.BLACK, linestyle="", label=_KEPT_LABEL, zorder=4,
        )  # fmt: skip
        handles.setdefault(_KEPT_LABEL, mark)
    words = [point.best.strategy] if point.best.strategy != study.best.strategy else []
    if not limits[0] <= share <= limits[1]:
        words.append(format_percent(share / 100))
    return [f"{point.factor:g} x: {', '.join(words)}"] if words else []


def _beside(axes: Axes, row: int, words: list[str], size: Size) -> None:
    """Write to the right of the axes, where no bar is."""
    if not words:
        return
    figure: Any = axes.get_figure(root=True)
    width = figure.dpi * (_NARROW if size.width < PAGE.width else 0.3 * size.width)
    text = "\n".join(wrap(figure, word, width=width, points=measure_text(), most=2) for word in words)
    axes.annotate(
        text, (1, row), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
        ha="left", va="center", linespacing=1.0, annotation_clip=False,
    )  # fmt: skip
