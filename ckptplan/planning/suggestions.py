"""Explains why nothing fits, and suggests single changes that help; each is planned first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, TypeAlias, get_args

from ckptplan.cost.case import Case
from ckptplan.cost.exact import overhead
from ckptplan.errors import Change, Infeasible, InputError
from ckptplan.model.budget import add_headroom, find_memory, remaining_bytes
from ckptplan.planning.request import Request, make_goal
from ckptplan.search.question import BudgetLimit, Question, find_reason
from ckptplan.storage.library import list_names
from ckptplan.storage.toml_files import load_profile
from ckptplan.strategies.registry import select_strategies

_MOST = 4
#: An overhead that is usually still acceptable, and one that nobody accepts: ten times base's time.
_MODERATE, _ABSURD = 0.5, 9.0
#: Memory that nobody has.
_PETABYTE = 10**15
#: A job reduced below this share of its size is not suggested.
_LEAST_SHARE = 0.05

#: A change that was planned, as data: what to change, its value, and the strategy and overhead of the plan.
Suggestion: TypeAlias = dict[str, Any]
_Size: TypeAlias = Literal["steps", "batch", "neurons"]


def explain_infeasible(request: Request) -> Infeasible:
    """Return why no strategy of a request fits, with verified suggestions."""
    return add_suggestions(name_reason(request), request=request)


def name_reason(request: Request) -> Infeasible:
    """Return why no strategy of a request fits, without suggestions, which take longer than a search."""
    names = request.goal.strategies
    if len(names) == 1:
        subject = f"{names[0]} does not fit"
    elif len(names) < len(select_strategies(None)):
        subject = f"none of {', '.join(names)} fits"
    else:
        subject = "no strategy fits"
    return find_reason(request.question(), subject=subject)


def add_suggestions(infeasible: Infeasible, *, request: Request) -> Infeasible:
    """Return the same error with up to four single changes, each verified to fit."""
    whole = request.question()
    remedies = _Remedies(infeasible=infeasible, request=request, whole=whole, question=whole.for_closed_forms())
    infeasible.suggestions = tuple(_choose(remedies.find(), most=remedies.most_overhead))
    if infeasible.binding == "local_bytes":
        infeasible.stays = request.case.resident_parts
    return infeasible


def _choose(suggestions: Iterable[Suggestion], *, most: float) -> list[Suggestion]:
    """Return the first four useful suggestions, at most two with the same change.

    Plans that take far too long, and memory that nobody has, are left out. If no suggestion remains, return the
    quickest plan that takes too long.
    """
    useful: list[Suggestion] = []
    slow: list[Suggestion] = []
    for suggestion in suggestions:
        if suggestion["change"] in ("local_bytes", "remote_bytes") and suggestion["value"] >= _PETABYTE:
            continue
        if suggestion["overhead"] > most:
            slow.append(suggestion)
        elif sum(suggestion["change"] == other["change"] for other in useful) < 2:
            useful.append(suggestion)
        if len(useful) == _MOST:
            break
    return useful or sorted(slow, key=lambda suggestion: float(suggestion["overhead"]))[:1]


@dataclass(frozen=True, kw_only=True)
class _Remedies:
    """The single changes to an infeasible request that may help.

    The search for them asks ``question``, which is about closed forms and fast to answer. They are then planned
    with the requested strategies, the question ``whole``.
    """

    infeasible: Infeasible
    request: Request
    whole: Question
    question: Question

    @property
    def most_overhead(self) -> float:
        """The largest overhead to suggest: ten times base's time, or the caller's limit if that is more."""
        return max(_ABSURD, self.request.goal.max_overhead or 0.0)

    def find(self) -> Iterator[Suggestion]:
        """Yield the changes that help: of strategies and limits, of the size of the job, of the machine."""
        changed = (self._plan(*change) for change in self._list_changes())
        reduced = chain.from_iterable(map(self._reduce, get_args(_Size)))
        for suggestion in chain(changed, reduced, self._move_to_other_profile()):
            if suggestion is not None:
                yield suggestion

    def _list_changes(self) -> Iterator[tuple[Change, Any, Question]]:
        """Yield changes of strategies and limits: what to change, the value, and the question with it."""
        question, goal = self.question, self.request.goal
        unlimited = None if goal.cache is None else question.replace(cache=None).best()
        if unlimited is not None:
            yield "cache", unlimited.cache, question.replace(cache=unlimited.cache)
        names = make_goal(unless_named="closed", model=goal.model).strategies
        answer = question.replace(strategies=names).best() if set(names) - set(goal.strategies) else None
        if answer is not None:
            name = answer.strategy.name
            yield "strategies", name, question.replace(strategies=(name,))
        need = (
            self.whole.replace(max_overhead=None).least("max_overhead")
            if goal.max_overhead is not None
            else None
        )
        if need is not None:
            # Rounded up to a tenth of a per cent, which is easy to type.
            share = -(-need * 1000 // 1) / 1000
            yield "max_overhead", share, self.whole.replace(max_overhead=share)
        if goal.remote_bytes is not None:
            for remote in sorted({self._needed("remote_bytes"), question.least_remote_bytes() or 0}):
                if remote > goal.remote_bytes:
                    yield "remote_bytes", remote, self._with_limit("remote_bytes", remote)
        if goal.local_bytes is not None:
            if goal.headroom:
                memory = find_memory(
                    goal.local_bytes, goal.headroom, machine=self.request.case.profile.local_bytes
                )
                yield "headroom", 0, question.replace(local_bytes=memory, headroom=0.0)
            for local in sorted(size for size in self._list_local_bytes() if size > goal.local_bytes):
                # A headroom that the caller named is also taken off the memory that is suggested.
                suggested = add_headroom(local, goal.headroom) if self.request.names_headroom else local
                yield "local_bytes", suggested, self._with_limit("local_bytes", local)

    def _with_limit(self, limit: BudgetLimit, value: int) -> Question:
        """Return the question with another limit: for closed forms if they fit, else for all strategies."""
        closed = self.question.replace(**{limit: value})
        return closed if closed.fits() else self.whole.replace(**{limit: value})

    def _list_local_bytes(self) -> set[int]:
        """Return the least local memory within the limits, with a moderate overhead, and with none."""
        sizes = {self._needed("local_bytes")}
        for most in (self.request.goal.max_overhead, _MODERATE, 0.0):
            best = self.question.replace(local_bytes=None, max_overhead=most, objective="memory").best()
            if best is not None:
                sizes.add(int(best.key[0]))
        return sizes

    def _needed(self, limit: Change) -> int:
        """Return the value that the binding limit would need to have; 0 for other limits."""
        return int(self.infeasible.need) if self.infeasible.binding == limit else 0

    def _reduce(self, size: _Size) -> Iterator[Suggestion | None]:
        """Yield the largest job that fits; if its plan takes far too long, first the largest one that is quick.

        All sizes rise with the batch, and so do transfers; the times per step stay the same.
        """
        workload = self.request.case.workload
        holder = workload if size == "steps" else workload.network
        if size == "steps" and self.infeasible.binding == "steps":
            most = self._needed("steps")
            # Below 1, no length has a schedule.
            if most >= 1:
                yield self._plan("steps", most, self._with_size("steps", most))
        elif holder is not None:
            largest = self._find_largest(size, getattr(holder, size), most=self.request.goal.max_overhead)
            if largest is not None and largest["overhead"] > self.most_overhead:
                yield self._find_largest(size, int(largest["value"]), most=_MODERATE)
            yield largest

    def _find_largest(self, size: _Size, given: int, *, most: float | None) -> Suggestion | None:
        """Bisect for the largest value that fits within an overhead of ``most``; ``given`` does not fit.

        A plan for T steps, with its chunks clamped, needs no more memory for fewer steps. With a limit on
        overhead, this finds a T that fits: overhead can rise as T falls.
        """
        fits, fails = 0, given
        while fails - fits > 1:
            middle = (fits + fails) // 2
            question = self._with_size(size, middle).replace(max_overhead=most)
            if question.fits() and self.whole.replace(costs=question.costs).may_fit():
                fits = middle
            else:
                fails = middle
        if fits < _LEAST_SHARE * given:
            return None
        return self._plan(size, fits, self._with_size(size, fits).replace(max_overhead=most))

    def _with_size(self, size: _Size, value: int) -> Question:
        return self.question.replace(costs=self.request.resize(size, value).case.costs)

    def _move_to_other_profile(self) -> Iterator[Suggestion | None]:
        """Yield the smallest built-in machine on which the job fits, unless the caller set the budget."""
        goal, case = self.request.goal, self.request.case
        if goal.local_bytes != remaining_bytes(case.profile.local_bytes, goal.headroom):
            return
        others = [load_profile(name) for name in list_names("hardware_profiles") if name != case.profile.name]
        # Skip machines whose local memory is an assumption.
        sourced = [other for other in others if other.sources["local_bytes"].grade != "X"]
        for other in sorted(sourced, key=lambda profile: profile.local_bytes * profile.units):
            headroom = goal.headroom if self.request.names_headroom else other.headroom
            budget = remaining_bytes(other.local_bytes, headroom)
            try:
                costs = Case(workload=case.workload, profile=other).costs
            except InputError:
                continue
            question = self.question.replace(costs=costs, local_bytes=budget, headroom=headroom)
            planned = self._plan("profile", other.name, question) if budget >= 1 else None
            if planned is not None:
                yield planned
                return

    def _plan(self, change: Change, value: Any, question: Question) -> Suggestion | None:
        """Plan the changed question and return the suggestion; None if the change does not help after all."""
        if change != "strategies" and self.whole.all_solved:
            # The requested strategies may need more than closed forms do.
            question = question.replace(strategies=self.request.goal.strategies)
        best = question.best()
        if best is None:
            return None
        seconds = best.seconds(question.costs, question.goal.model)
        return {
            "change": change,
            "value": value,
            "strategy": best.strategy.name,
            "overhead": max(0.0, float(overhead(seconds, question.base_seconds))),
        }
