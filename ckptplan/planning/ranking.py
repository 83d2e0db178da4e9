"""Ranks the strategies that fit a request, and makes plans of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ckptplan.errors import Infeasible
from ckptplan.model.calibration import Calibration
from ckptplan.model.plan import Plan
from ckptplan.model.prediction import BasisEntry
from ckptplan.planning.request import Request
from ckptplan.planning.suggestions import add_suggestions
from ckptplan.search.answer import Answer
from ckptplan.search.question import Question
from ckptplan.search.reasons import find_reason
from ckptplan.strategies.registry import select_strategies
from ckptplan.units import format_percent

#: Relative difference of times that another order of summation can cause.
_ROUNDING = 1e-9


def rank_strategies(request: Request, *, strategies: tuple[str, ...] | None = None) -> Ranking:
    """Search all strategies of a request once; the use cases read their results from the ranking.

    ``strategies`` narrows the search; the goal of the plans still names all that were compared. Raises
    InputError.
    """
    question = request.question()
    if strategies is not None:
        question = question.replace(strategies=strategies)
    return Ranking(request=request, question=question, answers=question.rank())


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The answers of the strategies that fit a request, the best by prediction first."""

    request: Request
    question: Question
    answers: list[Answer]

    @property
    def interrupted(self) -> bool:
        """Whether the search was interrupted, so that the answers are only the best so far."""
        return bool(self.question.interruptions)

    def best(self) -> Plan:
        """Return the plan to run: the first, or a regular one that the calibration cannot distinguish from it.

        Raises Infeasible, with verified suggestions.
        """
        calibration = self.request.case.workload.calibration
        times_decide = (self.request.goal.objective, self.request.goal.model) == ("time", "exact")
        if calibration is None or not times_decide or not self.answers:
            return self.first()
        return self._choose_within(calibration)

    def first(self) -> Plan:
        """Return the best plan by prediction alone.

        Raises Infeasible, with verified suggestions.
        """
        if self.answers:
            return self._plan(self.answers[0])
        raise explain_infeasible(self.request.replace(strategies=self.question.goal.strategies))

    def by_strategy(self) -> dict[str, Plan | Infeasible]:
        """Return the best plan of each strategy, best first, then why the other strategies do not fit."""
        plans = {answer.strategy.name: self._plan(answer) for answer in self.answers}
        reasons = {
            strategy.name: find_reason(
                self.question.for_strategy(strategy), subject=f"{strategy.name} does not fit"
            )
            for strategy in self.question.strategies
            if strategy.name not in plans
        }
        return {**plans, **reasons}

    def _plan(self, answer: Answer, *notes: BasisEntry) -> Plan:
        return self.request.plan(answer, *notes, ranked=self.answers)

    def _choose_within(self, calibration: Calibration) -> Plan:
        """Return the best regular plan whose time cannot be distinguished from the least, else the fastest.

        In execution each chunk has a cost of its own, which the models ignore, and irregular schedules have
        many chunks. So a gain within the error of measurement does not justify an irregular schedule. Of the
        regular plans, the best is the fastest when the measured overhead of its chunks is added.
        """
        first, steps = self.answers[0], self.question.costs.steps
        most = (1 + calibration.uncertainty) * first.key[0]
        close = [answer for answer in self.answers if answer.key[0] <= most and answer.regular]

        def charged(answer: Answer) -> float:
            parameters: Mapping[str, int] = answer.parameters
            chunks = -(-steps // parameters.get("chunk_size", steps))
            return answer.key[0] + chunks * (calibration.chunk_overhead_seconds or 0.0)

        chosen = min(close, key=charged, default=first)
        if chosen is first:
            return self._plan(first)
        return self._plan(chosen, _explain_regular_choice(first, chosen, uncertainty=calibration.uncertainty))


def explain_infeasible(request: Request) -> Infeasible:
    """Return why no strategy of a request fits, with verified suggestions."""
    return add_suggestions(request.infeasible(_name_subject(request.goal.strategies)), request=request)


def _name_subject(asked: tuple[str, ...]) -> str:
    if len(asked) == 1:
        return f"{asked[0]} does not fit"
    if len(asked) < len(select_strategies(None)):
        return f"none of {', '.join(asked)} fits"
    return "no strategy fits"


def _explain_regular_choice(first: Answer, chosen: Answer, *, uncertainty: float) -> BasisEntry:
    """Return why a regular plan was chosen although another one is predicted to be better."""
    gain = 1 - first.key[0] / chosen.key[0]
    known = format_percent(uncertainty).lstrip("+")
    predicted = (
        f"{format_percent(gain).lstrip('+')} quicker, which the calibration (known within {known}) cannot tell"
        if gain > _ROUNDING
        else "as quick"
    )
    # If the first plan is regular, the chosen one has cheaper chunks.
    what = "regular plan of fewer chunks" if first.regular else "quickest regular plan"
    return BasisEntry(
        field="search",
        kind="stated",
        text=f"{first.strategy.name} is predicted {predicted}, so that the {what} was taken",
    )
