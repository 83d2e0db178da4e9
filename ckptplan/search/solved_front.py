"""The front of a strategy that solves each problem by itself: one budget after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ckptplan.model.step_costs import StepCosts
from ckptplan.search.answer import Answer
from ckptplan.search.front import Front, drop_dominated
from ckptplan.search.question import Question

#: With so many levels of memory at most, every budget is asked for; with more, some.
_EVERY, _SOME = 256, 24


def trace_solved_front(question: Question) -> tuple[Front, tuple[Answer, ...], bool]:
    """Return the front of the question's only strategy, the answer behind each point, and if it is whole.

    Each answer is the quickest schedule found within a budget; the front is whole where each was proved to
    be the quickest there is, and no budget is left out. Where there are few levels of memory, the next
    budget is just below what the last schedule needed, so that no level is left out; else budgets are spread
    evenly in the logarithm of what is beside the resident bytes, the question's own among them.
    """
    costs = question.costs
    levels = costs.steps * costs.tape_bytes // math.gcd(costs.state_bytes, costs.tape_bytes)
    answers = list(_walk(question) if levels <= _EVERY else _spread(question))
    totals = [answer.totals(costs) for answer in answers]
    keys = (
        np.array([one.local_peak_bytes for one in totals], dtype=np.int64),
        np.array([one.seconds for one in totals]),
        np.array([one.remote_peak_bytes for one in totals], dtype=np.int64),
        np.arange(len(answers)),
    )
    local, seconds, remote, places = drop_dominated(keys)
    kept = tuple(answers[place] for place in places.tolist())
    names = question.strategies[0].parameter_names
    front = Front(
        local_peak_bytes=local,
        seconds=seconds,
        remote_peak_bytes=remote,
        parameters={
            name: np.array([answer.parameters[name] for answer in kept], dtype=np.int64) for name in names
        },
    )
    return front, kept, levels <= _EVERY and all(_is_proved(answer, costs) for answer in answers)


def _is_proved(answer: Answer, costs: StepCosts) -> bool:
    """Return whether no legal schedule is quicker than the one found."""
    least = answer.least_seconds
    return least is not None and answer.totals(costs).seconds <= least * (1 + 1e-9)


def _solve_within(question: Question, local_bytes: int) -> Answer | None:
    return question.replace(local_bytes=local_bytes, objective="time", interruptions=[]).best()


def _most_useful_bytes(question: Question) -> int:
    """Return the memory with which plain backpropagation runs, which no schedule gains from exceeding."""
    return question.costs.resident_bytes + question.costs.steps * question.costs.tape_bytes


def _walk(question: Question) -> Iterator[Answer]:
    answer = _solve_within(question, _most_useful_bytes(question))
    while answer is not None:
        yield answer
        answer = _solve_within(question, answer.totals(question.costs).local_peak_bytes - 1)


def _spread(question: Question) -> Iterator[Answer]:
    resident = question.costs.resident_bytes
    free = np.geomspace(question.costs.tape_bytes, _most_useful_bytes(question) - resident, _SOME)
    budgets = {resident + round(size) for size in free.tolist()}
    budgets |= {question.goal.local_bytes} if question.goal.local_bytes is not None else set()
    for place, budget in enumerate(sorted(budgets, reverse=True)):
        answer = _solve_within(question.replace(progress=None), budget)
        if question.progress is not None:
            question.progress(place + 1, len(budgets))
        if answer is not None:
            yield answer
