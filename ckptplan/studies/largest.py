"""Implements ``largest``: finds the longest sequence, or the largest batch or network, that fits.

The last value that fits with a strategy is found by bisection.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import inf, isqrt, log
from typing import Unpack

import numpy as np

from ckptplan.cost.arrays import SUM_ROUNDING
from ckptplan.errors import Infeasible, InputError, Limit, did_you_mean
from ckptplan.model.plan import Plan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.progress import Progress, StagedProgress
from ckptplan.model.workload import Workload
from ckptplan.planning.request import LimitWishes, Request
from ckptplan.search.infeasibility import find_reason
from ckptplan.search.question import Question
from ckptplan.strategies.answer import Answer
from ckptplan.strategies.protocol import Strategy
from ckptplan.strategies.registry import strategy_of
from ckptplan.units import MAX_STEPS

Test = Callable[[int], bool]


def choose_middle(low: int, high: int) -> int:
    """Return a number strictly between two non-adjacent ones; the geometric mean if the range is wide."""
    return max(low + 1, isqrt(low * high)) if high > 4 * max(1, low) else (low + high) // 2


def find_last(holds: Test, low: int, high: int) -> int:
    """Return the last number from ``low`` to ``high`` for which a test holds, ``low - 1`` if it never does.

    The test must hold for all numbers up to some number, and for none beyond.
    """
    good, bad = low - 1, high + 1
    while bad - good > 1:
        middle = choose_middle(good, bad)
        if holds(middle):
            good = middle
        else:
            bad = middle
    return good


def find_last_of_many(holds: Test, low: int, high: int, *, spread: int, beyond: int) -> int:
    """Return a number for which a test holds though not for the next one, ``low - 1`` if none is found.

    The test need not be monotone. So ``spread`` numbers over the range are tried first, in descending order,
    until one passes. Bisection finds the edge above it, and ``beyond`` numbers after the edge are tried one by
    one.
    """
    if high < low:
        return low - 1
    places = sorted({low, high, *np.geomspace(low, high, spread).astype(np.int64).tolist()}, reverse=True)
    bad = high + 1
    for place in places:
        if holds(place):
            break
        bad = place
    else:
        return low - 1
    good = find_last(holds, place, bad - 1)
    for further in range(good + 1, min(high, good + beyond) + 1):
        if holds(further):
            good = further
    return good


#: The quantities, and the largest value of each that is considered.
QUANTITIES: Mapping[str, int] = {"T": MAX_STEPS, "batch": 10**9, "neurons": 10**9}
#: If larger sizes may need less memory, this many values beyond the largest found are tried one by one.
_TRIED = 256
#: For a solved strategy: values tried over the whole range, and one by one beyond the edge found.
_SPREAD, _TRIED_CHEAPLY = 32, 32
#: Progress when the part without solving is done, and when only the binding limit remains to be found.
_CHEAP, _FOUND = 0.05, 0.9


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The largest value that fits with one strategy.

    ``plan`` is the best plan at ``value``, None if not even 1 fits; ``infeasible`` is then the reason.
    ``bound_by`` is the limit that the next value exceeds: ``local_bytes``, ``remote_bytes``, ``max_overhead``,
    or ``steps`` if the strategy cannot be solved for longer sequences. It is None if ``value`` is the largest
    considered. ``proved`` says that no larger value fits; otherwise none was found. ``interrupted`` says that
    the search was not completed: ``value`` is then the largest found so far, or 0.
    """

    strategy: str
    value: int
    plan: Plan | None
    bound_by: Limit | None
    proved: bool
    infeasible: Infeasible | None = None
    interrupted: bool = False


def make_empty_reach(strategy: str) -> Reach:
    """Return the result of an interrupted search that found nothing."""
    return Reach(strategy=strategy, value=0, plan=None, bound_by=None, proved=False, interrupted=True)


class ReachSearch(ABC):
    """The search for the largest value with one strategy."""

    def __init__(
        self, *, quantity: str, strategy: Strategy, request: Request, progress: StagedProgress
    ) -> None:
        self.quantity = quantity
        self.strategy = strategy
        self.request = request
        self.progress = progress
        #: The largest value that is known to fit, and the answer there.
        self.best: tuple[int, Answer] | None = None

    @abstractmethod
    def find(self, most: int) -> None:
        """Search for the largest value up to ``most``, and store it in ``best``."""

    @abstractmethod
    def is_proved(self, value: int) -> bool:
        """Return whether ``value``, which was found, is proved to be the largest."""

    def reach(self) -> Reach:
        """Run the search and return its result."""
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
        empty = make_empty_reach(self.strategy.name)
        if self.best is None:
            return empty
        value, answer = self.best
        return replace(empty, value=value, plan=self._plan(value, answer))

    def _plan(self, value: int, answer: Answer) -> Plan:
        return self._request(value).plan(answer)

    def _fits(self, value: int) -> bool:
        """Return whether a value fits all limits; if so, store it in ``best``."""
        answer = self._question(value).best()
        if answer is not None:
            self.best = value, answer
        return answer is not None

    def _request(self, value: int) -> Request:
        return self.request.resize("steps" if self.quantity == "T" else self.quantity, value)

    def _question(self, value: int) -> Question:
        return self._request(value).question().for_strategy(self.strategy)

    def _missing(self, value: int) -> Infeasible:
        return find_reason(self._question(value), subject=f"{self.strategy.name} does not fit")

    def _most(self) -> int:
        """Return the largest value whose bytes can be counted exactly."""
        self._question(1)  # raises if the quantity cannot be changed

        def countable(value: int) -> bool:
            try:
                self._question(value)
            except InputError:
                return False
            return True

        return find_last(countable, 1, QUANTITIES[self.quantity])


class ClosedFormReachSearch(ReachSearch):
    """The search for a strategy whose cost is a closed form.

    Chunks are cut from the end, so a schedule for fewer steps is one for more steps without its first steps.
    Hence each count, and with it the memory and the time added to base's, does not fall as T or the size of a
    state rises. (An exception are chunks that grow with the integer part of M_s / M_a, which rounded sizes may
    increase. For these, values beyond the last one found are tried, and nothing is proved.)

    So a range of values is hopeless if nothing fits at its smallest value, or if the time added there exceeds
    the allowed share of base's time at its largest value. Other ranges are halved, the upper half first.
    Without a limit on overhead, this is bisection; with one, the values that fit need not form one range.
    """

    def __init__(
        self, *, quantity: str, strategy: Strategy, request: Request, progress: StagedProgress
    ) -> None:
        super().__init__(quantity=quantity, strategy=strategy, request=request, progress=progress)
        self.extra_seconds = cache(self._extra_seconds)
        #: Without a limit on overhead: the largest value known to fit, which is not planned yet.
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
        """Whether a larger size may make chunks grow faster, and so need less memory."""
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
            # Wide ranges are cut at their geometric mean: the values that fit are small in comparison.
            middle = isqrt(low * high) + 1 if high > 4 * low else (low + high + 1) // 2
            waiting += [(low, middle - 1), (middle, high)]

    def _hopeless(self, low: int, high: int) -> bool:
        extra, limit = self.extra_seconds(low), self.request.goal.max_overhead
        if limit is None or extra == inf:
            return extra == inf
        longest = self._question(high).base_seconds
        added = extra
        if self.request.case.profile.overlaps_compute:
            # Compute may grow faster than the transfers that it hides, so only the total time is monotone.
            added = self._question(low).base_seconds + extra - longest
        return added > limit * longest + SUM_ROUNDING * longest

    def _extra_seconds(self, value: int) -> float:
        """Return the least seconds added to base's time within the memory, infinite if nothing fits."""
        question = self._question(value).replace(max_overhead=None)
        if self.request.goal.max_overhead is None:
            if not question.fits():
                return inf
            self.fitting = max(self.fitting, value)
            return 0.0
        answer = question.best()
        return inf if answer is None else answer.key[0] - question.base_seconds


class SolvedReachSearch(ReachSearch):
    """The search for a solved strategy, which may take seconds for each value.

    The least local memory of any schedule rises with the value, so bisection finds the last value that has
    enough, without solving. Up to that value, ``has_schedule`` also answers without solving, but it need not
    be monotone, since it depends on the size of a table. So values spread over the whole range are tried first,
    and then the edge after the last one that passes. The value at the edge is solved. Only if its schedule
    takes more time than allowed are other values solved, by bisection. This proves nothing, since overhead can
    rise as the value falls.
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
        """Bisect for the last value that keeps the limits, beginning where all tapes fit."""
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
        """Return whether there is a schedule, and the overhead allows recomputing steps without a held tape."""
        question = self._question(value)
        limit = question.goal.max_overhead
        if (
            limit is not None
            and self._unkept_seconds(question) > (limit + SUM_ROUNDING) * question.base_seconds
        ):
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


def largest(
    quantity: str,
    workload: Workload,
    profile: HardwareProfile,
    *,
    progress: Progress | None = None,
    command: str = "ckptplan.largest",
    **wishes: Unpack[LimitWishes],
) -> dict[str, Reach]:
    """Return the largest ``quantity`` that fits for each strategy, with the plan for it, largest first.

    Arguments:
        quantity: 'T' (time steps), 'batch' or 'neurons'. The last two need a workload with a ``network``; its
            times stay the same.
        workload: the training job.
        profile: the hardware.
        progress: called with the work done and the total work.
        command: recorded in the provenance of the plans.
        wishes: ``strategies``, ``local_bytes``, ``headroom``, ``remote_bytes``, ``max_overhead`` and
            ``effort``, as in ``optimize``. Strategies are by default 'closed', for which the value is proved to
            be the largest (docs/trade-offs.md). Without a limit on the overhead, plans may be very slow.

    Raises InputError.
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
        command=command,
        unless_named="closed",
        # Named here, so that they cannot be wished for.
        objective="time",
        model="exact",
        **wishes,
    )
    names = request.goal.strategies
    stages = StagedProgress(progress, stages=len(names))
    watched = dataclasses.replace(request, progress=None if progress is None else stages.report_solve)
    reaches: list[Reach] = []
    searches: list[ReachSearch] = []
    try:
        for place, name in enumerate(names):
            stages.begin(place, name)
            strategy = strategy_of(name)
            kind = ClosedFormReachSearch if strategy.is_closed_form else SolvedReachSearch
            searches.append(kind(quantity=quantity, strategy=strategy, request=watched, progress=stages))
            reaches.append(searches[-1].reach())
    except KeyboardInterrupt:
        reaches += [search.so_far() for search in searches[len(reaches) :]]
        reaches += [make_empty_reach(name) for name in names[len(reaches) :]]
        if all(reach.plan is None for reach in reaches):
            raise
    stages.end()
    return {reach.strategy: reach for reach in sorted(reaches, key=lambda reach: -reach.value)}
