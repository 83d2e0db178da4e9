"""What is said where nothing fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptplan.errors import Infeasible
from ckptplan.report.limits import limit_words, option_of
from ckptplan.units import format_percent


def infeasible_text(error: Infeasible) -> str:
    """Return the message: need, have, binding limit, and what would help."""
    words = limit_words(error.binding)
    width = len(words.needs)
    lines = [
        f"{error.subject}: {words.broken}",
        f"  {words.needs} {words.exact(error.need)}",
        f"  {'has':<{width}} {words.exact(error.have)}",
    ]
    if error.suggestions:
        lines.append("any one of these changes makes a plan possible (each was planned):")
        width = max(len(_change(suggestion)) for suggestion in error.suggestions)
        lines += [
            f"  {_change(suggestion):<{width}}  {suggestion['strategy']}, "
            f"{format_percent(suggestion['overhead'])} time over base"
            for suggestion in error.suggestions
        ]
    return "\n".join(lines)


def verdict(error: Infeasible) -> str:
    """Return the reason in a few words, for a table."""
    words = limit_words(error.binding)
    return words.verdict.format(words.short(error.need))


def _change(suggestion: Mapping[str, Any]) -> str:
    value = suggestion["value"]
    # A share of more than 1 must be typed as a percentage.
    shown = f"{value * 100:.1f}%" if isinstance(value, float) else value
    return f"{option_of(suggestion['change'])} {shown}"
