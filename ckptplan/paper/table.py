"""Claims and figures as tables on a console, as JSON documents and as CSV rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ckptplan.paper.claim import ASSUMED, Claim, format_model, name_judged, summarize
from ckptplan.paper.figures import PaperFigure, point_row
from ckptplan.paper.setting import PaperSetting
from ckptplan.report.columns import Cell, FittedTable, TableColumn, align_counts, wrap_lines
from ckptplan.report.formats import View
from ckptplan.units import format_bytes, format_count, format_seconds
from ckptplan.wording import Argument

_COLOURS = {"agrees": "green", "agrees by fit": "yellow", "disagrees": "red"}


def view_claims(claims: Sequence[Claim], setting: PaperSetting) -> View:
    """Return the claims for every format, with the workload and the machine they are computed for."""
    return View(
        kind="paper_claims",
        table=lambda console: _print_claims(console, claims, setting),
        document=lambda: {**_job(setting), "claims": list(map(_make_claim_row, claims))},
        rows=lambda: map(_make_claim_row, claims),
    )


def view_figure(figure: PaperFigure, setting: PaperSetting) -> View:
    """Return the points of a figure for every format."""
    return View(
        kind="paper_figure",
        table=lambda console: _print_figure(console, figure),
        document=lambda: _make_figure_document(figure, setting),
        rows=lambda: _generate_figure_rows(figure),
    )


def _print_claims(console: Console, claims: Sequence[Claim], setting: PaperSetting) -> None:
    """Print one line per claim, then the reasons of those that disagree."""
    console.print(Text(_format_title(setting), style="bold"))
    console.print()
    table = FittedTable(
        (
            TableColumn(name="number", form=align_counts),
            TableColumn(title="section", priority=1),
            TableColumn(title="claim", wraps="early"),
            TableColumn(title="paper", wraps="late"),
            TableColumn(title="model", right=True),
            TableColumn(title="verdict"),
        )
    )
    for number, claim in enumerate(claims, start=1):
        table.add_row(
            number,
            claim.section.split(",")[0],
            claim.subject,
            claim.paper,
            format_model(claim),
            Cell(value=claim.verdict, style=_COLOURS[claim.verdict]),
        )
    table.print_on(console)
    console.print()
    console.print(wrap_lines(summarize(claims), width=console.width), soft_wrap=True)
    _print_paragraphs(console, _legend(judged=name_judged(claims)))
    console.print()
    console.print(Text("Why claims disagree", style="bold"))
    _print_paragraphs(
        console, (f"{number}. {claim.why}" for number, claim in enumerate(claims, start=1) if not claim.agrees)
    )


def _print_paragraphs(console: Console, texts: Iterable[str]) -> None:
    """Print indented paragraphs."""
    table = FittedTable((TableColumn(wraps="late"),), indent=2)
    for text in texts:
        table.add_row(text)
    table.print_on(console)


def _format_title(setting: PaperSetting) -> str:
    """Return the table's title, which names workload and machine."""
    job = f"{setting.workload.name} on {setting.profile.name}"
    return f"Claims of arXiv 2412.11810 and the model's numbers for {job}"


def _legend(*, judged: str) -> Iterator[str]:
    """Yield what the terms of the table mean."""
    yield (
        f"{ASSUMED} depends on inputs that are assumed, not published; {Argument('format', 'json')} names them"
    )
    yield "agrees by fit: an input was chosen so that the claim holds; the agreement tests nothing"
    yield f"{judged}: an input is judged, not a result; the verdict tests the paper against itself"
    yield (
        "words without a number ('not significant', 'almost') are read as up to 10 %, 'unaffected' as up to 1 %"
    )


def _make_claim_row(claim: Claim) -> dict[str, Any]:
    """Return a claim as flat data; shares are fractions, an unbounded end of the reading is None."""
    reading = claim.reading
    return {
        **{name: getattr(claim, name) for name in ("name", "section", "quote", "subject", "unit", "paper")},
        "reading_low": _finite(reading.low),
        "reading_high": _finite(reading.high),
        "reading_low_included": reading.low_included,
        "reading_high_included": reading.high_included,
        **{name: getattr(claim, name) for name in ("model", "equations", "agrees", "verdict")},
        "assumed": list(claim.assumed),
        "fitted": list(claim.fitted),
        "judges_input": claim.judges_input,
        "why": claim.why,
    }


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value


def _job(setting: PaperSetting) -> dict[str, Any]:
    return {
        "workload": {"name": setting.workload.name, "hash": setting.workload.hash},
        "profile": {"name": setting.profile.name, "hash": setting.profile.hash},
    }


def _print_figure(console: Console, figure: PaperFigure) -> None:
    """Print the ends of each curve, and the caption."""
    console.print(Text(f"Figure {figure.number}: {figure.title}", style="bold"))
    console.print()
    table = FittedTable(
        (
            TableColumn(title="panel"),
            TableColumn(title="curve"),
            TableColumn(title="x", priority=3),
            TableColumn(title="first x", short="first\nx", right=True, priority=2),
            TableColumn(title="last x", short="last\nx", right=True, priority=1),
            TableColumn(title="first y", short="first\ny", right=True),
            TableColumn(title="last y", short="last\ny", right=True),
            TableColumn(title="fit", right=True, priority=4),
        )
    )
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
    table.print_on(console)
    console.print()
    console.print(wrap_lines(figure.caption, width=console.width), soft_wrap=True)
    console.print(f"All points: {Argument('figure', figure.number)} {Argument('format', 'csv')}")


def _x_text(value: Any) -> str:
    return format_count(value) if isinstance(value, int) else f"{value:.2f}"


def _y_text(value: Any, name: str) -> str:
    return format_seconds(value) if name == "seconds" else format_bytes(value)


def _make_figure_document(figure: PaperFigure, setting: PaperSetting) -> dict[str, Any]:
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


def _generate_figure_rows(figure: PaperFigure) -> Iterable[dict[str, Any]]:
    """Return one row per point; ``x`` and ``y`` name the columns that the panel draws."""
    for panel in figure.panels:
        for series in panel.series:
            head = {"figure": figure.number, "panel": panel.name, "series": series.label}
            for point in series.points:
                yield {**head, "x": panel.x, "y": panel.y, **point_row(point)}
