"""Suggests single changes that make an infeasible request feasible; each is planned first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ckptplan.cost.case import Case
from ckptplan.cost.exact import overhead
from ckptplan.errors import Change, Infeasible, InputError
from ckptplan.model.budget import add_headroom, find_memory, rest_of
from ckptplan.model.step_costs import StepCosts
from ckptplan.model.workload import Workload
from ckptplan.planning.request import Request
from ckptplan.search.question import Question
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


@dataclass(frozen=True, kw_only=True)
class _InfeasibleRequest:
    """An infeasible request; ``whole`` is its question, ``question`` that for closed forms, which is fast."""

    request: Request
    whole: Question
    question: Question

    @property
    def case(self) -> Case:
        return self.request.case

    def costs(self, workload: Workload) -> StepCosts:
        """Return the costs of another workload on the same profile."""
        return self.request.for_workload(workload).case.costs

    def suggest(self, change: Change, value: Any, question: Question) -> dict[str, Any] | None:
        """Plan the changed question and return the suggestion; None if the change does not help after all."""
        if change != "strategies" and self.whole.all_solved:
            # The requested strategies may need more than closed forms do.
            question = question.replace(strategies=self.request.goal.strategies)
        best = question.best()
        if best is None:
            return None
        seconds = float(best.cost(question.costs, question.goal.model).seconds[0])
        return {
            "change": change,
            "value": value,
            "strategy": best.strategy.name,
            "overhead": max(0.0, float(overhead(seconds, question.base_seconds))),
        }


def add_suggestions(infeasible: Infeasible, *, request: Request) -> Infeasible:
    """Return the same error with up to four single changes, each verified to fit."""
    whole = request.question()
    # Changes are found with closed forms, and then planned with the requested strategies.
    asked = _InfeasibleRequest(request=request, whole=whole, question=whole.for_closed_forms())
    makers: tuple[Callable[[_InfeasibleRequest, Infeasible], _Suggestions], ...] = (
        _suggest_strategies,
        _suggest_overhead,
        _suggest_remote,
        _suggest_headroom,
        _suggest_local,
        _suggest_steps,
        _suggest_batch,
        _suggest_neurons,
        _suggest_other_profile,
    )
    found = (suggestion for make in makers for suggestion in make(asked, infeasible) if suggestion is not None)
    return Infeasible(
        binding=infeasible.binding,
        need=infeasible.need,
        have=infeasible.have,
        subject=infeasible.subject,
        headroom=infeasible.headroom,
        suggestions=_choose(found, most=_find_most_overhead(request)),
        stays=_list_stays(asked.case) if infeasible.binding == "local_bytes" else None,
    )


def _choose(found: Iterable[dict[str, Any]], *, most: float) -> list[dict[str, Any]]:
    """Return the first suggestions that are of use, at most two with the same change.

    Left out are plans that take far too long, and memory that nobody has. If nothing else remains, return the
    quickest of the former: a plan that takes long is still a plan.
    """
    kept: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for one in found:
        if one["change"] in ("local_bytes", "remote_bytes") and one["value"] >= _PETABYTE:
            continue
        if one["overhead"] > most:
            others.append(one)
        elif sum(one["change"] == each["change"] for each in kept) < 2:
            kept.append(one)
        if len(kept) == _MOST:
            break
    return kept or sorted(others, key=lambda one: float(one["overhead"]))[:1]


def _find_most_overhead(request: Request) -> float:
    """Return the overhead that is of use: up to ten times base's time, or what the caller accepts."""
    return max(_ABSURD, request.goal.max_overhead or 0.0)


def _list_stays(case: Case) -> dict[str, int]:
    """Return the bytes that stay in local memory with any schedule, by field of the workload, largest first."""
    job = case.spread
    parts = {
        "resident_bytes": job.resident_bytes,
        "resident_bytes_per_step": job.resident_bytes_per_step * job.steps,
        "workspace_bytes": job.workspace_bytes,
    }
    return dict(sorted(((name, size) for name, size in parts.items() if size), key=lambda part: -part[1]))


_Suggestions = Iterator[dict[str, Any] | None]


def _suggest_strategies(asked: _InfeasibleRequest, infeasible: Infeasible) -> _Suggestions:
    by_default = [strategy for strategy in select_strategies(None) if strategy.is_closed_form]
    everything = tuple(
        strategy.name
        for strategy in by_default
        if asked.question.goal.model == "exact" or strategy.printed is not None
    )
    if set(everything) - set(asked.request.goal.strategies):
        answer = asked.question.replace(strategies=everything).best()
        if answer is not None:
            name = answer.strategy.name
            yield asked.suggest("strategies", name, asked.question.replace(strategies=(name,)))


def _suggest_headroom(asked: _InfeasibleRequest, infeasible: Infeasible) -> _Suggestions:
    """Suggest to leave nothing free, if that alone makes a plan possible."""
    goal = asked.request.goal
    if goal.headroom and goal.local_bytes is not None:
        memory = find_memory(goal.local_bytes, goal.headroom, machine=asked.case.profile.local_bytes)
        yield asked.suggest("headroom", 0, asked.question.replace(local_bytes=memory, headroom=0.0))


def _suggest_local(asked: _InfeasibleRequest, infeasible: Infeasible) -> _Suggestions:
    """Suggest the least local memory that fits the limits, that needs a moderate overhead, that needs none."""
    values = []
    for most in (asked.question.goal.max_overhead, _MODERATE, 0.0):
        best = asked.question.replace(local_bytes=None, max_overhead=most, objective="memory").best()
        if best is not None:
            values.append(int(best.key[0]))
    if infeasible.binding == "local_bytes":
        values.append(int(infeasible.need))
    present = asked.question.goal.local_bytes
    for value in sorted({value for value in values if present is not None and value > present}):
        # A headroom that the caller named is also taken off the memory that is suggested.
        named = add_headroom(value, asked.request.goal.headroom) if asked.request.names_headroom else value
        yield asked.suggest("local_bytes", named, asked.question.replace(local_bytes=value))


def _suggest_remote(asked: _InfeasibleRequest, infeasible: Infeasible) -> _Suggestions:
    present = asked.question.goal.remote_bytes
    if present is None:
        return
    value = asked.question.least_remote_bytes()
    if infeasible.binding == "remote_bytes":
        value = max(value or 0, int(infeasible.need))
    if value is not None and value > present:
        yield asked.suggest("remote_bytes", value, asked.question.replace(remote_bytes=value))


def _suggest_overhead(asked: _InfeasibleRequest, infeasible: Infeasible) -> _Suggestions:
    if asked.question.goal.max_overhead is None:
        return
    need = asked.whole.replace(max_overhead=None).least("max_overhead")
    if need is None:
        return
    # Rounded up to a tenth of a per cent, which is easy to type.
    value = -(-need * 1000 // 1) / 1000
    yield asked.suggest("max_overhead", value, asked.whole.replace(max_overhead=value))


def _suggest_steps(asked: _InfeasibleRequest, infeasible: Infeasible) -> _Suggestions:
    # A plan for T steps, with its chunks clamped, needs no more memory for fewer steps. So bisection finds the
    # largest T. With a limit on overhead, it finds a T that fits: overhead can rise as T falls.
    if infeasible.binding == "steps":
        steps = int(infeasible.need)
        if steps < 1:
            # No length has a schedule.
            return
        costs = asked.costs(asked.case.workload.with_steps(steps))
        yield asked.suggest("steps", steps, asked.question.replace(costs=costs))
        return
    yield from _suggest_largest(asked, "steps", asked.case.workload.steps, asked.case.workload.with_steps)


def _suggest_batch(asked: _InfeasibleRequest, infeasible: Infeasible) -> _Suggestions:
    # All sizes rise with the batch, and so do transfers; the times per step stay the same.
    if asked.case.workload.network is not None:
        yield from _suggest_largest(
            asked, "batch", asked.case.workload.network.batch, asked.case.workload.with_batch
        )


def _suggest_neurons(asked: _InfeasibleRequest, infeasible: Infeasible) -> _Suggestions:
    if asked.case.workload.network is not None:
        yield from _suggest_largest(
            asked, "neurons", asked.case.workload.network.neurons, asked.case.workload.with_neurons_from
        )


def _suggest_other_profile(asked: _InfeasibleRequest, infeasible: Infeasible) -> _Suggestions:
    """Suggest the smallest built-in machine on which the job fits, unless the caller set the budget."""
    goal = asked.request.goal
    if goal.local_bytes != rest_of(asked.case.profile.local_bytes, goal.headroom):
        return
    others = [load_profile(name) for name in list_names("hardware_profiles") if name != asked.case.profile.name]
    # Skip machines whose local memory is an assumption.
    known = [other for other in others if other.sources["local_bytes"].grade != "X"]
    for other in sorted(known, key=lambda profile: profile.local_bytes * profile.units):
        try:
            costs = Case(workload=asked.case.workload, profile=other).costs
        except InputError:
            continue
        headroom = goal.headroom if asked.request.names_headroom else other.headroom
        budget = rest_of(other.local_bytes, headroom)
        if budget < 1:
            continue
        there = asked.question.replace(costs=costs, local_bytes=budget, headroom=headroom)
        suggestion = asked.suggest("profile", other.name, there)
        if suggestion is not None:
            yield suggestion
            return


def _suggest_largest(
    asked: _InfeasibleRequest, change: Change, present: int, changed: Callable[[int], Workload]
) -> _Suggestions:
    """Suggest the largest value that fits; if its plan takes far too long, the largest one that is quick."""
    found = _find_largest(asked, change, present, changed, most=asked.question.goal.max_overhead)
    if found is not None and found["overhead"] > _find_most_overhead(asked.request):
        yield _find_largest(asked, change, int(found["value"]), changed, most=_MODERATE)
    yield found


def _find_largest(
    asked: _InfeasibleRequest,
    change: Change,
    present: int,
    changed: Callable[[int], Workload],
    *,
    most: float | None,
) -> dict[str, Any] | None:
    """Bisect for the largest value that fits within an overhead of ``most``; the present value does not."""

    def question(value: int) -> Question:
        return asked.question.replace(costs=asked.costs(changed(value)), max_overhead=most)

    fits, fails = 0, present
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if question(middle).fits() and asked.whole.replace(costs=question(middle).costs).may_fit():
            fits = middle
        else:
            fails = middle
    return asked.suggest(change, fits, question(fits)) if fits >= _LEAST_SHARE * present else None
