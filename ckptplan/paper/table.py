"""Claims and figures as tables, as JSON documents and as CSV rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ckptplan.paper.claim import ASSUMED, Claim, format_model, name_judged, summarize
from ckptplan.paper.figures import PaperFigure
from ckptplan.paper.setting import PaperSetting
from ckptplan.report.blocks import Block, Cell, Field, Heading, Paragraph, Style, Table, make_facts
from ckptplan.report.fields import align_counts
from ckptplan.report.formats import View
from ckptplan.units import format_bytes, format_count, format_seconds
from ckptplan.wording import Argument

_STYLES: dict[str, Style] = {"agrees": "good", "agrees by fit": "caution", "disagrees": "bad"}
_CLAIM = (
    Field("number", title="", form=align_counts),
    Field("section", priority=1),
    Field("claim", wraps="early"),
    Field("paper", wraps="late"),
    Field("model", right=True),
    Field("verdict"),
)
_CURVE = (
    Field("panel"),
    Field("curve"),
    Field("x", priority=3),
    Field("first x", short="first\nx", right=True, priority=2),
    Field("last x", short="last\nx", right=True, priority=1),
    Field("first y", short="first\ny", right=True),
    Field("last y", short="last\ny", right=True),
    Field("fit", right=True, priority=4),
)


def view_claims(claims: Sequence[Claim], setting: PaperSetting) -> View:
    """Return the claims, with the workload and the machine they are computed for."""
    rows = list(map(_make_claim_row, claims))
    return View(
        kind="paper_claims",
        blocks=lambda: _tell_claims(claims, setting),
        document=lambda: {**_job(setting), "claims": rows},
        rows=lambda: rows,
    )


def view_figure(figure: PaperFigure, setting: PaperSetting) -> View:
    """Return the points of a figure."""
    return View(
        kind="paper_figure",
        blocks=lambda: _tell_figure(figure),
        document=lambda: _make_figure_document(figure, setting),
        rows=lambda: _generate_figure_rows(figure),
    )


def _tell_claims(claims: Sequence[Claim], setting: PaperSetting) -> Iterator[Block]:
    """Yield one line per claim, then the reasons of those that disagree."""
    job = f"{setting.workload.name} on {setting.profile.name}"
    yield Paragraph("", head=f"Claims of arXiv 2412.11810 and the model's numbers for {job}")
    records = [
        {
            "number": number,
            "section": claim.section.split(",")[0],
            "claim": claim.subject,
            "paper": claim.reading.words,
            "model": format_model(claim),
            "verdict": Cell(claim.verdict, style=_STYLES[claim.verdict]),
        }
        for number, claim in enumerate(claims, start=1)
    ]
    yield Table.of(_CLAIM, records)
    yield Paragraph(summarize(claims))
    for text in _legend(judged=name_judged(claims)):
        yield Paragraph(text)
    yield Heading("Why claims disagree")
    yield make_facts(
        {f"{number}.": claim.why for number, claim in enumerate(claims, start=1) if not claim.agrees}
    )


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
        **{name: getattr(claim, name) for name in ("name", "section", "quote", "subject")},
        "unit": reading.unit,
        "paper": reading.words,
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
    return {"workload": setting.workload.identify(), "profile": setting.profile.identify()}


def _tell_figure(figure: PaperFigure) -> Iterator[Block]:
    """Yield the ends of each curve, and the caption."""
    yield Paragraph("", head=f"Figure {figure.number}: {figure.title}")
    records = []
    for panel in figure.panels:
        for series in panel.series:
            first, last = series.points[0].row, series.points[-1].row
            records.append(
                {
                    "panel": panel.name,
                    "curve": series.label,
                    "x": panel.x,
                    "first x": _x_text(first[panel.x]),
                    "last x": _x_text(last[panel.x]),
                    "first y": _y_text(first[panel.y], panel.y),
                    "last y": _y_text(last[panel.y], panel.y),
                    "fit": f"{sum(point.fits for point in series.points)} of {len(series.points)}",
                }
            )
    yield Table.of(_CURVE, records)
    yield Paragraph(figure.caption)
    yield Paragraph(f"All points: {Argument('figure', figure.number)} {Argument('format', 'csv')}")


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
                    {"series": series.label, "points": [point.row for point in series.points]}
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
                yield {**head, "x": panel.x, "y": panel.y, **point.row}
