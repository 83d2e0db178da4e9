"""A tornado diagram: the effect of each input on the best plan's time, the largest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptplan.report import style
from ckptplan.report.sensitivity import find_change, format_values, sort_by_effect
from ckptplan.studies.sensitivity import Influence, Replanned, Sensitivity
from ckptplan.units import format_count, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Factors drawn as bars; the others are marks within them.
_ENDS = (0.5, 2.0)
_COLOURS = {0.5: style.SKY, 2.0: style.BLUE}
_LABELS = {0.5: "half the input", 2.0: "twice the input"}
_INNER_LABEL, _KEPT_LABEL = "0.8 and 1.25 times", "twice or half, plan kept"


def draw_tornado(study: Sensitivity) -> Figure:
    """Return the picture, of the same data as the JSON document."""
    from matplotlib.figure import Figure

    influences = sort_by_effect(study)
    figure = Figure(figsize=(7.2, 1.5 + 0.42 * max(1, len(influences))), layout="constrained")
    axes = figure.subplots()
    handles = _draw(axes, influences, study)
    axes.axvline(0, color=style.BLACK, linewidth=0.8)
    axes.set_yticks(
        range(len(influences)), [f"{one.name}\n{format_values(one.axis, one.values)}" for one in influences]
    )
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.set_xlabel("time of the best plan against now (%)")
    axes.xaxis.set_major_formatter(
        lambda value, _: f"{value:+g}".replace("-", "\N{MINUS SIGN}") if value else "0"
    )
    axes.set_title(_title(study))
    ordered = [handles[label] for label in (*_LABELS.values(), _INNER_LABEL, _KEPT_LABEL) if label in handles]
    figure.legend(handles=ordered, loc="outside lower left", ncols=4, handlelength=1.4)
    return figure


def _title(study: Sensitivity) -> str:
    best = study.best
    return (
        f"What each input does to the best plan's time ({best.strategy}, {format_seconds(best.seconds)})\n"
        f"{study.workload.name} on {study.profile.name}, T = {format_count(study.workload.steps)}"
    )


def _draw(axes: Axes, influences: list[Influence], study: Sensitivity) -> dict[str, Any]:
    """Draw each input as a row of bars and marks; return the handles of the legend."""
    handles: dict[str, Any] = {}
    for row, influence in enumerate(influences):
        blocked = [f"x {point.factor:g}" for point in influence.points if point.best is None]
        for point in influence.points:
            if point.factor in _ENDS:
                _draw_end(axes, row, point, study, handles)
            elif point.best is not None:
                share = 100 * find_change(point.best.seconds, study.best)
                line = axes.vlines(share, row - 0.31, row + 0.31, color=style.BLACK, linewidth=1.1, zorder=3)
                line.set_label(_INNER_LABEL)
                handles.setdefault(_INNER_LABEL, line)
        if blocked:
            _beside(axes, row, 0, f"nothing fits at {' and '.join(blocked)}", outward=True)
    return handles


def _draw_end(axes: Axes, row: int, point: Replanned, study: Sensitivity, handles: dict[str, Any]) -> None:
    """Draw the bar of half or twice an input; its strategy and the kept plan if they differ."""
    if point.best is None:
        return
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
            kept, row, marker="D", markersize=4.5, markerfacecolor="white", markeredgecolor=style.BLACK,
            linestyle="", label=_KEPT_LABEL, zorder=4,
        )  # fmt: skip
        handles.setdefault(_KEPT_LABEL, mark)
    if point.best.strategy != study.best.strategy:
        end = max(share, kept) if share > 0 and point.kept_fits else share
        _beside(axes, row, end, point.best.strategy, outward=share > 0)


def _beside(axes: Axes, row: int, share: float, text: str, *, outward: bool) -> None:
    """Write next to the end of a bar, clear of a mark there."""
    axes.annotate(
        text, (share, row), xytext=(7 if outward else -7, 0), textcoords="offset points",
        ha="left" if outward else "right", va="center", fontsize=8,
    )  # fmt: skip
