"""``ckptplan paper``: the paper's claims and figures, computed by the model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from ckptplan.cli.command import Written
from ckptplan.cli.options import count, option
from ckptplan.cli.output import OutputOptions, PictureSize, note, save_picture, write_view
from ckptplan.errors import InputError, refuse
from ckptplan.storage.files import write_text

if TYPE_CHECKING:
    from ckptplan.paper.figures import PaperFigure
    from ckptplan.paper.setting import PaperSetting

PictureFormat: TypeAlias = Literal["png", "svg", "pdf"]


def _folder(name: str) -> str:
    """Return a folder for pictures, made if it does not exist. Raises InputError."""
    if not name:
        raise InputError("an empty name is no folder", value=name)
    try:
        Path(name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fault = f"cannot be a folder for pictures: {error.strerror}"
        raise refuse(name, fault, accepted="a folder, which need not exist") from None
    return name


def paper(
    *,
    figure: Annotated[
        int | None, count("Show the numbers behind this figure instead of the claims.", least=2, most=5)
    ] = None,
    pictures: Annotated[
        str | None,
        option("FOLDER", "Draw all figures, or only that of --figure, into this folder.", parser=_folder),
    ] = None,
    picture_format: Annotated[PictureFormat, typer.Option(help="File format of pictures.")] = "png",
    size: PictureSize = "page",
    markdown: Annotated[
        str | None,
        option("FILE", "Write claims and figures as a page that links to the pictures.", parser=Written),
    ] = None,
    output: OutputOptions,
) -> None:
    """Compare the claims of arXiv 2412.11810 with the model's numbers, and draw the content of its figures.

    With --pictures or --markdown only these files are written, unless -o or --format asks for the table too.
    """
    from ckptplan.paper.setting import load_paper_setting

    if figure is not None and markdown is not None:
        raise InputError("the page has all figures; leave out --figure", field="--markdown", value=markdown)
    setting = load_paper_setting()
    if pictures is not None:
        from ckptplan.paper.pictures import draw_figure

        for content in _contents(setting, figure):
            path = str(Path(pictures) / _file(content.number, picture_format))
            save_picture(path, partial(draw_figure, content), size=size)
    if markdown is not None:
        _write_page(setting, markdown, pictures, picture_format)
    if (pictures is None and markdown is None) or output.file is not None or output.format != "table":
        from ckptplan.paper import table
        from ckptplan.paper.claims import make_claims
        from ckptplan.paper.figures import FIGURES

        if figure is None:
            write_view(table.view_claims(make_claims(setting), setting), output)
        else:
            write_view(table.view_figure(FIGURES[figure](setting), setting), output)


def _contents(setting: PaperSetting, number: int | None) -> Sequence[PaperFigure]:
    from ckptplan.paper.figures import FIGURES

    return [make(setting) for key, make in FIGURES.items() if number in (None, key)]


def _file(number: int, format_: PictureFormat) -> str:
    return f"paper-figure-{number}.{format_}"


def _write_page(setting: PaperSetting, path: str, folder: str | None, format_: PictureFormat) -> None:
    from ckptplan.paper.claims import make_claims
    from ckptplan.paper.table import render_page

    contents = _contents(setting, None)
    # The folder of pictures relative to the page.
    here = "." if path == "-" else os.path.dirname(path) or "."  # noqa: PTH120 - text, as relpath
    link = "pictures" if folder is None else Path(os.path.relpath(folder, here)).as_posix()
    files = [f"{link}/{_file(content.number, format_)}" for content in contents]
    write_text(path, render_page(make_claims(setting), contents, setting, pictures=files))
    if path != "-":
        note(f"page written to {path}")
