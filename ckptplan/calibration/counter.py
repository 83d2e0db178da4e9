"""How far a long measurement is, for a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

#: Is told the runs done and the runs in all.
Progress = Callable[[int, int], None]
_Found = TypeVar("_Found")


class Counter:
    """Counts runs."""

    def __init__(self, *, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def one(self) -> None:
        """Count a run."""
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)

    def last(self, runs: Iterator[_Found | None]) -> _Found:
        """Go through a measurement, which yields None after each run; return its result, which comes last."""
        for found in runs:
            if found is not None:
                return found
            self.one()
        raise ValueError("a measurement ended without a result")
