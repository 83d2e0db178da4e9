"""Why nothing fits: every limit in words, the message, and the short verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from ckptplan.errors import Infeasible, Limit
from ckptplan.model.budget import add_headroom
from ckptplan.report.fields import format_headroom
from ckptplan.units import format_bytes, format_count, format_percent, format_share
from ckptplan.wording import Argument


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


#: What stays in memory is named if it is this share of the need.
_DOMINATES = 0.5


def format_infeasible(error: Infeasible) -> str:
    """Return the message: binding limit, need, have, and changes that would help."""
    words = limit_words(error.binding)
    width = len(words.needs)
    lines = [
        f"{error.subject}: {words.broken}",
        f"  {words.needs} {words.exact(error.need)}",
        f"  {'has':<{width}} {words.exact(error.have)}{_describe_headroom(error)}",
    ]
    lines += _describe_stays(error)
    if error.suggestions:
        lines.append("any one of these changes makes a plan possible (each was planned):")
        changes = [str(Argument(one["change"], one["value"])) for one in error.suggestions]
        width = max(map(len, changes))
        lines += [
            f"  {change:<{width}}  {one['strategy']}, {format_percent(one['overhead'])} time over base"
            for change, one in zip(changes, error.suggestions, strict=True)
        ]
    return "\n".join(lines)


def _describe_headroom(error: Infeasible) -> str:
    """Return what the local budget was taken from, '' if another limit binds or nothing is left free."""
    if error.binding != "local_bytes" or not error.headroom:
        return ""
    return f": {format_headroom(add_headroom(int(error.have), error.headroom), error.headroom)}"


def _describe_stays(error: Infeasible) -> list[str]:
    """Return what dominates the need, if that is what no schedule moves out of local memory."""
    total = sum(error.stays.values())
    if not total or total < _DOMINATES * error.need:
        return []
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in error.stays.items())
    share = format_share(total / error.need)
    lines = [f"  {share} of the need stays in local memory with any schedule:", f"    {parts}"]
    if total > error.have:
        lines.append("  this alone does not fit: only a smaller job or more memory helps")
    return lines


def format_verdict(error: Infeasible) -> str:
    """Return the reason in a few words, for a table."""
    words = limit_words(error.binding)
    return words.verdict.format(words.short(error.need))
