"""Ranks the strategies that fit a request, and makes plans of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ckptplan.cost.case import Case
from ckptplan.errors import Infeasible
from ckptplan.model.display import Displayed
from ckptplan.model.plan import Plan
from ckptplan.model.prediction import BasisEntry
from ckptplan.planning.request import Request
from ckptplan.planning.resolution import explain_choice, list_proofs
from ckptplan.planning.suggestions import add_suggestions
from ckptplan.search.answer import Answer
from ckptplan.search.infeasibility import find_reason
from ckptplan.search.question import Question
from ckptplan.strategies.registry import select_strategies


def rank_strategies(
    request: Request, *, strategies: tuple[str, ...] | None = None, every: bool = False
) -> Ranking:
    """Search the strategies of a request once; the use cases read their results from the ranking.

    ``strategies`` narrows the search; the goal of the plans still names all that were compared. Unless
    ``every`` one is asked for, the search ends with a plan that none of the others can be quicker than. Raises
    InputError.
    """
    question = request.question()
    if strategies is not None:
        question = question.replace(strategies=strategies)
    answers = question.rank() if every else question.rank_until_settled()
    return Ranking(request=request, question=question, answers=answers, every=every)


class Compared(Displayed, dict[str, Plan | Infeasible]):
    """The best plan of each strategy by its name, or why it has none; ``case`` is what was planned."""

    __slots__ = ("case",)

    def __init__(self, results: Mapping[str, Plan | Infeasible], *, case: Case) -> None:
        super().__init__(results)
        self.case = case

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (dict(self), self.case)


def _restore(results: Mapping[str, Plan | Infeasible], case: Case) -> Compared:
    return Compared(results, case=case)


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The answers of the strategies that fit a request, the one to choose first (``Question.rank``).

    If not ``every`` strategy had to be searched, some may be ``unsearched``.
    """

    request: Request
    question: Question
    answers: list[Answer]
    every: bool

    @property
    def unsearched(self) -> tuple[str, ...]:
        """The strategies that were not searched, since none can be quicker than the plan to run."""
        if self.every or not self.answers:
            return ()
        return tuple(strategy.name for strategy in self.question.unsearched(self.answers[0]))

    @property
    def interrupted(self) -> bool:
        """Whether the search was interrupted, so that the answers are only the best so far."""
        return bool(self.question.interruptions)

    def best(self) -> Plan:
        """Return the plan to run.

        Raises Infeasible, with verified suggestions.
        """
        if self.answers:
            return self._plan(self.answers[0])
        raise explain_infeasible(self.request.replace(strategies=self.question.goal.strategies))

    def by_strategy(self) -> Compared:
        """Return the best plan of each strategy, the one to run first, then why other strategies do not fit.

        Nothing is said of strategies that were not searched.
        """
        plans = {answer.strategy.name: self._plan(answer) for answer in self.answers}
        reasons = {
            strategy.name: find_reason(
                self.question.for_strategy(strategy), subject=f"{strategy.name} does not fit"
            )
            for strategy in self.question.strategies
            if strategy.name not in (*plans, *self.unsearched)
        }
        return Compared({**plans, **reasons}, case=self.request.case)

    def _plan(self, answer: Answer) -> Plan:
        notes: tuple[BasisEntry, ...] = ()
        if answer is self.answers[0]:
            notes = explain_choice(self.answers, self.question, self.request.case.timed.calibration)
        proofs = list_proofs(self.answers, self.question)
        return self.request.plan(answer, *notes, proofs=proofs)


def explain_infeasible(request: Request) -> Infeasible:
    """Return why no strategy of a request fits, with verified suggestions."""
    return add_suggestions(request.infeasible(_name_subject(request.goal.strategies)), request=request)


def _name_subject(asked: tuple[str, ...]) -> str:
    if len(asked) == 1:
        return f"{asked[0]} does not fit"
    if len(asked) < len(select_strategies(None)):
        return f"none of {', '.join(asked)} fits"
    return "no strategy fits"
