"""How far one strategy goes: the search for the largest value of a quantity that fits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import inf, isqrt, log

from ckptplan.errors import Infeasible, InputError, Limit
from ckptplan.model.plan import Plan
from ckptplan.model.workload import Workload
from ckptplan.planning.request import Request
from ckptplan.search.answer import Answer
from ckptplan.search.edges import choose_middle, find_last, find_last_of_many
from ckptplan.search.question import Question
from ckptplan.search.reasons import find_reason
from ckptplan.strategies.protocol import Strategy
from ckptplan.strategies.registry import strategy_of
from ckptplan.studies.stages import StagedProgress
from ckptplan.units import MAX_STEPS

#: The quantities, and the largest value of each that is looked at.
QUANTITIES: Mapping[str, int] = {"T": MAX_STEPS, "batch": 10**9, "neurons": 10**9}
#: Where larger sizes may need less, so many values beyond the last that was found are tried one by one.
_TRIED = 256
#: Values of a solved strategy that are looked at over the whole range, and one by one beyond the edge found.
_SPREAD, _TRIED_CHEAPLY = 32, 32
#: Share of the search when what solves nothing is done, and when only what bounds the value is left.
_CHEAP, _FOUND = 0.05, 0.9
#: Rounding of a share of base's time: ranges are dropped only where their bound is above it.
_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How far one strategy goes.

    ``plan`` is the best plan at ``value``, None where not even 1 fits, for the reason ``infeasible``.
    ``bound_by`` is the limit that the next value breaks (``local_bytes``, ``remote_bytes``,
    ``max_overhead``, or ``steps`` where the strategy is not worked out for longer sequences), None where
    nothing bounds it up to ``value``. ``proved`` says that no larger value fits; without it, none was found.
    ``interrupted`` says that the search was not completed: ``value`` is the largest found so far, 0 where
    none was.
    """

    strategy: str
    value: int
    plan: Plan | None
    bound_by: Limit | None
    proved: bool
    infeasible: Infeasible | None = None
    interrupted: bool = False


def make_empty_reach(strategy: str) -> Reach:
    """Return that an interrupted search found nothing for a strategy."""
    return Reach(strategy=strategy, value=0, plan=None, bound_by=None, proved=False, interrupted=True)


class ReachSearch(ABC):
    """The search for one strategy."""

    def __init__(self, *, quantity: str, request: Request, progress: StagedProgress) -> None:
        self.quantity = quantity
        self.request = request
        self.progress = progress
        #: The largest value that is known to fit, and the answer there.
        self.best: tuple[int, Answer] | None = None

    @abstractmethod
    def find(self, most: int) -> None:
        """Look for the largest value up to ``most``; leaves it in ``best``."""

    @abstractmethod
    def is_proved(self, value: int) -> bool:
        """Return whether no value beyond the one found fits."""

    def reach(self) -> Reach:
        """Return how far the strategy goes."""
        most = self._most()
        self.find(most)
        self.progress.report_share(_FOUND, next_share=1.0)
        if self.best is None:
            missing = self._missing(1)
            return Reach(
                strategy=self.strategy.name,
                value=0,
                plan=None,
                bound_by=missing.binding,
                proved=self.is_proved(0),
                infeasible=missing,
            )
        value, answer = self.best
        return Reach(
            strategy=self.strategy.name,
            value=value,
            plan=self._plan(value, answer),
            bound_by=self._missing(value + 1).binding if value < most else None,
            proved=self.is_proved(value),
        )

    def so_far(self) -> Reach:
        """Return the largest value found before an interruption."""
        found = make_empty_reach(self.strategy.name)
        if self.best is None:
            return found
        value, answer = self.best
        return replace(found, value=value, plan=self._plan(value, answer))

    @property
    def strategy(self) -> Strategy:
        """The only one asked for."""
        return strategy_of(self.request.goal.strategies[0])

    def _plan(self, value: int, answer: Answer) -> Plan:
        return self._request(value).plan(answer)

    def _fits(self, value: int) -> bool:
        """Try a value with all limits; keep what is found."""
        answer = self._question(value).best()
        if answer is not None:
            self.best = value, answer
        return answer is not None

    def _job(self, value: int) -> Workload:
        workload = self.request.case.workload
        if self.quantity == "T":
            return workload.with_steps(value)
        return workload.with_batch(value) if self.quantity == "batch" else workload.with_neurons(value)

    def _request(self, value: int) -> Request:
        return self.request.for_workload(self._job(value))

    def _question(self, value: int) -> Question:
        return self._request(value).question()

    def _missing(self, value: int) -> Infeasible:
        return find_reason(self._question(value), subject=f"{self.strategy.name} does not fit")

    def _most(self) -> int:
        """Return the largest value whose bytes can be counted."""
        self._question(1)  # a job that cannot be changed says so

        def countable(value: int) -> bool:
            try:
                self._question(value)
            except InputError:
                return False
            return True

        return find_last(countable, 1, QUANTITIES[self.quantity])


class ClosedFormReachSearch(ReachSearch):
    """The search for a strategy whose cost is a closed form.

    A schedule of fewer steps is one of more steps without the first of them, since chunks are cut from the
    end: each count, and so the memory and what is added to base's time, falls no lower as T, or the size
    of a state, rises. (But for chunks that grow with the whole part of M_s / M_a: rounded sizes may make
    that part larger. There, values beyond the last one found are tried, and nothing is proved.)

    So a range of values is hopeless if at its smallest value nothing fits, or adds more than the share
    allowed of base's time at its largest. Other ranges are halved, the upper half first. Without a limit
    of overhead that is bisection; with one, what fits need not be all below some value.
    """

    def __init__(self, *, quantity: str, request: Request, progress: StagedProgress) -> None:
        super().__init__(quantity=quantity, request=request, progress=progress)
        self.extra_seconds = cache(self._extra_seconds)
        #: The largest value seen to fit, where there is no limit of overhead; not planned yet.
        self.fitting = 0

    def find(self, most: int) -> None:
        self._look_up_to(most)
        if self.best is not None and self._grows_by_sizes:
            for further in range(self.best[0] + 1, min(most, self.best[0] + _TRIED) + 1):
                self._fits(further)

    def is_proved(self, value: int) -> bool:  # noqa: ARG002 - known without
        return not self._grows_by_sizes

    def so_far(self) -> Reach:
        if self.fitting > (self.best[0] if self.best else 0):
            self._fits(self.fitting)
        return super().so_far()

    @property
    def _grows_by_sizes(self) -> bool:
        """Whether a larger size may make chunks grow more, and so need less."""
        return self.quantity != "T" and "state_units" in self.strategy.parameter_names

    def _look_up_to(self, most: int) -> None:
        waiting = [(1, most)]
        while waiting:
            low, high = waiting.pop()
            self.progress.report_share(_FOUND * (1 - log(1 + high - low) / log(1 + most)), next_share=0.0)
            if self._hopeless(low, high):
                continue
            if low == high:
                if self._fits(low):
                    return
                continue
            # Wide ranges are cut at their geometric mean: what fits is small beside what can be asked.
            middle = isqrt(low * high) + 1 if high > 4 * low else (low + high + 1) // 2
            waiting += [(low, middle - 1), (middle, high)]

    def _hopeless(self, low: int, high: int) -> bool:
        extra, limit = self.extra_seconds(low), self.request.goal.max_overhead
        if limit is None or extra == inf:
            return extra == inf
        longest = self._question(high).base_seconds
        added = extra
        if self.request.case.profile.overlaps_compute:
            # What a transfer is hidden behind may grow faster than the transfers: only the whole time rises.
            added = self._question(low).base_seconds + extra - longest
        return added > limit * longest + _ROUNDING * longest

    def _extra_seconds(self, value: int) -> float:
        """Return the least that is added to base's time within the memory; infinite where nothing fits."""
        question = self._question(value).replace(max_overhead=None)
        if self.request.goal.max_overhead is None:
            if not question.fits():
                return inf
            self.fitting = max(self.fitting, value)
            return 0.0
        answer = question.best()
        return inf if answer is None else answer.key[0] - question.base_seconds


class SolvedReachSearch(ReachSearch):
    """The search for a strategy that is solved value by value, which may take seconds each.

    Below the local memory that it needs at least there is no schedule; that need rises with the value, so
    that bisection finds the last value that meets it, for nothing. Up to there, whether there is a schedule
    is known without solving, but how much work a table is need not rise with the value: some values spread
    over the range are looked at before the edge between the last good one of them and the next is. That
    value is solved. Only where its schedule takes more time than allowed, others are: by bisection, which
    proves nothing, since the share of base's time can rise for a smaller value.
    """

    def find(self, most: int) -> None:
        self.met = find_last(self._meets_the_least, 1, most)
        high = find_last_of_many(self._may_fit, 1, self.met, spread=_SPREAD, beyond=_TRIED_CHEAPLY)
        if high == 0:
            return
        alone = self.request.goal.max_overhead is None
        self.progress.report_share(_CHEAP, next_share=_FOUND if alone else 2 * _CHEAP)
        if self._fits(high):
            return
        self._look_below(high)

    def is_proved(self, value: int) -> bool:
        return value == self.met

    def _look_below(self, high: int) -> None:
        """Bisect for the last value that keeps the limits, from what needs no more than to hold each tape."""
        low, first = 0, find_last(self._holds_all_tapes, 1, high - 1)
        most, begun = log(high), 2 * _CHEAP
        while high - low > 1:
            middle = first if low == 0 and low < first < high else choose_middle(low, high)
            left = (log(high - low), log(max(middle - low, high - middle)))
            share, next_share = (_FOUND - (_FOUND - begun) * one / most for one in left)
            self.progress.report_share(share, next_share=next_share)
            if self._fits(middle):
                low = middle
            else:
                high, first = middle, 0

    def _meets_the_least(self, value: int) -> bool:
        return self._question(value).may_fit()

    def _may_fit(self, value: int) -> bool:
        """Return whether there is a schedule, and each step whose tape is not held may be run again."""
        question = self._question(value)
        limit = question.goal.max_overhead
        if limit is not None and self._unkept_seconds(question) > (limit + _ROUNDING) * question.base_seconds:
            return False
        return question.replace(max_overhead=None).fits()

    def _holds_all_tapes(self, value: int) -> bool:
        return self._unkept_seconds(self._question(value)) == 0

    def _unkept_seconds(self, question: Question) -> float:
        costs, local = question.costs, question.goal.local_bytes
        if local is None:
            return 0.0
        tapes = max(0, local - costs.resident_bytes) // costs.tape_bytes
        return max(0, costs.steps - tapes) * costs.recompute_seconds
