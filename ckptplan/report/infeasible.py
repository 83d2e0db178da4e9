"""The message and the short verdict if nothing fits."""

from __future__ import annotations

from ckptplan.errors import Infeasible
from ckptplan.model.budget import add_headroom
from ckptplan.report.budget import format_headroom
from ckptplan.report.limits import limit_words
from ckptplan.units import format_bytes, format_percent, format_share
from ckptplan.wording import Argument, Wording

#: What stays in memory is named if it is this share of the need.
_DOMINATES = 0.5


def format_infeasible(error: Infeasible, *, wording: Wording = str) -> str:
    """Return the message: binding limit, need, have, and changes that would help, worded by ``wording``."""
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
        changes = [wording(Argument(one["change"], one["value"])) for one in error.suggestions]
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
