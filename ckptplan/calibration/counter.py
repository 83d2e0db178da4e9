"""Reports the progress of a long measurement."""

from __future__ import annotations

from collections.abc import Iterable

from ckptplan.model.progress import Progress

#: Parts of a second in which expected times are reported.
_PARTS = 1_000


class RunCounter:
    """Counts the runs of a measurement that has several parts.

    ``seconds``: what each run is expected to take. Runs then advance the progress by as much, and what is
    left of it tells what is left of the time.
    """

    def __init__(
        self, *, total: int = 0, progress: Progress | None = None, seconds: Iterable[float] | None = None
    ) -> None:
        self._progress = progress
        self._expected = [1] * total if seconds is None else _in_parts(seconds)
        self._done, self._share = 0, 0.0

    def count(self) -> None:
        """Count a completed run."""
        self._done += self._expected.pop(0) if self._expected else 1
        self._report()

    def expect(self, seconds: Iterable[float]) -> None:
        """Replace what the runs that are left are expected to take."""
        self._expected = _in_parts(seconds)

    def end(self) -> None:
        """Report that everything is done, whether all runs were needed or not."""
        if self._expected:
            self.expect(())
            self._report()

    def _report(self) -> None:
        total = self._done + sum(self._expected)
        # What is left may have become more, but the share that is done does not decrease.
        self._share = max(self._share, self._done / total)
        if self._progress is not None:
            self._progress(round(self._share * total), total)


def _in_parts(seconds: Iterable[float]) -> list[int]:
    return [max(1, round(_PARTS * one)) for one in seconds]
