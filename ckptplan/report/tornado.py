"""A tornado: which inputs move the best plan's time most, and how far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptplan.report import style
from ckptplan.report.sensitivity_table import by_effect, change, shown
from ckptplan.sensitivities import Influence, Sensitivity
from ckptplan.units import format_count, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Inputs at half and at twice their values; the inner marks are at these factors.
_ENDS, _INNER = (0.5, 2.0), (0.8, 1.25)
_COLOURS = {0.5: style.SKY, 2.0: style.BLUE}
_LABELS = {0.5: "half the input", 2.0: "twice the input"}


def tornado(study: Sensitivity) -> Figure:
    """Return the picture; its data are those of the JSON document."""
    from matplotlib.figure import Figure

    influences = by_effect(study)
    figure = Figure(figsize=(7.2, 1.5 + 0.42 * max(1, len(influences))), layout="constrained")
    axes = figure.subplots()
    handles = _draw(axes, influences, study)
    axes.axvline(0, color=style.BLACK, linewidth=0.8)
    axes.set_yticks(
        range(len(influences)), [f"{one.name}\n{shown(one.axis, one.values)}" for one in influences]
    )
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.set_xlabel("time of the best plan against now (%)")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+g}" if value else "0")
    axes.set_title(_title(study))
    figure.legend(handles=list(handles.values()), loc="outside lower left", ncols=4, handlelength=1.4)
    return figure


def _title(study: Sensitivity) -> str:
    best = study.best
    return (
        f"What each input does to the best plan's time ({best.strategy}, {format_seconds(best.seconds)})\n"
        f"{study.workload.name} on {study.profile.name}, T = {format_count(study.workload.steps)}"
    )


def _draw(axes: Axes, influences: list[Influence], study: Sensitivity) -> dict[str, Any]:
    """Draw a bar for each end of each input, and marks; return what the legend explains."""
    handles: dict[str, Any] = {}
    for row, influence in enumerate(influences):
        blocked = []
        for point in influence.points:
            if point.best is None:
                blocked.append(f"x {point.factor:g}")
                continue
            share = 100 * change(point.best.seconds, study.best)
            if point.factor in _ENDS:
                label = _LABELS[point.factor]
                bar = axes.barh(
                    row, share, height=0.62, color=_COLOURS[point.factor], edgecolor=style.BLACK,
                    linewidth=0.4, label=label,
                )  # fmt: skip
                handles.setdefault(label, bar)
                if point.best.strategy != study.best.strategy:
                    _beside(axes, row, share, point.best.strategy)
                kept = 100 * change(point.kept_seconds, study.best)
                if point.kept_fits and abs(kept - share) > 0.05:
                    (mark,) = axes.plot(
                        kept, row, marker="D", markersize=4.5, markerfacecolor="white",
                        markeredgecolor=style.BLACK, linestyle="", label="with the plan kept", zorder=4,
                    )  # fmt: skip
                    handles.setdefault("kept", mark)
            elif point.factor in _INNER:
                (line,) = axes.plot(
                    [share, share], [row - 0.31, row + 0.31], color=style.BLACK, linewidth=1.1, zorder=3,
                    label="0.8 and 1.25 times",
                )  # fmt: skip
                handles.setdefault("inner", line)
        if blocked:
            _beside(axes, row, 0, f"nothing fits at {' and '.join(blocked)}", right=True)
    return handles


def _beside(axes: Axes, row: int, share: float, text: str, *, right: bool = False) -> None:
    """Write beside the end of a bar."""
    outward = share > 0 or right
    axes.annotate(
        text, (share, row), xytext=(4 if outward else -4, 0), textcoords="offset points",
        ha="left" if outward else "right", va="center", fontsize=7.5,
    )  # fmt: skip
