"""A sweep as a picture: lines over one axis, a heat map over two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptplan.report import sweep_lines, sweep_map
from ckptplan.report.sizes import PAGE, Size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ckptplan.report.sweep_plot import SweepPicture


def draw_sweep(picture: SweepPicture, size: Size = PAGE) -> Figure:
    """Return the picture. Call it, and save the picture, within ``style.styled(size)``."""
    draw = sweep_lines.draw if len(picture.varied) == 1 else sweep_map.draw
    return draw(picture, size)
