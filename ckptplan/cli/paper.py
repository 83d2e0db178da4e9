"""``ckptplan paper``: the paper's claims and figures, from the model."""

import enum
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.options import Format
from ckptplan.cli.output import emit, enveloped, note
from ckptplan.cli.wording import as_option
from ckptplan.errors import InputError, shown

if TYPE_CHECKING:
    from ckptplan.replication.figures import PaperFigure
    from ckptplan.replication.setting import Setting


class PictureFormat(enum.StrEnum):
    """What pictures are saved as."""

    png = "png"
    svg = "svg"
    pdf = "pdf"


def command(
    figure: Annotated[
        str | None,
        typer.Option(
            "--figure", metavar="2|3|4|5", help="The numbers behind this figure, instead of the claims."
        ),
    ] = None,
    pictures: Annotated[
        str | None,
        typer.Option(
            "--pictures",
            metavar="FOLDER",
            help="Draw the figures there, or the one of --figure.",
            callback=options.named_file,
        ),
    ] = None,
    picture_format: Annotated[
        PictureFormat, typer.Option("--picture-format", help="What pictures are saved as.")
    ] = PictureFormat.png,
    markdown: Annotated[
        str | None,
        typer.Option(
            "--markdown",
            metavar="FILE",
            help="Write claims and figures as a page, which refers to the pictures.",
            callback=options.named_file,
        ),
    ] = None,
    format_: options.FormatOption = Format.table,
    output: options.Output = None,
) -> None:
    """Set the claims of arXiv 2412.11810 beside the model's numbers, and draw the content of its figures.

    With --pictures or --markdown the files are written, and the table only if -o or --format asks for it.
    """
    from ckptplan.replication.setting import paper_setting

    number = _number(figure, markdown)
    options.keep_inputs({"--output": output, "--markdown": markdown})
    setting = paper_setting()
    if pictures is not None:
        _draw(setting, number, pictures, picture_format)
    if markdown is not None:
        _write_page(setting, markdown, pictures, picture_format)
    if (pictures is None and markdown is None) or output is not None or format_ is not Format.table:
        _emit(setting, number, format_=format_, output=output)


def _number(figure: str | None, markdown: str | None) -> int | None:
    """Return the figure that is asked for. Raises InputError for none of the paper's with numbers."""
    from ckptplan.replication.figures import FIGURES

    if figure is None:
        return None
    if not (figure.isascii() and figure.isdecimal() and int(figure[:4]) in FIGURES):
        raise InputError(
            f"{shown(figure)} is no figure with numbers",
            field="--figure",
            value=figure,
            accepted=", ".join(map(str, FIGURES)),
        )
    if markdown is not None:
        raise InputError("the page holds all figures; leave out --figure", field="--markdown", value=markdown)
    return int(figure)


def _emit(setting: "Setting", number: int | None, *, format_: Format, output: str | None) -> None:
    from ckptplan.report import paper_table

    if number is None:
        from ckptplan.replication.claims import claims

        found = claims(setting)
        emit(
            format_=format_,
            output=output,
            table=lambda console: paper_table.claims_table(console, found, setting, wording=as_option),
            document=lambda: enveloped("paper_claims", paper_table.claims_document(found, setting)),
            rows=lambda: [paper_table.claim_row(claim) for claim in found],
        )
        return
    from ckptplan.replication.figures import figure

    drawn = figure(setting, number)
    emit(
        format_=format_,
        output=output,
        table=lambda console: paper_table.figure_table(console, drawn, wording=as_option),
        document=lambda: enveloped("paper_figure", paper_table.figure_document(drawn, setting)),
        rows=lambda: paper_table.figure_rows(drawn),
    )


def _contents(setting: "Setting", number: int | None) -> "Sequence[PaperFigure]":
    from ckptplan.replication.figures import figure, figures

    return figures(setting) if number is None else (figure(setting, number),)


def _draw(setting: "Setting", number: int | None, folder: str, format_: PictureFormat) -> None:
    from ckptplan.report.paper_figures import paper_figure
    from ckptplan.report.style import save_picture, styled

    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{shown(folder)} cannot be a folder for pictures: {error.strerror}",
            field="--pictures",
            value=folder,
            accepted="a folder, which need not exist",
        ) from None
    with styled():
        for content in _contents(setting, number):
            path = str(Path(folder) / _file(content.number, format_))
            save_picture(paper_figure(content), path, option="--pictures")
            note(f"picture written to {path}")


def _file(number: int, format_: PictureFormat) -> str:
    return f"paper-figure-{number}.{format_.value}"


def _write_page(setting: "Setting", path: str, folder: str | None, format_: PictureFormat) -> None:
    from ckptplan.replication.claims import claims
    from ckptplan.report.paper_page import paper_page
    from ckptplan.storage.files import write_text

    contents = _contents(setting, None)
    beside = "pictures" if folder is None else _relative(folder, path)
    files = [f"{beside}/{_file(content.number, format_)}" for content in contents]
    write_text(path, paper_page(claims(setting), contents, setting, pictures=files, wording=as_option))
    if path != "-":
        note(f"page written to {path}")


def _relative(folder: str, page: str) -> str:
    """Return the folder of pictures as the page refers to it."""
    here = "." if page == "-" else os.path.dirname(page) or "."  # noqa: PTH120 - beside relpath, on text
    return Path(os.path.relpath(folder, here)).as_posix()
