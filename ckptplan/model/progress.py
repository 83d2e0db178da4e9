"""Defines the callback through which long-running work reports progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Called from time to time with the work done and the total work, in any unit.
Progress = Callable[[int, int], None]


def tell(progress: Progress | None, what: str) -> None:
    """Pass a description of the current work to the method ``doing`` of the callback, if it has one."""
    doing = getattr(progress, "doing", None)
    if doing is not None:
        doing(what)


#: Parts of each stage in which progress is reported.
_PARTS = 1_000


class StagedProgress:
    """Reports the progress of several stages, each divided into parts. Reported progress never decreases."""

    def __init__(self, progress: Progress | None, *, stages: int) -> None:
        self.progress = progress
        self.total = stages * _PARTS
        self.begun, self.done = 0, -1
        self.shares = (0.0, 0.0)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the callback: other processes report nothing."""
        return {**vars(self), "progress": None}

    def begin(self, place: int, what: str = "") -> None:
        """Begin stage number ``place``, whose searches report their share; ``what`` describes its work."""
        tell(self.progress, what)
        self.begun, self.shares = place * _PARTS, (0.0, 0.0)
        self._report(self.begun)

    def begin_next(self, what: str = "") -> None:
        """Begin the next stage, which is one solve; ``what`` describes its work."""
        tell(self.progress, what)
        self.begun = 0 if self.done < 0 else self.begun + _PARTS
        self.shares = (0.0, 1.0)
        self.report_solve(0, 1)

    def report_share(self, share: float, *, next_share: float) -> None:
        """Report the share of the stage that is done; the next solve advances the share to ``next_share``."""
        self.shares = (share, next_share)
        self.report_solve(0, 1)

    def report_solve(self, done: int, total: int) -> None:
        """Report the progress of a solve."""
        share, next_share = self.shares
        share_of_stage = share + (next_share - share) * min(1.0, done / max(1, total))
        self._report(self.begun + int(share_of_stage * _PARTS))

    def end(self) -> None:
        """Report that everything is done."""
        self._report(self.total)

    def _report(self, done: int) -> None:
        if self.progress is not None and done > self.done:
            self.done = done
            self.progress(done, self.total)
