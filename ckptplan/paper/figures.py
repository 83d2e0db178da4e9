"""The content of the paper's Figures 2 to 5 as data: panels, curves and points, computed by the model.

The paper names few settings. The others follow from its text around a figure, and the caption says so. Figures
2 and 3 show curves over sequence length and model size, up to the largest value that fits. Figures 4 and 5 are
the hyperparameter study at one length. Their settings may exceed the memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ckptplan.paper.setting import PaperSetting, Point, find_largest, nearest_root
from ckptplan.units import format_bytes

#: The length at which Figure 2 varies the model size.
MODEL_SIZE_STEPS = 300
#: Figure 3: name of a panel, T and batch.
_JOBS = (("left", 128, 120), ("middle", 500, 60), ("right", 900, 60))
#: Steps between the points of a curve over length.
_STEPS_SPACING = 50
#: The length of the hyperparameter study, section V.
STUDY_STEPS = 4096
#: Values of chunk_size in Figure 4, and of remote_chunk_size in Figure 5.
CHUNK_SIZES = tuple(2**power for power in range(2, 9))
SEGMENTS = tuple(2**power for power in range(3, STUDY_STEPS.bit_length()))
#: Section V's range of Double's remote chunk, as squares of integers.
_ADVISED = tuple(chunk * chunk for chunk in range(16, 7, -1))

X = Literal["steps", "neurons_per_unit", "chunk_size", "remote_chunk_size"]
Y = Literal["seconds", "local_peak_bytes"]


@dataclass(frozen=True)
class Series:
    """One curve: a strategy whose parameters follow one rule."""

    label: str
    strategy: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Panel:
    """One pair of axes. ``x`` and ``y`` name the columns of points that are drawn."""

    name: str
    title: str
    x: X
    y: Y
    series: tuple[Series, ...]
    #: The ends of the range of x that the paper recommends.
    advised: tuple[int, int] | None = None

    @property
    def points(self) -> Iterator[Point]:
        """The points of all curves."""
        return (point for series in self.series for point in series.points)

    @property
    def budget_bytes(self) -> int:
        """The local memory of one unit."""
        return next(self.points).setting.profile.local_bytes


@dataclass(frozen=True)
class PaperFigure:
    """The content of one figure of the paper, computed by the model."""

    number: int
    title: str
    caption: str
    panels: tuple[Panel, ...]


# The rules by which curves choose parameters

#: Returns a strategy's parameters for a setting, None if none fit.
Rule: TypeAlias = Callable[[PaperSetting], Mapping[str, int] | None]


def two_level_setting(steps: int) -> dict[str, int]:
    """Return Double's parameters behind section VI's O(T^(1/4)): T^(1/4) rounded down, and its square."""
    chunk = math.isqrt(math.isqrt(steps))
    return {"chunk_size": chunk, "remote_chunk_size": chunk * chunk}


def _choose_remote(setting: PaperSetting) -> Mapping[str, int] | None:
    free = setting.count_free_states()
    return {"chunk_size": min(free, setting.workload.steps)} if free > 0 else None


def _choose_hierarchical(setting: PaperSetting) -> Mapping[str, int] | None:
    """Choose Standard's chunk, or the largest with room for a checkpoint, and as many checkpoints as fit."""
    free, steps = setting.count_free_states(), setting.workload.steps
    if free < 2:
        return None
    chunk = min(nearest_root(steps), free - 1)
    return {"chunk_size": chunk, "nb_local": min(free - chunk, steps)}


def _choose_double(setting: PaperSetting) -> Mapping[str, int]:
    """Choose the largest recommended remote chunk that fits, the smallest if none does."""
    settings = [{"chunk_size": nearest_root(segment), "remote_chunk_size": segment} for segment in _ADVISED]
    return next((advised for advised in settings if setting.evaluate("double", advised).fits), settings[-1])


#: The rule of each strategy.
_RULES: Mapping[str, Rule] = {
    "base": lambda _: {},
    "standard": lambda setting: {"chunk_size": nearest_root(setting.workload.steps)},
    "remote": _choose_remote,
    "hierarchical": _choose_hierarchical,
    "double": _choose_double,
}


# Figures 2 and 3: curves that end at the largest value that fits


def make_figure_2(setting: PaperSetting) -> PaperFigure:
    """Return Figure 2: time and memory against T, and memory against model size."""
    lengths = tuple(
        _trace(name, rule, lambda steps: setting.replace(steps=steps), spacing=_STEPS_SPACING)
        for name, rule in _RULES.items()
    )
    rules = {**_RULES, "double": lambda setting: two_level_setting(setting.workload.steps)}
    sizes = tuple(_trace_sizes(setting, name, rule, steps=MODEL_SIZE_STEPS) for name, rule in rules.items())
    ends = {series.label: series.points[-1] for series in lengths}
    reached = ", ".join(f"{label} at T = {point.setting.workload.steps:,}" for label, point in ends.items())
    return PaperFigure(
        2,
        "Strategies over sequence length and model size",
        f"Curves end where a strategy no longer fits {_describe_budget(setting)}: {reached}. Parameters "
        "follow the text: Standard with chunk_size nearest to sqrt(T); Remote with the largest chunk that "
        "fits; Double with the largest remote_chunk_size from 64 to 256 that fits and chunk_size its square "
        "root. For Hierarchical the text names no parameters: chunk_size as for "
        "Standard, or the largest that leaves room for one checkpoint, and as many local checkpoints as fit. "
        f"The time axis is cut: Remote rises to {ends['Remote'].seconds * 1e3:,.0f} ms. Over model size: "
        "Double with chunk_size 4, remote_chunk_size 16, the fourth root of T rounded down and its square.",
        (
            Panel("left", "Time over sequence length", "steps", "seconds", lengths),
            Panel("middle", "Memory over sequence length", "steps", "local_peak_bytes", lengths),
            Panel("right", "Memory over model size, T = 300", "neurons_per_unit", "local_peak_bytes", sizes),
        ),
    )


def make_figure_3(setting: PaperSetting) -> PaperFigure:
    """Return Figure 3: Double and Base over model sizes, for three lengths and batches."""
    rules = {"base": _RULES["base"], "double": lambda setting: two_level_setting(setting.workload.steps)}
    curves = [
        tuple(_trace_sizes(setting, name, rule, steps=steps, batch=batch) for name, rule in rules.items())
        for _, steps, batch in _JOBS
    ]
    ratios = ", ".join(
        f"{double.points[-1].setting.neurons / base.points[-1].setting.neurons:.1f}" for base, double in curves
    )
    return PaperFigure(
        3,
        "Double and Base over model sizes",
        f"Curves end at the largest network that fits {_describe_budget(setting)}; with Double it is "
        f"{ratios} times that of Base, from left to right. The paper names no parameters. chunk_size is the "
        "fourth root of T and remote_chunk_size its square, from which section VI derives its O(T^(1/4)). "
        "Weights, and the spikes kept of each step, grow with the network.",
        tuple(
            Panel(name, f"T = {steps}, batch {batch}", "neurons_per_unit", "local_peak_bytes", series)
            for (name, steps, batch), series in zip(_JOBS, curves, strict=True)
        ),
    )


def _trace_sizes(
    setting: PaperSetting, name: str, rule: Rule, *, steps: int, batch: int | None = None
) -> Series:
    def at_size(neurons: int) -> PaperSetting:
        return setting.replace(steps=steps, neurons=neurons, batch=batch)

    return _trace(name, rule, at_size, spacing=setting.profile.units // 4)


def _trace(name: str, rule: Rule, at: Callable[[int], PaperSetting], *, spacing: int) -> Series:
    """Return a curve with points at multiples of ``spacing`` and at its end, the largest value that fits."""

    def evaluate(value: int) -> Point | None:
        setting = at(value)
        parameters = rule(setting)
        point = None if parameters is None else setting.evaluate(name, parameters)
        return point if point is not None and point.fits else None

    end = find_largest(lambda value: evaluate(value) is not None)
    values = [*range(spacing, end, spacing), *([end] if end else [])]
    points = tuple(point for value in values if (point := evaluate(value)) is not None)
    return Series(name.capitalize(), name, points)


# Figures 4 and 5: curves over parameters at one length


def make_figure_4(setting: PaperSetting) -> PaperFigure:
    """Return Figure 4: memory and time of Hierarchical and Double against the chunk."""
    there = setting.replace(steps=STUDY_STEPS)
    baselines = [
        _evaluate(there, name, name.capitalize(), [{"chunk_size": chunk} for chunk in CHUNK_SIZES])
        for name in ("standard", "remote")
    ]
    hierarchical = [
        _evaluate(
            there,
            "hierarchical",
            f"nb_local {local}",
            [{"chunk_size": chunk, "nb_local": local} for chunk in CHUNK_SIZES],
        )
        for local in (4, 16, 32)
    ]
    double = [
        _evaluate(
            there,
            "double",
            f"remote_chunk_size = {chunks} chunks",
            [{"chunk_size": chunk, "remote_chunk_size": chunks * chunk} for chunk in CHUNK_SIZES],
        )
        for chunks in (2, 4, 16)
    ]
    fits = [point.fits for series in (*hierarchical, *double) for point in series.points]
    top, bottom = (*baselines, *hierarchical), (*baselines, *double)
    return PaperFigure(
        4,
        "Chunks and local checkpoints, T = 4,096",
        f"Filled markers fit {_describe_budget(setting)}, hollow ones do not: at this length the spikes of "
        f"all steps, code and weights leave room for {there.count_free_states()} states, and of the "
        f"{len(fits)} settings of Hierarchical and Double drawn {sum(fits)} fit. Standard and Remote at the "
        "same chunk_size are the baselines. The memory axis is cut: Standard rises to "
        f"{_describe_most_memory(baselines)}.",
        (
            Panel("top left", "Hierarchical: memory", "chunk_size", "local_peak_bytes", top),
            Panel("top right", "Hierarchical: time", "chunk_size", "seconds", top),
            Panel("bottom left", "Double: memory", "chunk_size", "local_peak_bytes", bottom),
            Panel("bottom right", "Double: time", "chunk_size", "seconds", bottom),
        ),
    )


def make_figure_5(setting: PaperSetting) -> PaperFigure:
    """Return Figure 5: memory and time of Double against its remote chunk."""
    there = setting.replace(steps=STUDY_STEPS)
    roots = [{"chunk_size": nearest_root(segment), "remote_chunk_size": segment} for segment in SEGMENTS]
    curves = [_evaluate(there, "double", "chunk_size = square root", roots)]
    for chunk in (4, 16, 64):
        segments = [
            {"chunk_size": chunk, "remote_chunk_size": segment} for segment in SEGMENTS if chunk <= segment
        ]
        curves.append(_evaluate(there, "double", f"chunk_size {chunk}", segments))
    drawn, advised = tuple(curves), (_ADVISED[-1], _ADVISED[0])
    return PaperFigure(
        5,
        "Double over remote_chunk_size, T = 4,096",
        f"Filled markers fit {_describe_budget(setting)}, hollow ones do not. Shaded: 64 to 256, the "
        "range that section V calls optimal. The curves differ in chunk_size: the integer nearest to the "
        "square root of remote_chunk_size, as section V recommends, or a fixed value. The memory axis is "
        f"cut: the curves rise to {_describe_most_memory(curves)}.",
        (
            Panel("left", "Memory", "remote_chunk_size", "local_peak_bytes", drawn, advised),
            Panel("right", "Time", "remote_chunk_size", "seconds", drawn, advised),
        ),
    )


def _evaluate(there: PaperSetting, name: str, label: str, settings: Iterable[Mapping[str, int]]) -> Series:
    return Series(label, name, tuple(there.evaluate(name, setting) for setting in settings))


def _describe_budget(setting: PaperSetting) -> str:
    """Return the local memory as text: '624 KiB a tile'."""
    return f"{format_bytes(setting.profile.local_bytes)} a tile"


def _describe_most_memory(curves: Iterable[Series]) -> str:
    """Return the largest local peak of all curves as text."""
    return format_bytes(max(point.local_peak_bytes for series in curves for point in series.points))


#: The functions that compute each figure, by its number in the paper.
FIGURES: Mapping[int, Callable[[PaperSetting], PaperFigure]] = {
    2: make_figure_2,
    3: make_figure_3,
    4: make_figure_4,
    5: make_figure_5,
}
