"""The content of a figure as data: panels, curves, points."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ckptplan.paper.setting import PaperSetting, Point
from ckptplan.units import format_bytes

X = Literal["steps", "neurons_per_unit", "chunk_size", "remote_chunk_size"]
Y = Literal["seconds", "local_peak_bytes"]

#: Every point has these columns, empty where its strategy has no such parameter.
_PARAMETERS = ("chunk_size", "nb_local", "remote_chunk_size")


@dataclass(frozen=True, kw_only=True)
class Series:
    """One curve: a strategy whose settings follow one rule."""

    label: str
    strategy: str
    points: tuple[Point, ...]
    #: Whether the other curves are compared with it.
    is_baseline: bool = False


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes. ``x`` and ``y`` name the columns of ``point_row`` that are drawn."""

    name: str
    title: str
    x: X
    y: Y
    series: tuple[Series, ...]
    #: The local memory of one unit.
    budget_bytes: int
    #: Ends of the range of x that the paper recommends.
    advised: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class PaperFigure:
    """The content of one figure of the paper, computed by the model."""

    number: int
    title: str
    caption: str
    panels: tuple[Panel, ...]


def point_row(point: Point) -> dict[str, str | int | float | bool]:
    """Return a point as flat data, SI base units, with the same columns for every strategy."""
    parameters = {name: point.parameters.get(name, "") for name in _PARAMETERS}
    return {
        "strategy": point.strategy,
        "steps": point.steps,
        "neurons_per_unit": point.neurons_per_unit,
        "batch": point.batch,
        **parameters,
        "seconds": point.seconds,
        "local_peak_bytes": point.local_peak_bytes,
        "fits": point.fits,
    }


def make_panel(
    setting: PaperSetting,
    name: str,
    title: str,
    *,
    x: X,
    y: Y,
    series: Iterable[Series],
    advised: tuple[int, int] | None = None,
) -> Panel:
    """Return a panel whose budget is the local memory of the setting's machine."""
    return Panel(
        name=name,
        title=title,
        x=x,
        y=y,
        series=tuple(series),
        budget_bytes=setting.profile.local_bytes,
        advised=advised,
    )


def describe_budget(setting: PaperSetting) -> str:
    """Return the local memory as text: '624 KiB a tile'."""
    return f"{format_bytes(setting.profile.local_bytes)} a tile"


def describe_most_memory(series: Iterable[Series]) -> str:
    """Return the largest local peak of all curves as text."""
    return format_bytes(max(point.local_peak_bytes for one in series for point in one.points))
