"""The answer to a question as a flat row: the best plan, or what is in its way."""

from __future__ import annotations

from collections.abc import Sequence

from ckptplan.planner import predict, predicted_by
from ckptplan.search.question import Answer, Question
from ckptplan.storage.tables import Columns, Row
from ckptplan.strategies.registry import all_parameters
from ckptplan.strategies.solved import SolvedStrategy

#: What is planned.
JOB_COLUMNS: Columns = {"workload": "text", "profile": "text", "steps": "whole"}
#: What is predicted of every plan.
_PREDICTED_COLUMNS: Columns = {
    "seconds": "number",
    "overhead": "number",
    "local_peak_bytes": "whole",
    "remote_peak_bytes": "whole",
    "recomputed_steps": "whole",
    "remote_writes": "whole",
    "remote_reads": "whole",
    "messages": "whole",
}
#: What else is known of some plans.
DETAIL_COLUMNS: Columns = {
    "regular": "truth",
    "least_seconds": "number",
    "gap": "number",
    "paper_seconds": "number",
    "paper_overhead": "number",
    "paper_local_peak_bytes": "whole",
}
#: Why there is no plan.
REASON_COLUMNS: Columns = {"fits": "truth", "binding": "text", "need": "number", "have": "number"}


def parameter_columns() -> Columns:
    """Return a column for each parameter of any strategy, so that all plans have the same columns."""
    return dict.fromkeys(all_parameters(), "whole")


def cost_columns() -> Columns:
    """Return the columns of a plan that is sure to be there: what it is, and what it costs."""
    return {"strategy": "text", **parameter_columns(), **_PREDICTED_COLUMNS}


def plan_columns() -> Columns:
    """Return the columns of the answer to a question, named as those of a plan's own row."""
    return {**cost_columns(), **DETAIL_COLUMNS, **REASON_COLUMNS}


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
