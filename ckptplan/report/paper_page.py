"""The page docs/paper.md: claims, figures and what they rest on, all of it computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckptplan.replication.claim import COMPUTE, TRANSFERS, Claim
from ckptplan.replication.figures import PaperFigure
from ckptplan.replication.setting import Setting
from ckptplan.report.paper_table import model_text, reading_text, summary, value_text
from ckptplan.wording import Argument, Wording

_HEAD = """\
# The paper's figures and claims, from the model

The paper is Bencheikh, Finkbeiner, Neftci 2024, [arXiv 2412.11810](https://arxiv.org/abs/2412.11810). \
This page sets what it says beside what the model gives for `{workload}` on `{profile}`. The figures are what \
the model gives for the content of the paper's Figures 2 to 5; the paper's own were measured. Every number \
below is computed, and this page is written by

```sh
{page_command}
```

The claims as data: `{claims_command}` (or `csv`); the points of a figure: \
`{points_command}`.

## Claims

{summary}. A verdict is computed: it says whether the model's number is in the range that the statement \
is read as. **Agrees by fit** means that an input was chosen so that the claim holds, because what would \
settle it is not published: such an agreement tests nothing. An asterisk marks numbers that rest on inputs \
that are assumed, not published. Words without a number, such as "not significant" and "almost", are read as \
up to a tenth, "unaffected" as up to 1 %. A largest T is read as: it fits, and twice as much does not, because \
the paper reports few lengths (400, 2,000 and 4,000). The model is the exact one of \
[equations](equations.md); where the paper prints an equation for the same quantity, its value stands beside. \
The step times are `forward_seconds`, `backward_seconds` and `recompute_seconds` of the \
[workload](workloads.md); all inputs with their origins: `ckptplan workloads show {workload}`, \
`ckptplan profiles show {profile}`.
"""


def paper_page(
    claims: Sequence[Claim],
    figures: Sequence[PaperFigure],
    setting: Setting,
    *,
    pictures: Sequence[str],
    wording: Wording,
) -> str:
    """Return the page; ``pictures`` are the figures' files, as the page refers to them.

    The page shows commands, whose arguments ``wording`` puts.
    """

    def command(**arguments: object) -> str:
        return " ".join(["ckptplan paper", *(wording(Argument(*item)) for item in arguments.items())])

    head = _HEAD.format(
        workload=setting.workload.name,
        profile=setting.profile.name,
        summary=summary(claims),
        page_command=command(markdown="docs/paper.md", pictures="docs/pictures"),
        claims_command=command(format="json"),
        points_command=command(figure=4, format="csv"),
    )
    parts = [
        head,
        "\n".join(_table(claims)) + "\n",
        "## Where they disagree\n",
        "\n".join(_notes(claims, agreeing=False)) + "\n",
        "## What the agreements are worth\n",
        "\n".join(_notes(claims, agreeing=True)) + "\n",
        *(
            _figure(figure, picture, command=command(figure=figure.number, format="csv"))
            for figure, picture in zip(figures, pictures, strict=True)
        ),
    ]
    return "\n".join(parts)


def _table(claims: Sequence[Claim]) -> Iterator[str]:
    yield "| | section | claim | paper | read as | model | equations | verdict |"
    yield "|---:|---|---|---|---|---:|---:|---|"
    for number, claim in enumerate(claims, start=1):
        cells = (
            str(number),
            claim.section,
            claim.subject,
            claim.paper,
            reading_text(claim),
            model_text(claim).replace("*", r"\*"),
            "" if claim.equations is None else value_text(claim.equations, claim.unit),
            claim.verdict if claim.agrees else f"**{claim.verdict}**",
        )
        yield f"| {' | '.join(cells)} |"


def _notes(claims: Sequence[Claim], *, agreeing: bool) -> Iterator[str]:
    for number, claim in enumerate(claims, start=1):
        if claim.agrees is not agreeing:
            continue
        place = claim.section if claim.section == "abstract" else f"section {claim.section}"
        # Not a list of Markdown's, which would count anew.
        yield f'**{number}.** *"{claim.quote}"* ({place}). {claim.why}{_rests_on(claim)}\n'


def _rests_on(claim: Claim) -> str:
    parts = []
    if claim.fitted:
        parts.append(f"chosen so that it holds: {_fields(claim.fitted)}")
    others = [field for field in claim.assumed if field not in claim.fitted]
    if others:
        parts.append(f"assumed, not published: {_fields(others)}")
    return f" Inputs {'; '.join(parts)}." if parts else ""


#: Inputs that are mostly needed together.
_GROUPS = {"the step times": COMPUTE, "transfer rates, latency and T_s": TRANSFERS}


def _fields(names: Sequence[str]) -> str:
    """Return the inputs, those that belong together by one name."""
    together = {group: fields for group, fields in _GROUPS.items() if set(fields) <= set(names)}
    alone = [name for name in names if not any(name in fields for fields in together.values())]
    return ", ".join([*together, *(f"`{name}`" for name in alone)])


def _figure(figure: PaperFigure, picture: str, *, command: str) -> str:
    return (
        f"## Content of Figure {figure.number}. "
        f"{figure.title}\n\n![{figure.title}]({picture})\n\n{figure.caption} Data: `{command}`.\n"
    )
