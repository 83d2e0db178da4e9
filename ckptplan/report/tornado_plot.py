"""The effect of each input as a tornado diagram: the largest effect first.

``list_bars`` and ``scale_change`` say what is drawn, in the picture and on the page.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptplan.report import style, vega
from ckptplan.report.fields import name_job
from ckptplan.report.scale import Scale, scale_shares
from ckptplan.report.sensitivity import find_change, format_values, sort_by_effect
from ckptplan.report.style import PAGE, Size, set_title
from ckptplan.report.vega import Chart, Spec
from ckptplan.studies.sensitivity import Best, Influence, Replanned, Sensitivity
from ckptplan.units import format_percent, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: The bar of half an input, and that of twice it; other factors are marks within them.
LABELS = {0.5: "half the input", 2.0: "twice the input"}
#: Two hues, of which one is much darker than the other.
COLOURS = {0.5: style.ORANGE, 2.0: style.BLUE}
_INNER_LABEL, _KEPT_LABEL = "0.8 and 1.25 times", "twice or half, plan kept"
#: Inputs that change the time by less than this are only named.
_TRIFLE = 0.0005
#: A bar this many times as long as those of all other inputs is cut.
_LONG = 5


@dataclass(frozen=True, kw_only=True)
class Bar:
    """What a factor of an input does to the time of the best plan, and to that of the present one."""

    point: Replanned
    best: Best
    change: float
    #: None if the present plan does not fit.
    kept: float | None


def list_bars(influence: Influence, study: Sensitivity) -> tuple[Bar, ...]:
    """Return the factors at which a plan fits."""
    return tuple(
        Bar(
            point=point,
            best=point.best,
            change=find_change(point.best.seconds, study.best),
            kept=find_change(point.kept_seconds, study.best) if point.kept_fits else None,
        )
        for point in influence.points
        if point.best is not None
    )


def name_input(influence: Influence) -> str:
    """Return an input and its value."""
    return f"{influence.name}: {format_values(influence.axis, influence.values)}"


def _list_changes(influence: Influence, study: Sensitivity) -> list[float]:
    bars = list_bars(influence, study)
    kept = [bar.kept for bar in bars if bar.kept is not None and bar.point.factor in LABELS]
    return [*(bar.change for bar in bars), *kept]


def _reach(influence: Influence, study: Sensitivity) -> float:
    """Return the largest change of the time."""
    return max(map(abs, _list_changes(influence, study)), default=0.0)


def scale_change(study: Sensitivity) -> Scale:
    """Return the axis: all bars, unless one is many times as long as all others."""
    influences = sort_by_effect(study)
    longest, second, *_ = *sorted((_reach(one, study) for one in influences), reverse=True), 0.0, 0.0
    if second and longest > _LONG * second:
        longest = 2 * second
    changes = [0.0, *(change for one in influences for change in _list_changes(one, study))]
    room = 0.06 * max(longest, _TRIFLE)
    low, high = max(min(changes), -longest) - room, min(max(changes), longest) + room
    return scale_shares("time of the best plan against now", low, high)


def draw_tornado(study: Sensitivity, size: Size = PAGE) -> Figure:
    """Return the picture, of the same data as the JSON document.

    Call it, and save the picture, within ``style.styled(size)``.
    """
    from matplotlib.figure import Figure

    influences, best = sort_by_effect(study), study.best
    shown = [one for one in influences if _reach(one, study) >= _TRIFLE or _name_blocked(one)]
    trifles = [one.name for one in influences if one not in shown]
    figure = Figure(figsize=size.inches(0.8 + 0.36 * max(1, len(shown))), layout="constrained")
    axes = figure.subplots()
    lines = set_title(
        figure,
        f"What each input does to the time of the best plan, {best.strategy} in {format_seconds(best.seconds)}",
        name_job(study.workload, study.profile),
        *([f"changes under {100 * _TRIFLE:g} %: {', '.join(trifles)}"] if trifles else []),
    )
    if size.height is None:
        figure.set_figheight(figure.get_figheight() + 0.16 * lines)
    scale = scale_change(study)
    scale.set_x(axes)
    for row, one in enumerate(shown):
        _draw_bars(axes, row, list_bars(one, study), size)
    axes.axvline(0, color=style.BLACK, linewidth=0.8 * size.scale)
    between = ", " if size.height else "\n"
    names = [name_input(one).replace(": ", between) for one in shown]
    style.name_rows(axes, names, [_write_notes(one, study, scale, size) for one in shown])
    # Few bars on a slide are not made broader than they are long.
    axes.set_ylim(max(5 if size.height else 1, len(shown)) - 0.4, -0.6)
    drawn: list[Any] = [*axes.containers, *axes.collections, *axes.lines]
    handles = {str(one.get_label()): one for one in drawn}
    labels = (*LABELS.values(), _INNER_LABEL, _KEPT_LABEL)
    return style.finish_figure(figure, [handles[label] for label in labels if label in handles], size)


def _draw_bars(axes: Axes, row: int, bars: Sequence[Bar], size: Size) -> None:
    """Draw an input as a row of bars and marks."""
    for bar in bars:
        if bar.point.factor not in LABELS:
            axes.vlines(
                bar.change, row - 0.31, row + 0.31, color=style.BLACK, linewidth=size.scale, zorder=3,
                label=_INNER_LABEL,
            )  # fmt: skip
            continue
        axes.barh(
            row, bar.change, height=0.62, color=COLOURS[bar.point.factor], edgecolor=style.BLACK,
            linewidth=0.4, label=LABELS[bar.point.factor],
        )  # fmt: skip
        if bar.kept is not None and abs(bar.kept - bar.change) > _TRIFLE:
            axes.plot(
                bar.kept, row, marker="D", markersize=4.4 * size.scale, markerfacecolor="white",
                markeredgecolor=style.BLACK, linestyle="", label=_KEPT_LABEL, zorder=4,
            )  # fmt: skip


def _name_blocked(influence: Influence) -> str:
    """Return the factors at which nothing fits."""
    blocked = [f"{point.factor:g}" for point in influence.points if point.best is None]
    return f"{' and '.join(blocked)} x: nothing fits" if blocked else ""


def _write_notes(influence: Influence, study: Sensitivity, scale: Scale, size: Size) -> str:
    """Return where another strategy is best, the ends of bars that are cut, and where nothing fits."""
    notes = []
    for bar in list_bars(influence, study):
        words = [bar.best.strategy] if bar.best.strategy != study.best.strategy else []
        words += [] if scale.low <= bar.change <= scale.high else [format_percent(bar.change)]
        if words and bar.point.factor in LABELS:
            notes.append(f"{bar.point.factor:g} x: {', '.join(words)}")
    notes += [_name_blocked(influence)] if _name_blocked(influence) else []
    wide = 16 if size.width < PAGE.width else 32
    return "\n".join(
        line
        for note in notes
        for line in textwrap.wrap(note, wide, max_lines=2, placeholder="…", break_on_hyphens=False)
    )


def chart_tornado(study: Sensitivity) -> Chart:
    """Return the chart of a sensitivity study."""
    rows: list[Spec] = [
        {
            "input": name_input(one),
            "factor": LABELS.get(bar.point.factor, ""),
            "times": f"x {bar.point.factor:g}",
            "change": bar.change,
            "shown": format_percent(bar.change),
            "time": format_seconds(bar.best.seconds),
            "strategy": bar.best.strategy,
            "kept": "does not fit" if bar.kept is None else format_percent(bar.kept),
        }
        for one in sort_by_effect(study)
        for bar in list_bars(one, study)
    ]
    order = list(dict.fromkeys(row["input"] for row in rows))
    colours = {"domain": list(LABELS.values()), "range": list(COLOURS.values())}
    halves = vega.nominal("factor", scale=colours, legend={"symbolSize": 120})
    tooltip = vega.tell(
        input="input",
        times="factor",
        shown="change of time",
        time="time",
        strategy="best strategy",
        kept="the plan of now",
    )
    return Chart.of(
        "tornado",
        "What each input does to the time of the best plan",
        f"Each input is halved and doubled by itself, and the job is planned again; now it takes "
        f"{format_seconds(study.best.seconds)} with {study.best.strategy}. Lines within the bars are "
        "0.8 and 1.25 times the input.",
        height=30 * max(1, len(order)),
        layer=[
            vega.layer("bar", [row for row in rows if row["factor"]], {"color": halves}, opacity=0.9),
            vega.layer("tick", [row for row in rows if not row["factor"]], {}, color=vega.INK, thickness=2),
        ],
        encoding={
            "y": vega.nominal("input", scale={"domain": order}),
            "x": {**vega.at("change", scale_change(study)), "stack": None},
            "tooltip": tooltip,
        },
    )
