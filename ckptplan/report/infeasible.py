"""Says why nothing fits: the full message, and the reason in a few words for tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ckptplan.errors import Infeasible, Limit
from ckptplan.model.budget import add_headroom
from ckptplan.units import format_bytes, format_percent, format_share, format_things
from ckptplan.wording import Argument


@dataclass(frozen=True, kw_only=True)
class LimitWords:
    """The words for one limit: its name, what is wrong if no plan keeps it, and the reason in a few words.

    ``{}`` in the reason is the amount that is needed.
    """

    name: str
    broken: str
    reason: str
    needs: str = "needs at least"


#: The additional limit of ``largest`` on the time of a batch.
DEADLINE: Final = "deadline"
#: The words for each limit.
LIMITS: dict[Limit, LimitWords] = {
    "local_bytes": LimitWords(
        name="local memory",
        broken="the local memory of one unit is too small",
        reason="does not fit: needs {}",
    ),
    "remote_bytes": LimitWords(
        name="remote memory", broken="the remote memory is too small", reason="needs {} of remote memory"
    ),
    "max_overhead": LimitWords(
        name="overhead limit", broken="no plan is quick enough", reason="too slow: {} at best"
    ),
    "steps": LimitWords(
        name="solvable length",
        broken="the sequence is too long for it within this memory",
        reason="too long: about {} at most",
        needs="can be solved for about",
    ),
}
#: The bytes that stay in local memory are listed if they are at least this share of the need.
_DOMINATES = 0.5


def name_limit(limit: Limit | Literal["deadline"]) -> str:
    """Return the name of a limit, as 'remote memory'."""
    return DEADLINE if limit == DEADLINE else LIMITS[limit].name


def _format_amount(limit: Limit, value: float, *, like: float | None = None) -> str:
    """Return an amount of what is limited. ``like`` sets the units of bytes, which are then counted, too."""
    if limit == "max_overhead":
        return format_percent(value)
    if limit == "steps":
        return format_things(int(value), "step")
    size = format_bytes(value, like=like)
    return size if like is None else f"{size} ({format_things(int(value), 'byte')})"


def format_infeasible(error: Infeasible) -> str:
    """Return the message: binding limit, need, have, and changes that would help."""
    words, memory, headroom = LIMITS[error.binding], error.have, ""
    if error.binding == "local_bytes" and error.headroom:
        memory = add_headroom(int(error.have), error.headroom)
        headroom = f": {format_bytes(memory, like=memory)} less {format_share(error.headroom)} headroom"
    lines = [
        f"{error.subject}: {words.broken}",
        f"  {words.needs} {_format_amount(error.binding, error.need, like=memory)}",
        f"  {'has':<{len(words.needs)}} {_format_amount(error.binding, error.have, like=memory)}{headroom}",
    ]
    stays = sum(error.stays.values())
    if stays and stays >= _DOMINATES * error.need:
        parts = "; ".join(f"{name} {format_bytes(size, like=error.have)}" for name, size in error.stays.items())
        only = ": only a smaller job or more memory helps" if stays > error.have else ""
        lines += [f"  {format_share(stays / error.need)} of it stays with any schedule{only}", f"    {parts}"]
    if error.suggestions:
        lines.append("any one of these changes makes a plan possible (each was planned):")
        changes = [str(Argument(suggestion["change"], suggestion["value"])) for suggestion in error.suggestions]
        width = max(map(len, changes))
        lines += [
            f"  {change:<{width}}  {plan['strategy']}, {format_percent(plan['overhead'])} time over base"
            for change, plan in zip(changes, error.suggestions, strict=True)
        ]
    return "\n".join(lines)


def format_reason(binding: Limit, need: float) -> str:
    """Return why nothing fits in a few words, for a table."""
    return LIMITS[binding].reason.format(_format_amount(binding, need))


def format_need(error: Infeasible) -> str:
    """Return the needed and the available amount: 'needs at least 9.071 MiB, has 512 KiB'."""
    need, have = (_format_amount(error.binding, amount) for amount in (error.need, error.have))
    return f"{LIMITS[error.binding].needs} {need}, has {have}"
