"""Formats the answer to a question as a flat row: the best plan, or why nothing fits."""

from __future__ import annotations

from collections.abc import Sequence

from ckptplan.planning.resolution import derive_bound, list_proofs
from ckptplan.search.answer import Answer
from ckptplan.search.infeasibility import find_reason
from ckptplan.search.question import Question
from ckptplan.storage.tables import Columns, Row
from ckptplan.strategies.registry import all_parameters

#: Columns of the job.
JOB_COLUMNS: Columns = {"workload": "text", "profile": "text", "steps": "whole"}
#: Columns of the prediction that every plan has.
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
#: Further columns that some plans have.
DETAIL_COLUMNS: Columns = {
    "regular": "truth",
    "least_seconds": "number",
    "gap": "number",
    "paper_seconds": "number",
    "paper_overhead": "number",
    "paper_local_peak_bytes": "whole",
}
#: Columns of the reason why there is no plan.
REASON_COLUMNS: Columns = {"fits": "truth", "binding": "text", "need": "number", "have": "number"}


def parameter_columns() -> Columns:
    """Return a column for each parameter of any strategy, so that the columns do not depend on the plan."""
    return dict.fromkeys(all_parameters(), "whole")


def cost_columns() -> Columns:
    """Return the columns of an existing plan: strategy, parameters and costs."""
    return {"strategy": "text", **parameter_columns(), **_PREDICTED_COLUMNS}


def plan_columns() -> Columns:
    """Return the columns of the answer to a question: a plan, or why there is none."""
    return {**cost_columns(), **DETAIL_COLUMNS, **REASON_COLUMNS}


def plan_row(question: Question) -> Row:
    """Return the row of the best plan, or of the reason why nothing fits."""
    if all(strategy.is_closed_form for strategy in question.strategies):
        best = question.best()
        answers = [] if best is None else [best]
    else:
        # A bound that any strategy proves also holds for the best plan.
        answers = question.rank_until_settled()
    if answers:
        return _make_plan_row(question, answers)
    reason = find_reason(question, subject="nothing fits")
    return {"fits": False, "binding": reason.binding, "need": float(reason.need), "have": float(reason.have)}


def _make_plan_row(question: Question, answers: Sequence[Answer]) -> Row:
    best = answers[0]
    predicted = best.predicted(question.costs)
    bound = derive_bound(list_proofs(answers, question), predicted.seconds)
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
