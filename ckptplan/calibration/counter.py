"""Reports the progress of a long measurement."""

from __future__ import annotations

from ckptplan.model.progress import Progress


class RunCounter:
    """Counts the runs of a measurement that has several parts."""

    def __init__(self, *, total: int, progress: Progress | None = None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def count(self) -> None:
        """Count a completed run."""
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)
