"""Figures 4 and 5: the hyperparameter study at one length, whether its settings fit or not."""

from __future__ import annotations

from ckptplan.paper.figures.content import (
    PaperFigure,
    Series,
    Y,
    describe_budget,
    describe_most_memory,
    make_panel,
)
from ckptplan.paper.figures.rules import count_free_states
from ckptplan.paper.setting import PaperSetting, nearest_root
from ckptplan.units import format_count

#: The length of the hyperparameter study, section V.
STUDY_STEPS = 4096
#: Chunks of Figure 4.
CHUNK_SIZES = tuple(2**power for power in range(2, 9))


def make_figure_4(setting: PaperSetting) -> PaperFigure:
    """Return memory and time against the chunk, for local checkpoints of Hierarchical and of Double."""
    there = setting.replace(steps=STUDY_STEPS)
    baselines = tuple(
        Series(
            label=name.capitalize(),
            strategy=name,
            points=tuple(there.evaluate_all(name, [{"chunk_size": chunk} for chunk in CHUNK_SIZES])),
            is_baseline=True,
        )
        for name in ("standard", "remote")
    )
    hierarchical = tuple(
        Series(
            label=f"nb_local {local}",
            strategy="hierarchical",
            points=tuple(
                there.evaluate_all("hierarchical", [{"chunk_size": c, "nb_local": local} for c in CHUNK_SIZES])
            ),
        )
        for local in (4, 16, 32)
    )
    double = tuple(
        Series(
            label=f"remote_chunk_size = {chunks} chunks",
            strategy="double",
            points=tuple(
                there.evaluate_all(
                    "double", [{"chunk_size": c, "remote_chunk_size": chunks * c} for c in CHUNK_SIZES]
                )
            ),
        )
        for chunks in (2, 4, 16)
    )
    panels = [
        make_panel(
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
        caption=f"Filled markers fit {describe_budget(setting)}, hollow ones do not: at this length the spikes "
        f"of all steps, code and weights leave room for {count_free_states(there)} states, and of the "
        f"{settings} settings of Hierarchical and Double drawn {fitting} fit. Standard and Remote at the same "
        "chunk_size are the baselines. Chunks of a segment are remote_chunk_size / chunk_size, all but one "
        "of which begin at a local checkpoint; a segment is at most T. Chunks: "
        f"{', '.join(map(str, CHUNK_SIZES))}. The memory axis is cut: Standard's rises to "
        f"{describe_most_memory(baselines)}.",
        panels=tuple(panels),
    )


def make_figure_5(setting: PaperSetting) -> PaperFigure:
    """Return memory and time of Double against its remote chunk."""
    there = setting.replace(steps=STUDY_STEPS)
    segments = [2**power for power in range(3, STUDY_STEPS.bit_length())]

    def series(fixed: int | None) -> Series:
        settings = [
            {"chunk_size": fixed or nearest_root(segment), "remote_chunk_size": segment}
            for segment in segments
            if fixed is None or fixed <= segment
        ]
        label = "chunk_size = square root" if fixed is None else f"chunk_size {fixed}"
        return Series(label=label, strategy="double", points=tuple(there.evaluate_all("double", settings)))

    curves = tuple(map(series, (None, 4, 16, 64)))
    return PaperFigure(
        number=5,
        title=f"Double over remote_chunk_size, T = {format_count(STUDY_STEPS)}",
        caption=f"Filled markers fit {describe_budget(setting)}, hollow ones do not. Shaded: 64 to 256, the "
        "range that section V calls optimal. Each curve has another chunk_size: the whole number nearest to "
        "the square root of remote_chunk_size, as section V advises, or a fixed one. The memory axis is cut: "
        f"it would rise to {describe_most_memory(curves)}.",
        panels=tuple(
            make_panel(setting, side, title, x="remote_chunk_size", y=y, series=curves, advised=(64, 256))
            for side, title, y in _SIDES
        ),
    )


_SIDES: tuple[tuple[str, str, Y], ...] = (("left", "Memory", "local_peak_bytes"), ("right", "Time", "seconds"))
