"""Progress of a long job on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from ckptplan.cli.output import note

if TYPE_CHECKING:
    from ckptplan.model.progress import Progress as Report

#: Seconds between two lines, and before the first one: short jobs print nothing.
_INTERVAL_SECONDS = 10.0


class ShownProgress:
    """A callback that takes (done, total), and shows it unless it runs backwards."""

    def __init__(self, report: Report, *, say: Callable[[str], None]) -> None:
        self._report, self._say, self._share = report, say, -1.0

    def __call__(self, done: int, total: int) -> None:
        """Show progress; not a lower one than before, as when more work is found."""
        share = done / max(1, total)
        if share >= self._share:
            self._share = share
            self._report(done, total)

    def say(self, text: str) -> None:
        """Print a line on standard error, above a bar."""
        self._say(text)


@contextmanager
def progress_bar(text: str, *, beside_output: bool = False) -> Iterator[ShownProgress | None]:
    """Show the progress of a long job; yields a callback that takes (done, total).

    ``beside_output``: the job prints to standard output, and a bar on the same terminal would mix with it.
    Nothing is shown then, and None is yielded.
    """
    if not sys.stderr.isatty():
        yield ShownProgress(_ProgressLines(text).report, say=note)
        return
    if beside_output and sys.stdout.isatty():
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
        yield ShownProgress(
            lambda done, total: bar.update(task, completed=done, total=total),
            say=lambda line: console.print(line, soft_wrap=True, markup=False, highlight=False),
        )


class _ProgressLines:
    """Prints how much is done, and about how long the rest takes."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._began = self._printed = monotonic()

    def report(self, done: int, total: int) -> None:
        """Print a line if the last one was long ago, and the job is not over."""
        now = monotonic()
        if now - self._printed < _INTERVAL_SECONDS or done >= total:
            return
        self._printed = now
        share = done / total
        left = ""
        if share >= 0.01:
            from ckptplan.units import format_wait

            left = f", {format_wait((now - self._began) * (1 - share) / share)} left"
        note(f"{self._text}: {int(100 * share)} %{left}")
