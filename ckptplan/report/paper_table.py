"""The paper's claims beside the model's numbers, and the numbers behind the figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ckptplan.replication.claim import Claim, Unit
from ckptplan.replication.figures import PaperFigure, point_row
from ckptplan.replication.setting import Setting
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds
from ckptplan.wording import Argument, Wording

#: Marks numbers that rest on inputs nobody published.
ASSUMED = "*"
_COLOURS = {"agrees": "green", "agrees by fit": "yellow", "disagrees": "red"}


def claims_table(
    console: Console, claims: Sequence[Claim], setting: Setting, *, wording: Wording = str
) -> None:
    """Print a line a claim, then why those that disagree do."""
    console.print(Text(title(setting), style="bold"))
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("", justify="right")
    table.add_column("section", no_wrap=True)
    table.add_column("claim", overflow="fold", ratio=1)
    table.add_column("paper", overflow="fold")
    table.add_column("model", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for number, claim in enumerate(claims, start=1):
        table.add_row(
            str(number),
            claim.section.split(",")[0],
            claim.subject,
            claim.paper,
            model_text(claim),
            Text(claim.verdict, style=_COLOURS[claim.verdict]),
        )
    console.print(table)
    console.print()
    console.print(summary(claims))
    for line in _legend(wording):
        console.print(Padding(line, (0, 0, 0, 2)))
    console.print()
    console.print(Text("Why not", style="bold"))
    for number, claim in enumerate(claims, start=1):
        if not claim.agrees:
            console.print(Padding(f"{number}. {claim.why}", (0, 0, 0, 2)))


def title(setting: Setting) -> str:
    """Return what the model's numbers are for."""
    return (
        f"Claims of arXiv 2412.11810 beside what the model gives for {setting.workload.name} on "
        f"{setting.profile.name}"
    )


def _legend(wording: Wording) -> Iterator[str]:
    """Say what the words of the table mean."""
    names = wording(Argument("format", "json"))
    yield f"{ASSUMED} rests on inputs that are assumed, not published; {names} names them"
    yield "agrees by fit: an input was chosen so that the claim holds, so that it tests nothing"
    yield (
        "words without a number ('not significant', 'almost') are read as up to a tenth, "
        "'unaffected' as up to 1 %"
    )


def summary(claims: Sequence[Claim]) -> str:
    """Return how many claims there are of each verdict."""
    counts = Counter(claim.verdict for claim in claims)
    return (
        f"{len(claims)} claims: {counts['agrees']} agree, {counts['agrees by fit']} agree by fit, "
        f"{counts['disagrees']} disagree"
    )


def model_text(claim: Claim) -> str:
    """Return the model's number, marked where it rests on assumptions."""
    return f"{value_text(claim.model, claim.unit)}{ASSUMED if claim.assumed else ''}"


def reading_text(claim: Claim) -> str:
    """Return the range of numbers that the paper's statement is read as."""
    reading, unit = claim.reading, claim.unit
    low, high = value_text(reading.low, unit), value_text(reading.high, unit)
    if reading.low == reading.high:
        return low
    if math.isinf(reading.low):
        return f"at most {high}" if reading.high_included else f"less than {high}"
    if math.isinf(reading.high):
        return f"at least {low}" if reading.low_included else f"more than {low}"
    return f"{low} to {high}" if reading.high_included else f"from {low}, below {high}"


def value_text(value: float, unit: Unit) -> str:
    """Return a claim's number for people."""
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


def claim_row(claim: Claim) -> dict[str, Any]:
    """Return a claim as flat data; shares are fractions, an open end of the reading is absent."""
    reading = claim.reading
    return {
        "name": claim.name,
        "section": claim.section,
        "quote": claim.quote,
        "subject": claim.subject,
        "unit": claim.unit,
        "paper": claim.paper,
        "reading_low": _finite(reading.low),
        "reading_high": _finite(reading.high),
        "reading_low_included": reading.low_included,
        "reading_high_included": reading.high_included,
        "model": claim.model,
        "equations": claim.equations,
        "agrees": claim.agrees,
        "verdict": claim.verdict,
        "assumed": list(claim.assumed),
        "fitted": list(claim.fitted),
        "why": claim.why,
    }


def claims_document(claims: Sequence[Claim], setting: Setting) -> dict[str, Any]:
    """Return the claims as JSON data, with what they were computed for."""
    return {**_job(setting), "claims": [claim_row(claim) for claim in claims]}


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value


def _job(setting: Setting) -> dict[str, Any]:
    return {
        "workload": {"name": setting.workload.name, "hash": setting.workload.hash},
        "profile": {"name": setting.profile.name, "hash": setting.profile.hash},
    }


def figure_table(console: Console, figure: PaperFigure, *, wording: Wording = str) -> None:
    """Print the ends of each curve, and what the figure shows."""
    console.print(Text(f"Figure {figure.number}: {figure.title}", style="bold"))
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("panel", "curve", "x"):
        table.add_column(heading, no_wrap=True)
    for heading in ("first x", "last x", "first y", "last y", "fit"):
        table.add_column(heading, justify="right", no_wrap=True)
    for panel in figure.panels:
        for series in panel.series:
            first, last = point_row(series.points[0]), point_row(series.points[-1])
            table.add_row(
                panel.name,
                series.label,
                panel.x,
                *(_x_text(row[panel.x]) for row in (first, last)),
                *(_y_text(row[panel.y], panel.y) for row in (first, last)),
                f"{sum(point.fits for point in series.points)} of {len(series.points)}",
            )
    console.print(table)
    console.print()
    console.print(figure.caption)
    points = (Argument("figure", figure.number), Argument("format", "csv"))
    console.print(f"All points: {' '.join(map(wording, points))}")


def _x_text(value: Any) -> str:
    return format_count(value) if isinstance(value, int) else f"{value:.2f}"


def _y_text(value: Any, name: str) -> str:
    return format_seconds(value) if name == "seconds" else format_bytes(value)


def figure_document(figure: PaperFigure, setting: Setting) -> dict[str, Any]:
    """Return a figure as JSON data: panels of curves of points, in SI base units."""
    return {
        **_job(setting),
        "figure": figure.number,
        "title": figure.title,
        "caption": figure.caption,
        "panels": [
            {
                "panel": panel.name,
                "title": panel.title,
                "x": panel.x,
                "y": panel.y,
                "local_budget_bytes": panel.budget_bytes,
                "series": [
                    {"series": series.label, "points": [point_row(point) for point in series.points]}
                    for series in panel.series
                ],
            }
            for panel in figure.panels
        ],
    }


def figure_rows(figure: PaperFigure) -> Iterable[dict[str, Any]]:
    """Return a row a point; ``x`` and ``y`` name the columns that the panel draws."""
    for panel in figure.panels:
        for series in panel.series:
            head = {"figure": figure.number, "panel": panel.name, "series": series.label}
            for point in series.points:
                yield {**head, "x": panel.x, "y": panel.y, **point_row(point)}
