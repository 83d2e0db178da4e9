"""What is said where nothing fits."""

from __future__ import annotations

from ckptplan.errors import Infeasible
from ckptplan.units import format_bytes, format_count, format_percent
from ckptplan.wording import Argument, Wording

_LIMITS = {
    "local_bytes": "local memory of one unit",
    "remote_bytes": "remote memory",
    "max_overhead": "overhead over base",
    "steps": "number of steps",
}


def infeasible_text(error: Infeasible, *, wording: Wording = str) -> str:
    """Return the message: need, have, binding limit, and what would help, each change put by ``wording``."""
    lines = [
        f"{error.subject}: the {_LIMITS[error.binding]} is too small",
        f"  needs at least {_amount(error.binding, error.need)}",
        f"  has            {_amount(error.binding, error.have)}",
    ]
    if error.binding == "max_overhead":
        lines[0] = f"{error.subject}: no plan is quick enough"
    if error.binding == "steps":
        lines[0] = f"{error.subject}: the sequence is too long for it within this memory"
        lines[1] = f"  is planned for {_amount(error.binding, error.need)} steps or so at most"
    if error.suggestions:
        lines.append("any one of these changes makes a plan possible (each was planned):")
        changes = [wording(Argument(one["change"], one["value"])) for one in error.suggestions]
        width = max(map(len, changes))
        lines += [
            f"  {change:<{width}}  {one['strategy']}, {format_percent(one['overhead'])} time over base"
            for change, one in zip(changes, error.suggestions, strict=True)
        ]
    return "\n".join(lines)


def verdict(error: Infeasible) -> str:
    """Return the reason in a few words, for a table."""
    if error.binding == "max_overhead":
        return f"too slow: {format_percent(error.need)} at best"
    if error.binding == "remote_bytes":
        return f"needs {format_bytes(error.need)} remote"
    if error.binding == "steps":
        return f"too long: about {format_count(int(error.need))} steps at most"
    return "does not fit"


def _amount(binding: str, value: float) -> str:
    if binding == "max_overhead":
        return format_percent(value)
    if binding == "steps":
        return format_count(int(value))
    return f"{format_bytes(value)} ({format_count(int(value))} bytes)"
