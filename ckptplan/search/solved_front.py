"""The front of a strategy that solves each problem by itself: one budget after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ckptplan.search.front import Front, undominated
from ckptplan.search.question import Answer, Question

#: With so many levels of memory at most, every budget is asked for; with more, some.
_EVERY, _SOME = 256, 24


def solved_front(question: Question) -> tuple[Front, tuple[Answer, ...], bool]:
    """Return the front of the question's only strategy, the answer behind each point, and if it is whole.

    Each answer is the quickest schedule found within a budget; the front is whole where each was proved to
    be the quickest there is, and no budget is left out. Where there are few levels of memory, the next
    budget is just below what the last schedule needed, so that no level is left out; else budgets are spread
    evenly in the logarithm of what is beside the resident bytes, the question's own among them.
    """
    costs = question.costs
    levels = costs.steps * costs.tape_bytes // math.gcd(costs.state_bytes, costs.tape_bytes)
    answers = list(_walk(question) if levels <= _EVERY else _spread(question))
    keys = (
        np.array([_bytes(answer) for answer in answers], dtype=np.int64),
        np.array([_cost(answer)[0] for answer in answers]),
        np.array([_cost(answer)[2] for answer in answers], dtype=np.int64),
        np.arange(len(answers)),
    )
    local, seconds, remote, places = undominated(keys)
    kept = tuple(answers[place] for place in places.tolist())
    names = question.strategies[0].parameter_names
    front = Front(
        local_peak_bytes=local,
        seconds=seconds,
        remote_peak_bytes=remote,
        parameters={
            name: np.array([answer.best.parameters[name] for answer in kept], dtype=np.int64) for name in names
        },
    )
    return front, kept, levels <= _EVERY and all(_is_proved(answer) for answer in answers)


def _cost(answer: Answer) -> tuple[float, int, int]:
    solution = answer.best.solution
    if solution is None:
        raise TypeError(f"{answer.strategy.name} is searched, not solved")
    cost = solution.cost
    return float(cost.seconds[0]), int(cost.local_peak_bytes[0]), int(cost.remote_peak_bytes[0])


def _is_proved(answer: Answer) -> bool:
    """Whether no legal schedule is quicker than the one found."""
    solution = answer.best.solution
    least = None if solution is None else solution.least_seconds
    return solution is not None and least is not None and solution.trace.seconds <= least * (1 + 1e-9)


def _bytes(answer: Answer) -> int:
    return _cost(answer)[1]


def _within(question: Question, local_bytes: int) -> Answer | None:
    budget = replace(question.budget, local_bytes=local_bytes)
    return question.changed(budget=budget, objective="time", interruptions=[]).winner()


def _most(question: Question) -> int:
    """Return the memory with which plain backpropagation runs, which no schedule gains from exceeding."""
    return question.costs.resident_bytes + question.costs.steps * question.costs.tape_bytes


def _walk(question: Question) -> Iterator[Answer]:
    answer = _within(question, _most(question))
    while answer is not None:
        yield answer
        answer = _within(question, _bytes(answer) - 1)


def _spread(question: Question) -> Iterator[Answer]:
    resident = question.costs.resident_bytes
    free = np.geomspace(question.costs.tape_bytes, _most(question) - resident, _SOME)
    budgets = {resident + round(size) for size in free.tolist()}
    budgets |= {question.budget.local_bytes} if question.budget.local_bytes is not None else set()
    for place, budget in enumerate(sorted(budgets, reverse=True)):
        answer = _within(question.changed(progress=None), budget)
        if question.progress is not None:
            question.progress(place + 1, len(budgets))
        if answer is not None:
            yield answer
