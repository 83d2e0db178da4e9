"""Says why nothing fits: the full message, and the reason in a few words for tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from ckptplan.errors import Infeasible, Limit
from ckptplan.model.budget import add_headroom
from ckptplan.units import format_bytes, format_percent, format_share, format_things
from ckptplan.wording import Argument


@dataclass(frozen=True, kw_only=True)
class LimitWords:
    """The words for one limit, and the format of its amounts."""

    #: As in "the next breaks: remote memory".
    name: str
    #: Follows the subject of a message if no plan keeps the limit.
    broken: str
    #: Precedes the amount that is needed.
    needs: str = "needs at least"
    #: The reason in a few words; ``{}`` is the amount that is needed.
    reason: str
    #: An amount in a table.
    short: Callable[[float], str] = format_bytes

    def exact(self, value: float, *, like: float) -> str:
        """Return an amount for a message. Bytes are written in the units of ``like``, and as a count."""
        if self.short is not format_bytes:
            return self.short(value)
        return f"{format_bytes(value, like=like)} ({format_things(int(value), 'byte')})"


#: The additional limit of ``largest`` on the time of a batch.
DEADLINE: Final = "deadline"


def name_limit(limit: Limit | Literal["deadline"]) -> str:
    """Return the name of a limit, as in "the next breaks: remote memory"."""
    return "the deadline" if limit == DEADLINE else LIMITS[limit].name


#: The words for each limit.
LIMITS: dict[Limit, LimitWords] = {
    "local_bytes": LimitWords(
        name="local memory",
        broken="the local memory of one unit is too small",
        reason="does not fit: needs {}",
    ),
    "remote_bytes": LimitWords(
        name="remote memory",
        broken="the remote memory is too small",
        reason="needs {} of remote memory",
    ),
    "max_overhead": LimitWords(
        name="overhead limit",
        broken="no plan is quick enough",
        reason="too slow: {} at best",
        short=format_percent,
    ),
    "steps": LimitWords(
        name="solvable length",
        broken="the sequence is too long for it within this memory",
        needs="can be solved for about",
        reason="too long: about {} at most",
        short=lambda value: format_things(int(value), "step"),
    ),
}

#: The bytes that stay in local memory are listed if they are at least this share of the need.
_DOMINATES = 0.5


def format_infeasible(error: Infeasible) -> str:
    """Return the message: binding limit, need, have, and changes that would help."""
    words = LIMITS[error.binding]
    headroom, memory = "", error.have
    if error.binding == "local_bytes" and error.headroom:
        memory = add_headroom(int(error.have), error.headroom)
        headroom = f": {format_bytes(memory, like=memory)} less {format_share(error.headroom)} headroom"
    lines = [
        f"{error.subject}: {words.broken}",
        f"  {words.needs} {words.exact(error.need, like=memory)}{_tell_slow(error)}",
        f"  {'has':<{len(words.needs)}} {words.exact(error.have, like=memory)}{headroom}",
    ]
    lines += _describe_stays(error)
    if error.suggestions:
        lines.append("any one of these changes makes a plan possible (each was planned):")
        changes = [str(Argument(suggestion["change"], suggestion["value"])) for suggestion in error.suggestions]
        width = max(map(len, changes))
        lines += [
            f"  {change:<{width}}  {plan['strategy']}, {format_percent(plan['overhead'])} time over base"
            for change, plan in zip(changes, error.suggestions, strict=True)
        ]
    return "\n".join(lines)


def _tell_slow(error: Infeasible) -> str:
    """Return why the suggested budget exceeds the least need, '' if it does not."""
    sizes = [suggestion["value"] for suggestion in error.suggestions if suggestion["change"] == "local_bytes"]
    slow = error.binding == "local_bytes" and not error.headroom and sizes and min(sizes) > error.need
    return ", but such plans are too slow to use" if slow else ""


def _describe_stays(error: Infeasible) -> list[str]:
    """Return lines about the bytes that every schedule keeps in local memory, if they dominate the need."""
    total = sum(error.stays.values())
    if not total or total < _DOMINATES * error.need:
        return []
    parts = "; ".join(f"{name} {format_bytes(size, like=error.have)}" for name, size in error.stays.items())
    share = format_share(total / error.need)
    lines = [f"  {share} of the need stays in local memory with any schedule:", f"    {parts}"]
    if total > error.have:
        lines.append("  this alone does not fit: only a smaller job or more memory helps")
    return lines


def format_reason(binding: Limit, need: float) -> str:
    """Return why nothing fits in a few words, for a table."""
    words = LIMITS[binding]
    return words.reason.format(words.short(need))


def format_need(error: Infeasible) -> str:
    """Return the needed and the available amount: 'needs at least 9.071 MiB, has 512 KiB'."""
    words = LIMITS[error.binding]
    return f"{words.needs} {words.short(error.need)}, has {words.short(error.have)}"
