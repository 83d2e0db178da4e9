"""Defines the callback through which long-running work reports progress."""

from __future__ import annotations

from collections.abc import Callable

#: Called from time to time with the work done and the total work, in any unit.
Progress = Callable[[int, int], None]
