"""``ckptplan paper``: the paper's claims and figures, computed by the model."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from ckptplan.cli.command import Written
from ckptplan.cli.options import count, option
from ckptplan.cli.output import OutputOptions, PictureSize, note, publish, save_picture
from ckptplan.errors import InputError, refuse
from ckptplan.storage.files import write_text


def _make_folder(name: str) -> str:
    """Make a folder for pictures if it does not exist, and return its name. Raises InputError."""
    try:
        if not name:
            raise InputError("an empty name is no folder", value=name)
        Path(name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fault = f"cannot be a folder for pictures: {error.strerror}"
        raise refuse(name, fault, accepted="a folder, which need not exist") from None
    return name


def paper(
    *,
    figure: Annotated[int | None, count("Show the numbers behind this figure.", least=2, most=5)] = None,
    pictures: Annotated[str | None, option("FOLDER", "Draw figures into it.", parser=_make_folder)] = None,
    picture_format: Annotated[Literal["png", "svg", "pdf"], typer.Option(help="Of pictures.")] = "png",
    size: PictureSize = "page",
    markdown: Annotated[
        str | None, option("FILE", "Write claims and figures as a page.", parser=Written)
    ] = None,
    output: OutputOptions,
) -> None:
    """Compare the claims of arXiv 2412.11810 with the model's numbers, and draw the content of its figures.

    With --pictures or --markdown only these files are written, unless -o or --format asks for the table too.
    """
    if figure is not None and markdown is not None:
        raise InputError("the page has all figures; leave out --figure", field="--markdown", value=markdown)
    from ckptplan.paper import table
    from ckptplan.paper.claims import make_claims
    from ckptplan.paper.figures import FIGURES
    from ckptplan.paper.setting import load_paper_setting

    setting = load_paper_setting()
    draws = pictures is not None or markdown is not None
    numbers = [figure] if figure is not None else [*FIGURES] if draws else []
    contents = [FIGURES[number](setting) for number in numbers]
    files = [f"paper-figure-{content.number}.{picture_format}" for content in contents]
    if pictures is not None:
        from ckptplan.paper.pictures import draw_figure

        for content, file in zip(contents, files, strict=True):
            save_picture(str(Path(pictures) / file), partial(draw_figure, content), size=size)
    if markdown is not None:
        # The page links to the folder of pictures relative to itself.
        base = "." if markdown == "-" else os.path.dirname(markdown) or "."  # noqa: PTH120 - text, as relpath
        folder = "pictures" if pictures is None else Path(os.path.relpath(pictures, base)).as_posix()
        links = [f"{folder}/{file}" for file in files]
        write_text(markdown, table.render_page(make_claims(setting), contents, setting, pictures=links))
        if markdown != "-":
            note(f"page written to {markdown}")
    if not draws or output.file is not None or output.format != "table":
        if figure is None:
            publish(table.view_claims(make_claims(setting), setting), output)
        else:
            publish(table.view_figure(contents[0], setting), output)
