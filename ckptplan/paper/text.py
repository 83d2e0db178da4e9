"""Numbers of claims as text, shared by table and page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from ckptplan.paper.claims.claim import Claim, Unit
from ckptplan.units import format_percent

#: Marks numbers that depend on unpublished inputs.
ASSUMED = "*"


def summarize(claims: Sequence[Claim]) -> str:
    """Return the number of claims of each verdict: '30 claims: 13 agree, ...'."""
    counts = Counter(claim.verdict for claim in claims)
    return (
        f"{len(claims)} claims: {counts['agrees']} agree, {counts['agrees by fit']} agree by fit, "
        f"{counts['disagrees']} disagree"
    )


def name_judged(claims: Sequence[Claim]) -> str:
    """Return the numbers of the claims that judge an input: '2 and 3'."""
    return " and ".join(str(number) for number, claim in enumerate(claims, start=1) if claim.judges_input)


def format_model(claim: Claim) -> str:
    """Return the model's number, marked if it depends on assumptions."""
    return f"{format_value(claim.model, claim.unit)}{ASSUMED if claim.assumed else ''}"


def format_reading(claim: Claim) -> str:
    """Return the range that the paper's statement is read as."""
    reading, unit = claim.reading, claim.unit
    low, high = format_value(reading.low, unit), format_value(reading.high, unit)
    if reading.low == reading.high:
        return low
    if math.isinf(reading.low):
        return f"at most {high}" if reading.high_included else f"less than {high}"
    if math.isinf(reading.high):
        return f"at least {low}" if reading.low_included else f"more than {low}"
    return f"{low} to {high}" if reading.high_included else f"from {low}, below {high}"


def format_value(value: float, unit: Unit) -> str:
    """Return a claim's number in its unit; empty for infinity."""
    if math.isinf(value):
        return ""
    if unit == "overhead":
        return format_percent(value)
    if unit == "share":
        return f"{100 * value:.3g} %"
    if unit == "times":
        return f"{value:.2f}x"
    if unit == "exponent":
        return f"{value:.3g}"
    return f"{value:,.10g} states" if unit == "states" else f"{value:,.10g}"
