"""Progress of a long job on standard error: a bar on a terminal, a line now and then elsewhere."""

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
#: Seconds between two looks whether a line is due.
_TICK_SECONDS = 0.5


class ShownProgress:
    """A callback that takes (done, total), and does not run backwards; this one shows nothing."""

    def __init__(self, text: str) -> None:
        self._name = self.text = text
        self.done = self.total = 0

    @property
    def share(self) -> float:
        """The part of the job that is done."""
        return self.done / max(1, self.total)

    def __call__(self, done: int, total: int) -> None:
        """Show progress; not a lower one than before, as when more work is found."""
        if done / max(1, total) >= self.share:
            self.done, self.total = done, total
            self.show()

    def doing(self, what: str) -> None:
        """Take note of what is being done, as the strategy that is solved."""
        self.text = f"{self._name} ({what})" if what else self._name

    def say(self, line: str) -> None:
        """Print a line on standard error, above a bar."""
        note(line)

    def show(self) -> None:
        """Show how much is done."""


@contextmanager
def progress_bar(text: str, *, beside_output: bool = False) -> Iterator[ShownProgress]:
    """Show the progress of a long job; yields a callback that takes (done, total).

    ``beside_output``: the job prints to standard output, and a bar on the same terminal would mix with it.
    Nothing is shown then.
    """
    if not sys.stderr.isatty():
        with _Lines(text).kept_up() as lines:
            yield lines
        return
    if beside_output and sys.stdout.isatty():
        yield ShownProgress(text)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    description = TextColumn("{task.description}", markup=False)
    columns = (description, BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    # By default rich would redirect standard output to standard error meanwhile.
    with Progress(
        *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as bar:
        yield _Bar(text, bar)


class _Bar(ShownProgress):
    """A bar of rich's."""

    def __init__(self, text: str, bar: Progress) -> None:
        super().__init__(text)
        self._bar, self._task = bar, bar.add_task(text, total=None)

    def doing(self, what: str) -> None:
        super().doing(what)
        self._bar.update(self._task, description=self.text)

    def say(self, line: str) -> None:
        self._bar.console.print(line, soft_wrap=True, markup=False, highlight=False)

    def show(self) -> None:
        self._bar.update(self._task, completed=self.done, total=self.total)


class _Lines(ShownProgress):
    """Prints how much is done, and about how long the rest takes; also while nothing is reported."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._began = self._printed = monotonic()
        self._lock, self._over = Lock(), Event()

    def __call__(self, done: int, total: int) -> None:
        """Show progress; time is counted from when nothing was done: what came before tells nothing of it."""
        if not done:
            self._began = monotonic()
        super().__call__(done, total)

    @contextmanager
    def kept_up(self) -> Iterator[_Lines]:
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
            self.show()

    def show(self) -> None:
        """Print a line if the last one was long ago, and the job is not over."""
        with self._lock:
            now = monotonic()
            if now - self._printed < _INTERVAL_SECONDS or self.done >= self.total > 0:
                return
            self._printed = now
            note(f"{self.text}: {self._say_share(now)}")

    def _say_share(self, now: float) -> str:
        """Return '40 %, about 20 s left', or how long it has taken if nothing was reported."""
        if not self.total:
            return f"{now - self._began:.0f} s so far"
        share, percent = self.share, f"{int(100 * self.share)} %"
        if share < 0.01:
            return percent
        from ckptplan.units import format_wait

        return f"{percent}, {format_wait((now - self._began) * (1 - share) / share)} left"
