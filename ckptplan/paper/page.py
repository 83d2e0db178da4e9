"""The page docs/paper.md: claims, figures and the inputs behind them, all computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckptplan.paper.claim import (
    FITTED_MEMORY,
    Claim,
    format_model,
    format_reading,
    format_value,
    name_judged,
    summarize,
)
from ckptplan.paper.figures import PaperFigure
from ckptplan.paper.setting import PaperSetting
from ckptplan.wording import Argument

_HEAD = """\
# The paper's figures and claims, from the model

The paper is Bencheikh, Finkbeiner, Neftci 2024, [arXiv 2412.11810](https://arxiv.org/abs/2412.11810). \
This page compares what it says with what the model computes for `{workload}` on `{profile}`. It is written by

```sh
{page_command}
```

The claims as data: `{claims_command}` (or `csv`); the points of a figure, such as 4: `{points_command}`.

## Claims

{summary}. The verdict says whether the model's number is in the range that the statement is read as:

- **Agrees by fit**: an input that is not published was chosen so that the claim holds. Such an agreement \
tests nothing.
- **An input**: {judged} compare the paper's words with a number that the workload assumes, not with a result. \
The verdict tests the paper against itself, not the model.
- An asterisk marks numbers that depend on inputs that are assumed, not published; the data name them.
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
        summary=summarize(claims),
        judged=name_judged(claims),
        page_command=command(markdown="docs/paper.md", pictures="docs/pictures"),
        claims_command=command(format="json"),
        points_command=command(figure=4, format="csv"),
    )
    parts = [
        head,
        "\n".join(_render_table(claims)) + "\n",
        "## Where they disagree\n",
        "\n".join(_render_notes(claims, agreeing=False)) + "\n",
        "## What the agreements are worth\n",
        "\n".join(_render_notes(claims, agreeing=True)) + "\n",
        _FIGURES,
        *(_render_figure(figure, picture) for figure, picture in zip(figures, pictures, strict=True)),
    ]
    return "\n".join(parts)


def _render_table(claims: Sequence[Claim]) -> Iterator[str]:
    yield "| | section | claim | paper | read as | model | equations | verdict |"
    yield "|---:|---|---|---|---|---:|---:|---|"
    for number, claim in enumerate(claims, start=1):
        cells = (
            str(number),
            claim.section,
            claim.subject,
            claim.reading.words,
            format_reading(claim),
            format_model(claim).replace("*", r"\*"),
            "" if claim.equations is None else format_value(claim.equations, claim.reading.unit),
            claim.verdict if claim.agrees else f"**{claim.verdict}**",
        )
        yield f"| {' | '.join(cells)} |"


def _render_notes(claims: Sequence[Claim], *, agreeing: bool) -> Iterator[str]:
    for number, claim in enumerate(claims, start=1):
        if claim.agrees is not agreeing:
            continue
        # Not a Markdown list, which would renumber the claims.
        yield f'**{number}.** *"{claim.quote}"* {claim.why}{_render_fitted(claim)}\n'


def _render_fitted(claim: Claim) -> str:
    if not claim.fitted:
        return ""
    together = claim.fitted == FITTED_MEMORY
    names = "resident bytes" if together else ", ".join(f"`{name}`" for name in claim.fitted)
    return f" Chosen so that it holds: {names}."


def _render_figure(figure: PaperFigure, picture: str) -> str:
    return f"### Figure {figure.number}. {figure.title}\n\n![{figure.title}]({picture})\n\n{figure.caption}\n"
