"""Figures 4 and 5: the hyperparameter study at one length, with settings that fit and that do not."""

from __future__ import annotations

from collections.abc import Sequence

from ckptplan.paper.figures.content import (
    PaperFigure,
    Series,
    Y,
    count_free_states,
    describe_budget,
    describe_most_memory,
    make_panel,
)
from ckptplan.paper.setting import PaperSetting, nearest_root
from ckptplan.units import format_count

#: The length of the hyperparameter study, section V.
STUDY_STEPS = 4096
#: Values of chunk_size in Figure 4.
CHUNK_SIZES = tuple(2**power for power in range(2, 9))
#: Name, title and y of the panels in a row.
_SIDES: tuple[tuple[str, str, Y], ...] = (("left", "Memory", "local_peak_bytes"), ("right", "Time", "seconds"))


def make_figure_4(setting: PaperSetting) -> PaperFigure:
    """Return memory and time against the chunk, for local checkpoints of Hierarchical and of Double."""
    there = setting.replace(steps=STUDY_STEPS)
    baselines = _evaluate_baselines(there)
    hierarchical, double = _evaluate_hierarchical(there), _evaluate_double(there)
    panels = tuple(
        make_panel(
            setting,
            f"{row} {side}",
            f"{strategy}: {title.lower()}",
            x="chunk_size",
            y=y,
            series=(*baselines, *series),
        )
        for row, strategy, series in (("top", "Hierarchical", hierarchical), ("bottom", "Double", double))
        for side, title, y in _SIDES
    )
    points = [point for series in (*hierarchical, *double) for point in series.points]
    return PaperFigure(
        number=4,
        title=f"Chunks and local checkpoints, T = {format_count(STUDY_STEPS)}",
        caption=f"Filled markers fit {describe_budget(setting)}, hollow ones do not: at this length the spikes "
        f"of all steps, code and weights leave room for {count_free_states(there)} states, and of the "
        f"{len(points)} settings of Hierarchical and Double drawn {sum(point.fits for point in points)} fit. "
        "Standard and Remote at the same chunk_size are the baselines. The memory axis is cut: Standard rises "
        f"to {describe_most_memory(baselines)}.",
        panels=panels,
    )


def _evaluate_baselines(setting: PaperSetting) -> tuple[Series, ...]:
    settings = [{"chunk_size": chunk} for chunk in CHUNK_SIZES]
    return tuple(
        _evaluate_curve(setting, name, settings, label=name.capitalize(), is_baseline=True)
        for name in ("standard", "remote")
    )


def _evaluate_hierarchical(setting: PaperSetting) -> tuple[Series, ...]:
    return tuple(
        _evaluate_curve(
            setting,
            "hierarchical",
            [{"chunk_size": chunk, "nb_local": local} for chunk in CHUNK_SIZES],
            label=f"nb_local {local}",
        )
        for local in (4, 16, 32)
    )


def _evaluate_double(setting: PaperSetting) -> tuple[Series, ...]:
    return tuple(
        _evaluate_curve(
            setting,
            "double",
            [{"chunk_size": chunk, "remote_chunk_size": chunks * chunk} for chunk in CHUNK_SIZES],
            label=f"remote_chunk_size = {chunks} chunks",
        )
        for chunks in (2, 4, 16)
    )


def make_figure_5(setting: PaperSetting) -> PaperFigure:
    """Return memory and time of Double against its remote chunk."""
    there = setting.replace(steps=STUDY_STEPS)
    curves = tuple(_evaluate_segments(there, chunk) for chunk in (None, 4, 16, 64))
    return PaperFigure(
        number=5,
        title=f"Double over remote_chunk_size, T = {format_count(STUDY_STEPS)}",
        caption=f"Filled markers fit {describe_budget(setting)}, hollow ones do not. Shaded: 64 to 256, the "
        "range that section V calls optimal. The curves differ in chunk_size: the integer nearest to the "
        "square root of remote_chunk_size, as section V recommends, or a fixed value. The memory axis is "
        f"cut: the curves rise to {describe_most_memory(curves)}.",
        panels=tuple(
            make_panel(setting, side, title, x="remote_chunk_size", y=y, series=curves, advised=(64, 256))
            for side, title, y in _SIDES
        ),
    )


def _evaluate_segments(setting: PaperSetting, chunk: int | None) -> Series:
    """Return Double over remote_chunk_size; without a ``chunk`` the square root is taken."""
    settings = [
        {"chunk_size": chunk or nearest_root(segment), "remote_chunk_size": segment}
        for segment in (2**power for power in range(3, STUDY_STEPS.bit_length()))
        if chunk is None or chunk <= segment
    ]
    label = "chunk_size = square root" if chunk is None else f"chunk_size {chunk}"
    return _evaluate_curve(setting, "double", settings, label=label)


def _evaluate_curve(
    setting: PaperSetting,
    name: str,
    settings: Sequence[dict[str, int]],
    *,
    label: str,
    is_baseline: bool = False,
) -> Series:
    points = tuple(setting.evaluate_all(name, settings))
    return Series(label=label, strategy=name, points=points, is_baseline=is_baseline)
