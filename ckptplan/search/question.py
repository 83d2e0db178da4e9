"""A planning question, and its answer over several strategies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ckptplan.cost import paper
from ckptplan.cost.exact import Cost, overhead
from ckptplan.errors import Infeasible, Limit
from ckptplan.model.budget import Budget
from ckptplan.model.goal import Goal, Model
from ckptplan.model.progress import Progress
from ckptplan.model.step_costs import StepCosts
from ckptplan.model.totals import Totals
from ckptplan.search.answer import Answer, ClosedFormAnswer, SolvedAnswer
from ckptplan.search.box import BestSetting, Limits, Rival, find_best_setting
from ckptplan.search.objective import FirstOnly, Knee, Objective, least_memory, least_remote_memory, least_time
from ckptplan.strategies.closed_form import ClosedForm
from ckptplan.strategies.protocol import Strategy, no_equation
from ckptplan.strategies.registry import all_strategies
from ckptplan.strategies.solved import Solved

_OF_THE_GOAL = frozenset(Goal.model_fields)


@dataclass(frozen=True, kw_only=True)
class Question:
    """Asks which strategy at which setting is best at ``costs``: a goal, and how the search is watched.

    Budgets of the goal that are None are unbounded.
    """

    costs: StepCosts
    goal: Goal
    #: Called with the work done and the work in all of a long search.
    progress: Progress | None = None
    #: Whether Ctrl-C returns the best answers so far instead of raising.
    keeps_best: bool = True
    #: Strategies whose search was interrupted; what was found before stands.
    interruptions: list[str] = field(default_factory=list)

    @cached_property
    def strategies(self) -> tuple[Strategy, ...]:
        """The strategies that may serve, as named by the goal."""
        return tuple(all_strategies()[name] for name in self.goal.strategies)

    @cached_property
    def budget(self) -> Budget:
        """The most bytes of each tier."""
        return Budget(local_bytes=self.goal.local_bytes, remote_bytes=self.goal.remote_bytes)

    def replace(self, **changes: Any) -> Question:
        """Return the same question with other fields of its own or of its goal."""
        of_goal = {name: value for name, value in changes.items() if name in _OF_THE_GOAL}
        own = {name: value for name, value in changes.items() if name not in _OF_THE_GOAL}
        # Checked when the goal was made; a search changes it thousands of times.
        goal = self.goal.model_copy(update=of_goal) if of_goal else self.goal
        return dataclasses.replace(self, goal=goal, **own)

    def for_strategy(self, strategy: Strategy) -> Question:
        """Return the question for one strategy only."""
        return self.replace(strategies=(strategy.name,))

    def rank(self) -> list[Answer]:
        """Return each strategy at its best, best first; strategies that do not fit are left out."""
        return self._rank_by(self._choose_objective())

    def best(self, *, enough: float | None = None) -> Answer | None:
        """Return the best strategy at its best setting, None where nothing fits.

        It is the first that ``rank`` returns, found sooner: no strategy is searched that another one beats.
        ``enough`` are seconds that something is known to fit in, which helps where the objective is time.
        """
        if enough is None or self.goal.objective != "time":
            return self._find_first(self._choose_objective())
        # A hair more, so that what takes as long is found, too.
        rival = Rival(key=(enough * (1 + 1e-9), np.inf, np.inf), ties_win=True)
        return next(iter(self._rank_by(least_time, only_first=True, rival=rival)), None)

    def faster_than(self, seconds: float) -> Answer | None:
        """Return the fastest answer, None where none takes less than ``seconds``."""
        rival = Rival(key=(seconds,), ties_win=False)
        found = self._rank_by(FirstOnly(least_time), only_first=True, rival=rival)
        return next((answer for answer in found if answer.key < rival.key), None)

    def for_closed_forms(self) -> Question:
        """Return the question for closed forms only, which answer at once.

        They fit wherever anything does (Remote with a single tape), but for a limit of remote memory.
        """
        closed = tuple(one.name for one in self.strategies if one.is_closed_form)
        return self.replace(strategies=closed or _name_closed_forms())

    def fits(self) -> bool:
        """Return whether any strategy has a setting within the limits.

        Where there is no limit of overhead, solved strategies say so without solving anything.
        """
        if self.goal.max_overhead is not None or self.goal.model == "paper":
            return self._find_first(least_memory) is not None
        closed = tuple(one.name for one in self.strategies if one.is_closed_form)
        return self.replace(strategies=closed)._find_first(least_memory) is not None or any(
            one.has_schedule(costs=self.costs, budget=self.budget, effort=self.goal.effort)
            for one in self._solved_strategies
        )

    def may_fit(self) -> bool:
        """Return whether the local memory is not below what solved strategies need at least."""
        return self._explain_below_least(subject="") is None

    def least_remote_bytes(self) -> int | None:
        """Return the remote memory that is needed within the other limits, None if none is enough."""
        least = self.replace(remote_bytes=None)._find_least("remote_bytes")
        return None if least is None else int(least)

    @property
    def base_seconds(self) -> float:
        """The time that overhead is counted from."""
        return self.costs.base_seconds if self.goal.model == "exact" else paper.base_seconds(self.costs)

    def infeasible(self, *, subject: str) -> Infeasible:
        """Return why nothing fits: the limit that binds, what it would have to be, what it is.

        That is the first of largest overhead, remote budget and local budget that makes a plan possible
        when it alone is lifted: the caller's wish before the machine. Where no one does, it is the first
        that nothing could meet, were the others lifted.
        """
        if (unsolvable := self._explain_below_least(subject=subject)) is not None:
            return unsolvable
        closed = self.for_closed_forms()
        lifted: dict[Limit, Question] = {
            "max_overhead": self.replace(max_overhead=None),
            "remote_bytes": closed.replace(remote_bytes=None),
            "local_bytes": closed.replace(local_bytes=None),
        }
        free = closed.replace(local_bytes=None, remote_bytes=None, max_overhead=None)
        limits: dict[Limit, float | None] = {
            "local_bytes": self.budget.local_bytes,
            "remote_bytes": self.budget.remote_bytes,
            "max_overhead": self.goal.max_overhead,
        }
        for questions in (lifted, dict.fromkeys(lifted, free)):
            for binding, question in questions.items():
                have = limits[binding]
                need = None if have is None else question._find_least(binding)
                if have is not None and need is not None and need > have:
                    return Infeasible(binding=binding, need=need, have=have, subject=subject)
        return self._explain_unsolved(subject=subject)

    @property
    def all_solved(self) -> list[Solved]:
        """The strategies, where each is solved, so that what closed forms need does not speak for them."""
        solved = self._solved_strategies
        return solved if len(solved) == len(self.strategies) else []

    @property
    def _solved_strategies(self) -> list[Solved]:
        return [strategy for strategy in self.strategies if isinstance(strategy, Solved)]

    def _explain_below_least(self, *, subject: str) -> Infeasible | None:
        """Say so where solved strategies have no schedule in the local memory, whatever the other limits."""
        have = self.budget.local_bytes
        need = min((one.least_local_bytes(self.costs) for one in self.all_solved), default=0)
        if have is None or need <= have:
            return None
        return Infeasible(binding="local_bytes", need=need, have=have, subject=subject)

    def _explain_unsolved(self, *, subject: str) -> Infeasible:
        """Return which limit the schedules asked for break, where closed forms would fit.

        Where they break none, there are none: the sequence is too long for them.
        """
        for lifted in (
            self.replace(remote_bytes=None),
            self.replace(max_overhead=None),
            self.replace(remote_bytes=None, max_overhead=None),
        ):
            found = lifted.best() if lifted.replace(max_overhead=None).fits() else None
            if found is not None and not found.strategy.is_closed_form:
                for binding, need, have in self._find_broken(found.totals(self.costs)):
                    return Infeasible(binding=binding, need=need, have=have, subject=subject)
        most = max(
            (one.most_steps(self.costs, self.budget, effort=self.goal.effort) for one in self.all_solved),
            default=0,
        )
        have = self.costs.steps
        return Infeasible(binding="steps", need=min(most, have - 1), have=have, subject=subject)

    def _find_broken(self, totals: Totals) -> Iterator[tuple[Limit, float, float]]:
        """Return the limits that a schedule breaks: which, what it needs, what there is."""
        remote, most = self.goal.remote_bytes, self.goal.max_overhead
        if remote is not None and totals.remote_peak_bytes > remote:
            yield "remote_bytes", float(totals.remote_peak_bytes), remote
        seconds = float(overhead(totals.seconds, self.base_seconds))
        if most is not None and seconds > most:
            yield "max_overhead", seconds, most

    def _find_least(self, limit: str) -> float | None:
        """Return the least of what a limit bounds, None where nothing fits the other limits."""
        objective = {
            "local_bytes": least_memory,
            "remote_bytes": least_remote_memory,
            "max_overhead": least_time,
        }[limit]
        found = self._find_first(FirstOnly(objective))
        if found is None:
            return None
        least = found.key[0]
        return float(overhead(least, self.base_seconds)) if limit == "max_overhead" else least

    def _choose_objective(self) -> Objective:
        if self.goal.objective == "time":
            return least_time
        if self.goal.objective == "memory":
            return least_memory
        fast, small = self._find_first(least_time), self._find_first(least_memory)
        if fast is None or small is None:
            return least_time
        knee = Knee(
            fast_seconds=fast.key[0],
            fast_bytes=int(fast.key[1]),
            small_seconds=small.key[1],
            small_bytes=int(small.key[0]),
        )
        # Where one plan is both the fastest and the smallest, there is nothing to balance. (A solved schedule
        # may turn out smaller or faster than what it was chosen for.)
        balanced = knee.fast_bytes > knee.small_bytes and knee.fast_seconds < knee.small_seconds
        return knee if balanced else least_time

    def _find_first(self, objective: Objective) -> Answer | None:
        return next(iter(self._rank_by(objective, only_first=True)), None)

    def _rank_by(
        self, objective: Objective, *, only_first: bool = False, rival: Rival | None = None
    ) -> list[Answer]:
        """Return the answers, best first; with ``only_first``, those found better than all before them.

        They need not beat ``rival``, but are only searched for what does.
        """
        limits = Limits(budget=self.budget, max_overhead=self.goal.max_overhead, base_seconds=self.base_seconds)
        answers: list[Answer] = []
        for strategy in sorted(self.strategies, key=_turn_of):
            try:
                answer = self._answer(
                    strategy,
                    limits,
                    objective,
                    rival=_choose_rival(answers, strategy, rival) if only_first else None,
                )
            except KeyboardInterrupt:
                if strategy.is_closed_form or not answers or not self.keeps_best:
                    raise
                self.interruptions.append(strategy.name)
                break
            if answer is not None:
                answers.append(answer)
                if only_first and objective is least_time and self._unbeatable(answer):
                    break
        return sorted(answers, key=_rank_of)

    def _unbeatable(self, answer: Answer) -> bool:
        """Return whether a plan without parameters is as quick as base, and running a step again takes time.

        What is as quick then runs nothing again. So it holds each step's tape, and no less memory.
        """
        return (
            self.goal.model == "exact"
            and not answer.strategy.parameter_names
            and answer.key[0] <= self.base_seconds
            # More than what rounding could hide.
            and self.costs.recompute_seconds > 1e-12 * self.base_seconds
        )

    def _answer(
        self, strategy: Strategy, limits: Limits, objective: Objective, *, rival: Rival | None
    ) -> Answer | None:
        """Return one strategy at its best, None where nothing fits or, of closed forms, beats ``rival``."""
        if isinstance(strategy, Solved):
            return self._solve(strategy, limits, objective)
        if isinstance(strategy, ClosedForm):
            return self._search(strategy, limits, objective, rival=rival)
        raise TypeError(f"{strategy.name} is neither a closed form nor solved")

    def _search(
        self, strategy: ClosedForm, limits: Limits, objective: Objective, *, rival: Rival | None
    ) -> Answer | None:
        found = _find_best_setting(
            strategy,
            costs=self.costs,
            limits=limits,
            objective=objective,
            model=self.goal.model,
            rival=rival,
        )
        if found is None:
            return None
        return ClosedFormAnswer(
            strategy=strategy,
            parameters=found.parameters,
            key=found.key,
            gap=found.gap,
            steps=self.costs.steps,
        )

    def _solve(self, strategy: Solved, limits: Limits, objective: Objective) -> Answer | None:
        if self.goal.model == "paper":
            raise no_equation(strategy.name)

        def choose(cost: Cost) -> int | None:
            kept = np.flatnonzero(limits.keeps(cost))
            if not len(kept):
                return None
            keys = [column[kept] for column in objective(cost)]
            return int(kept[np.lexsort(keys[::-1])[0]])

        solution = strategy.solve(
            costs=self.costs,
            budget=self.budget,
            choose=choose,
            effort=self.goal.effort,
            front=objective is not least_time,
            progress=self.progress,
        )
        if solution is None or not limits.keeps(solution.cost)[0]:
            return None
        return SolvedAnswer(
            strategy=strategy,
            parameters=solution.parameters,
            key=tuple(column[0].item() for column in objective(solution.cost)),
            steps=self.costs.steps,
            solution=solution,
            solved_at=self.costs,
        )


#: Searches remembered: those of the points of a sweep that differ in transfers only.
cached_best_setting = lru_cache(maxsize=512)(find_best_setting)


def _find_best_setting(
    strategy: ClosedForm,
    *,
    costs: StepCosts,
    limits: Limits,
    objective: Objective,
    model: Model,
    rival: Rival | None,
) -> BestSetting | None:
    """Return what ``find_best_setting`` does; where nothing is moved, the costs of moving do not matter."""
    wishes: dict[str, Any] = {"limits": limits, "objective": objective, "model": model, "rival": rival}
    if strategy.transfers is not None or model != "exact":
        return find_best_setting(strategy, costs=costs, **wishes)
    return cached_best_setting(strategy, costs=costs.model_copy(update=_NOTHING_MOVES), **wishes)


_NOTHING_MOVES = {"write_seconds": 0.0, "read_seconds": 0.0, "message_seconds": 0.0}


def _turn_of(strategy: Strategy) -> tuple[bool, int]:
    """Return when a strategy has its turn.

    Closed forms first: a long search that is interrupted leaves the best of them. Of these the simple ones
    first, which are soon searched, and often good enough to spare most of the others' search.
    """
    return not strategy.is_closed_form, strategy.rank


def _rank_of(answer: Answer) -> tuple[tuple[float, ...], int]:
    """Return what ranks answers: ties go by the order of the strategies."""
    return answer.key, answer.strategy.rank


def _choose_rival(answers: list[Answer], strategy: Strategy, rival: Rival | None) -> Rival | None:
    """Return what a strategy has to beat; one without parameters is evaluated as quickly as compared."""
    if not strategy.parameter_names:
        return None
    if not answers:
        return rival
    best = min(answers, key=_rank_of)
    if rival is not None and rival.key <= best.key:
        return rival
    return Rival(key=best.key, ties_win=strategy.rank < best.strategy.rank)


def _name_closed_forms() -> tuple[str, ...]:
    return tuple(name for name, strategy in all_strategies().items() if strategy.is_closed_form)
