"""The strategies that fit, best first: the plan to run, and one plan for each strategy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ckptplan.errors import CkptplanError, Infeasible
from ckptplan.model.calibration import Calibration
from ckptplan.model.plan import Plan
from ckptplan.model.prediction import BasisEntry, Bound
from ckptplan.planning.request import Request
from ckptplan.planning.suggestions import add_suggestions
from ckptplan.search.answer import Answer
from ckptplan.search.question import Question
from ckptplan.strategies.registry import select_strategies
from ckptplan.units import format_percent

#: Share of a time that sums of floats, formed in another order, may differ by.
_ROUNDING = 1e-9


def rank_strategies(request: Request) -> Ranking:
    """Search all strategies of a request once; what the use cases return is read off the result.

    Raises InputError.
    """
    question = request.question()
    return Ranking(request=request, question=question, answers=question.rank())


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The strategies that fit, the best by prediction first, and how to make plans of them."""

    request: Request
    question: Question
    answers: list[Answer]

    @property
    def interrupted(self) -> bool:
        """Whether the search was interrupted, so that the answers are the best so far."""
        return bool(self.question.interruptions)

    def best(self) -> Plan:
        """Return the plan to run: the first, or a regular one that a calibration cannot tell from it.

        Raises Infeasible, with suggestions that were each found to fit.
        """
        calibration = self.request.case.workload.calibration
        times_decide = (self.request.goal.objective, self.request.goal.model) == ("time", "exact")
        if calibration is None or not times_decide or not self.answers:
            return self.first()
        return self._choose_within(calibration)

    def first(self) -> Plan:
        """Return the best plan by its prediction alone.

        Raises Infeasible, with suggestions that were each found to fit.
        """
        if self.answers:
            return self._plan(self.answers[0])
        raise explain_infeasible(self.request)

    def by_strategy(self) -> dict[str, Plan | Infeasible]:
        """Return the best plan of each strategy, best first, then those that do not fit and why."""
        plans = {answer.strategy.name: self._plan(answer) for answer in self.answers}
        reasons = {
            strategy.name: self.question.for_strategy(strategy).infeasible(
                subject=f"{strategy.name} does not fit"
            )
            for strategy in self.question.strategies
            if strategy.name not in plans
        }
        return {**plans, **reasons}

    def _plan(self, answer: Answer, *notes: BasisEntry) -> Plan:
        seconds = answer.totals(self.question.costs).seconds
        return self.request.plan(answer, *notes, bound=derive_bound(self.answers, seconds))

    def _choose_within(self, calibration: Calibration) -> Plan:
        """Return the best regular plan whose time cannot be told from the least, else the quickest.

        Executed, each chunk has a cost of its own, which no model here counts, and irregular schedules have
        many chunks. So a gain that is within the error of the measurements is no reason to take one. Of
        regular plans that is the quickest when its chunks are charged with what the calibration found.
        """
        first, steps = self.answers[0], self.question.costs.steps
        most = (1 + calibration.uncertainty) * first.key[0]
        close = [answer for answer in self.answers if answer.key[0] <= most and answer.regular]

        def charged(answer: Answer) -> float:
            parameters: Mapping[str, int] = answer.parameters
            chunks = -(-steps // parameters.get("chunk_size", steps))
            return answer.key[0] + chunks * calibration.chunk_overhead_seconds

        chosen = min(close, key=charged, default=first)
        if chosen is first:
            return self._plan(first)
        return self._plan(chosen, _explain_regular_choice(first, chosen, uncertainty=calibration.uncertainty))


def derive_bound(answers: Iterable[Answer], seconds: float) -> Bound | None:
    """Return what is proved of every schedule, if anything is, for a plan of ``seconds``.

    Raises CkptplanError where the plan is quicker than was proved possible, but for rounding.
    """
    proved = [answer.least_seconds for answer in answers if answer.least_seconds is not None]
    if not proved:
        return None
    least = max(proved)
    # A bound above a plan is no bound: nobody must read it as a proof.
    if least > seconds * (1 + _ROUNDING):
        raise CkptplanError(
            f"no schedule was said to take less than {least:.12g} s, but one takes {seconds:.12g} s: "
            "this is a fault of ckptplan, please report it"
        )
    least = min(least, seconds)
    return Bound(least_seconds=least, gap=0.0 if seconds == 0 else (seconds - least) / seconds)


def explain_infeasible(request: Request) -> Infeasible:
    """Return why no strategy of a request fits, with suggestions that were each found to fit."""
    return add_suggestions(request.infeasible(_name_subject(request.goal.strategies)), request=request)


def _name_subject(asked: tuple[str, ...]) -> str:
    if len(asked) == 1:
        return f"{asked[0]} does not fit"
    if len(asked) < len(select_strategies(None)):
        return f"none of {', '.join(asked)} fits"
    return "no strategy fits"


def _explain_regular_choice(first: Answer, chosen: Answer, *, uncertainty: float) -> BasisEntry:
    """Return why a regular plan is taken, where another one is predicted to be better."""
    gain = 1 - first.key[0] / chosen.key[0]
    known = format_percent(uncertainty).lstrip("+")
    told = (
        f"{format_percent(gain).lstrip('+')} quicker, which the calibration (known within {known}) cannot tell"
        if gain > _ROUNDING
        else "as quick"
    )
    # A regular plan gives way only to one whose chunks cost less.
    what = "regular plan of fewer chunks" if first.regular else "quickest regular plan"
    return BasisEntry(
        field="search",
        kind="stated",
        text=f"{first.strategy.name} is predicted {told}, so that the {what} was taken",
    )
