"""The use case ``largest``: the longest sequence, the largest batch or network that fits at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import inf, isqrt

from ckptplan.errors import Infeasible, InputError, Limit, did_you_mean
from ckptplan.model.plan import Plan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.planning.ranking import proven_bound
from ckptplan.planning.request import Request
from ckptplan.search.answer import Answer
from ckptplan.search.question import Question
from ckptplan.strategies.protocol import Strategy
from ckptplan.strategies.registry import strategy_of
from ckptplan.strategies.solved import Progress
from ckptplan.units import MAX_STEPS

#: The largest value of each that is looked at.
_MOST: Mapping[str, int] = {"T": MAX_STEPS, "batch": 10**9, "neurons": 10**9}
#: Where larger sizes may need less, so many values beyond the last that was found are tried one by one.
_TRIED = 256
#: Rounding of a share of base's time: ranges are dropped only where their bound is above it.
_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How far one strategy goes.

    ``plan`` is the best plan at ``value``, None where not even 1 fits, for the reason ``infeasible``.
    ``bound_by`` is the limit that the next value breaks, None where nothing bounds it up to ``value``.
    ``proved`` says that no larger value fits; without it, none was found.
    """

    strategy: str
    value: int
    plan: Plan | None
    bound_by: Limit | None
    proved: bool
    infeasible: Infeasible | None = None


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
    request = Request.of(
        workload,
        profile,
        command=command,
        unless_named="closed",
        strategies=strategies,
        local_bytes=local_bytes,
        remote_bytes=remote_bytes,
        max_overhead=max_overhead,
        effort=effort,
    )
    strategies_asked = request.question().strategies
    found: list[Reach] = []
    for place, strategy in enumerate(strategies_asked):
        if progress is not None:
            progress(place, len(strategies_asked))
        found.append(
            _Search(
                quantity=quantity,
                source=request.replace(strategies=(strategy.name,)),
            ).reach()
        )
    return {reach.strategy: reach for reach in sorted(found, key=lambda one: -one.value)}


class _Search:
    """The search for one strategy.

    A schedule of fewer steps is one of more steps without the first of them, since chunks are cut from the
    end: each count, and so the memory and what is added to base's time, falls no lower as T, or the size
    of a state, rises. (But for chunks that grow with the whole part of M_s / M_a: rounded sizes may make
    that part larger. There, values beyond the last one found are tried, and nothing is proved.)

    So a range of values is hopeless if at its smallest value nothing fits, or adds more than the share
    allowed of base's time at its largest. Other ranges are halved, the upper half first. Without a limit
    of overhead that is bisection; with one, what fits need not be all below some value.
    """

    def __init__(self, *, quantity: str, source: Request) -> None:
        self.quantity = quantity
        self.source = source
        self.extra_seconds = cache(self._extra_seconds)

    def reach(self) -> Reach:
        """Return how far it goes."""
        name, most = self.strategy.name, self._most()
        value, answer = self._largest(most)
        if answer is not None and self._grows_by_sizes:
            value, answer = self._beyond(value, answer, most=most)
        if answer is None:
            return Reach(
                strategy=name,
                value=0,
                plan=None,
                bound_by=self._missing(1).binding,
                proved=self._is_monotone,
                infeasible=self._missing(1),
            )
        return Reach(
            strategy=name,
            value=value,
            plan=self._request(value).plan(answer, bound=proven_bound([answer], answer.key[0])),
            bound_by=self._missing(value + 1).binding if value < most else None,
            proved=self._is_monotone,
        )

    @property
    def _grows_by_sizes(self) -> bool:
        """Whether a larger size may make chunks grow more, and so need less."""
        return self.quantity != "T" and "state_units" in self.strategy.parameter_names

    @property
    def _is_monotone(self) -> bool:
        """Whether what is hopeless for one value is proved to be so for all beyond."""
        return self.strategy.is_closed_form and not self._grows_by_sizes

    def _beyond(self, value: int, answer: Answer, *, most: int) -> tuple[int, Answer]:
        for further in range(value + 1, min(most, value + _TRIED) + 1):
            found = self._question(further).best()
            if found is not None:
                value, answer = further, found
        return value, answer

    @property
    def strategy(self) -> Strategy:
        """The only one asked for."""
        return strategy_of(self.source.goal.strategies[0])

    def _job(self, value: int) -> Workload:
        workload = self.source.case.workload
        if self.quantity == "T":
            return workload.with_steps(value)
        return workload.with_batch(value) if self.quantity == "batch" else workload.with_neurons(value)

    def _request(self, value: int) -> Request:
        return self.source.for_workload(self._job(value))

    def _question(self, value: int) -> Question:
        return self._request(value).question()

    def _missing(self, value: int) -> Infeasible:
        return self._question(value).infeasible(subject=f"{self.strategy.name} does not fit")

    def _most(self) -> int:
        """Return the largest value whose bytes can be counted."""
        self._question(1)  # a job that cannot be changed says so
        countable, beyond = 1, _MOST[self.quantity] + 1
        while beyond - countable > 1:
            middle = (countable + beyond) // 2
            try:
                self._question(middle)
            except InputError:
                beyond = middle
            else:
                countable = middle
        return countable

    def _largest(self, most: int) -> tuple[int, Answer | None]:
        waiting = [(1, most)]
        while waiting:
            low, high = waiting.pop()
            if self._hopeless(low, high):
                continue
            if low == high:
                answer = self._question(low).best()
                if answer is not None:
                    return low, answer
                continue
            # Wide ranges are cut at their geometric mean: what fits is small beside what can be asked.
            middle = isqrt(low * high) + 1 if high > 4 * low else (low + high + 1) // 2
            waiting += [(low, middle - 1), (middle, high)]
        return 0, None

    def _hopeless(self, low: int, high: int) -> bool:
        extra, limit = self.extra_seconds(low), self.source.goal.max_overhead
        if limit is None or extra == inf:
            return extra == inf
        longest = self._question(high).base_seconds
        added = extra
        if self.source.case.profile.overlaps_compute:
            # What a transfer is hidden behind may grow faster than the transfers: only the whole time rises.
            added = self._question(low).base_seconds + extra - longest
        return added > limit * longest + _ROUNDING * longest

    def _extra_seconds(self, value: int) -> float:
        """Return the least that is added to base's time within the memory; infinite where nothing fits."""
        question = self._question(value).replace(max_overhead=None)
        if self.source.goal.max_overhead is None:
            return 0.0 if question.fits() else inf
        answer = question.best()
        return inf if answer is None else answer.key[0] - question.base_seconds
