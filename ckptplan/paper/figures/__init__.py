"""The content of the paper's Figures 2 to 5, computed by the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ckptplan.errors import InputError
from ckptplan.paper.figures.content import PaperFigure
from ckptplan.paper.figures.growth import figure_2, figure_3
from ckptplan.paper.figures.study import figure_4, figure_5
from ckptplan.paper.setting import Setting

FIGURES: Mapping[int, Callable[[Setting], PaperFigure]] = {
    2: figure_2,
    3: figure_3,
    4: figure_4,
    5: figure_5,
}


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
