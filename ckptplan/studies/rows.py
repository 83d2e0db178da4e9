"""The answer to a question as a flat row: the best plan, or what is in its way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from ckptplan.planning.ranking import proven_bound
from ckptplan.search.answer import Answer
from ckptplan.search.question import Question

#: A row by column; None where there is nothing to say.
Row: TypeAlias = dict[str, Any]
Type: TypeAlias = Literal["text", "whole", "number", "truth"]

#: The columns, named as those of a plan's own row, and what they hold.
PLAN_COLUMNS: Mapping[str, Type] = {
    "strategy": "text",
    **dict.fromkeys(
        ("chunk_size", "nb_local", "remote_chunk_size", "state_units", "tape_units", "local_units"), "whole"
    ),
    "seconds": "number",
    "overhead": "number",
    **dict.fromkeys(
        (
            "local_peak_bytes",
            "remote_peak_bytes",
            "recomputed_steps",
            "remote_writes",
            "remote_reads",
            "messages",
        ),
        "whole",
    ),
    "regular": "truth",
    **dict.fromkeys(("least_seconds", "gap", "paper_seconds", "paper_overhead"), "number"),
    "paper_local_peak_bytes": "whole",
    "fits": "truth",
    "binding": "text",
    "need": "number",
    "have": "number",
}


def plan_row(question: Question) -> Row:
    """Return the columns of a plan, or of why there is none."""
    if all(strategy.is_closed_form for strategy in question.strategies):
        best = question.best()
        answers = [] if best is None else [best]
    else:
        # What is proved of any strategy holds for the best one.
        answers = question.rank()
    if answers:
        return _planned(question, answers)
    reason = question.infeasible(subject="nothing fits")
    return {"fits": False, "binding": reason.binding, "need": float(reason.need), "have": float(reason.have)}


def _planned(question: Question, answers: Sequence[Answer]) -> Row:
    best = answers[0]
    predicted = best.predicted(question.costs)
    bound = proven_bound(answers, predicted.seconds)
    paper = dict(predicted.paper or {})
    return {
        "strategy": best.strategy.name,
        **best.parameters,
        **{name: predicted[name] for name in predicted if name != "paper"},
        "regular": best.regular,
        "least_seconds": None if bound is None else bound.least_seconds,
        "gap": None if bound is None else bound.gap,
        **{f"paper_{name}": paper.get(name) for name in ("seconds", "overhead", "local_peak_bytes")},
        "fits": True,
    }
