"""Why nothing fits: the limit that binds, the value needed, and the present value."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ckptplan.cost.exact import overhead
from ckptplan.errors import Infeasible, Limit
from ckptplan.model.prediction import Totals
from ckptplan.search.objective import least_time
from ckptplan.search.question import BudgetLimit, Question


def find_reason(question: Question, *, subject: str) -> Infeasible:
    """Return why nothing fits: the binding limit, the value needed, and the present value.

    The binding limit is the first of overhead, remote budget and local budget whose removal alone makes a
    plan possible: the caller's wish comes before the machine. If no single removal does, it is the first
    limit that no plan could meet even without the others.
    """
    explain = partial(Infeasible, subject=subject, headroom=question.goal.headroom)
    local, least_local = question.goal.local_bytes, question.least_solvable_bytes
    if local is not None and least_local > local:
        return explain(binding="local_bytes", need=least_local, have=local)
    closed = question.for_closed_forms()
    lifted: dict[BudgetLimit, Question] = {
        "max_overhead": question.replace(max_overhead=None),
        "remote_bytes": closed.replace(remote_bytes=None),
        "local_bytes": closed.replace(local_bytes=None),
    }
    free = closed.replace(local_bytes=None, remote_bytes=None, max_overhead=None)
    for questions in (lifted, dict.fromkeys(lifted, free)):
        for binding, relaxed in questions.items():
            limit: float | None = getattr(question.goal, binding)
            least = None if limit is None else relaxed.least(binding)
            if limit is not None and least is not None and least > limit:
                return explain(binding=binding, need=least, have=limit)
    if exceeded := next(_find_exceeded(question), None):
        return explain(binding=exceeded[0], need=exceeded[1], have=exceeded[2])
    # There are no such schedules: the sequence is too long.
    most = max((one.most_steps(question.task(one, least_time)) for one in question.all_solved), default=0)
    steps = question.costs.steps
    return explain(binding="steps", need=min(most, steps - 1), have=steps)


def _find_exceeded(question: Question) -> Iterator[tuple[Limit, float, float]]:
    """Yield the limits that the requested schedules exceed although closed forms would fit."""
    for lifted in (
        question.replace(remote_bytes=None),
        question.replace(max_overhead=None),
        question.replace(remote_bytes=None, max_overhead=None),
    ):
        answer = lifted.best() if lifted.replace(max_overhead=None).fits() else None
        if answer is not None and not answer.strategy.is_closed_form:
            yield from _find_broken(question, answer.totals(question.costs))


def _find_broken(question: Question, totals: Totals) -> Iterator[tuple[Limit, float, float]]:
    """Yield the limits that a schedule exceeds: the limit, the value needed, and the present value."""
    remote, most = question.goal.remote_bytes, question.goal.max_overhead
    if remote is not None and totals.remote_peak_bytes > remote:
        yield "remote_bytes", float(totals.remote_peak_bytes), remote
    seconds = float(overhead(totals.seconds, question.base_seconds))
    if most is not None and seconds > most:
        yield "max_overhead", seconds, most
