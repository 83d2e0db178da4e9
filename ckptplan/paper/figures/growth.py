"""Figures 2 and 3: curves over sequence length and model size, which end where nothing fits."""

from __future__ import annotations

from collections.abc import Callable

from ckptplan.paper.figures.content import PaperFigure, Series, describe_budget, make_panel
from ckptplan.paper.figures.rules import RULES, Rule, fourth_root, two_level_setting
from ckptplan.paper.setting import PaperSetting, Point, find_largest
from ckptplan.units import format_count

#: The length at which Figure 2 varies the model size.
MODEL_SIZE_STEPS = 300
#: Figure 3: T and batch of each panel.
FIGURE_3_JOBS = ((128, 120), (500, 60), (900, 60))


def make_figure_2(setting: PaperSetting) -> PaperFigure:
    """Return time and memory against T, and memory against model size."""
    lengths = tuple(
        Series(
            label=name.capitalize(),
            strategy=name,
            points=_trace_curve(name, rule, _vary_steps(setting), spacing=50),
        )
        for name, rule in RULES.items()
    )
    sizes = tuple(
        Series(
            label=name.capitalize(),
            strategy=name,
            points=_trace_curve(
                name, rule, _vary_neurons(setting, MODEL_SIZE_STEPS), spacing=setting.profile.units // 4
            ),
        )
        for name, rule in {**RULES, "double": fourth_root}.items()
    )
    ends = {series.label: series.points[-1] for series in lengths}
    remote = ends["Remote"]
    widest = two_level_setting(MODEL_SIZE_STEPS)
    return PaperFigure(
        number=2,
        title="Strategies over sequence length and model size",
        caption=f"Curves end where a strategy no longer fits {describe_budget(setting)}: "
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


def make_figure_3(setting: PaperSetting) -> PaperFigure:
    """Return Double beside Base over model sizes, for three lengths and batches."""
    panels = []
    for name, (steps, batch) in zip(("left", "middle", "right"), FIGURE_3_JOBS, strict=True):
        series = tuple(
            Series(
                label=strategy.capitalize(),
                strategy=strategy,
                points=_trace_curve(
                    strategy,
                    RULES["base"] if strategy == "base" else fourth_root,
                    _vary_neurons(setting, steps, batch=batch),
                    spacing=setting.profile.units // 4,
                ),
            )
            for strategy in ("base", "double")
        )
        panels.append(
            make_panel(
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
        caption=f"Curves end at the largest network that fits {describe_budget(setting)}; with Double it is "
        f"{ratios} times that of Base, from left to right. The paper names no setting: taken is the "
        "fourth root of T as chunk_size and its square as remote_chunk_size, from which section VI has its "
        f"O(T^(1/4)) ({settings}). Weights, and the spikes kept of each step, grow with the network.",
        panels=tuple(panels),
    )


def _vary_steps(setting: PaperSetting) -> Callable[[int], PaperSetting]:
    return lambda steps: setting.replace(steps=steps)


def _vary_neurons(
    setting: PaperSetting, steps: int, *, batch: int | None = None
) -> Callable[[int], PaperSetting]:
    return lambda neurons: setting.replace(steps=steps, neurons=neurons, batch=batch)


def _trace_curve(
    name: str, rule: Rule, at: Callable[[int], PaperSetting], *, spacing: int
) -> tuple[Point, ...]:
    """Return a curve at multiples of ``spacing`` and at the largest value that fits, where it ends."""

    def point(value: int) -> Point | None:
        setting = at(value)
        parameters = rule(setting)
        if parameters is None:
            return None
        found = setting.evaluate(name, parameters)
        return found if found.fits else None

    end = find_largest(lambda value: point(value) is not None)
    values = [*range(spacing, end, spacing), *([end] if end else [])]
    return tuple(found for value in values if (found := point(value)) is not None)
