"""What the model gives for the content of the paper's Figures 2 to 5, as data.

Where the paper does not say which parameters a curve uses, the text beside it decides, and the
caption says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ckptplan.errors import InputError
from ckptplan.paper.setting import Point, Setting, largest, nearest_root
from ckptplan.units import format_bytes, format_count

#: The length of the hyperparameter study, section V.
STUDY_STEPS = 4096
#: The length at which Figure 2 varies the model size.
MODEL_SIZE_STEPS = 300
#: Figure 3: T and batch of each panel.
FIGURE_3_JOBS = ((128, 120), (500, 60), (900, 60))
#: Chunks of Figure 4.
CHUNK_SIZES = tuple(2**power for power in range(2, 9))
#: Section V's range of Double's remote chunk; squares of whole chunks.
_SEGMENTS = tuple(chunk * chunk for chunk in range(16, 7, -1))

_Rule = Callable[[Setting], Mapping[str, int] | None]
X = Literal["steps", "neurons_per_unit", "chunk_size", "remote_chunk_size"]
Y = Literal["seconds", "local_peak_bytes"]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One curve: a strategy whose settings follow one rule."""

    label: str
    strategy: str
    points: tuple[Point, ...]
    #: Drawn to compare the others with.
    is_baseline: bool = False


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes. ``x`` and ``y`` name the columns that are drawn (``point_row``)."""

    name: str
    title: str
    x: X
    y: Y
    series: tuple[Series, ...]
    #: The local memory of one unit.
    budget_bytes: int
    #: A range of x that the paper advises.
    advised: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class PaperFigure:
    """The content of one figure of the paper, from the model."""

    number: int
    title: str
    caption: str
    panels: tuple[Panel, ...]


def figures(setting: Setting) -> tuple[PaperFigure, ...]:
    """Return all figures."""
    return tuple(make(setting) for make in FIGURES.values())


def figure(setting: Setting, number: int) -> PaperFigure:
    """Return one figure. Raises InputError for a number that is none."""
    if number not in FIGURES:
        raise InputError(
            f"there is no figure {number} with numbers",
            field="figure",
            value=number,
            accepted=", ".join(map(str, FIGURES)),
        )
    return FIGURES[number](setting)


def figure_2(setting: Setting) -> PaperFigure:
    """Return time and memory against T, and memory against model size."""
    lengths = tuple(
        Series(
            label=name.capitalize(),
            strategy=name,
            points=_fitting(name, rule, _longer(setting), spacing=50),
        )
        for name, rule in _LENGTH_RULES.items()
    )
    sizes = tuple(
        Series(
            label=name.capitalize(),
            strategy=name,
            points=_fitting(name, rule, _wider(setting, MODEL_SIZE_STEPS), spacing=setting.profile.units // 4),
        )
        for name, rule in {**_LENGTH_RULES, "double": _double_of_fourth_root}.items()
    )
    ends = {series.label: series.points[-1] for series in lengths}
    remote = ends["Remote"]
    widest = two_level_setting(MODEL_SIZE_STEPS)
    return PaperFigure(
        number=2,
        title="Strategies over sequence length and model size",
        caption=f"Curves end where a strategy no longer fits {_budget(setting)}: "
        + ", ".join(f"{label} at T = {format_count(point.steps)}" for label, point in ends.items())
        + ". Chosen as the text says: Standard with chunk_size nearest to sqrt(T); Remote with the largest "
        "chunk that fits, so that it fills the tile; Double with the largest remote_chunk_size from 64 to "
        "256 that fits and chunk_size its square root. For Hierarchical the text names no setting: "
        "chunk_size as Standard's, or the largest that leaves room for one checkpoint, and as many local "
        "checkpoints as fit. The time axis is cut: with chunks down to one step, Remote rises to "
        f"{remote.seconds * 1e3:,.0f} ms. Over model size: Double with chunk_size {widest['chunk_size']}, "
        f"remote_chunk_size {widest['remote_chunk_size']}, the fourth root of T rounded down and its square, "
        "from which section VI has its O(T^(1/4)).",
        panels=(
            _panel(setting, "left", "Time over sequence length", x="steps", y="seconds", series=lengths),
            _panel(
                setting,
                "middle",
                "Memory over sequence length",
                x="steps",
                y="local_peak_bytes",
                series=lengths,
            ),
            _panel(
                setting,
                "right",
                f"Memory over model size, T = {MODEL_SIZE_STEPS}",
                x="neurons_per_unit",
                y="local_peak_bytes",
                series=sizes,
            ),
        ),
    )


def figure_3(setting: Setting) -> PaperFigure:
    """Return Double beside Base over model sizes, for three lengths and batches."""
    panels = []
    for name, (steps, batch) in zip(("left", "middle", "right"), FIGURE_3_JOBS, strict=True):
        series = tuple(
            Series(
                label=strategy.capitalize(),
                strategy=strategy,
                points=_fitting(
                    strategy,
                    _LENGTH_RULES["base"] if strategy == "base" else _double_of_fourth_root,
                    _wider(setting, steps, batch=batch),
                    spacing=setting.profile.units // 4,
                ),
            )
            for strategy in ("base", "double")
        )
        panels.append(
            _panel(
                setting,
                name,
                f"T = {steps}, batch {batch}",
                x="neurons_per_unit",
                y="local_peak_bytes",
                series=series,
            )
        )
    settings = "; ".join(
        f"T = {steps}: chunk_size {two['chunk_size']}, remote_chunk_size {two['remote_chunk_size']}"
        for steps, _ in FIGURE_3_JOBS
        for two in [two_level_setting(steps)]
    )
    ratios = ", ".join(
        f"{double.points[-1].neurons_per_unit / base.points[-1].neurons_per_unit:.1f}"
        for base, double in (panel.series for panel in panels)
    )
    return PaperFigure(
        number=3,
        title="Double beside Base over model sizes",
        caption=f"Curves end at the largest network that fits {_budget(setting)}; with Double it is {ratios} "
        "times that of Base, from left to right. The paper names no setting: taken is the fourth root of T "
        "as chunk_size and its square as remote_chunk_size, from which section VI has its O(T^(1/4)) "
        f"({settings}). Weights, and the spikes kept of each step, grow with the network.",
        panels=tuple(panels),
    )


def figure_4(setting: Setting) -> PaperFigure:
    """Return memory and time against the chunk, for local checkpoints of Hierarchical and of Double."""
    there = setting.changed(steps=STUDY_STEPS)
    baselines = tuple(
        Series(
            label=name.capitalize(),
            strategy=name,
            points=tuple(there.points(name, [{"chunk_size": chunk} for chunk in CHUNK_SIZES])),
            is_baseline=True,
        )
        for name in ("standard", "remote")
    )
    hierarchical = tuple(
        Series(
            label=f"nb_local {local}",
            strategy="hierarchical",
            points=tuple(
                there.points("hierarchical", [{"chunk_size": c, "nb_local": local} for c in CHUNK_SIZES])
            ),
        )
        for local in (4, 16, 32)
    )
    double = tuple(
        Series(
            label=f"remote_chunk_size = {chunks} chunks",
            strategy="double",
            points=tuple(
                there.points(
                    "double", [{"chunk_size": c, "remote_chunk_size": chunks * c} for c in CHUNK_SIZES]
                )
            ),
        )
        for chunks in (2, 4, 16)
    )
    panels = [
        _panel(
            setting,
            f"{row} {side}",
            f"{strategy}: {title.lower()}",
            x="chunk_size",
            y=y,
            series=(*baselines, *series),
        )
        for row, strategy, series in (
            ("top", "Hierarchical", hierarchical),
            ("bottom", "Double", double),
        )
        for side, title, y in _SIDES
    ]
    fitting = sum(point.fits for series in (*hierarchical, *double) for point in series.points)
    settings = sum(len(series.points) for series in (*hierarchical, *double))
    return PaperFigure(
        number=4,
        title=f"Chunks and local checkpoints, T = {format_count(STUDY_STEPS)}",
        caption=f"Filled markers fit {_budget(setting)}, hollow ones do not: at this length the spikes of "
        f"all steps, code and weights leave room for {_free_states(there)} states, and of the {settings} "
        f"settings of Hierarchical and Double drawn {fitting} fit. Standard and Remote at the same "
        "chunk_size are the baselines. Chunks of a segment are remote_chunk_size / chunk_size, all but one "
        "of which begin at a local checkpoint; a segment is at most T. Chunks: "
        f"{', '.join(map(str, CHUNK_SIZES))}. The memory axis is cut: Standard's rises to "
        f"{_most_memory(baselines)}.",
        panels=tuple(panels),
    )


def figure_5(setting: Setting) -> PaperFigure:
    """Return memory and time of Double against its remote chunk."""
    there = setting.changed(steps=STUDY_STEPS)
    segments = [2**power for power in range(3, STUDY_STEPS.bit_length())]

    def series(fixed: int | None) -> Series:
        settings = [
            {"chunk_size": fixed or nearest_root(segment), "remote_chunk_size": segment}
            for segment in segments
            if fixed is None or fixed <= segment
        ]
        label = "chunk_size = square root" if fixed is None else f"chunk_size {fixed}"
        return Series(label=label, strategy="double", points=tuple(there.points("double", settings)))

    curves = tuple(map(series, (None, 4, 16, 64)))
    return PaperFigure(
        number=5,
        title=f"Double over remote_chunk_size, T = {format_count(STUDY_STEPS)}",
        caption=f"Filled markers fit {_budget(setting)}, hollow ones do not. Shaded: 64 to 256, the range "
        "that section V calls optimal. Each curve has another chunk_size: the whole number nearest to the "
        "square root of remote_chunk_size, as section V advises, or a fixed one. The memory axis is cut: it "
        f"would rise to {_most_memory(curves)}.",
        panels=tuple(
            _panel(setting, side, title, x="remote_chunk_size", y=y, series=curves, advised=(64, 256))
            for side, title, y in _SIDES
        ),
    )


FIGURES: Mapping[int, Callable[[Setting], PaperFigure]] = {
    2: figure_2,
    3: figure_3,
    4: figure_4,
    5: figure_5,
}
_SIDES: tuple[tuple[str, str, Y], ...] = (("left", "Memory", "local_peak_bytes"), ("right", "Time", "seconds"))


def two_level_setting(steps: int) -> dict[str, int]:
    """Return Double's setting behind O(T^(1/4)) of section VI: T^(1/4), rounded down, and its square."""
    chunk = math.isqrt(math.isqrt(steps))
    return {"chunk_size": chunk, "remote_chunk_size": chunk * chunk}


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


_PARAMETERS = ("chunk_size", "nb_local", "remote_chunk_size")


def _standard(setting: Setting) -> Mapping[str, int]:
    return {"chunk_size": nearest_root(setting.workload.steps)}


def _remote(setting: Setting) -> Mapping[str, int] | None:
    room = _free_states(setting)
    return {"chunk_size": min(room, setting.workload.steps)} if room > 0 else None


def _hierarchical(setting: Setting) -> Mapping[str, int] | None:
    """As Standard's chunk, or the largest that leaves room for a checkpoint; the rest is for checkpoints."""
    room, steps = _free_states(setting), setting.workload.steps
    if room < 2:
        return None
    chunk = min(nearest_root(steps), room - 1)
    return {"chunk_size": chunk, "nb_local": min(room - chunk, steps)}


def _double(setting: Setting) -> Mapping[str, int]:
    """Choose the largest advised segment that fits; the smallest, if none does."""
    settings = [{"chunk_size": nearest_root(segment), "remote_chunk_size": segment} for segment in _SEGMENTS]
    points = setting.points("double", settings)
    return next((dict(point.parameters) for point in points if point.fits), settings[-1])


def _double_of_fourth_root(setting: Setting) -> Mapping[str, int]:
    return two_level_setting(setting.workload.steps)


_LENGTH_RULES: Mapping[str, _Rule] = {
    "base": lambda _: {},
    "standard": _standard,
    "remote": _remote,
    "hierarchical": _hierarchical,
    "double": _double,
}


def _free_states(setting: Setting) -> int:
    """Return how many states fit beside what is resident; a tape of the paper's network is a state."""
    costs = setting.costs
    free = setting.profile.local_bytes - costs.resident_bytes
    return max(0, free // max(costs.state_bytes, costs.tape_bytes))


def _longer(setting: Setting) -> Callable[[int], Setting]:
    return lambda steps: setting.changed(steps=steps)


def _wider(setting: Setting, steps: int, *, batch: int | None = None) -> Callable[[int], Setting]:
    return lambda neurons: setting.changed(steps=steps, neurons=neurons, batch=batch)


def _fitting(name: str, rule: _Rule, at: Callable[[int], Setting], *, spacing: int) -> tuple[Point, ...]:
    """Return a curve at multiples of ``spacing`` and at the largest value that fits, where it ends."""

    def point(value: int) -> Point | None:
        setting = at(value)
        parameters = rule(setting)
        if parameters is None:
            return None
        found = setting.point(name, parameters)
        return found if found.fits else None

    end = largest(lambda value: point(value) is not None)
    values = [*range(spacing, end, spacing), *([end] if end else [])]
    return tuple(found for value in values if (found := point(value)) is not None)


def _panel(
    setting: Setting,
    name: str,
    title: str,
    *,
    x: X,
    y: Y,
    series: Iterable[Series],
    advised: tuple[int, int] | None = None,
) -> Panel:
    return Panel(
        name=name,
        title=title,
        x=x,
        y=y,
        series=tuple(series),
        budget_bytes=setting.profile.local_bytes,
        advised=advised,
    )


def _most_memory(series: Iterable[Series]) -> str:
    return format_bytes(max(point.local_peak_bytes for one in series for point in one.points))


def _budget(setting: Setting) -> str:
    return f"{format_bytes(setting.profile.local_bytes)} a tile"
