"""The option ``--html``: a result as a page, in one file that works offline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from ckptplan.cli.command import WrittenBeside
from ckptplan.cli.options import command_line, option
from ckptplan.cli.output import note
from ckptplan.errors import Infeasible

if TYPE_CHECKING:
    from ckptplan.cost.case import Case
    from ckptplan.report.html.page import Page


def page_file(name: str) -> WrittenBeside:
    """Return the name of a page that can be written. Raises InputError or MissingExtra if none can be."""
    from ckptplan.report.html.page import need_html

    need_html()
    return WrittenBeside(name)


Html = Annotated[
    str | None,
    option("FILE", "Write a page to zoom, click and print, in one file that works offline.", parser=page_file),
]


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
