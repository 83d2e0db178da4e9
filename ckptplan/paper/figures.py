"""The content of the paper's Figures 2 to 5 as data: panels, curves and points, computed by the model.

The paper names few settings. Where it does not, the text around the figure decides, and the caption says so.
Figures 2 and 3 show curves over sequence length and model size, up to the largest value that fits. Figures 4
and 5 are the hyperparameter study at one length, with settings that fit and that do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Literal, TypeAlias

from ckptplan.paper.setting import PaperSetting, Point, find_largest, nearest_root
from ckptplan.units import format_bytes, format_count

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

#: Name, title and y of the panels in a row of Figures 4 and 5.
_SIDES: tuple[tuple[str, str, Y], ...] = (("left", "Memory", "local_peak_bytes"), ("right", "Time", "seconds"))


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
    """One pair of axes. ``x`` and ``y`` name the columns of points that are drawn."""

    name: str
    title: str
    x: X
    y: Y
    series: tuple[Series, ...]
    #: Ends of the range of x that the paper recommends.
    advised: tuple[int, int] | None = None

    @property
    def points(self) -> Iterator[Point]:
        """The points of all curves."""
        return (point for series in self.series for point in series.points)

    @property
    def budget_bytes(self) -> int:
        """The local memory of one unit."""
        return next(self.points).setting.profile.local_bytes


@dataclass(frozen=True, kw_only=True)
class PaperFigure:
    """The content of one figure of the paper, computed by the model."""

    number: int
    title: str
    caption: str
    panels: tuple[Panel, ...]


# The rules by which curves choose parameters

#: Chooses a strategy's parameters; None where it has no setting.
Rule: TypeAlias = Callable[[PaperSetting], Mapping[str, int] | None]


def two_level_setting(steps: int) -> dict[str, int]:
    """Return Double's setting behind O(T^(1/4)) of section VI: T^(1/4), rounded down, and its square."""
    chunk = math.isqrt(math.isqrt(steps))
    return {"chunk_size": chunk, "remote_chunk_size": chunk * chunk}


def _choose_two_levels(setting: PaperSetting) -> Mapping[str, int]:
    return two_level_setting(setting.workload.steps)


def _choose_remote(setting: PaperSetting) -> Mapping[str, int] | None:
    free = setting.count_free_states()
    return {"chunk_size": min(free, setting.workload.steps)} if free > 0 else None


def _choose_hierarchical(setting: PaperSetting) -> Mapping[str, int] | None:
    """Choose Standard's chunk, or the largest that leaves room for a checkpoint; the rest holds checkpoints."""
    free, steps = setting.count_free_states(), setting.workload.steps
    if free < 2:
        return None
    chunk = min(nearest_root(steps), free - 1)
    return {"chunk_size": chunk, "nb_local": min(free - chunk, steps)}


def _choose_double(setting: PaperSetting) -> Mapping[str, int]:
    """Choose the largest recommended remote chunk that fits, the smallest if none does."""
    settings = [{"chunk_size": nearest_root(segment), "remote_chunk_size": segment} for segment in _ADVISED]
    return next((one for one in settings if setting.evaluate("double", one).fits), settings[-1])


#: By strategy.
_RULES: Mapping[str, Rule] = {
    "base": lambda _: {},
    "standard": lambda setting: {"chunk_size": nearest_root(setting.workload.steps)},
    "remote": _choose_remote,
    "hierarchical": _choose_hierarchical,
    "double": _choose_double,
}


# Figures 2 and 3


def make_figure_2(setting: PaperSetting) -> PaperFigure:
    """Return time and memory against T, and memory against model size."""
    lengths = tuple(
        _trace(name, rule, lambda steps: setting.replace(steps=steps), spacing=_STEPS_SPACING)
        for name, rule in _RULES.items()
    )
    sizes = tuple(
        _trace_sizes(setting, name, rule, steps=MODEL_SIZE_STEPS)
        for name, rule in {**_RULES, "double": _choose_two_levels}.items()
    )
    over_length = partial(Panel, x="steps", series=lengths)
    return PaperFigure(
        number=2,
        title="Strategies over sequence length and model size",
        caption=_caption_figure_2(setting, lengths),
        panels=(
            over_length(name="left", title="Time over sequence length", y="seconds"),
            over_length(name="middle", title="Memory over sequence length", y="local_peak_bytes"),
            Panel(
                name="right",
                title=f"Memory over model size, T = {MODEL_SIZE_STEPS}",
                x="neurons_per_unit",
                y="local_peak_bytes",
                series=sizes,
            ),
        ),
    )


def _caption_figure_2(setting: PaperSetting, lengths: Iterable[Series]) -> str:
    ends = {series.label: series.points[-1] for series in lengths}
    reached = ", ".join(
        f"{label} at T = {format_count(point.setting.workload.steps)}" for label, point in ends.items()
    )
    longest_time = f"{ends['Remote'].seconds * 1e3:,.0f} ms"
    double = two_level_setting(MODEL_SIZE_STEPS)
    return (
        f"Curves end where a strategy no longer fits {_describe_budget(setting)}: {reached}. Parameters follow "
        "the text: Standard with chunk_size nearest to sqrt(T); Remote with the largest chunk that fits; "
        "Double with the largest remote_chunk_size from 64 to 256 that fits and "
        "chunk_size its square root. For Hierarchical the text names no parameters: chunk_size as for "
        "Standard, or the largest that leaves room for one checkpoint, and as many local checkpoints as fit. "
        f"The time axis is cut: Remote rises to {longest_time}. Over model "
        f"size: Double with chunk_size {double['chunk_size']}, remote_chunk_size "
        f"{double['remote_chunk_size']}, the fourth root of T rounded down and its square."
    )


def make_figure_3(setting: PaperSetting) -> PaperFigure:
    """Return Double and Base over model sizes, for three lengths and batches."""
    rules = {"base": _RULES["base"], "double": _choose_two_levels}
    panels = tuple(
        Panel(
            name=name,
            title=f"T = {steps}, batch {batch}",
            x="neurons_per_unit",
            y="local_peak_bytes",
            series=tuple(
                _trace_sizes(setting, strategy, rule, steps=steps, batch=batch)
                for strategy, rule in rules.items()
            ),
        )
        for name, steps, batch in _JOBS
    )
    ratios = ", ".join(
        f"{double.points[-1].setting.neurons / base.points[-1].setting.neurons:.1f}"
        for base, double in (panel.series for panel in panels)
    )
    return PaperFigure(
        number=3,
        title="Double and Base over model sizes",
        caption=f"Curves end at the largest network that fits {_describe_budget(setting)}; with Double it is "
        f"{ratios} times that of Base, from left to right. The paper names no parameters. chunk_size is the "
        "fourth root of T and remote_chunk_size its square, from which section VI derives its O(T^(1/4)). "
        "Weights, and the spikes kept of each step, grow with the network.",
        panels=panels,
    )


def _trace_sizes(
    setting: PaperSetting, name: str, rule: Rule, *, steps: int, batch: int | None = None
) -> Series:
    def at_size(neurons: int) -> PaperSetting:
        return setting.replace(steps=steps, neurons=neurons, batch=batch)

    return _trace(name, rule, at_size, spacing=setting.profile.units // 4)


def _trace(name: str, rule: Rule, at: Callable[[int], PaperSetting], *, spacing: int) -> Series:
    """Return a curve with points at multiples of ``spacing``, and at the largest value that fits, its end."""

    def evaluate(value: int) -> Point | None:
        setting = at(value)
        parameters = rule(setting)
        point = None if parameters is None else setting.evaluate(name, parameters)
        return point if point is not None and point.fits else None

    end = find_largest(lambda value: evaluate(value) is not None)
    values = [*range(spacing, end, spacing), *([end] if end else [])]
    points = tuple(point for value in values if (point := evaluate(value)) is not None)
    return Series(label=name.capitalize(), strategy=name, points=points)


# Figures 4 and 5


def make_figure_4(setting: PaperSetting) -> PaperFigure:
    """Return memory and time against the chunk, for local checkpoints of Hierarchical and of Double."""
    there = setting.replace(steps=STUDY_STEPS)
    over_chunks = partial(_vary, there, chunk_size=CHUNK_SIZES)
    baselines = tuple(over_chunks(name, name.capitalize(), is_baseline=True) for name in ("standard", "remote"))
    hierarchical = tuple(
        over_chunks("hierarchical", f"nb_local {local}", nb_local=repeat(local)) for local in (4, 16, 32)
    )
    double = tuple(
        over_chunks(
            "double",
            f"remote_chunk_size = {chunks} chunks",
            remote_chunk_size=[chunks * chunk for chunk in CHUNK_SIZES],
        )
        for chunks in (2, 4, 16)
    )
    points = [point for series in (*hierarchical, *double) for point in series.points]
    return PaperFigure(
        number=4,
        title=f"Chunks and local checkpoints, T = {format_count(STUDY_STEPS)}",
        caption=f"Filled markers fit {_describe_budget(setting)}, hollow ones do not: at this length the "
        f"spikes of all steps, code and weights leave room for {there.count_free_states()} states, and of the "
        f"{len(points)} settings of Hierarchical and Double drawn {sum(point.fits for point in points)} fit. "
        "Standard and Remote at the same chunk_size are the baselines. The memory axis is cut: Standard rises "
        f"to {_describe_most_memory(baselines)}.",
        panels=tuple(
            Panel(
                name=f"{row} {side}",
                title=f"{strategy}: {title.lower()}",
                x="chunk_size",
                y=y,
                series=(*baselines, *series),
            )
            for row, strategy, series in (("top", "Hierarchical", hierarchical), ("bottom", "Double", double))
            for side, title, y in _SIDES
        ),
    )


def make_figure_5(setting: PaperSetting) -> PaperFigure:
    """Return memory and time of Double against its remote chunk."""
    there = setting.replace(steps=STUDY_STEPS)
    curves = tuple(_evaluate_segments(there, chunk) for chunk in (None, 4, 16, 64))
    return PaperFigure(
        number=5,
        title=f"Double over remote_chunk_size, T = {format_count(STUDY_STEPS)}",
        caption=f"Filled markers fit {_describe_budget(setting)}, hollow ones do not. Shaded: 64 to 256, the "
        "range that section V calls optimal. The curves differ in chunk_size: the integer nearest to the "
        "square root of remote_chunk_size, as section V recommends, or a fixed value. The memory axis is "
        f"cut: the curves rise to {_describe_most_memory(curves)}.",
        panels=tuple(
            Panel(
                name=side,
                title=title,
                x="remote_chunk_size",
                y=y,
                series=curves,
                advised=(_ADVISED[-1], _ADVISED[0]),
            )
            for side, title, y in _SIDES
        ),
    )


def _evaluate_segments(there: PaperSetting, chunk: int | None) -> Series:
    """Return Double over remote_chunk_size; without a ``chunk`` the square root is taken."""
    segments = [segment for segment in SEGMENTS if chunk is None or chunk <= segment]
    label = "chunk_size = square root" if chunk is None else f"chunk_size {chunk}"
    chunks = [chunk or nearest_root(segment) for segment in segments]
    return _vary(there, "double", label, chunk_size=chunks, remote_chunk_size=segments)


def _vary(
    there: PaperSetting, name: str, label: str, *, is_baseline: bool = False, **parameters: Iterable[int]
) -> Series:
    """Return a curve whose points have the first value of each parameter, the second of each, and so on."""
    settings = [
        dict(zip(parameters, values, strict=True)) for values in zip(*parameters.values(), strict=False)
    ]
    points = tuple(there.evaluate(name, setting) for setting in settings)
    return Series(label=label, strategy=name, points=points, is_baseline=is_baseline)


def _describe_budget(setting: PaperSetting) -> str:
    """Return the local memory as text: '624 KiB a tile'."""
    return f"{format_bytes(setting.profile.local_bytes)} a tile"


def _describe_most_memory(series: Iterable[Series]) -> str:
    """Return the largest local peak of all curves as text."""
    return format_bytes(max(point.local_peak_bytes for one in series for point in one.points))


#: The figures that have numbers.
FIGURES: Mapping[int, Callable[[PaperSetting], PaperFigure]] = {
    2: make_figure_2,
    3: make_figure_3,
    4: make_figure_4,
    5: make_figure_5,
}
