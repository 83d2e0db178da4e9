"""Figures 2 and 3: curves over sequence length and model size, up to the largest value that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ckptplan.paper.figures.content import (
    RULES,
    PaperFigure,
    Rule,
    Series,
    describe_budget,
    fourth_root,
    make_panel,
    two_level_setting,
)
from ckptplan.paper.setting import PaperSetting, Point, find_largest
from ckptplan.units import format_count

#: The length at which Figure 2 varies the model size.
MODEL_SIZE_STEPS = 300
#: Figure 3: T and batch of each panel.
FIGURE_3_JOBS = ((128, 120), (500, 60), (900, 60))
#: Steps between the points of a curve over length.
_STEPS_SPACING = 50

#: Makes the setting for a value of x.
_Axis = Callable[[int], PaperSetting]


def make_figure_2(setting: PaperSetting) -> PaperFigure:
    """Return time and memory against T, and memory against model size."""
    lengths = tuple(_trace_lengths(setting, name, rule) for name, rule in RULES.items())
    sizes = tuple(
        _trace_sizes(setting, name, rule, steps=MODEL_SIZE_STEPS)
        for name, rule in {**RULES, "double": fourth_root}.items()
    )
    return PaperFigure(
        number=2,
        title="Strategies over sequence length and model size",
        caption=_caption_figure_2(setting, lengths),
        panels=(
            make_panel(setting, "left", "Time over sequence length", x="steps", y="seconds", series=lengths),
            make_panel(
                setting,
                "middle",
                "Memory over sequence length",
                x="steps",
                y="local_peak_bytes",
                series=lengths,
            ),
            make_panel(
                setting,
                "right",
                f"Memory over model size, T = {MODEL_SIZE_STEPS}",
                x="neurons_per_unit",
                y="local_peak_bytes",
                series=sizes,
            ),
        ),
    )


def _caption_figure_2(setting: PaperSetting, lengths: Iterable[Series]) -> str:
    ends = {series.label: series.points[-1] for series in lengths}
    reached = ", ".join(f"{label} at T = {format_count(point.steps)}" for label, point in ends.items())
    longest_time = f"{ends['Remote'].seconds * 1e3:,.0f} ms"
    double = two_level_setting(MODEL_SIZE_STEPS)
    return (
        f"Curves end where a strategy no longer fits {describe_budget(setting)}: {reached}. Parameters follow "
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
    panels = tuple(
        make_panel(
            setting,
            name,
            f"T = {steps}, batch {batch}",
            x="neurons_per_unit",
            y="local_peak_bytes",
            series=(
                _trace_sizes(setting, "base", RULES["base"], steps=steps, batch=batch),
                _trace_sizes(setting, "double", fourth_root, steps=steps, batch=batch),
            ),
        )
        for name, (steps, batch) in zip(("left", "middle", "right"), FIGURE_3_JOBS, strict=True)
    )
    ratios = ", ".join(
        f"{double.points[-1].neurons_per_unit / base.points[-1].neurons_per_unit:.1f}"
        for base, double in (panel.series for panel in panels)
    )
    return PaperFigure(
        number=3,
        title="Double and Base over model sizes",
        caption=f"Curves end at the largest network that fits {describe_budget(setting)}; with Double it is "
        f"{ratios} times that of Base, from left to right. The paper names no parameters. chunk_size is the "
        "fourth root of T and remote_chunk_size its square, from which section VI derives its O(T^(1/4)). "
        "Weights, and the spikes kept of each step, grow with the network.",
        panels=panels,
    )


def _trace_lengths(setting: PaperSetting, name: str, rule: Rule) -> Series:
    points = _trace(name, rule, lambda steps: setting.replace(steps=steps), spacing=_STEPS_SPACING)
    return Series(label=name.capitalize(), strategy=name, points=points)


def _trace_sizes(
    setting: PaperSetting, name: str, rule: Rule, *, steps: int, batch: int | None = None
) -> Series:
    def at_size(neurons: int) -> PaperSetting:
        return setting.replace(steps=steps, neurons=neurons, batch=batch)

    points = _trace(name, rule, at_size, spacing=setting.profile.units // 4)
    return Series(label=name.capitalize(), strategy=name, points=points)


def _trace(name: str, rule: Rule, at: _Axis, *, spacing: int) -> tuple[Point, ...]:
    """Return a curve's points at multiples of ``spacing``, and at the largest value that fits, its end."""

    def evaluate(value: int) -> Point | None:
        setting = at(value)
        parameters = rule(setting)
        if parameters is None:
            return None
        point = setting.evaluate(name, parameters)
        return point if point.fits else None

    end = find_largest(lambda value: evaluate(value) is not None)
    values = [*range(spacing, end, spacing), *([end] if end else [])]
    return tuple(point for value in values if (point := evaluate(value)) is not None)
