"""The answer to a question as a flat row: the best plan, or what is in its way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from ckptplan.planner import predict, predicted_by
from ckptplan.search.question import Answer, Question
from ckptplan.strategies.solved import SolvedStrategy

#: A row by column; None where there is nothing to say.
Row: TypeAlias = dict[str, Any]
Type: TypeAlias = Literal["text", "whole", "number", "truth"]

#: The columns, named as those of a plan's own row, and what they hold.
PLAN_COLUMNS: Mapping[str, Type] = {
    "strategy": "text",
    **dict.fromkeys(
        (
            "chunk_size",
            "nb_local",
            "remote_chunk_size",
            "segment_size",
            "state_units",
            "tape_units",
            "local_units",
        ),
        "whole",
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
    if any(isinstance(strategy, SolvedStrategy) for strategy in question.strategies):
        answers = question.answers()
    else:
        winner = question.winner()
        answers = [] if winner is None else [winner]
    if answers:
        return _planned(question, answers)
    reason = question.infeasible(subject="nothing fits")
    return {"fits": False, "binding": reason.binding, "need": float(reason.need), "have": float(reason.have)}


def _planned(question: Question, answers: Sequence[Answer]) -> Row:
    best = answers[0].best
    strategy = answers[0].strategy
    solution = best.solution
    predicted = (
        predict(strategy, best.parameters, costs=question.costs)
        if solution is None
        else predicted_by(solution.trace, costs=question.costs)
    )
    paper = dict(predicted.paper or {})
    least = [
        answer.best.solution.least_seconds
        for answer in answers
        if answer.best.solution is not None and answer.best.solution.least_seconds is not None
    ]
    least_seconds = min(max(least), predicted.seconds) if least else None
    return {
        "strategy": strategy.name,
        **best.parameters,
        **{name: predicted[name] for name in predicted if name != "paper"},
        "regular": answers[0].regular(steps=question.costs.steps),
        "least_seconds": least_seconds,
        "gap": None if least_seconds is None else _gap(predicted.seconds, least_seconds),
        **{f"paper_{name}": paper.get(name) for name in ("seconds", "overhead", "local_peak_bytes")},
        "fits": True,
    }


def _gap(seconds: float, least_seconds: float) -> float:
    return 0.0 if seconds == 0 else (seconds - least_seconds) / seconds
