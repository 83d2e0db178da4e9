"""A progress bar on standard error, for people who watch; off a terminal there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptplan.model.progress import Progress as Report


@contextmanager
def progress_bar(text: str, *, beside_output: bool = False) -> Iterator[Report | None]:
    """Show how far a long job is: yields what is told (done, total), None where nobody watches.

    ``beside_output`` says that the job prints to standard output, which the bar must not run into.
    """
    if not sys.stderr.isatty() or (beside_output and sys.stdout.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn(text), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    # By itself rich would draw into standard error what is printed to standard output meanwhile.
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
