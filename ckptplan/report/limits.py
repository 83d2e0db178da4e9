"""Every limit in words: one table for all reports, which mypy keeps complete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from ckptplan.errors import Limit
from ckptplan.units import format_bytes, format_count, format_percent


@dataclass(frozen=True, kw_only=True)
class LimitWords:
    """How one limit is named and its amounts are written."""

    #: As in "the next breaks: remote memory".
    name: str
    #: Follows the subject of a message if no plan keeps the limit.
    broken: str
    #: Precedes the amount that is needed: in a message, and in the cell of a table.
    needs: str = "needs at least"
    needs_in_cell: str = "needs"
    #: The reason in a few words; ``{}`` is the amount that is needed.
    verdict: str
    #: An amount in a message.
    exact: Callable[[float], str]
    #: An amount in a table.
    short: Callable[[float], str]


def _bytes(value: float) -> str:
    return f"{format_bytes(value)} ({format_count(int(value))} bytes)"


def _steps(value: float) -> str:
    return f"{format_count(int(value))} steps"


_LOCAL = LimitWords(
    name="local memory",
    broken="the local memory of one unit is too small",
    verdict="does not fit",
    exact=_bytes,
    short=format_bytes,
)
_REMOTE = LimitWords(
    name="remote memory",
    broken="the remote memory is too small",
    verdict="needs {} remote",
    exact=_bytes,
    short=format_bytes,
)
_OVERHEAD = LimitWords(
    name="overhead limit",
    broken="no plan is quick enough",
    verdict="too slow: {} at best",
    exact=format_percent,
    short=format_percent,
)
_STEPS = LimitWords(
    name="solvable length",
    broken="the sequence is too long for it within this memory",
    needs="can be solved for about",
    needs_in_cell="at most about",
    verdict="too long: about {} at most",
    exact=_steps,
    short=_steps,
)


def limit_words(limit: Limit) -> LimitWords:
    """Return how a limit is written."""
    match limit:
        case "local_bytes":
            return _LOCAL
        case "remote_bytes":
            return _REMOTE
        case "max_overhead":
            return _OVERHEAD
        case "steps":
            return _STEPS
        case _:
            assert_never(limit)
