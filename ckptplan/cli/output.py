"""Results to standard output or a file, in any format, as pages and as pictures; notes to standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ckptplan.cli.command import Written, parse_side_file
from ckptplan.cli.environment import write_error
from ckptplan.cli.options import command_line, option
from ckptplan.errors import Infeasible, InputError
from ckptplan.report.blocks import Block, Paragraph
from ckptplan.report.formats import FORMATS, View, format_of_file
from ckptplan.report.infeasible import format_infeasible
from ckptplan.report.picture import SIZES, Size, picture_format
from ckptplan.storage.files import write_text
from ckptplan.storage.versions import WRITTEN
from ckptplan.version import __version__
from ckptplan.wording import put_on_one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    FormatName = str
else:
    # Every registered format; typer reads the choices from the type.
    FormatName = Literal[tuple(FORMATS)]


def _picture_file(name: str) -> Written:
    """Return the name of a picture that can be written. Raises InputError."""
    picture = parse_side_file(name)
    picture_format(name)
    return picture


def _text_file(name: str) -> Written:
    """Return the name of a text file. Raises InputError if its suffix is that of a picture or a page."""
    file = Written(name)
    if Path(name).suffix.lower() in (".png", ".svg", ".pdf", ".html"):
        accepted = (
            "another name here; pictures and pages are written by --plot and --html, where a command has them"
        )
        raise InputError(f"{name!r} would hold text", value=name, accepted=accepted)
    return file


def picture_option(about: str) -> Any:
    """Return an option that takes the file of a picture."""
    return option("FILE", f"{about}, as .png, .svg or .pdf.", parser=_picture_file)


FormatOption = Annotated[FormatName, option("NAME", f"How the result is written; one of {', '.join(FORMATS)}.")]
Basis = Annotated[bool, typer.Option(help="List every input of the estimate with its origin, below the table.")]
OutputFile = Annotated[
    str | None, option("FILE", "Write to a file, '-' for standard output.", parser=_text_file)
]
PictureSize = Annotated[
    Literal["column", "page", "slide"],
    option("NAME", "Size of the picture: column (3.4 inches), page or slide."),
]


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """The result as a page."""

    html: Annotated[str | None, option("FILE", "Write a page that works offline.", parser=parse_side_file)] = (
        None
    )

    def draw(self, view: View) -> None:
        """Write the requested page of a result. Raises InputError if it cannot be written."""
        if self.html is not None:
            write_page(self.html, view)


@dataclass(frozen=True, kw_only=True)
class PictureOptions(PageOptions):
    """The result as a picture and as a page."""

    plot: Annotated[str | None, picture_option("Draw the result")] = None
    size: PictureSize = "page"

    def draw(self, view: View) -> None:
        """Write the requested picture and page of a result. Raises InputError if a file cannot be written."""
        if self.plot is not None and (chart := view.chart()) is not None:
            save_picture(self.plot, chart.draw, size=self.size)
        super().draw(view)


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How and where a result is written."""

    format: FormatOption = "table"
    file: OutputFile = None
    basis: Basis = False


def publish(
    view: View,
    output: OutputOptions,
    page: PageOptions | None = None,
    *,
    interrupted: str | None = None,
) -> None:
    """Write a result in the chosen format, with its page and picture if the options ask for them.

    For a plan in the format table, print the table and write the plan as JSON to the file. Raises InputError if
    a file cannot be written, and typer.Exit with the status of Infeasible if nothing fits. With a note
    ``interrupted``, print the note and raise KeyboardInterrupt.
    """
    path = output.file or "-"
    # A document without a kind is a plan.
    if view.kind is None and output.format == "table" and output.file is not None:
        FORMATS["json"].write(view, path)
        if path != "-":
            note(f"plan written to {path}")
            _write(view, replace(output, file=None))
    else:
        _write(view, output)
        if path != "-":
            result = f"ckptplan: {view.unmet}; the reasons are in" if view.unmet else "result written to"
            note(f"{result} {path}")
    if page is not None:
        page.draw(view)
    if view.unmet:
        raise typer.Exit(Infeasible.exit_code)
    if interrupted is not None:
        note(interrupted)
        raise KeyboardInterrupt


def _write(view: View, output: OutputOptions) -> None:
    """Write a result in the chosen format, by default the format that the name of the file implies."""
    kind, chosen = view.kind, FORMATS[output.format]
    if output.file and output.format == "table":
        chosen = format_of_file(output.file) or chosen

    def list_blocks() -> Iterator[Block]:
        from ckptplan.report.fields import count_basis, explain_basis

        yield from view.blocks()
        yield from (explain_basis if output.basis else count_basis)(view.basis())

    document = view.document if kind is None else lambda: add_envelope(kind, view.document())
    chosen.write(replace(view, blocks=list_blocks, document=document), output.file or "-")


def add_envelope(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with its kind, and the version and command that made it, before its content."""
    return {
        "kind": f"ckptplan.{kind}",
        "schema_version": WRITTEN["result"],
        "version": __version__,
        "command": command_line(),
        **content,
    }


def note(text: str) -> None:
    """Print a line on standard error. Line breaks in it, as in names of files, are escaped."""
    write_error(put_on_one_line(text))


def write_page(path: str, *views: View) -> None:
    """Write a page of results. Raises InputError if the file cannot be written."""
    from ckptplan.report.html.page import render_page

    write_text(path, render_page(*views, command=command_line()))
    if path != "-":
        note(f"page written to {path}")


def write_reason(path: str, error: Infeasible) -> None:
    """Write a page that says why nothing fits."""
    reason = Paragraph(format_infeasible(error), style="warning")
    write_page(path, View(kind="reasons", heading="Nothing fits", title=error.subject, blocks=lambda: [reason]))


def save_picture(path: str, draw: Callable[[Size], Figure], size: str) -> None:
    """Draw a picture in a size of ``SIZES`` and write it. Raises InputError if it cannot be written."""
    from ckptplan.report.plots.figures import save_figure

    save_figure(draw(SIZES[size]), path)
    note(f"picture written to {path}")
