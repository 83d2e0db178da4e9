"""Progress of a long job on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING

from ckptplan.cli.output import note

if TYPE_CHECKING:
    from ckptplan.model.progress import Progress as Report

#: Seconds between two lines, and before the first one: short jobs print nothing.
_INTERVAL_SECONDS = 10.0
#: Seconds between two looks whether a line is due.
_TICK_SECONDS = 0.5


class ShownProgress:
    """A callback that takes (done, total), and shows it unless it runs backwards."""

    def __init__(self, report: Report, *, say: Callable[[str], None], doing: Callable[[str], None]) -> None:
        self._report, self._say, self._doing, self._share = report, say, doing, -1.0

    def __call__(self, done: int, total: int) -> None:
        """Show progress; not a lower one than before, as when more work is found."""
        share = done / max(1, total)
        if share >= self._share:
            self._share = share
            self._report(done, total)

    def doing(self, what: str) -> None:
        """Show what is being done, as the strategy that is solved."""
        self._doing(what)

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
        with _ProgressLines(text).kept_up() as lines:
            yield ShownProgress(lines.report, say=note, doing=lines.name)
        return
    if beside_output and sys.stdout.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    # By default rich would redirect standard output to standard error meanwhile.
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as bar:
        task = bar.add_task(text, total=None)
        yield ShownProgress(
            lambda done, total: bar.update(task, completed=done, total=total),
            say=lambda line: console.print(line, soft_wrap=True, markup=False, highlight=False),
            doing=lambda what: bar.update(task, description=_describe(text, what)),
        )


def _describe(text: str, what: str) -> str:
    return f"{text} ({what})" if what else text


class _ProgressLines:
    """Prints how much is done, and about how long the rest takes; also while nothing is reported."""

    def __init__(self, text: str) -> None:
        self._text, self._what = text, ""
        self._began = self._printed = monotonic()
        self._done, self._total = 0, 0
        self._lock, self._over = Lock(), Event()

    def name(self, what: str) -> None:
        """Take note of what is being done."""
        self._what = what

    def report(self, done: int, total: int) -> None:
        """Print a line if the last one was long ago, and the job is not over."""
        self._done, self._total = done, total
        self._print_if_due()

    @contextmanager
    def kept_up(self) -> Iterator[_ProgressLines]:
        """Print lines also where one part of the job takes long."""
        thread = Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_TICK_SECONDS):
            self._print_if_due()

    def _print_if_due(self) -> None:
        with self._lock:
            now = monotonic()
            done, total = self._done, self._total
            if now - self._printed < _INTERVAL_SECONDS or done >= total > 0:
                return
            self._printed = now
            note(f"{_describe(self._text, self._what)}: {self._say_share(now, done, total)}")

    def _say_share(self, now: float, done: int, total: int) -> str:
        """Return '40 %, about 20 s left', or how long it has taken if nothing was reported."""
        if not total:
            return f"{now - self._began:.0f} s so far"
        share = done / total
        if share < 0.01:
            return f"{int(100 * share)} %"
        from ckptplan.units import format_wait

        return f"{int(100 * share)} %, {format_wait((now - self._began) * (1 - share) / share)} left"
