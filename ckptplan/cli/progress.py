"""A progress bar on standard error, only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptplan.model.progress import Progress as Report


@contextmanager
def progress_bar(text: str, *, beside_output: bool = False) -> Iterator[Report | None]:
    """Show the progress of a long job; yields a callback that takes (done, total), None off a terminal.

    ``beside_output``: the job prints to standard output, and a bar on the same terminal would mix with it.
    """
    if not sys.stderr.isatty() or (beside_output and sys.stdout.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn(text), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    # By default rich would redirect standard output to standard error meanwhile.
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
