"""The content of the paper's Figures 2 to 5, computed by the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ckptplan.errors import InputError
from ckptplan.paper.figures.content import PaperFigure
from ckptplan.paper.figures.growth import make_figure_2, make_figure_3
from ckptplan.paper.figures.study import make_figure_4, make_figure_5
from ckptplan.paper.setting import PaperSetting

FIGURES: Mapping[int, Callable[[PaperSetting], PaperFigure]] = {
    2: make_figure_2,
    3: make_figure_3,
    4: make_figure_4,
    5: make_figure_5,
}


def make_figures(setting: PaperSetting) -> tuple[PaperFigure, ...]:
    """Return all figures."""
    return tuple(make(setting) for make in FIGURES.values())


def make_figure(setting: PaperSetting, number: int) -> PaperFigure:
    """Return one figure. Raises InputError unless ``number`` is in ``FIGURES``."""
    if number not in FIGURES:
        raise InputError(
            f"the paper has no figure {number} with numbers",
            field="figure",
            value=number,
            accepted=", ".join(map(str, FIGURES)),
        )
    return FIGURES[number](setting)
