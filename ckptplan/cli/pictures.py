"""Options of results as pictures, and how these are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from ckptplan.cli.command import WrittenBeside
from ckptplan.cli.options import option
from ckptplan.cli.output import note

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ckptplan.report.style import Size


def picture_file(name: str) -> WrittenBeside:
    """Return the name of a picture that can be written. Raises InputError."""
    from ckptplan.report.style import picture_format

    picture = WrittenBeside(name)
    picture_format(name, option="")
    return picture


PictureSize = Annotated[
    Literal["column", "page", "slide"],
    option("NAME", "Size of the picture: column (3.4 inches wide), page (6.9) or slide."),
]


@dataclass(frozen=True, kw_only=True)
class PictureOptions:
    """The result as a picture."""

    plot: Annotated[
        str | None, option("FILE", "Draw the result, as .png, .svg or .pdf.", parser=picture_file)
    ] = None
    size: PictureSize = "page"

    def draw(self, make: Callable[[Size], Figure]) -> None:
        """Draw the picture if one is asked for. Raises InputError if it cannot be written."""
        if self.plot is not None:
            save_picture(self.plot, make, size=self.size, option="--plot")


def save_picture(path: str, make: Callable[[Size], Figure], *, size: str, option: str) -> None:
    """Draw a picture. Raises InputError if it cannot be written."""
    from ckptplan.report import style

    with style.styled(style.SIZES[size]):
        style.save_picture(make(style.SIZES[size]), path, option=option)
    note(f"picture written to {path}")
