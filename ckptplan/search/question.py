"""A planning question, and its answer over several strategies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from ckptplan.cost import paper
from ckptplan.cost.exact import Cost, overhead
from ckptplan.errors import Infeasible, InputError
from ckptplan.model.budget import Budget
from ckptplan.model.step_costs import StepCosts
from ckptplan.search.box import Best, Limits, Rival, best_setting
from ckptplan.search.objective import Knee, Objective, least_memory, least_remote_memory, least_time
from ckptplan.strategies.protocol import Model, Strategy
from ckptplan.strategies.registry import all_strategies
from ckptplan.strategies.solved import Progress, SolvedStrategy

ObjectiveName = Literal["time", "memory", "balanced"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A strategy at its best setting."""

    strategy: Strategy
    best: Best

    def regular(self, *, steps: int) -> bool:
        """Return whether loops with fixed strides, or a static graph, can run the schedule."""
        if self.best.solution is not None:
            return self.best.solution.regular
        return self.strategy.regular(self.best.parameters, steps=steps)


@dataclass(frozen=True, kw_only=True)
class Question:
    """Asks which of ``strategies`` at which setting is best, within a budget and a largest overhead."""

    costs: StepCosts
    budget: Budget
    strategies: tuple[Strategy, ...]
    objective: ObjectiveName = "time"
    model: Model = "exact"
    max_overhead: float | None = None
    effort: str = "quick"
    #: Is told the work done and the work in all of a long search.
    progress: Progress | None = None
    #: Whether an interruption of a long search leaves what was found before; else it ends everything.
    keeps_best: bool = True
    #: Strategies whose search somebody interrupted; what was found before stands.
    interruptions: list[str] = field(default_factory=list)

    def changed(self, **changes: Any) -> Question:
        """Return the same question with something else asked."""
        return replace(self, **changes)

    def answers(self) -> list[Answer]:
        """Return each strategy at its best, best first; strategies that do not fit are left out."""
        return self._ranked(self._objective())

    def winner(self, *, enough: float | None = None) -> Answer | None:
        """Return the best strategy at its best setting, None where nothing fits.

        It is the first of ``answers``, found sooner: no strategy is searched for what another one beats.
        ``enough`` are seconds that something is known to fit in, which helps where the objective is time.
        """
        if enough is None or self.objective != "time":
            return self._first(self._objective())
        # A hair more, so that what takes as long is found, too.
        rival = Rival(key=(enough * (1 + 1e-9), np.inf, np.inf), ties_win=True)
        return next(iter(self._ranked(least_time, only_first=True, rival=rival)), None)

    def quicker_than(self, seconds: float) -> Answer | None:
        """Return the quickest answer, None where none takes less than ``seconds``."""
        rival = Rival(key=(seconds,), ties_win=False)
        found = self._ranked(lambda cost: least_time(cost)[:1], only_first=True, rival=rival)
        return next((answer for answer in found if answer.best.key < rival.key), None)

    def closed_form(self) -> Question:
        """Return the question for closed forms only, which answer at once.

        They fit wherever anything does (Remote with a single tape), but for a limit of remote memory.
        """
        closed = tuple(s for s in self.strategies if not isinstance(s, SolvedStrategy))
        return self.changed(strategies=closed or _closed_forms())

    def fits(self) -> bool:
        """Return whether any strategy has a setting within the limits.

        Where there is no limit of overhead, solved strategies say so without solving anything.
        """
        if self.max_overhead is not None or self.model == "paper":
            return self._first(least_memory) is not None
        solved = [strategy for strategy in self.strategies if isinstance(strategy, SolvedStrategy)]
        closed = tuple(strategy for strategy in self.strategies if not isinstance(strategy, SolvedStrategy))
        return self.changed(strategies=closed)._first(least_memory) is not None or any(
            one.has_schedule(costs=self.costs, budget=self.budget, effort=self.effort) for one in solved
        )

    def may_fit(self) -> bool:
        """Return whether the local memory is not below what solved strategies need at least."""
        return self._below_the_least(subject="") is None

    def least_remote_bytes(self) -> int | None:
        """Return the remote memory that is needed within the other limits, None if none is enough."""
        least = self.changed(budget=replace(self.budget, remote_bytes=None))._least("remote_bytes")
        return None if least is None else int(least)

    @property
    def base_seconds(self) -> float:
        """The time that overhead is counted from."""
        return self.costs.base_seconds if self.model == "exact" else paper.base_seconds(self.costs)

    def infeasible(self, *, subject: str) -> Infeasible:
        """Return why nothing fits: the limit that binds, what it would have to be, what it is.

        That is the first of largest overhead, remote budget and local budget that makes a plan possible
        when it alone is lifted: the caller's wish before the machine. Where no one does, it is the first
        that nothing could meet, were the others lifted.
        """
        if (unsolvable := self._below_the_least(subject=subject)) is not None:
            return unsolvable
        closed = self.closed_form()
        lifted = {
            "max_overhead": self.changed(max_overhead=None),
            "remote_bytes": closed.changed(budget=replace(self.budget, remote_bytes=None)),
            "local_bytes": closed.changed(budget=replace(self.budget, local_bytes=None)),
        }
        free = closed.changed(budget=Budget(), max_overhead=None)
        limits: dict[str, float | None] = {
            "local_bytes": self.budget.local_bytes,
            "remote_bytes": self.budget.remote_bytes,
            "max_overhead": self.max_overhead,
        }
        for questions in (lifted, dict.fromkeys(lifted, free)):
            for binding, question in questions.items():
                have = limits[binding]
                need = None if have is None else question._least(binding)
                if have is not None and need is not None and need > have:
                    return Infeasible(binding=binding, need=need, have=have, subject=subject)
        return self._unsolved(subject=subject)

    @property
    def all_solved(self) -> list[SolvedStrategy]:
        """The strategies, where each is solved, so that what closed forms need does not speak for them."""
        solved = [strategy for strategy in self.strategies if isinstance(strategy, SolvedStrategy)]
        return solved if len(solved) == len(self.strategies) else []

    def _below_the_least(self, *, subject: str) -> Infeasible | None:
        """Say so where solved strategies have no schedule in the local memory, whatever the other limits."""
        have = self.budget.local_bytes
        need = min((one.least_local_bytes(self.costs) for one in self.all_solved), default=0)
        if have is None or need <= have:
            return None
        return Infeasible(binding="local_bytes", need=need, have=have, subject=subject)

    def _unsolved(self, *, subject: str) -> Infeasible:
        """Return which limit the schedules asked for break, where closed forms would fit.

        Where they break none, there are none: the sequence is too long for them.
        """
        unlimited = replace(self.budget, remote_bytes=None)
        for lifted in (
            self.changed(budget=unlimited),
            self.changed(max_overhead=None),
            self.changed(budget=unlimited, max_overhead=None),
        ):
            found = lifted.winner() if lifted.changed(max_overhead=None).fits() else None
            if found is not None and found.best.solution is not None:
                for binding, need, have in self._broken(found.best.solution.cost):
                    return Infeasible(binding=binding, need=need, have=have, subject=subject)
        most = max(
            (one.most_steps(self.costs, self.budget, effort=self.effort) for one in self.all_solved), default=0
        )
        have = self.costs.steps
        return Infeasible(binding="steps", need=min(most, have - 1), have=have, subject=subject)

    def _broken(self, cost: Cost) -> Iterator[tuple[str, float, float]]:
        """Return the limits that a schedule breaks: which, what it needs, what there is."""
        remote, most = self.budget.remote_bytes, self.max_overhead
        if remote is not None and cost.remote_peak_bytes[0] > remote:
            yield "remote_bytes", float(cost.remote_peak_bytes[0]), remote
        seconds = float(overhead(cost.seconds[0], self.base_seconds))
        if most is not None and seconds > most:
            yield "max_overhead", seconds, most

    def _least(self, limit: str) -> float | None:
        """Return the least of what a limit bounds, None where nothing fits the other limits."""
        objective = {
            "local_bytes": least_memory,
            "remote_bytes": least_remote_memory,
            "max_overhead": least_time,
        }[limit]
        # What decides between settings that need the same need not be found out.
        found = self._first(lambda cost: objective(cost)[:1])
        if found is None:
            return None
        least = found.best.key[0]
        return float(overhead(least, self.base_seconds)) if limit == "max_overhead" else least

    def _objective(self) -> Objective:
        if self.objective == "time":
            return least_time
        if self.objective == "memory":
            return least_memory
        fast, small = self._first(least_time), self._first(least_memory)
        if fast is None or small is None:
            return least_time
        knee = Knee(
            fast_seconds=fast.best.key[0],
            fast_bytes=int(fast.best.key[1]),
            small_seconds=small.best.key[1],
            small_bytes=int(small.best.key[0]),
        )
        # Where one plan is both the fastest and the smallest, there is nothing to balance. (A solved schedule
        # may turn out smaller or faster than what it was chosen for.)
        balanced = knee.fast_bytes > knee.small_bytes and knee.fast_seconds < knee.small_seconds
        return knee if balanced else least_time

    def _first(self, objective: Objective) -> Answer | None:
        return next(iter(self._ranked(objective, only_first=True)), None)

    def _ranked(
        self, objective: Objective, *, only_first: bool = False, rival: Rival | None = None
    ) -> list[Answer]:
        """Return the answers, best first; with ``only_first``, those found better than all before them.

        They need not beat ``rival``, but are only searched for what does.
        """
        limits = Limits(budget=self.budget, max_overhead=self.max_overhead, base_seconds=self.base_seconds)
        answers: list[Answer] = []
        for strategy in sorted(self.strategies, key=_turn):
            if isinstance(strategy, SolvedStrategy):
                try:
                    best = self._solved(strategy, limits, objective)
                except KeyboardInterrupt:
                    if not answers or not self.keeps_best:
                        raise
                    self.interruptions.append(strategy.name)
                    break
            else:
                best = _searched(
                    strategy,
                    costs=self.costs,
                    limits=limits,
                    objective=objective,
                    model=self.model,
                    rival=_rival(answers, strategy, rival) if only_first else None,
                )
            if best is not None:
                answers.append(Answer(strategy=strategy, best=best))
                if only_first and objective is least_time and self._unbeatable(answers[-1]):
                    break
        return sorted(answers, key=_place)

    def _unbeatable(self, answer: Answer) -> bool:
        """Return whether a plan without parameters is as quick as base, and running a step again takes time.

        What is as quick then runs nothing again. So it holds each step's tape, and no less memory.
        """
        return (
            self.model == "exact"
            and not answer.strategy.parameter_names
            and answer.best.key[0] <= self.base_seconds
            # More than what rounding could hide.
            and self.costs.recompute_seconds > 1e-12 * self.base_seconds
        )

    def _solved(self, strategy: SolvedStrategy, limits: Limits, objective: Objective) -> Best | None:
        if self.model == "paper":
            raise InputError(
                "the paper prints no equation for this strategy", field="model", value=strategy.name
            )

        def choose(cost: Cost) -> int | None:
            kept = np.flatnonzero(limits.kept(cost))
            if not len(kept):
                return None
            keys = [column[kept] for column in objective(cost)]
            return int(kept[np.lexsort(keys[::-1])[0]])

        solution = strategy.solve(
            costs=self.costs,
            budget=self.budget,
            choose=choose,
            effort=self.effort,
            front=objective is not least_time,
            progress=self.progress,
        )
        if solution is None or not limits.kept(solution.cost)[0]:
            return None
        key = tuple(column[0].item() for column in objective(solution.cost))
        return Best(parameters=solution.parameters, key=key, solution=solution)


#: Searches remembered: those of the points of a sweep that differ in transfers only.
_remembered = lru_cache(maxsize=512)(best_setting)


def _searched(
    strategy: Strategy,
    *,
    costs: StepCosts,
    limits: Limits,
    objective: Objective,
    model: Model,
    rival: Rival | None,
) -> Best | None:
    """Return what ``best_setting`` does; where nothing is moved, the costs of moving do not matter."""
    wishes: dict[str, Any] = {"limits": limits, "objective": objective, "model": model, "rival": rival}
    if strategy.moves or model != "exact":
        return best_setting(strategy, costs=costs, **wishes)
    return _remembered(strategy, costs=costs.model_copy(update=_NOTHING_MOVES), **wishes)


_NOTHING_MOVES = {"write_seconds": 0.0, "read_seconds": 0.0, "message_seconds": 0.0}


def _turn(strategy: Strategy) -> tuple[bool, int]:
    """Return when a strategy has its turn.

    Closed forms first: a long search that is interrupted leaves the best of them. Of these the simple ones
    first, which are soon searched, and often good enough to spare most of the others' search.
    """
    return isinstance(strategy, SolvedStrategy), strategy.rank


def _place(answer: Answer) -> tuple[tuple[float, ...], int]:
    """Return what ranks answers: ties go by the order of the strategies."""
    return answer.best.key, answer.strategy.rank


def _rival(answers: list[Answer], strategy: Strategy, rival: Rival | None) -> Rival | None:
    """Return what a strategy has to beat; one without parameters is evaluated as quickly as compared."""
    if not strategy.parameter_names:
        return None
    if not answers:
        return rival
    best = min(answers, key=_place)
    if rival is not None and rival.key <= best.best.key:
        return rival
    return Rival(key=best.best.key, ties_win=strategy.rank < best.strategy.rank)


def _closed_forms() -> tuple[Strategy, ...]:
    return tuple(s for s in all_strategies().values() if not isinstance(s, SolvedStrategy))
