"""Implements ``largest``: finds the longest sequence, or the largest batch or network, that fits.

Bisection finds the last value that fits with each strategy.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import inf, isqrt, log
from operator import le
from types import MappingProxyType
from typing import Literal

import numpy as np

from ckptplan.cost.arrays import COUNT_ROUNDING, SUM_ROUNDING
from ckptplan.cost.case import Case
from ckptplan.cost.exact import overhead
from ckptplan.errors import Infeasible, InputError, Limit, did_you_mean
from ckptplan.model.display import DrawnOnAxes
from ckptplan.model.plan import Plan
from ckptplan.model.progress import Progress, StagedProgress
from ckptplan.planning.request import AnyProfile, AnyWorkload, Request, list_left_out, read_deadline
from ckptplan.search.boxes import Limits
from ckptplan.search.question import Question, find_reason
from ckptplan.strategies.answer import Answer
from ckptplan.strategies.closed_form import SIZE_NAMES, ClosedForm
from ckptplan.strategies.protocol import Strategy
from ckptplan.strategies.registry import strategy_of
from ckptplan.studies.workers import map_in_order
from ckptplan.units import MAX_STEPS, format_count

#: The quantities: the field of the workload that each one sets, and the largest value considered.
QUANTITIES: Mapping[str, tuple[str, int]] = {
    "T": ("steps", MAX_STEPS),
    "batch": ("batch", 10**9),
    "neurons": ("neurons", 10**9),
}
#: If larger sizes may need less memory, this many values above the largest one found are tried one by one.
_TRIED = 256
#: For a solved strategy: how many values are tried over the whole range, and one by one above the edge.
_SPREAD, _TRIED_CHEAPLY = 32, 32
#: Progress when the search without solving is done, and when only the binding limit has to be determined.
_CHEAP, _FOUND = 0.05, 0.9


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The largest value that fits with one strategy.

    ``plan`` is the best plan at ``value``, None if not even 1 fits; ``infeasible`` is then the reason.
    ``bound_by`` is the limit that the next value exceeds: ``local_bytes``, ``remote_bytes``, ``max_overhead``,
    ``deadline``, or ``steps`` if the strategy cannot be solved for longer sequences. It is None if ``value`` is
    the largest considered. ``proved`` is True if no larger value can fit; otherwise the search found none.
    ``interrupted`` says that the search was not completed: ``value`` is then the largest found so far, or 0.
    """

    strategy: str
    value: int
    plan: Plan | None
    bound_by: Limit | Literal["deadline"] | None
    proved: bool
    infeasible: Infeasible | None = None
    interrupted: bool = False


class LargestValues(DrawnOnAxes, Mapping[str, Reach]):
    """A mapping from names of strategies to the largest value that fits with each, the largest first.

    Arguments:
        quantity: the quantity that was maximized: 'T', 'batch' or 'neurons'.
        case: the workload and the profile.
        reaches: the result of each strategy.
        left_out: the strategies that ``optimize`` compares and this search does not, each with the reason.
        deadline: the seconds that a batch may take at most; None is no limit.
    """

    def __init__(
        self,
        quantity: str,
        case: Case,
        reaches: Iterable[Reach],
        left_out: Mapping[str, str] = MappingProxyType({}),
        deadline: float | None = None,
    ) -> None:
        self.quantity = quantity
        self.deadline = deadline
        self.case = case
        self.left_out = dict(left_out)
        ordered = sorted(reaches, key=lambda reach: -reach.value)
        self._reaches = {reach.strategy: reach for reach in ordered}

    def __getitem__(self, strategy: str) -> Reach:
        return self._reaches[strategy]

    def __iter__(self) -> Iterator[str]:
        return iter(self._reaches)

    def __len__(self) -> int:
        return len(self._reaches)

    def __repr__(self) -> str:
        """Return the largest value of each strategy, in one line."""
        values = ", ".join(f"{name} {format_count(reach.value)}" for name, reach in self.items())
        return f"<LargestValues of {self.quantity}: {values}>"


def largest(
    quantity: str,
    workload: AnyWorkload,
    profile: AnyProfile,
    *,
    steps: int | None = None,
    strategies: Iterable[str] | str | None = None,
    max_overhead: float | str | None = None,
    local_bytes: int | str | None = None,
    headroom: float | str | None = None,
    remote_bytes: int | str | None = None,
    cache: str | None = None,
    effort: str = "quick",
    deadline: float | str | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
    command: str = "ckptplan.largest",
) -> LargestValues:
    """Return the largest ``quantity`` that fits for each strategy, with the plan for it, largest first.

    Arguments:
        quantity: 'T' (time steps), 'batch' or 'neurons'. The last two need a workload with a ``network``; its
            times stay the same.
        workload: the training job, or its name, or the path of its file.
        profile: the hardware, or its name, or the path of its file.
        steps: T, in place of the workload's T.
        strategies: as in ``optimize``; by default 'closed', for which the value is proved to be the largest
            (docs/trade-offs.md).
        max_overhead, local_bytes, headroom, remote_bytes, effort: as in ``optimize``. Without a limit on the
            overhead, plans may be very slow.
        deadline: time that a batch may take at most, in seconds or with a unit, as '2 min'.
        progress: called with the work done and the total work.
        executor: searches with all strategies side by side, as in ``sweep``.
        command: recorded in the provenance of the plans.

    Raises InputError, and CkptplanError if a worker of the executor ends three times.
    """
    if quantity not in QUANTITIES:
        raise InputError(
            f"{quantity!r} is not a quantity.{did_you_mean(quantity, QUANTITIES)}",
            field="quantity",
            value=quantity,
            accepted=", ".join(QUANTITIES),
        )
    request = Request.of(
        workload,
        profile,
        steps=steps,
        unless_named="closed",
        strategies=strategies,
        max_overhead=max_overhead,
        local_bytes=local_bytes,
        headroom=headroom,
        remote_bytes=remote_bytes,
        cache=cache,
        effort=effort,
        command=command,
    )
    stages = StagedProgress(progress, stages=len(request.goal.strategies))
    watched = dataclasses.replace(request, progress=None if progress is None else stages.report_solve)
    longest = None if deadline is None else read_deadline(deadline)
    searches = _make_searches(SizedQuestions(quantity=quantity, request=watched, deadline=longest), stages)
    reaches: list[Reach] = []
    # Without an executor, each search runs when its result is requested.
    results = map_in_order(ReachSearch.reach, searches, executor=executor)
    try:
        for place, search in enumerate(searches):
            stages.begin(place, search.strategy.name)
            reaches.append(next(results))
    except KeyboardInterrupt:
        reaches += [search.so_far() for search in searches[len(reaches) :]]
        if all(reach.plan is None for reach in reaches):
            raise
    stages.end()
    left_out = list_left_out(strategies, request.goal)
    return LargestValues(quantity, request.case, reaches, left_out, longest)


def find_longest(request: Request) -> tuple[int, str]:
    """Return the largest T that fits with any strategy of a request, and this strategy; (0, '') if none fits.

    The result is the first entry of ``largest("T", ...)``. A strategy that cannot exceed the T of an earlier
    one is dropped without determining its own largest T. Raises InputError.
    """
    questions = SizedQuestions(quantity="T", request=request)
    searches = _make_searches(questions, StagedProgress(None, stages=1))
    longest, name = 0, ""
    for search in searches:
        search.find(questions.most, least=longest + 1)
        if search.best is not None and search.best[0] > longest:
            longest, name = search.best[0], search.strategy.name
    return longest, name


@dataclass(kw_only=True)
class SizedQuestions:
    """Makes and caches the question of a request for each value of a quantity. All strategies share it."""

    quantity: str
    request: Request
    #: The seconds that a batch may take at most; None is no limit.
    deadline: float | None = None
    _asked: dict[int, Question] = field(default_factory=dict, repr=False)

    def ask(self, value: int) -> Question:
        """Return the question at a value. Raises InputError if its bytes cannot be counted exactly."""
        if value not in self._asked:
            self._asked[value] = self._make_question(value)
        return self._asked[value]

    def _make_question(self, value: int) -> Question:
        """Return a question whose plans meet the deadline. Base meets it for every value up to ``most``."""
        if self.quantity == "T":
            # The sizes and times of a step do not depend on T, so they are derived once.
            question = self._first.replace(costs=self.request.case.count_costs(value))
        else:
            question = self.resize(value).question()
        if self.deadline is None:
            return question
        allowed = max(0.0, overhead(self.deadline, question.base_seconds))
        given = question.goal.max_overhead
        return question.replace(max_overhead=allowed if given is None else min(allowed, given))

    @cached_property
    def _first(self) -> Question:
        return self.resize(1).question()

    def resize(self, value: int) -> Request:
        """Return the request at a value. Raises InputError."""
        return self.request.resize(QUANTITIES[self.quantity][0], value)

    @cached_property
    def most(self) -> int:
        """The largest value whose bytes can be counted exactly and for which base meets the deadline."""
        self.ask(1)  # raises if the quantity cannot be changed

        def is_countable(value: int) -> bool:
            try:
                base = self.ask(value).base_seconds
            except InputError:
                return False
            return self.deadline is None or base <= self.deadline

        return find_last(is_countable, 1, QUANTITIES[self.quantity][1])


def _make_searches(questions: SizedQuestions, stages: StagedProgress) -> list[ReachSearch]:
    """Return the search of each strategy of a request."""
    return [
        ClosedFormReachSearch(strategy=strategy, questions=questions, progress=stages)
        if isinstance(strategy, ClosedForm)
        else SolvedReachSearch(strategy=strategy, questions=questions, progress=stages)
        for strategy in map(strategy_of, questions.request.goal.strategies)
    ]


@dataclass(kw_only=True)
class ReachSearch(ABC):
    """The search for the largest value with one strategy."""

    strategy: Strategy
    questions: SizedQuestions
    progress: StagedProgress
    #: The largest value that was planned, and the answer for it.
    best: tuple[int, Answer] | None = None
    #: The largest value known to fit. It may not have been planned yet.
    fitting: int = 0

    def __str__(self) -> str:
        """Return the name of the search in error messages."""
        return f"the largest {self.questions.quantity} with {self.strategy.name}"

    @abstractmethod
    def find(self, most: int, *, least: int = 1) -> bool:
        """Search for the largest value up to ``most``, store it in ``best``, return whether it is proved.

        The caller ignores values below ``least``, so they need not be stored.
        """

    def reach(self) -> Reach:
        """Run the search and return its result."""
        questions, most = self.questions, self.questions.most
        proved = self.find(most)
        self.progress.report_share(_FOUND, next_share=1.0)
        result = dataclasses.replace(self.so_far(), proved=proved, interrupted=False)
        if result.value == most:
            ends_in_time = most < QUANTITIES[questions.quantity][1] and questions.deadline is not None
            return dataclasses.replace(result, bound_by="deadline" if ends_in_time else None)
        reason = find_reason(self._ask(result.value + 1), subject=f"{self.strategy.name} does not fit")
        # The overhead limit of the question is the tighter one of the deadline and the caller's limit.
        given = questions.request.goal.max_overhead
        is_late = reason.binding == "max_overhead" and self._ask(result.value + 1).goal.max_overhead != given
        return dataclasses.replace(
            result,
            bound_by="deadline" if is_late else reason.binding,
            infeasible=None if result.value else reason,
        )

    def so_far(self) -> Reach:
        """Return the largest value found before an interruption."""
        if self.fitting > (self.best[0] if self.best else 0):
            self._fits(self.fitting)
        return Reach(
            strategy=self.strategy.name,
            value=self.best[0] if self.best else 0,
            plan=self.questions.resize(self.best[0]).plan(self.best[1]) if self.best else None,
            bound_by=None,
            proved=False,
            interrupted=True,
        )

    def _fits(self, value: int) -> bool:
        """Return whether a value fits all limits, and store it in ``best`` if it does."""
        answer = self._ask(value).best()
        if answer is not None:
            self.best = value, answer
        return answer is not None

    def _ask(self, value: int) -> Question:
        return self.questions.ask(value).for_strategy(self.strategy)

    @property
    def _limits_time(self) -> bool:
        questions = self.questions
        return questions.request.goal.max_overhead is not None or questions.deadline is not None


@dataclass(kw_only=True)
class ClosedFormReachSearch(ReachSearch):
    """The search for a strategy whose cost is a closed form.

    Chunks are cut from the end. So the schedule for a shorter sequence is the schedule for a longer one without
    its first steps. No count falls as T or the size of a state rises, and neither do the memory and the time
    added to base's. (Chunks that grow with the integer part of M_s / M_a are an exception, since rounded sizes
    may increase it. For these, larger values whose chunks grow faster are tried, and nothing is proved.)

    So a range of values is hopeless if nothing fits at its smallest value, or if the time added there exceeds
    the allowed share of base's time at its largest value. Every other range is halved, the upper half first.
    Without a limit on overhead, this is bisection. With a limit, the values that fit need not form one range.
    """

    strategy: ClosedForm

    def find(self, most: int, *, least: int = 1) -> bool:
        self._look_between(least, most)
        # A larger size may make chunks grow faster, and so need less memory.
        grows = self.questions.quantity != "T" and "state_units" in self.strategy.parameter_names
        if self.best is not None and grows:
            hopeless = list[tuple[Fraction, ...]]()
            for further in range(self.best[0] + 1, min(most, self.best[0] + _TRIED) + 1):
                growth = self._find_growth(further)
                # Chunks of larger steps that grow no faster need, as a rule, no less memory and no less time.
                is_slower = any(all(map(le, growth, fastest)) for fastest in hopeless)
                if not is_slower and not self._fits(further):
                    hopeless.append(growth)
        return not grows

    def _find_growth(self, value: int) -> tuple[Fraction, ...]:
        """Return the bytes of a state, and of a cache, over those of a tape: chunks grow by them."""
        question = self._ask(value)
        ranges = self.strategy.ranges(costs=question.costs, budget=question.limits.budget)
        state, tape, *cache = (ranges[name][0] for name in SIZE_NAMES if name in ranges)
        return tuple(Fraction(size, tape) for size in (state, *cache))

    def _look_between(self, least: int, most: int) -> None:
        if least > most:
            return
        waiting = [(least, most, self._add_seconds(least, most))]
        while waiting:
            low, high, added = waiting.pop()
            self.progress.report_share(_FOUND * (1 - log(1 + high - low) / log(1 + most)), next_share=0.0)
            if self._is_hopeless(low, high, added):
                continue
            if low == high:
                if self._fits(low):
                    return
                continue
            middle = choose_middle(low, high + 1)
            waiting += [(low, middle - 1, added), (middle, high, self._add_seconds(middle, high))]

    def _is_hopeless(self, low: int, high: int, added: float) -> bool:
        """Return whether no value from low to high fits, if at ``low`` at least ``added`` seconds are added."""
        if added == inf or not self._limits_time:
            return added == inf
        return added > self._allow_seconds(low, high) * (1 + SUM_ROUNDING)

    def _allow_seconds(self, low: int, high: int) -> float:
        """Return the most seconds that may be added at ``low`` if any value from low to high is to fit."""
        question = self.questions.ask(high)
        longest, least = question.base_seconds, self.questions.ask(low).base_seconds
        share, deadline = self.questions.request.goal.max_overhead, self.questions.deadline
        allowed = (
            inf if share is None else longest * Limits(budget=question.budget, max_overhead=share).most_overhead
        )
        if deadline is not None:
            allowed = min(allowed, deadline - least)
        # If compute hides transfers, it may grow faster than they do. Then only the total time is monotone.
        return allowed + (longest - least) * question.costs.overlaps_compute

    def _add_seconds(self, value: int, high: int) -> float:
        """Return the least seconds added to base's time within the memory; infinite if nothing fits.

        The result may also be infinite if it exceeds the seconds that any value up to ``high`` allows.
        """
        question = self._ask(value).replace(max_overhead=None)
        if not self._limits_time:
            if not question.fits():
                return inf
            self.fitting = max(self.fitting, value)
            return 0.0
        longest = question.base_seconds + self._allow_seconds(value, high)
        answer = question.faster_than(longest * (1 + COUNT_ROUNDING))
        return inf if answer is None else answer.key[0] - question.base_seconds


class SolvedReachSearch(ReachSearch):
    """The search for a solved strategy, which may take seconds for each value.

    The least local memory of any schedule rises with the value, so bisection finds the last value for which
    local memory is enough, without solving. Up to that value, ``has_schedule`` also answers without solving.
    Its answer depends on the size of a table and need not be monotone. So the search first tries values spread
    over the whole range, and then bisects above the last value that passes. It solves the value at that edge.
    Only if the schedule takes more time than allowed, bisection solves other values. This proves nothing, since
    overhead can rise as the value falls.
    """

    #: The share of the progress that is done.
    share = _CHEAP

    def find(self, most: int, *, least: int = 1) -> bool:
        last = find_last(lambda value: self._ask(value).may_fit(), 1, most)
        if last < least:
            return True
        high = find_last_of_many(self._may_fit, last)
        if high and not self._fits_next(high):
            self._look_below(high)
        return last == (self.best[0] if self.best else 0)

    def _look_below(self, high: int) -> None:
        """Bisect for the last value within the limits, beginning with the last one for which all tapes fit."""
        first = find_last(lambda value: self._unkept_seconds(self._ask(value)) == 0, 1, high - 1)
        low = first if first and self._fits_next(first) else 0
        find_last(self._fits_next, low + 1, (high if low else first or high) - 1)

    def _fits_next(self, value: int) -> bool:
        """Return whether a value fits, as ``_fits``, and report progress.

        If there is a limit on the time, several values are solved. Each solution then counts as half of the
        progress that remains.
        """
        share, left = self.share, _FOUND - self.share
        self.share += left / 2 if self._limits_time else left
        self.progress.report_share(share, next_share=self.share)
        return self._fits(value)

    def _may_fit(self, value: int) -> bool:
        """Return whether a schedule exists, and the overhead limit allows recomputing steps without tapes."""
        question = self._ask(value)
        base = question.base_seconds
        if overhead(base + self._unkept_seconds(question), base) > question.limits.most_overhead:
            return False
        return question.replace(max_overhead=None).fits()

    def _unkept_seconds(self, question: Question) -> float:
        """Return the seconds needed to recompute the steps whose tapes do not fit into local memory."""
        costs, local = question.costs, question.goal.local_bytes
        if local is None:
            return 0.0
        tapes = max(0, local - costs.resident_bytes) // costs.tape_bytes
        return max(0, costs.steps - tapes) * costs.recompute_seconds


def choose_middle(low: int, high: int) -> int:
    """Return a number strictly between two non-adjacent numbers: the geometric mean if the range is wide."""
    return max(low + 1, isqrt(low * high)) if high > 4 * max(1, low) else (low + high) // 2


def find_last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the last number from ``low`` to ``high`` for which a test holds, ``low - 1`` if it never does.

    The test must be monotone: once it fails for a number, it fails for all larger numbers.
    """
    passing, failing = low - 1, high + 1
    while failing - passing > 1:
        middle = choose_middle(passing, failing)
        if holds(middle):
            passing = middle
        else:
            failing = middle
    return passing


def find_last_of_many(holds: Callable[[int], bool], most: int) -> int:
    """Return a number up to ``most`` for which a test holds but not for the next one, 0 if none is found.

    The test need not be monotone. So the function first tries some numbers over the range, in descending order,
    until one passes. Bisection finds an edge above this number, and then the numbers after the edge are tried
    one by one.
    """
    places = sorted({1, most, *np.geomspace(1, most, _SPREAD).astype(np.int64).tolist()}, reverse=True)
    passing = next((place for place in places if holds(place)), 0)
    if not passing:
        return 0
    failing = min((place for place in places if place > passing), default=most + 1)
    last = find_last(holds, passing, failing - 1)
    for further in range(last + 1, min(most, last + _TRIED_CHEAPLY) + 1):
        if holds(further):
            last = further
    return last
