"""The use case ``largest``: the longest sequence, the largest batch or network that fits at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import inf, isqrt, log

from ckptplan.cost.derive import step_costs
from ckptplan.errors import Infeasible, InputError, did_you_mean
from ckptplan.model.plan import Plan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.planner import Ranking, asked
from ckptplan.search.edges import between, last, last_of_many
from ckptplan.search.question import Answer, Question
from ckptplan.strategies.protocol import Strategy
from ckptplan.strategies.solved import Progress, SolvedStrategy
from ckptplan.units import MAX_STEPS

#: The largest value of each that is looked at.
_MOST: Mapping[str, int] = {"T": MAX_STEPS, "batch": 10**9, "neurons": 10**9}
#: Where larger sizes may need less, so many values beyond the last that was found are tried one by one.
_TRIED = 256
#: Values of a solved strategy that are looked at over the whole range, and one by one beyond the edge found.
_SPREAD, _TRIED_CHEAPLY = 32, 32
#: Parts of each strategy's search that progress is told in; the share when what solves nothing is done, and
#: when the value is found and only what bounds it is left.
_PARTS, _CHEAP, _FOUND = 1_000, 0.05, 0.9
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
    bound_by: str | None
    proved: bool
    infeasible: Infeasible | None = None
    interrupted: bool = False


def largest(
    quantity: str,
    workload: Workload,
    profile: HardwareProfile,
    *,
    strategies: Iterable[str] | str | None = None,
    max_overhead: float | str | None = None,
    local_bytes: int | str | None = None,
    remote_bytes: int | str | None = None,
    effort: str = "quick",
    progress: Progress | None = None,
    command: str = "ckptplan.largest",
) -> dict[str, Reach]:
    """Return for each strategy the largest ``quantity`` that fits and the plan at that value, farthest first.

    ``quantity`` is 'T' (time steps), 'batch' or 'neurons'; the last two need a workload with a ``network``,
    and its times are carried over. ``max_overhead`` bounds the time over base's, as 0.1 or '10%': what fits at
    twenty times base's time helps few. ``strategies`` are names or groups, None for 'closed', for which
    the value is proved to be the largest (docs/trade-offs.md says how). The others are as for ``optimize``.

    Raises InputError.
    """
    if quantity not in _MOST:
        raise InputError(
            f"{quantity!r} cannot be looked for.{did_you_mean(quantity, _MOST)}",
            field="quantity",
            value=quantity,
            accepted=", ".join(_MOST),
        )
    goal, question, provenance = asked(
        workload,
        profile,
        command=command,
        strategies="closed" if strategies is None else strategies,
        local_bytes=local_bytes,
        remote_bytes=remote_bytes,
        max_overhead=max_overhead,
        effort=effort,
    )
    source = Ranking(
        workload=workload, profile=profile, goal=goal, question=question, answers=[], provenance=provenance
    )
    told = _Told(progress, strategies=len(question.strategies))
    searches: list[_Search] = []
    found: list[Reach] = []
    try:
        for place, strategy in enumerate(question.strategies):
            told.begin(place)
            alone = question.changed(
                strategies=(strategy,), progress=None if progress is None else told.solving
            )
            kind = _SolvedSearch if isinstance(strategy, SolvedStrategy) else _ClosedSearch
            searches.append(kind(quantity=quantity, source=replace(source, question=alone), told=told))
            found.append(searches[-1].reach())
    except KeyboardInterrupt:
        found += [search.so_far() for search in searches[len(found) :]]
        found += [_nothing_yet(one.name) for one in question.strategies[len(found) :]]
        if all(reach.plan is None for reach in found):
            raise
    told.end()
    return {reach.strategy: reach for reach in sorted(found, key=lambda one: -one.value)}


def _nothing_yet(strategy: str) -> Reach:
    return Reach(strategy=strategy, value=0, plan=None, bound_by=None, proved=False, interrupted=True)


class _Told:
    """Tells how far a search over several strategies is, in parts of each; never backwards."""

    def __init__(self, progress: Progress | None, *, strategies: int) -> None:
        self.progress = progress
        self.total = strategies * _PARTS
        self.begun, self.done = 0, -1
        self.shares = (0.0, 0.0)

    def begin(self, place: int) -> None:
        """Begin with a strategy."""
        self.begun, self.shares = place * _PARTS, (0.0, 0.0)
        self._tell(self.begun)

    def reached(self, share: float, *, next_share: float) -> None:
        """Tell what share of the strategy's search is done; a solve that follows leads to the next."""
        self.shares = (share, next_share)
        self.solving(0, 1)

    def solving(self, done: int, total: int) -> None:
        """Tell how much of a solve is done."""
        share, next_share = self.shares
        within = share + (next_share - share) * min(1.0, done / max(1, total))
        self._tell(self.begun + int(within * _PARTS))

    def end(self) -> None:
        """Tell that nothing is left to do."""
        self._tell(self.total)

    def _tell(self, done: int) -> None:
        if self.progress is not None and done > self.done:
            self.done = done
            self.progress(done, self.total)


class _Search(ABC):
    """The search for one strategy."""

    def __init__(self, *, quantity: str, source: Ranking, told: _Told) -> None:
        self.quantity = quantity
        self.source = source
        self.told = told
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
        self.told.reached(_FOUND, next_share=1.0)
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
        found = _nothing_yet(self.strategy.name)
        if self.best is None:
            return found
        value, answer = self.best
        return replace(found, value=value, plan=self._plan(value, answer))

    @property
    def strategy(self) -> Strategy:
        """The only one asked for."""
        return self.source.question.strategies[0]

    def _plan(self, value: int, answer: Answer) -> Plan:
        source = replace(
            self.source, workload=self._job(value), question=self._question(value), answers=[answer]
        )
        return source.first()

    def _fits(self, value: int) -> bool:
        """Try a value with all limits; keep what is found."""
        answer = self._question(value).winner()
        if answer is not None:
            self.best = value, answer
        return answer is not None

    def _job(self, value: int) -> Workload:
        workload = self.source.workload
        if self.quantity == "T":
            return workload.with_steps(value)
        return workload.with_batch(value) if self.quantity == "batch" else workload.with_neurons(value)

    def _question(self, value: int) -> Question:
        return self.source.question.changed(costs=step_costs(self._job(value), self.source.profile))

    def _missing(self, value: int) -> Infeasible:
        return self._question(value).infeasible(subject=f"{self.strategy.name} does not fit")

    def _most(self) -> int:
        """Return the largest value whose bytes can be counted."""
        self._question(1)  # a job that cannot be changed says so

        def countable(value: int) -> bool:
            try:
                self._question(value)
            except InputError:
                return False
            return True

        return last(countable, 1, _MOST[self.quantity])


class _ClosedSearch(_Search):
    """The search for a strategy whose cost is a closed form.

    A schedule of fewer steps is one of more steps without the first of them, since chunks are cut from the
    end: each count, and so the memory and what is added to base's time, falls no lower as T, or the size
    of a state, rises. (But for chunks that grow with the whole part of M_s / M_a: rounded sizes may make
    that part larger. There, values beyond the last one found are tried, and nothing is proved.)

    So a range of values is hopeless if at its smallest value nothing fits, or adds more than the share
    allowed of base's time at its largest. Other ranges are halved, the upper half first. Without a limit
    of overhead that is bisection; with one, what fits need not be all below some value.
    """

    def __init__(self, *, quantity: str, source: Ranking, told: _Told) -> None:
        super().__init__(quantity=quantity, source=source, told=told)
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
            self.told.reached(_FOUND * (1 - log(1 + high - low) / log(1 + most)), next_share=0.0)
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
        extra, limit = self.extra_seconds(low), self.source.question.max_overhead
        if limit is None or extra == inf:
            return extra == inf
        longest = self._question(high).base_seconds
        added = extra
        if self.source.question.costs.overlaps_compute:
            # What a transfer is hidden behind may grow faster than the transfers: only the whole time rises.
            added = self._question(low).base_seconds + extra - longest
        return added > limit * longest + _ROUNDING * longest

    def _extra_seconds(self, value: int) -> float:
        """Return the least that is added to base's time within the memory; infinite where nothing fits."""
        question = self._question(value).changed(max_overhead=None)
        if self.source.question.max_overhead is None:
            if not question.fits():
                return inf
            self.fitting = max(self.fitting, value)
            return 0.0
        answer = question.winner()
        return inf if answer is None else answer.best.key[0] - question.base_seconds


class _SolvedSearch(_Search):
    """The search for a strategy that is solved value by value, which may take seconds each.

    Below the local memory that it needs at least there is no schedule; that need rises with the value, so
    that bisection finds the last value that meets it, for nothing. Up to there, whether there is a schedule
    is known without solving, but how much work a table is need not rise with the value: some values spread
    over the range are looked at before the edge between the last good one of them and the next is. That
    value is solved. Only where its schedule takes more time than allowed, others are: by bisection, which
    proves nothing, since the share of base's time can rise for a smaller value.
    """

    def find(self, most: int) -> None:
        self.met = last(self._meets_the_least, 1, most)
        high = last_of_many(self._may_fit, 1, self.met, spread=_SPREAD, beyond=_TRIED_CHEAPLY)
        if high == 0:
            return
        alone = self.source.question.max_overhead is None
        self.told.reached(_CHEAP, next_share=_FOUND if alone else 2 * _CHEAP)
        if self._fits(high):
            return
        self._look_below(high)

    def is_proved(self, value: int) -> bool:
        return value == self.met

    def _look_below(self, high: int) -> None:
        """Bisect for the last value that keeps the limits, from what needs no more than to hold each tape."""
        low, first = 0, last(self._holds_all_tapes, 1, high - 1)
        most, begun = log(high), 2 * _CHEAP
        while high - low > 1:
            middle = first if low == 0 and low < first < high else between(low, high)
            left = (log(high - low), log(max(middle - low, high - middle)))
            share, next_share = (_FOUND - (_FOUND - begun) * one / most for one in left)
            self.told.reached(share, next_share=next_share)
            if self._fits(middle):
                low = middle
            else:
                high, first = middle, 0

    def _meets_the_least(self, value: int) -> bool:
        return self._question(value).may_fit()

    def _may_fit(self, value: int) -> bool:
        """Return whether there is a schedule, and each step whose tape is not held may be run again."""
        question = self._question(value)
        limit = question.max_overhead
        if limit is not None and self._unkept_seconds(question) > (limit + _ROUNDING) * question.base_seconds:
            return False
        return question.changed(max_overhead=None).fits()

    def _holds_all_tapes(self, value: int) -> bool:
        return self._unkept_seconds(self._question(value)) == 0

    def _unkept_seconds(self, question: Question) -> float:
        costs, local = question.costs, question.budget.local_bytes
        if local is None:
            return 0.0
        tapes = max(0, local - costs.resident_bytes) // costs.tape_bytes
        return max(0, costs.steps - tapes) * costs.recompute_seconds
