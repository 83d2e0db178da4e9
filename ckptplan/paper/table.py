"""Shows claims and figures as tables, as JSON documents, as CSV rows, and as the page docs/paper.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ckptplan.paper.claim import Claim, Reading, Unit
from ckptplan.paper.figures import PaperFigure
from ckptplan.paper.setting import MOST_STEPS, PaperSetting
from ckptplan.report.blocks import Block, Field, Paragraph, Style, Table, make_facts
from ckptplan.report.formats import View
from ckptplan.units import format_bytes, format_count, format_percent, format_seconds
from ckptplan.wording import Argument

_STYLES: dict[str, Style] = {"agrees": "", "agrees by fit": "caution", "disagrees": "bad"}
#: The formats of units other than percentages and counts.
_FORMATS: dict[Unit, str] = {"times": "{:.2f}x", "exponent": "{:.3g}", "states": "{:,.10g} states"}
#: The formats of columns. Values of other columns are counts.
_COLUMNS: dict[str, Callable[[Any], str]] = {
    "neurons_per_unit": "{:.2f}".format,
    "seconds": format_seconds,
    "local_peak_bytes": format_bytes,
}
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
    """Return the view of claims, with the workload and the machine for which they are computed."""
    rows = list(map(_make_claim_row, claims))
    return View(
        kind="paper_claims",
        blocks=lambda: _describe_claims(claims, setting),
        document=lambda: {**_job(setting), "claims": rows},
        rows=lambda: rows,
    )


def view_figure(figure: PaperFigure, setting: PaperSetting) -> View:
    """Return the view of the points of a figure."""
    return View(
        kind="paper_figure",
        blocks=lambda: _describe_figure(figure),
        document=lambda: _make_figure_document(figure, setting),
        rows=lambda: _generate_figure_rows(figure),
    )


def _describe_claims(claims: Sequence[Claim], setting: PaperSetting) -> Iterator[Block]:
    """Yield a table with one line per claim, and the reasons of the claims that disagree."""
    job = f"{setting.workload.name} on {setting.profile.name}"
    yield Paragraph(f"Claims of arXiv 2412.11810 and the model's numbers for {job}", style="strong")
    records = [
        {
            **_make_record(claim, mark="*"),
            "section": claim.section.split(",")[0],
            "verdict": claim.verdict,
        }
        for claim in claims
    ]
    yield Table.of(_CLAIM, records, style=lambda record: _STYLES[record["verdict"]])
    inputs = Argument("format", "json")
    for text in (
        _summarize(claims),
        f"* depends on inputs that are assumed, not published; {inputs} names them",
        "agrees by fit: an input was chosen so that the claim holds; the agreement tests nothing",
        f"{_name_judged(claims)}: an input is judged, not a result; the verdict tests the paper against itself",
        "words without a number ('not significant', 'almost') are read as up to 10 %, 'unaffected' as up to "
        "1 %",
    ):
        yield Paragraph(text)
    reasons = {f"{claim.number}.": claim.why for claim in claims if not claim.agrees}
    yield make_facts(reasons, title="Why claims disagree")


def _make_record(claim: Claim, *, mark: str) -> dict[str, str]:
    """Return the cells of a claim by column; ``mark`` follows a number that depends on unpublished inputs."""
    reading = claim.reading
    return {
        "number": str(claim.number),
        "section": claim.section,
        "claim": claim.subject,
        "paper": reading.words,
        "read as": _format_reading(reading),
        "model": f"{_format_value(claim.model, reading.unit)}{mark if claim.assumed else ''}",
        "equations": "" if claim.equations is None else _format_value(claim.equations, reading.unit),
        "verdict": claim.verdict if claim.agrees else f"**{claim.verdict}**",
    }


def _make_claim_row(claim: Claim) -> dict[str, Any]:
    """Return a claim as flat data. Shares are fractions, and an unbounded end of the reading is None."""
    reading = claim.reading
    ends = {"reading_low": reading.low, "reading_high": reading.high}
    return {
        **{name: getattr(claim, name) for name in ("name", "section", "quote", "subject")},
        "unit": reading.unit,
        "paper": reading.words,
        **{name: None if math.isinf(end) else end for name, end in ends.items()},
        "reading_low_included": reading.low_included,
        "reading_high_included": reading.high_included,
        **{name: getattr(claim, name) for name in ("model", "equations", "agrees", "verdict")},
        "assumed": list(claim.assumed),
        "fitted": list(claim.fitted),
        "judges_input": claim.judges_input,
        "why": claim.why,
    }


def _job(setting: PaperSetting) -> dict[str, Any]:
    return {"workload": setting.workload.identify(), "profile": setting.profile.identify()}


def _describe_figure(figure: PaperFigure) -> Iterator[Block]:
    """Yield a table with the ends of each curve, and the caption."""
    yield Paragraph(f"Figure {figure.number}: {figure.title}", style="strong")
    records = []
    for panel in figure.panels:
        write_x, write_y = (_COLUMNS.get(name, format_count) for name in (panel.x, panel.y))
        for series in panel.series:
            first, last = series.points[0].row, series.points[-1].row
            records.append(
                {
                    "panel": panel.name,
                    "curve": series.label,
                    "x": panel.x,
                    "first x": write_x(first[panel.x]),
                    "last x": write_x(last[panel.x]),
                    "first y": write_y(first[panel.y]),
                    "last y": write_y(last[panel.y]),
                    "fit": f"{sum(point.fits for point in series.points)} of {len(series.points)}",
                }
            )
    yield Table.of(_CURVE, records)
    yield Paragraph(figure.caption)
    yield Paragraph(f"All points: {Argument('figure', figure.number)} {Argument('format', 'csv')}")


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
    """Yield one row per point. ``x`` and ``y`` name the columns that the panel draws."""
    for panel in figure.panels:
        for series in panel.series:
            head = {"figure": figure.number, "panel": panel.name, "series": series.label}
            for point in series.points:
                yield {**head, "x": panel.x, "y": panel.y, **point.row}


_PAGE = """\
# The paper's claims and figures

This page compares the claims of Bencheikh, Finkbeiner and Neftci 2024 \
([arXiv 2412.11810](https://arxiv.org/abs/2412.11810)) with the model's numbers for `{workload}` on \
`{profile}`. `{page_command}` writes this page. `{claims_command}` prints every claim with its reason, and \
`{points_command}` the points of a figure. `ckptplan workloads show {workload}` and \
`ckptplan profiles show {profile}` list the inputs with their sources.

## Claims

{summary}. A claim agrees if the model's number lies in the range of the column "read as".

- *Agrees by fit*: an unpublished input, which the JSON names, was chosen so that the claim holds. The \
agreement tests nothing.
- Claims {judged} judge an input: they compare the paper's words with a number that the workload assumes.
- An asterisk marks a number that depends on assumed inputs.
- "Not significant" and "almost" are read as up to 10 %, "unaffected" as up to 1 %.
- "Model" is the [exact model](equations.md). The JSON also has the values of the printed equations.

| | claim | paper | read as | model | verdict |
|---:|---|---|---|---:|---|
{table}

## Where they disagree

{disagreeing}

## Figures

The figures show the model's results; the paper's own figures were measured. Filled markers fit the tile, \
hollow ones do not. `{figure_command}` prints the settings of a figure.

{figures}
## What the cache decision adds

In the paper, the spikes of all steps stay in local memory. `{caches_command}` decides which of these \
[caches](cache.md) stay. Then remote memory alone limits the curves of figure 2 for three strategies, and the \
best settings of figure 4 are quicker:

| strategy | largest T | so chosen | time over base at T = {long:,} | so chosen | T = {longer:,}, so chosen |
|---|---:|---:|---:|---:|---:|
{caches}
"""

#: The strategies of the paper that keep caches, and the lengths at which their times are shown.
_WITH_CACHES, _LONG, _LONGER = ("standard", "remote", "hierarchical", "double"), 4096, 10_000


#: The columns of the claims on the page.
_PAGE_COLUMNS = ("number", "claim", "paper", "read as", "model", "verdict")


def render_page(
    claims: Sequence[Claim], figures: Sequence[PaperFigure], setting: PaperSetting, *, pictures: Sequence[str]
) -> str:
    """Return the page docs/paper.md. ``pictures`` has a link to a picture for each figure."""

    def command(**arguments: object) -> str:
        return " ".join(["ckptplan paper", *(str(Argument(*item)) for item in arguments.items())])

    rows = (" | ".join(_make_record(claim, mark=r"\*")[name] for name in _PAGE_COLUMNS) for claim in claims)
    shown = (
        f"**Figure {figure.number}.** {figure.title}\n\n![Figure {figure.number}]({picture})\n"
        for figure, picture in zip(figures, pictures, strict=True)
    )
    return _PAGE.format(
        workload=setting.workload.name,
        profile=setting.profile.name,
        summary=_summarize(claims),
        judged=_name_judged(claims),
        page_command=command(markdown="FILE"),
        claims_command=command(format="json"),
        points_command=command(figure=4, format="csv"),
        figure_command=command(figure=4),
        table="\n".join(f"| {row} |" for row in rows),
        disagreeing="\n".join(_render_disagreements(claims)),
        figures="\n".join(shown),
        caches_command=f"ckptplan optimize {Argument('strategies', ','.join(_WITH_CACHES))}",
        long=_LONG,
        longer=_LONGER,
        caches="\n".join(_render_caches(setting)),
    )


def _render_caches(setting: PaperSetting) -> Iterator[str]:
    """Yield a row for each strategy: its largest T and times, without and with a decision about caches."""
    with_caches = setting.with_caches

    def format_largest(there: PaperSetting, name: str) -> str:
        largest = there.find_largest_steps(name)
        return f"over {MOST_STEPS:,}" if largest >= MOST_STEPS else f"{largest:,}"

    def format_overhead(there: PaperSetting, name: str, steps: int) -> str:
        question = there.replace(steps=steps)
        return (
            format_percent(question.best(name).overhead) if question.question(name).fits() else "does not fit"
        )

    for name in _WITH_CACHES:
        cells = (
            name,
            format_largest(setting, name),
            format_largest(with_caches, name),
            format_overhead(setting, name, _LONG),
            format_overhead(with_caches, name, _LONG),
            format_overhead(with_caches, name, _LONGER),
        )
        yield f"| {' | '.join(cells)} |"


def _render_disagreements(claims: Sequence[Claim]) -> Iterator[str]:
    for claim in claims:
        if claim.verdict == "disagrees":
            # Bold numbers, since a Markdown list would renumber the claims.
            yield f'**{claim.number}.** *"{claim.quote}"* {claim.why}\n'


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


def _format_reading(reading: Reading) -> str:
    """Return the range of a reading as text."""
    low, high = _format_value(reading.low, reading.unit), _format_value(reading.high, reading.unit)
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
    return _FORMATS.get(unit, "{:,.10g}").format(value)
