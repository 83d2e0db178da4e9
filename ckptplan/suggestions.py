"""What would make an infeasible question feasible: single changes, each planned before it is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from ckptplan.cost.derive import step_costs
from ckptplan.cost.exact import overhead
from ckptplan.errors import Change, Infeasible, InputError
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.search.question import Question
from ckptplan.storage.library import names
from ckptplan.storage.profiles import load_profile
from ckptplan.strategies.registry import named
from ckptplan.strategies.solved import SolvedStrategy

_MOST = 4
#: An overhead that people still accept.
_MODERATE = 0.5
#: A job cut down to less than this share is another job, and no help.
_LEAST_SHARE = 0.05


@dataclass(frozen=True, kw_only=True)
class _Case:
    question: Question
    asked: Question
    workload: Workload
    profile: HardwareProfile

    def suggestion(self, change: Change, value: Any, question: Question) -> dict[str, Any] | None:
        """Plan the changed question; None if it does not fit after all, or if nothing is changed."""
        if change != "strategies" and self.asked.all_solved:
            # What closed forms can do need not be what the strategies asked for can.
            question = question.changed(strategies=self.asked.strategies)
        winner = question.winner()
        if winner is None:
            return None
        solution = winner.best.solution
        cost = (
            solution.cost
            if solution
            else winner.strategy.cost(winner.best.parameters, costs=question.costs, model=question.model)
        )
        seconds = float(cost.seconds[0])
        return {
            "change": change,
            "value": value,
            "strategy": winner.strategy.name,
            "overhead": max(0.0, float(overhead(seconds, question.base_seconds))),
        }


def with_suggestions(
    infeasible: Infeasible, *, question: Question, workload: Workload, profile: HardwareProfile
) -> Infeasible:
    """Return the same error with up to four single changes that were each found to fit."""
    # Closed forms answer at once; what they find is planned with the strategies asked for.
    case = _Case(question=question.closed_form(), asked=question, workload=workload, profile=profile)
    makers = (_strategies, _overhead, _remote, _local, _steps, _batch, _neurons, _other_profile)
    found = (suggestion for make in makers for suggestion in make(case, infeasible) if suggestion is not None)
    return Infeasible(
        binding=infeasible.binding,
        need=infeasible.need,
        have=infeasible.have,
        subject=infeasible.subject,
        suggestions=list(islice(found, _MOST)),
    )


_Suggestions = Iterator[dict[str, Any] | None]


def _strategies(case: _Case, infeasible: Infeasible) -> _Suggestions:
    everything = tuple(
        s
        for s in named(None)
        if (case.question.model == "exact" or s.printed) and not isinstance(s, SolvedStrategy)
    )
    if set(everything) - set(case.asked.strategies):
        answer = case.question.changed(strategies=everything).winner()
        if answer is not None:
            yield case.suggestion(
                "strategies", answer.strategy.name, case.question.changed(strategies=(answer.strategy,))
            )


def _local(case: _Case, infeasible: Infeasible) -> _Suggestions:
    """Suggest the least local memory that is enough, that keeps the overhead moderate, that needs none."""
    values = []
    for most in (case.question.max_overhead, _MODERATE, 0.0):
        asked = case.question.changed(
            budget=replace(case.question.budget, local_bytes=None), max_overhead=most, objective="memory"
        )
        winner = asked.winner()
        if winner is not None:
            values.append(int(winner.best.key[0]))
    if infeasible.binding == "local_bytes":
        values.append(int(infeasible.need))
    present = case.question.budget.local_bytes
    for value in sorted({value for value in values if present is not None and value > present})[:2]:
        budget = replace(case.question.budget, local_bytes=value)
        yield case.suggestion("local_bytes", value, case.question.changed(budget=budget))


def _remote(case: _Case, infeasible: Infeasible) -> _Suggestions:
    present = case.question.budget.remote_bytes
    if present is None:
        return
    value = case.question.least_remote_bytes()
    if infeasible.binding == "remote_bytes":
        value = max(value or 0, int(infeasible.need))
    if value is not None and value > present:
        budget = replace(case.question.budget, remote_bytes=value)
        yield case.suggestion("remote_bytes", value, case.question.changed(budget=budget))


def _overhead(case: _Case, infeasible: Infeasible) -> _Suggestions:
    if case.question.max_overhead is None:
        return
    fastest = case.asked.changed(max_overhead=None, objective="time").winner()
    if fastest is None:
        return
    need = float(overhead(fastest.best.key[0], case.question.base_seconds))
    # Rounded up to a tenth of a per cent, which people can type.
    value = -(-need * 1000 // 1) / 1000
    yield case.suggestion("max_overhead", value, case.asked.changed(max_overhead=value))


def _steps(case: _Case, infeasible: Infeasible) -> _Suggestions:
    # A plan for T steps, its chunks clamped, needs no more memory for fewer, so that this is the largest T.
    # With an overhead to keep it is one that fits: a share of base's time can rise for fewer steps.
    if infeasible.binding == "steps":
        costs = step_costs(case.workload.with_steps(int(infeasible.need)), case.profile)
        yield case.suggestion("steps", int(infeasible.need), case.question.changed(costs=costs))
        return
    yield _largest(case, "steps", case.workload.steps, case.workload.with_steps)


def _batch(case: _Case, infeasible: Infeasible) -> _Suggestions:
    # All sizes rise with the batch; so do transfers, and the times are carried over.
    if case.workload.network is not None:
        yield _largest(case, "batch", case.workload.network.batch, case.workload.with_batch)


def _neurons(case: _Case, infeasible: Infeasible) -> _Suggestions:
    if case.workload.network is not None:
        yield _largest(case, "neurons", case.workload.network.neurons, case.workload.with_neurons)


def _other_profile(case: _Case, infeasible: Infeasible) -> _Suggestions:
    """Suggest the smallest built-in machine that would do, unless the caller set the budget."""
    if case.question.budget.local_bytes != case.profile.local_bytes:
        return
    others = [load_profile(name) for name in names("hardware_profiles") if name != case.profile.name]
    # Not those whose memory is a guess.
    known = [other for other in others if other.sources["local_bytes"].grade != "X"]
    for other in sorted(known, key=lambda profile: profile.local_bytes * profile.units):
        try:
            costs = step_costs(case.workload, other)
        except InputError:
            continue
        budget = replace(case.question.budget, local_bytes=other.local_bytes)
        suggestion = case.suggestion("profile", other.name, case.question.changed(costs=costs, budget=budget))
        if suggestion is not None:
            yield suggestion
            return


def _largest(
    case: _Case, change: Change, present: int, changed: Callable[[int], Workload]
) -> dict[str, Any] | None:
    """Bisect for the largest value that fits; the present one does not."""

    def question(value: int) -> Question:
        return case.question.changed(costs=step_costs(changed(value), case.profile))

    fits, fails = 0, present
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if question(middle).fits() and case.asked.changed(costs=question(middle).costs).may_fit():
            fits = middle
        else:
            fails = middle
    return case.suggestion(change, fits, question(fits)) if fits >= _LEAST_SHARE * present else None
