"""Progress of a long job on standard error: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING

from ckptplan.cli.output import note

if TYPE_CHECKING:
    from rich.progress import Progress

#: Seconds between two lines, and before the first one: short jobs print nothing.
_INTERVAL_SECONDS = 10.0
#: Seconds between two checks whether a line is due.
_TICK_SECONDS = 0.5


class ShownProgress:
    """A callback that takes (done, total) and shows progress on a bar of rich, or as lines without a bar."""

    def __init__(self, text: str, bar: Progress | None = None) -> None:
        self._name = self._text = text
        self._done = self._total = 0
        self._bar, self._lock = bar, Lock()
        self._began = self._printed = monotonic()
        if bar is not None:
            self._task = bar.add_task(text, total=None)

    def __call__(self, done: int, total: int) -> None:
        """Show progress. A lower share than before is ignored: it comes from work that was added."""
        if not done:
            # Restart the clock: time before the work, such as imports, does not predict the time left.
            self._began = monotonic()
        if done / max(1, total) >= self._done / max(1, self._total):
            self._done, self._total = done, total
            self.show()

    def doing(self, stage: str) -> None:
        """Show the name of the current stage, such as the strategy that is solved."""
        self._text = f"{self._name} ({stage})" if stage else self._name
        if self._bar is not None:
            self._bar.update(self._task, description=self._text)

    def say(self, line: str) -> None:
        """Print a line on standard error, above a bar."""
        if self._bar is None:
            note(line)
        else:
            self._bar.console.print(line, soft_wrap=True, markup=False, highlight=False)

    def show(self) -> None:
        """Move the bar, or print a line if the last line is 10 s old and the job is not over."""
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, total=self._total)
            return
        with self._lock:
            now = monotonic()
            if now - self._printed >= _INTERVAL_SECONDS and not self._done >= self._total > 0:
                self._printed = now
                note(f"{self._text}: {self._describe(now)}")

    def _describe(self, now: float) -> str:
        """Return '40 %, about 20 s left', or how long the job has taken if it has reported nothing."""
        if not self._total:
            return f"{now - self._began:.0f} s so far"
        share = self._done / self._total
        if share < 0.01:
            return f"{int(100 * share)} %"
        from ckptplan.units import format_wait

        return f"{int(100 * share)} %, {format_wait((now - self._began) * (1 - share) / share)} left"


@contextmanager
def progress_bar(text: str, *, beside_output: bool = False) -> Iterator[ShownProgress]:
    """Show the progress of a long job, and yield a callback that takes (done, total).

    ``beside_output`` says that the job prints to standard output. The bar is hidden if that is a terminal.
    """
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        with Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            # By default rich redirects standard output to standard error while a bar is shown.
            redirect_stdout=False,
            redirect_stderr=False,
            disable=beside_output and sys.stdout.isatty(),
        ) as bar:
            yield ShownProgress(text, bar)
        return
    progress, is_over = ShownProgress(text), Event()

    def watch() -> None:
        # Print lines even while a long part of the job reports nothing.
        while not is_over.wait(_TICK_SECONDS):
            progress.show()

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        is_over.set()
        thread.join()
