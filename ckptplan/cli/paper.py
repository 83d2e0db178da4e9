"""``ckptplan paper``: the paper's claims and figures, computed by the model."""

import enum
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.groups import takes_groups
from ckptplan.cli.options import OutputOptions
from ckptplan.cli.output import note, write_view
from ckptplan.errors import InputError, quote_value

if TYPE_CHECKING:
    from ckptplan.paper.figures import PaperFigure
    from ckptplan.paper.setting import PaperSetting
    from ckptplan.report.formats import View


class PictureFormat(enum.StrEnum):
    """File format of pictures."""

    png = "png"
    svg = "svg"
    pdf = "pdf"


@takes_groups
def command(
    *,
    figure: Annotated[
        str | None,
        typer.Option(
            "--figure", metavar="2|3|4|5", help="Show the numbers behind this figure instead of the claims."
        ),
    ] = None,
    pictures: Annotated[
        str | None,
        typer.Option(
            "--pictures",
            metavar="FOLDER",
            help="Draw all figures, or only that of --figure, into this folder.",
            callback=options.named_file,
        ),
    ] = None,
    picture_format: Annotated[
        PictureFormat, typer.Option("--picture-format", help="File format of pictures.")
    ] = PictureFormat.png,
    size: options.PictureSize = "page",
    markdown: Annotated[
        str | None,
        typer.Option(
            "--markdown",
            metavar="FILE",
            help="Write claims and figures as a page that links to the pictures.",
            callback=options.named_file,
        ),
    ] = None,
    output: OutputOptions,
) -> None:
    """Compare the claims of arXiv 2412.11810 with the model's numbers, and draw the content of its figures.

    With --pictures or --markdown only these files are written, unless -o or --format asks for the table too.
    """
    from ckptplan.paper.setting import load_paper_setting

    number = _number(figure, markdown)
    options.keep_inputs({"--output": output.file, "--markdown": markdown})
    setting = load_paper_setting()
    if pictures is not None:
        _draw(setting, number, pictures, picture_format, size)
    if markdown is not None:
        _write_page(setting, markdown, pictures, picture_format)
    if (pictures is None and markdown is None) or output.file is not None or output.format != "table":
        write_view(_view(setting, number), output)


def _number(figure: str | None, markdown: str | None) -> int | None:
    """Return the number of --figure. Raises InputError for a figure that has no numbers."""
    from ckptplan.paper.figures import FIGURES

    if figure is None:
        return None
    if not (figure.isascii() and figure.isdecimal() and int(figure[:4]) in FIGURES):
        raise InputError(
            f"the paper has no figure {quote_value(figure)} with numbers",
            field="--figure",
            value=figure,
            accepted=", ".join(map(str, FIGURES)),
        )
    if markdown is not None:
        raise InputError("the page has all figures; leave out --figure", field="--markdown", value=markdown)
    return int(figure)


def _view(setting: "PaperSetting", number: int | None) -> "View":
    """Return the claims, or the numbers of a figure."""
    from ckptplan.paper import table

    if number is None:
        from ckptplan.paper.claims import make_claims

        return table.view_claims(make_claims(setting), setting)
    from ckptplan.paper.figures import FIGURES

    return table.view_figure(FIGURES[number](setting), setting)


def _contents(setting: "PaperSetting", number: int | None) -> "Sequence[PaperFigure]":
    from ckptplan.paper.figures import FIGURES

    return [make(setting) for key, make in FIGURES.items() if number in (None, key)]


def _draw(setting: "PaperSetting", number: int | None, folder: str, format_: PictureFormat, size: str) -> None:
    from ckptplan.paper.pictures import draw_figure
    from ckptplan.report.style import SIZES, save_picture, styled

    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{quote_value(folder)} cannot be a folder for pictures: {error.strerror}",
            field="--pictures",
            value=folder,
            accepted="a folder, which need not exist",
        ) from None
    with styled(SIZES[size]):
        for content in _contents(setting, number):
            path = str(Path(folder) / _file(content.number, format_))
            save_picture(draw_figure(content, SIZES[size]), path, option="--pictures")
            note(f"picture written to {path}")


def _file(number: int, format_: PictureFormat) -> str:
    return f"paper-figure-{number}.{format_.value}"


def _write_page(setting: "PaperSetting", path: str, folder: str | None, format_: PictureFormat) -> None:
    from ckptplan.paper.claims import make_claims
    from ckptplan.paper.page import render_page
    from ckptplan.storage.files import write_text

    contents = _contents(setting, None)
    link = "pictures" if folder is None else _relative(folder, path)
    files = [f"{link}/{_file(content.number, format_)}" for content in contents]
    page = render_page(make_claims(setting), contents, setting, pictures=files)
    write_text(path, page)
    if path != "-":
        note(f"page written to {path}")


def _relative(folder: str, page: str) -> str:
    """Return the folder of pictures relative to the page."""
    here = "." if page == "-" else os.path.dirname(page) or "."  # noqa: PTH120 - text, as relpath
    return Path(os.path.relpath(folder, here)).as_posix()
