"""The option ``--html``: a result as a page, in one file that works offline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.options import command_line
from ckptplan.cli.output import note
from ckptplan.errors import Infeasible, InputError

if TYPE_CHECKING:
    from ckptplan.cost.case import Case
    from ckptplan.report.html.page import Page

Html = Annotated[
    str | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Write a page to zoom, click and print, in one file that works offline.",
        callback=options.named_file,
    ),
]


def check_html(path: str | None, *, option: str = "--html") -> None:
    """Raise InputError or MissingExtra, before anything is computed, if no page can be written."""
    if path is None:
        return
    if path == "-":
        raise InputError(
            "standard output carries the result", field=option, value="-", accepted="a file, as page.html"
        )
    options.check_folders({option: path})
    from ckptplan.report.html.page import need_html

    need_html()


def write_page(path: str | None, make: Callable[[], Page]) -> None:
    """Write a page if one is asked for. Raises InputError if the file cannot be written."""
    if path is None:
        return
    from ckptplan.storage.files import write_text

    write_text(path, make().render(command=command_line()))
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
            from ckptplan.report.html.pages import make_infeasible_page, name_job

            case = load()
            title = name_job(case.workload, case.profile)
            write_page(path, lambda: make_infeasible_page(reason, title=title))
        raise
