"""Claims and figures as tables, as JSON documents, as CSV rows, and as the page docs/paper.md: all computed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ckptplan.paper.claim import FITTED_MEMORY, Claim, Unit
from ckptplan.paper.figures import PaperFigure
from ckptplan.paper.setting import PaperSetting
from ckptplan.report.blocks import Block, Cell, Field, Heading, Paragraph, Style, Table, make_facts
from ckptplan.report.formats import View
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds
from ckptplan.wording import Argument

#: Marks numbers that depend on unpublished inputs.
ASSUMED = "*"
_STYLES: dict[str, Style] = {"agrees": "good", "agrees by fit": "caution", "disagrees": "bad"}
_CLAIM = (
    Field("number", title="", right=True),
    Field("section", priority=1),
    Field("claim", wraps=True),
    Field("paper", wraps=True),
    Field("model", right=True),
    Field("verdict"),
)
_CURVE = (
    Field("panel"),
    Field("curve"),
    Field("x", priority=3),
    Field("first x", right=True, priority=2),
    Field("last x", right=True, priority=1),
    Field("first y", right=True),
    Field("last y", right=True),
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
            "number": claim.number,
            "section": claim.section.split(",")[0],
            "claim": claim.subject,
            "paper": claim.reading.words,
            "model": _format_model(claim),
            "verdict": Cell(claim.verdict, style=_STYLES[claim.verdict]),
        }
        for claim in claims
    ]
    yield Table.of(_CLAIM, records)
    yield Paragraph(_summarize(claims))
    for text in _legend(judged=_name_judged(claims)):
        yield Paragraph(text)
    yield Heading("Why claims disagree")
    yield make_facts({f"{claim.number}.": claim.why for claim in claims if not claim.agrees})


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


_HEAD = """\
# The paper's figures and claims, from the model

Bencheikh, Finkbeiner, Neftci 2024 ([arXiv 2412.11810](https://arxiv.org/abs/2412.11810)), beside what the \
model computes for `{workload}` on `{profile}`. `{page_command}` writes this page, `{claims_command}` all \
claims with their reasons, `{points_command}` the points of a figure.

## Claims

{summary}. The verdict says whether the model's number is in the range that the statement is read as:

- **Agrees by fit**: an input that is not published was chosen so that the claim holds (*fitted* below). \
Such an agreement tests nothing.
- **An input**: {judged} compare the paper's words with a number that the workload assumes. The verdict tests \
the paper, not the model.
- An asterisk marks numbers that depend on inputs that are assumed, not published.
- "Not significant", "almost" and the like are read as up to 10 %, "unaffected" as up to 1 %.
- The model is the exact one of [equations](equations.md); the column "equations" has the value of the printed \
equation, if there is one.

All inputs with their origins: `ckptplan workloads show {workload}`, `ckptplan profiles show {profile}`.
"""

_FIGURES = """\
## The content of the paper's figures

These show the model's results; the paper's own were measured.
"""


def render_page(
    claims: Sequence[Claim], figures: Sequence[PaperFigure], setting: PaperSetting, *, pictures: Sequence[str]
) -> str:
    """Return the page; ``pictures`` are links to the figures' files, one per figure."""

    def command(**arguments: object) -> str:
        return " ".join(["ckptplan paper", *(str(Argument(*item)) for item in arguments.items())])

    head = _HEAD.format(
        workload=setting.workload.name,
        profile=setting.profile.name,
        summary=_summarize(claims),
        judged=_name_judged(claims),
        page_command=command(markdown="FILE"),
        claims_command=command(format="json"),
        points_command=command(figure=4, format="csv"),
    )
    shown = (
        f"### Figure {one.number}. {one.title}\n\n![{one.title}]({picture})\n\n{one.caption}\n"
        for one, picture in zip(figures, pictures, strict=True)
    )
    parts = [
        head,
        "\n".join(_render_table(claims)) + "\n",
        "## Where they disagree\n",
        "\n".join(_render_notes(claims, verdict="disagrees")) + "\n",
        "## Where they agree by fit\n",
        "\n".join(_render_notes(claims, verdict="agrees by fit")) + "\n",
        _FIGURES,
        *shown,
    ]
    return "\n".join(parts)


def _render_table(claims: Sequence[Claim]) -> Iterator[str]:
    yield "| | section | claim | paper | read as | model | equations | verdict |"
    yield "|---:|---|---|---|---|---:|---:|---|"
    for claim in claims:
        cells = (
            str(claim.number),
            claim.section,
            claim.subject,
            claim.reading.words,
            _format_reading(claim),
            _format_model(claim).replace("*", r"\*"),
            "" if claim.equations is None else _format_value(claim.equations, claim.reading.unit),
            claim.verdict if claim.agrees else f"**{claim.verdict}**",
        )
        yield f"| {' | '.join(cells)} |"


def _render_notes(claims: Sequence[Claim], *, verdict: str) -> Iterator[str]:
    for claim in claims:
        if claim.verdict == verdict:
            # Not a Markdown list, which would renumber the claims.
            yield f'**{claim.number}.** *"{claim.quote}"* {claim.why}{_render_fitted(claim)}\n'


def _render_fitted(claim: Claim) -> str:
    if not claim.fitted:
        return ""
    together = claim.fitted == FITTED_MEMORY
    names = "resident bytes" if together else ", ".join(f"`{name}`" for name in claim.fitted)
    return f" Fitted: {names}."


def _summarize(claims: Sequence[Claim]) -> str:
    """Return the number of claims of each verdict: '30 claims: 13 agree, ...'."""
    counts = Counter(claim.verdict for claim in claims)
    return (
        f"{len(claims)} claims: {counts['agrees']} agree, {counts['agrees by fit']} agree by fit, "
        f"{counts['disagrees']} disagree"
    )


def _name_judged(claims: Sequence[Claim]) -> str:
    """Return the numbers of the claims that judge an input: '2 and 3'."""
    return " and ".join(str(claim.number) for claim in claims if claim.judges_input)


def _format_model(claim: Claim) -> str:
    """Return the model's number, marked if it depends on assumptions."""
    return f"{_format_value(claim.model, claim.reading.unit)}{ASSUMED if claim.assumed else ''}"


def _format_reading(claim: Claim) -> str:
    """Return the range that the paper's statement is read as."""
    reading, unit = claim.reading, claim.reading.unit
    low, high = _format_value(reading.low, unit), _format_value(reading.high, unit)
    if reading.low == reading.high:
        return low
    if math.isinf(reading.low):
        return f"at most {high}" if reading.high_included else f"less than {high}"
    if math.isinf(reading.high):
        return f"at least {low}" if reading.low_included else f"more than {low}"
    return f"{low} to {high}" if reading.high_included else f"from {low}, below {high}"


def _format_value(value: float, unit: Unit) -> str:
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
