"""The one way in which long work reports how far it is."""

from __future__ import annotations

from collections.abc import Callable

#: Called now and then with what is done and what there is in all, in whatever unit the work is counted.
Progress = Callable[[int, int], None]
