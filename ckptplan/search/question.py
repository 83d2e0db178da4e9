"""Defines a planning question, and answers it over several strategies, or says which limit binds."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import gcd
from typing import Any, Literal, TypeAlias

import numpy as np

from ckptplan.cost import paper
from ckptplan.cost.arrays import COUNT_ROUNDING, SUM_ROUNDING
from ckptplan.cost.exact import Cost, overhead
from ckptplan.errors import Infeasible, Limit
from ckptplan.model.budget import Budget
from ckptplan.model.goal import Goal
from ckptplan.model.progress import Progress, StagedProgress
from ckptplan.model.step_costs import StepCosts
from ckptplan.search.best_setting import find_least, find_setting
from ckptplan.search.boxes import BoxProblem, Limits
from ckptplan.search.objective import (
    Knee,
    Objective,
    Preference,
    Rival,
    least_memory,
    least_remote_memory,
    least_time,
    rank_of,
)
from ckptplan.strategies.answer import Answer
from ckptplan.strategies.closed_form import ClosedForm
from ckptplan.strategies.protocol import Strategy, no_equation
from ckptplan.strategies.registry import all_strategies
from ckptplan.strategies.solved import Solved, Task

#: The limits of a goal.
BudgetLimit: TypeAlias = Literal["local_bytes", "remote_bytes", "max_overhead"]
_GOAL_FIELDS = frozenset(Goal.model_fields)
#: The most sums of states and tapes that are listed to find the least memory of solved strategies.
_MOST_SUMS = 100_000


@dataclass(frozen=True, kw_only=True)
class Question:
    """The question of which strategy and setting best meet ``goal`` at ``costs``.

    Budgets of the goal that are None are unbounded.
    """

    costs: StepCosts
    goal: Goal
    #: The share of time below which two plans cannot be told apart; ``rank`` and ``best`` prefer the simpler.
    resolution: float = 0.0
    #: Called with the work done and the total work of a long search.
    progress: Progress | None = None
    #: If given, Ctrl-C returns the best answers so far, and the strategy whose search it ended is noted here;
    #: otherwise it raises.
    interruptions: list[str] | None = None

    @cached_property
    def strategies(self) -> tuple[Strategy, ...]:
        """The strategies to choose from, as named by the goal."""
        return tuple(all_strategies()[name] for name in self.goal.strategies)

    @cached_property
    def budget(self) -> Budget:
        """The byte budget of each tier."""
        return self.goal.budget

    @property
    def limits(self) -> Limits:
        """The limits that a setting or a schedule must keep."""
        return Limits(budget=self.budget, max_overhead=self.goal.max_overhead, base_seconds=self.base_seconds)

    def replace(self, **changes: Any) -> Question:
        """Return the question with other values for its own fields or fields of its goal."""
        of_goal = {name: value for name, value in changes.items() if name in _GOAL_FIELDS}
        of_question = {name: value for name, value in changes.items() if name not in _GOAL_FIELDS}
        # No validation: a search changes the valid goal thousands of times.
        goal = self.goal.model_copy(update=of_goal) if of_goal else self.goal
        return dataclasses.replace(self, goal=goal, **of_question)

    def for_strategy(self, strategy: Strategy) -> Question:
        """Return the question for one strategy only."""
        return self.replace(strategies=(strategy.name,))

    def rank(self) -> list[Answer]:
        """Return the best answer of each strategy that fits: the one to choose first, then the others by key.

        The first is the simplest that no other beats by more than the resolution (``search/objective.py``).
        """
        return self._rank_by(self._preference())

    def rank_until_settled(self) -> list[Answer]:
        """Return the answers of ``rank``, but search no strategy that is ``unsearched`` after the first one."""
        return self._rank_by(
            self._preference(), stops=lambda champion, strategy: strategy in self.unsearched(champion)
        )

    def rank_quickest(self) -> list[Answer]:
        """Return the first answer of ``rank_until_settled``, and the others that take no longer.

        It is faster, as a search stops once it is slower than the champion so far. With another objective than
        time, all answers are returned.
        """
        if self.goal.objective != "time":
            return self.rank_until_settled()
        return self._rank_by(
            self._preference(),
            stops=lambda champion, strategy: strategy in self.unsearched(champion),
            find_rival=lambda champion, _: None if champion is None else _take_at_most(champion.key[0]),
        )

    def unsearched(self, champion: Answer) -> tuple[Strategy, ...]:
        """Return the strategies that need no search after a champion, as none of them can replace it.

        If its time is the least of any schedule within the budget, they are all less simple strategies. If its
        time is within the resolution of a lower bound on the least, they are the less simple solved
        strategies. Without a resolution there are none, as an equally quick plan may need less memory.
        """
        by_time = Preference(objective=least_time, resolution=self.resolution)
        if self.goal.objective != "time" or not self.resolution or not self._is_unbeatable(champion, by_time):
            return ()
        later = (strategy for strategy in self.strategies if strategy.simplicity > champion.strategy.simplicity)
        if champion.key[0] <= self.least_seconds * (1 + SUM_ROUNDING):
            return tuple(later)
        return tuple(strategy for strategy in later if not strategy.is_closed_form)

    @cached_property
    def least_seconds(self) -> float:
        """A lower bound on the seconds of any schedule within the budget, which needs no search."""
        return max(strategy.bound_seconds(self.costs, self.budget) for strategy in all_strategies().values())

    def best(self) -> Answer | None:
        """Return the answer to choose, None if nothing fits.

        It is the first that ``rank`` returns, but faster to find: strategies that cannot win are not fully
        searched.
        """
        return self._find_first(self._preference())

    def best_below(self, seconds: float) -> Answer | None:
        """Return the answer of ``best`` if some answer takes at most ``seconds``; otherwise an answer or None.

        It is faster than ``best``, as it skips plans that are too slow to become a champion: each champion on
        the way to the first answer is slower than the next one by at most the resolution.
        """
        longest = seconds / (1 - self.resolution) ** len(self.strategies)
        return self._find_first(dataclasses.replace(self._preference(), limit=_take_at_most(longest)))

    def faster_than(self, seconds: float) -> Answer | None:
        """Return the fastest answer, whatever the resolution; None if none takes less than ``seconds``."""
        fastest = self._find_first(Preference(objective=least_time.alone(), limit=(seconds, -np.inf)))
        return None if fastest is None or fastest.key >= (seconds,) else fastest

    def for_closed_forms(self) -> Question:
        """Return the question for closed forms only, which are fast to search.

        With unlimited remote memory, they fit if any schedule does (Remote with a single tape).
        """
        names = _name_closed_forms(self.strategies) or _name_closed_forms(all_strategies().values())
        return self.replace(strategies=names)

    def fits(self) -> bool:
        """Return whether any strategy has a setting within the limits.

        Without a limit on overhead, solved strategies need not solve anything for this.
        """
        if self.goal.max_overhead is not None or self.goal.model == "paper":
            # If any plan keeps the limit, the quickest does.
            quickest = self.replace(objective="time")
            return quickest._find_first(Preference(objective=least_time)) is not None
        closed = self.replace(strategies=_name_closed_forms(self.strategies))
        # If chunks grow by caches, any number of caches may need the least memory: try the most that fit.
        growing = [
            strategy.name
            for strategy in closed.strategies
            if isinstance(strategy, ClosedForm) and strategy.grows_by_caches
        ]
        by_time = self.replace(strategies=tuple(growing)) if self.costs.cache_bytes else None
        return (
            closed._find_first(Preference(objective=least_memory)) is not None
            or (by_time is not None and by_time._find_first(Preference(objective=least_time)) is not None)
            or self._has_solved_schedule()
        )

    def _has_solved_schedule(self) -> bool:
        """Return whether a solved strategy has a schedule within the memory."""
        return any(
            strategy.has_schedule(
                dataclasses.replace(self.task(strategy, least_time), costs=self._least_costs(strategy))
            )
            for strategy in self._solved_strategies
        )

    def task(
        self,
        strategy: Solved,
        objective: Objective,
        *,
        front: bool = False,
        progress: Progress | None = None,
    ) -> Task:
        """Return the task of a solved strategy; with ``front``, its choice may prefer less memory to less time.

        The workspace of chunks of several steps is charged to all schedules, except in ``Task.single``.
        """
        limits = self.limits
        costs = self.costs if self.releases_caches(strategy) else self.costs.with_resident_caches

        def choose(cost: Cost) -> int | None:
            return find_least(objective(cost), limits.keeps(cost))

        return Task(
            costs=costs.with_chunk_workspace,
            budget=self.budget,
            choose=choose,
            effort=self.goal.effort,
            front=front,
            progress=progress,
            single=costs if costs.chunk_bytes else None,
            resolution=self.resolution,
            cache=self.goal.cache,
        )

    def releases_caches(self, strategy: Solved) -> bool:
        """Return whether a solved strategy decides about caches; otherwise all count until the end."""
        return not self.costs.cache_bytes or (strategy.knows_caches and self.goal.cache != "all")

    def may_fit(self) -> bool:
        """Return whether the local memory reaches the minimum that solved strategies need."""
        return self.goal.local_bytes is None or self.least_solvable_bytes <= self.goal.local_bytes

    @property
    def least_solvable_bytes(self) -> int:
        """The least local memory at which any strategy has a schedule, if all are solved ones, else 0."""
        return min(
            (strategy.least_local_bytes(self._least_costs(strategy)) for strategy in self.all_solved), default=0
        )

    def _least_costs(self, strategy: Solved) -> StepCosts:
        """Return the least costs of a strategy: without workspace of chunks, if it may record single steps."""
        costs = strategy.costs_of(self.costs)
        return costs if strategy.records_one_by_one else costs.with_chunk_workspace

    def least_remote_bytes(self) -> int | None:
        """Return the remote memory needed within the other limits, None if no amount is enough."""
        least = self.replace(remote_bytes=None).least("remote_bytes")
        return None if least is None else int(least)

    @property
    def base_seconds(self) -> float:
        """The time in seconds that overhead is relative to."""
        return self.costs.base_seconds if self.goal.model == "exact" else paper.base_seconds(self.costs)

    @property
    def all_solved(self) -> list[Solved]:
        """The strategies if all of them are solved ones, else an empty list.

        The needs of closed forms say nothing about solved strategies.
        """
        solved = self._solved_strategies
        return solved if len(solved) == len(self.strategies) else []

    @property
    def _solved_strategies(self) -> list[Solved]:
        return [strategy for strategy in self.strategies if isinstance(strategy, Solved)]

    def least(self, limit: BudgetLimit) -> float | None:
        """Return the least value of a limited quantity, None if nothing fits the other limits.

        The value of closed forms is proved. Solved strategies may need less memory: they are also tried with
        less than closed forms need.
        """
        if limit == "max_overhead":
            return self._find_least(limit)
        enough = self.for_closed_forms()._find_least(limit)
        if all(strategy.is_closed_form for strategy in self.strategies):
            return enough
        enough = self._find_least(limit) if enough is None else enough
        if enough is None:
            return None
        values = self._list_memories(limit, int(enough))

        def holds_plan(value: int) -> bool:
            return value == enough or self.replace(**{limit: value}).fits()

        return values[bisect_left(values, True, key=holds_plan)]

    def _list_memories(self, limit: BudgetLimit, most: int) -> Sequence[int]:
        """Return the amounts of memory that hold more than smaller amounts do, ascending; the last is ``most``.

        Local memory holds states and tapes, and the workspace of chunks. A recursion that counts these in
        rounded units may need a little less than one of their sums. If there are too many sums, amounts that
        differ by a 64th of a state or a tape are listed.
        """
        costs = self.costs
        if limit == "remote_bytes":
            step = costs.remote_state_bytes
            return range(most % step, most + 1, step)
        sizes, free = (costs.state_bytes, costs.tape_bytes), most - costs.resident_bytes
        states, tapes = (free // size for size in sizes)
        if costs.cache_bytes or states * tapes > _MOST_SUMS:
            step = max(gcd(*sizes, costs.cache_bytes, costs.chunk_bytes), min(sizes) // 64)
            return range(most % step, most + 1, step)
        sums = np.add.outer(np.arange(states + 1) * sizes[0], np.arange(1, tapes + 1) * sizes[1]).ravel()
        amounts = np.unique(np.concatenate([sums, sums + costs.chunk_bytes, [free]]))
        return [costs.resident_bytes + int(amount) for amount in amounts[amounts <= free]]

    def find_local_ends(self) -> tuple[int, int]:
        """Return the local memory of the smallest plan, and of the fastest plan, in bytes of one unit.

        Closed forms give both ends; the least memory of solved strategies may be smaller.
        """
        closed = self.for_closed_forms().replace(local_bytes=None, resolution=0.0)
        small = closed._find_first(Preference(objective=least_memory))
        fast = closed._find_first(Preference(objective=least_time))
        charged = self.costs.with_chunk_workspace
        high = charged.resident_bytes + charged.steps * charged.recorded_bytes
        ends = [strategy.least_local_bytes(self._least_costs(strategy)) for strategy in self._solved_strategies]
        if small is not None and fast is not None:
            high = int(fast.key[1])
            ends.append(int(small.key[0]))
        return min([*ends, high]), high

    def _find_least(self, limit: BudgetLimit) -> float | None:
        """Return the least value of a limited quantity among the plans of one search."""
        objective = {
            "local_bytes": least_memory,
            "remote_bytes": least_remote_memory,
            "max_overhead": least_time,
        }[limit]
        answer = self._find_first(Preference(objective=objective.alone()))
        if answer is None:
            return None
        least = answer.key[0]
        return float(overhead(least, self.base_seconds)) if limit == "max_overhead" else least

    def _preference(self) -> Preference:
        return Preference(objective=self._choose_objective(), resolution=self.resolution)

    def _choose_objective(self) -> Objective:
        if self.goal.objective == "time":
            return least_time
        if self.goal.objective == "memory":
            return least_memory
        fast, small = (
            self._find_first(Preference(objective=objective)) for objective in (least_time, least_memory)
        )
        if fast is None or small is None:
            return least_time
        knee = Knee(
            fast_seconds=fast.key[0],
            fast_bytes=int(fast.key[1]),
            small_seconds=small.key[1],
            small_bytes=int(small.key[0]),
        )
        # The smallest plan is as fast as the fastest one, within the resolution.
        if small.key[1] * (1 - max(self.resolution, SUM_ROUNDING)) <= fast.key[0]:
            return least_memory
        # If the fastest plan is also the smallest, there is nothing to balance.
        return knee if knee.fast_bytes > knee.small_bytes else least_time

    def _find_first(self, preference: Preference) -> Answer | None:
        """Return the first answer. Searches stop once they cannot replace the best answer so far."""
        answers = self._rank_by(
            preference,
            stops=lambda champion, _: self._is_unbeatable(champion, preference),
            find_rival=preference.find_rival,
        )
        return next(iter(answers), None)

    def _rank_by(
        self,
        preference: Preference,
        *,
        stops: Callable[[Answer, Strategy], bool] = lambda *_: False,
        find_rival: Callable[[Answer | None, Strategy], Rival | None] = lambda *_: None,
    ) -> list[Answer]:
        """Return the answers, the champion first, then the others by key.

        Both functions get the champion so far and the next strategy. ``stops`` says whether to end before this
        strategy. ``find_rival`` returns a key at which its search stops if it cannot beat the key; its answer
        need not beat it.
        """
        answers: list[Answer] = []
        champion: Answer | None = None
        stages = StagedProgress(self.progress, stages=len(self._solved_strategies))
        for strategy in sorted(self.strategies, key=lambda strategy: strategy.simplicity):
            if champion is not None and stops(champion, strategy):
                break
            if not strategy.is_closed_form:
                stages.begin_next(strategy.name)
            try:
                answer = self._answer(
                    strategy,
                    preference.objective,
                    rival=find_rival(champion, strategy),
                    progress=None if self.progress is None else stages.report_solve,
                )
            except KeyboardInterrupt:
                if strategy.is_closed_form or not answers or self.interruptions is None:
                    raise
                self.interruptions.append(strategy.name)
                break
            if answer is not None:
                answers.append(answer)
                champion = answer if preference.replaces(answer, champion) else champion
        if champion is None:
            return []
        return [champion, *sorted((answer for answer in answers if answer is not champion), key=rank_of)]

    def _is_unbeatable(self, champion: Answer, preference: Preference) -> bool:
        """Return whether the champion is so close to the least time that no other plan can replace it.

        Without a resolution an equally fast plan may need less memory, unless it is base that is the champion,
        and running a step again takes time: then an equally fast plan recomputes nothing, so it holds every
        tape.
        """
        if self.goal.model != "exact" or preference.objective != least_time:
            return False
        if preference.resolution:
            return champion.key[0] * (1 - preference.resolution) <= self.least_seconds * (1 - SUM_ROUNDING)
        return (
            not champion.strategy.parameter_names
            and champion.key[0] <= self.base_seconds
            # By more than rounding.
            and self.costs.recompute_seconds > SUM_ROUNDING * self.base_seconds
        )

    def _answer(
        self,
        strategy: Strategy,
        objective: Objective,
        *,
        rival: Rival | None,
        progress: Progress | None,
    ) -> Answer | None:
        """Return the best answer of one strategy, None if nothing fits or no closed form beats ``rival``."""
        if not strategy.allows(self.goal.cache):
            return None
        if isinstance(strategy, ClosedForm):
            problem = BoxProblem(
                strategy=strategy,
                costs=self.costs,
                limits=self.limits,
                objective=objective,
                model=self.goal.model,
                cache=self.goal.cache,
            )
            return find_setting(problem, rival=rival)
        if not isinstance(strategy, Solved):
            raise TypeError(f"{strategy.name} is neither a closed form nor solved")
        return self._solve(strategy, objective, progress=progress)

    def _solve(self, strategy: Solved, objective: Objective, *, progress: Progress | None) -> Answer | None:
        if self.goal.model == "paper":
            raise no_equation(strategy.name)
        # Schedules of smaller budgets are of no use if only the least time is asked for.
        task = self.task(strategy, objective, front=objective.first != least_time.first, progress=progress)
        task = dataclasses.replace(task, alone=not task.front and self.goal.objective == "time")
        solved = strategy.solve(task)
        if solved is None:
            return None
        answer = solved.without_chunk_workspace(self.costs)
        if self.costs.cache_bytes and self.goal.cache not in (None, answer.cache):
            return None
        if not self.releases_caches(strategy):
            # A bound that counts all caches until the end does not hold for schedules that release them.
            answer = dataclasses.replace(answer, least_seconds=None, proved=False)
        cost = answer.cost(self.costs)
        key = tuple(column[0].item() for column in objective(cost))
        return dataclasses.replace(answer, key=key) if self.limits.keeps(cost)[0] else None


def _take_at_most(seconds: float) -> Rival:
    """Return the rival of a search for plans that take at most ``seconds``, up to rounding."""
    return (seconds * (1 + COUNT_ROUNDING), np.inf, np.inf, np.inf)


def _name_closed_forms(strategies: Iterable[Strategy]) -> tuple[str, ...]:
    return tuple(strategy.name for strategy in strategies if strategy.is_closed_form)


def find_reason(question: Question, *, subject: str) -> Infeasible:
    """Return why nothing fits: the binding limit, the value needed, and the value given.

    The binding limit is the first of overhead, remote budget and local budget whose removal alone makes a
    plan possible: the caller's wish comes before the machine. If no single removal does, it is the first
    limit that no plan could meet even without the others.
    """
    explain = partial(Infeasible, subject=subject, headroom=question.goal.headroom)
    local, least_local = question.goal.local_bytes, question.least_solvable_bytes
    if local is not None and least_local > local:
        return explain(binding="local_bytes", need=least_local, have=local)
    lifted: dict[BudgetLimit, Question] = {
        "max_overhead": question.replace(max_overhead=None),
        "remote_bytes": question.replace(remote_bytes=None),
        "local_bytes": question.replace(local_bytes=None),
    }
    free = question.for_closed_forms().replace(local_bytes=None, remote_bytes=None, max_overhead=None)
    # The limits as the search compares them.
    most = {**dict(question.goal), "max_overhead": question.limits.most_overhead}
    for questions in (lifted, dict.fromkeys(lifted, free)):
        for binding, relaxed in questions.items():
            limit: float | None = getattr(question.goal, binding)
            least = None if limit is None else relaxed.least(binding)
            if limit is not None and least is not None and least > most[binding]:
                return explain(binding=binding, need=least, have=limit)
    if exceeded := next(_find_exceeded(question), None):
        return explain(binding=exceeded[0], need=exceeded[1], have=exceeded[2])
    # No limit binds: the sequence is too long for the strategies.
    untimed = question.replace(max_overhead=None)
    longest = max(
        (strategy.most_steps(untimed.task(strategy, least_time)) for strategy in untimed.all_solved), default=0
    )
    steps = question.costs.steps
    return explain(binding="steps", need=min(longest, steps - 1), have=steps)


def _find_exceeded(question: Question) -> Iterator[tuple[Limit, float, float]]:
    """Yield limit, need and have where solved strategies exceed a limit although closed forms fit."""
    remote, most = question.goal.remote_bytes, question.goal.max_overhead
    for lifted in (
        question.replace(remote_bytes=None),
        question.replace(max_overhead=None),
        question.replace(remote_bytes=None, max_overhead=None),
    ):
        answer = lifted.best() if lifted.replace(max_overhead=None).fits() else None
        if answer is None or answer.strategy.is_closed_form:
            continue
        totals = answer.totals(question.costs)
        if remote is not None and totals.remote_peak_bytes > remote:
            yield "remote_bytes", float(totals.remote_peak_bytes), remote
        over = float(overhead(totals.seconds, question.base_seconds))
        if most is not None and over > question.limits.most_overhead:
            yield "max_overhead", over, most
