"""The content of a figure as data: panels, curves, points, and the rules that choose parameters of curves.

The paper names few settings. Where it does not, the text around the figure decides, and the caption says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ckptplan.paper.setting import PaperSetting, Point, nearest_root
from ckptplan.units import format_bytes

#: Section V's range of Double's remote chunk, as squares of integers.
_SEGMENTS = tuple(chunk * chunk for chunk in range(16, 7, -1))
#: Chooses a strategy's parameters; None where it has no setting.
Rule = Callable[[PaperSetting], Mapping[str, int] | None]


def two_level_setting(steps: int) -> dict[str, int]:
    """Return Double's setting behind O(T^(1/4)) of section VI: T^(1/4), rounded down, and its square."""
    chunk = math.isqrt(math.isqrt(steps))
    return {"chunk_size": chunk, "remote_chunk_size": chunk * chunk}


def _standard(setting: PaperSetting) -> Mapping[str, int]:
    return {"chunk_size": nearest_root(setting.workload.steps)}


def _remote(setting: PaperSetting) -> Mapping[str, int] | None:
    free = count_free_states(setting)
    return {"chunk_size": min(free, setting.workload.steps)} if free > 0 else None


def _hierarchical(setting: PaperSetting) -> Mapping[str, int] | None:
    """Choose Standard's chunk, or the largest that leaves room for a checkpoint; the rest holds checkpoints."""
    free, steps = count_free_states(setting), setting.workload.steps
    if free < 2:
        return None
    chunk = min(nearest_root(steps), free - 1)
    return {"chunk_size": chunk, "nb_local": min(free - chunk, steps)}


def _double(setting: PaperSetting) -> Mapping[str, int]:
    """Choose the largest recommended remote chunk that fits, the smallest if none does."""
    settings = [{"chunk_size": nearest_root(segment), "remote_chunk_size": segment} for segment in _SEGMENTS]
    points = setting.evaluate_all("double", settings)
    return next((dict(point.parameters) for point in points if point.fits), settings[-1])


def fourth_root(setting: PaperSetting) -> Mapping[str, int]:
    """Choose Double's setting of section VI for the setting's T."""
    return two_level_setting(setting.workload.steps)


#: By strategy.
RULES: Mapping[str, Rule] = {
    "base": lambda _: {},
    "standard": _standard,
    "remote": _remote,
    "hierarchical": _hierarchical,
    "double": _double,
}


def count_free_states(setting: PaperSetting) -> int:
    """Return the number of states that fit besides the resident bytes; a tape counts as one."""
    costs = setting.costs
    free = setting.profile.local_bytes - costs.resident_bytes
    return max(0, free // max(costs.state_bytes, costs.tape_bytes))


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
