"""Results to standard output or a file, in any format, as pages and as pictures; notes to standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ckptplan.cli.command import Written, WrittenBeside
from ckptplan.cli.environment import write_error
from ckptplan.cli.options import DEFAULT_WORKLOAD, command_line, option
from ckptplan.errors import Infeasible, InputError
from ckptplan.report.formats import FORMATS, View, format_of_file
from ckptplan.storage.files import write_text
from ckptplan.version import __version__
from ckptplan.wording import put_on_one_line

if TYPE_CHECKING:
    from ckptplan.cost.case import Case
    from ckptplan.model.plan import Plan
    from ckptplan.report.blocks import Block
    from ckptplan.report.picture import Picture
    from ckptplan.report.style import Size

    FormatName = str
else:
    # Any that is registered; typer reads the choices off the type.
    FormatName = Literal[tuple(FORMATS)]


def _picture_file(name: str) -> WrittenBeside:
    """Return the name of a picture that can be written. Raises InputError."""
    from ckptplan.report.picture import picture_format

    picture = WrittenBeside(name)
    picture_format(name)
    return picture


def _text_file(name: str) -> Written:
    """Return the name of a file that holds text. Raises InputError if it promises a picture or a page."""
    file = Written(name)
    if Path(name).suffix.lower() in (".png", ".svg", ".pdf", ".html"):
        raise InputError(
            f"{name!r} would hold text",
            value=name,
            accepted="another name here; pictures and pages are written by --plot and --html, where a command "
            "has them",
        )
    return file


def picture_option(what: str) -> Any:
    """Return an option that draws something into a file."""
    return option("FILE", f"{what}, as .png, .svg or .pdf.", parser=_picture_file)


FormatOption = Annotated[FormatName, option("NAME", f"How the result is written; one of {', '.join(FORMATS)}.")]
Basis = Annotated[bool, typer.Option(help="List every input of the estimate with its origin, below the table.")]
OutputFile = Annotated[
    str | None, option("FILE", "Write to a file, '-' for standard output.", parser=_text_file)
]
PictureSize = Annotated[
    Literal["column", "page", "slide"],
    option("NAME", "Size of the picture: column (3.4 inches wide), page (6.9) or slide."),
]


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """The result as a page."""

    html: Annotated[
        str | None,
        option(
            "FILE",
            "Write a page to zoom, click and print, in one file that works offline.",
            parser=WrittenBeside,
        ),
    ] = None

    def draw(self, view: View) -> None:
        """Write what is asked for of a result. Raises InputError if a file cannot be written."""
        if self.html is not None:
            write_page(self.html, view)


@dataclass(frozen=True, kw_only=True)
class PictureOptions(PageOptions):
    """The result as a picture and as a page."""

    plot: Annotated[str | None, picture_option("Draw the result")] = None
    size: PictureSize = "page"

    def draw(self, view: View) -> None:
        """Write what is asked for of a result. Raises InputError if a file cannot be written."""
        if self.plot is not None and view.draw is not None:
            save_picture(self.plot, view.draw, size=self.size)
        super().draw(view)


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How and where a result is written."""

    format: FormatOption = "table"
    file: OutputFile = None
    basis: Basis = False


def write_plan(plan: Plan, view: View, output: OutputOptions, *, unnamed: bool = False) -> None:
    """Write a plan in the chosen format. If that is a table, it is printed, and the file is the plan as JSON.

    ``unnamed`` is as in ``write_view``. Raises InputError if the file cannot be written.
    """
    from ckptplan.storage.plans import save_plan

    if output.format == "table" and output.file is not None:
        save_plan(plan, output.file)
        if output.file == "-":
            return
        note(f"plan written to {output.file}")
        output = replace(output, file=None)
    write_view(view, output, unnamed=unnamed)


def publish(
    view: View, output: OutputOptions, page: PageOptions | None = None, *, unnamed: bool = False
) -> None:
    """Write a result in the chosen format, and its page and picture if they are asked for.

    ``unnamed`` is as in ``write_view``. Raises InputError if a file cannot be written, and ends the command
    with the exit code of Infeasible if nothing fits.
    """
    write_view(view, output, unnamed=unnamed)
    if output.file not in (None, "-"):
        told = f"ckptplan: {view.unmet}; the reasons are in" if view.unmet else "result written to"
        note(f"{told} {output.file}")
    if page is not None:
        page.draw(view)
    if view.unmet:
        raise typer.Exit(Infeasible.exit_code)


def write_view(view: View, output: OutputOptions, *, unnamed: bool = False) -> None:
    """Write a result in the chosen format; where none is chosen, in that which the file's name implies.

    ``unnamed`` says that no workload was named, so that the table tells which one was planned. Raises
    InputError if the file cannot be written.
    """
    kind, chosen = view.kind, FORMATS[output.format]
    if output.file and output.format == "table":
        chosen = format_of_file(output.file) or chosen

    def tell() -> Iterator[Block]:
        """Yield what people read, which ends in the basis."""
        from ckptplan.report.basis import count_basis, explain_basis
        from ckptplan.report.blocks import Paragraph

        yield from view.blocks()
        yield from (explain_basis if output.basis else count_basis)(view.basis())
        if unnamed:
            yield Paragraph(
                f"Workload: {DEFAULT_WORKLOAD}, as none was named; --workload NAME plans another, and "
                "ckptplan workloads list shows them."
            )

    document = view.document if kind is None else lambda: enveloped(kind, view.document())
    chosen.write(replace(view, blocks=tell, document=document), output.file or "-")


def enveloped(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with a head: its kind, and the version and command that made it."""
    from ckptplan.storage.versions import WRITTEN  # loads the models, which --help does without

    return {
        "kind": f"ckptplan.{kind}",
        "schema_version": WRITTEN["result"],
        "version": __version__,
        "command": command_line(),
        **content,
    }


def note(text: str) -> None:
    """Print a line on standard error; ends of lines in names of files are escaped."""
    write_error(put_on_one_line(text))


def write_page(path: str, view: View) -> None:
    """Write the page of a result. Raises InputError if the file cannot be written."""
    from ckptplan.report.html.page import render_page

    write_text(path, render_page(view, command=command_line()))
    if path != "-":
        note(f"page written to {path}")


@contextmanager
def explained(path: str | None, load: Callable[[], Case]) -> Iterator[None]:
    """Write a page that says why nothing fits, if nothing does."""
    try:
        yield
    except Infeasible as error:
        reason = error  # what `except` names is gone when the block ends
        if path is not None:
            from ckptplan.report.fields import name_job
            from ckptplan.report.infeasible import list_reasons

            case = load()
            title = f"Nothing fits: {name_job(case.workload, case.profile)}"
            sections = [list_reasons([reason])]
            write_page(path, View(kind=None, title=title, lede=reason.subject, sections=lambda: sections))
        raise


def save_picture(path: str, make: Callable[[Size], Picture], size: str) -> None:
    """Draw a picture. Raises InputError if it cannot be written."""
    from ckptplan.report.style import SIZES

    make(SIZES[size]).save(path)
    note(f"picture written to {path}")
