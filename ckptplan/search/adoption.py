"""Takes over the answer of one strategy as that of another, which searches for decisions."""

from __future__ import annotations

from dataclasses import replace

from ckptplan.model.step_costs import StepCosts
from ckptplan.search.answer import Answer, ClosedFormAnswer, SolvedAnswer
from ckptplan.search.objective import FirstOnly, Objective, least_memory
from ckptplan.strategies.adopted import FormSetting, adopt_setting, can_name
from ckptplan.strategies.solved import Solution, Solved

#: The objectives that ask for the least local memory, and what is said if it is not proved to be the least.
_MEMORY_FIRST = (least_memory, FirstOnly(least_memory))
_LESS_MEMORY = "no schedule with less local memory was found, but that there is none is not proved"


def is_adoptable(answer: Answer) -> bool:
    """Return whether an answer can be written as decisions."""
    return isinstance(answer, SolvedAnswer) or (
        isinstance(answer, ClosedFormAnswer) and can_name(answer.strategy)
    )


def adopt_answer(
    best: Answer, *, strategy: Solved, own: SolvedAnswer | None, objective: Objective, costs: StepCosts
) -> SolvedAnswer:
    """Return the best answer that was found as that of ``strategy``, with what it proved itself.

    ``own`` is its own answer, None if it has none. If the objective is memory, the answer says so where less
    memory is not excluded.
    """
    solution = _as_solution(best, costs)
    if objective in _MEMORY_FIRST and best.key[0] > strategy.least_local_bytes(costs):
        solution = replace(solution, notes=(*solution.notes, _LESS_MEMORY))
    least_seconds = None if own is None else own.least_seconds
    return SolvedAnswer(
        strategy=strategy,
        parameters=solution.parameters,
        key=best.key,
        steps=best.steps,
        solution=replace(solution, least_seconds=least_seconds),
        solved_at=costs,
    )


def _as_solution(answer: Answer, costs: StepCosts) -> Solution:
    if isinstance(answer, SolvedAnswer):
        return answer.solution
    if isinstance(answer, ClosedFormAnswer):
        return adopt_setting(FormSetting(strategy=answer.strategy, parameters=answer.parameters), costs=costs)
    raise TypeError(f"the answer of {answer.strategy.name} is neither a setting nor a tree of decisions")
