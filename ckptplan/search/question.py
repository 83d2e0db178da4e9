"""A planning question, and its answer over several strategies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from ckptplan.cost import paper
from ckptplan.errors import Infeasible
from ckptplan.model.budget import Budget
from ckptplan.model.step_costs import StepCosts
from ckptplan.search.box import Best, Limits, best_setting
from ckptplan.search.objective import Knee, Objective, least_memory, least_remote_memory, least_time
from ckptplan.strategies.protocol import Model, Strategy

ObjectiveName = Literal["time", "memory", "balanced"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A strategy at its best setting."""

    strategy: Strategy
    best: Best


@dataclass(frozen=True, kw_only=True)
class Question:
    """Asks which of ``strategies`` at which setting is best, within a budget and a largest overhead."""

    costs: StepCosts
    budget: Budget
    strategies: tuple[Strategy, ...]
    objective: ObjectiveName = "time"
    model: Model = "exact"
    max_overhead: float | None = None

    def changed(self, **changes: Any) -> Question:
        """Return the same question with something else asked."""
        return replace(self, **changes)

    def answers(self) -> list[Answer]:
        """Return each strategy at its best, best first; strategies that do not fit are left out."""
        return self._ranked(self._objective())

    def winner(self) -> Answer | None:
        """Return the best strategy at its best setting, None where nothing fits."""
        return next(iter(self.answers()), None)

    def fits(self) -> bool:
        """Return whether any strategy has a setting within the limits."""
        return self._first(least_memory) is not None

    def least_remote_bytes(self) -> int | None:
        """Return the remote memory that is needed within the other limits, None if none is enough."""
        found = self.changed(budget=replace(self.budget, remote_bytes=None))._first(least_remote_memory)
        return None if found is None else int(found.best.key[0])

    @property
    def base_seconds(self) -> float:
        """The time that overhead is counted from."""
        return self.costs.base_seconds if self.model == "exact" else paper.base_seconds(self.costs)

    def infeasible(self, *, subject: str) -> Infeasible:
        """Return why nothing fits: the limit that binds, what it would have to be, what it is.

        The local budget is looked at first, then the remote one, then the largest overhead: the
        first that makes a plan possible when it alone is lifted.
        """
        without_local = self.changed(budget=replace(self.budget, local_bytes=None))._first(least_memory)
        if without_local is not None:
            need = without_local.best.key[0]
            return self._infeasible("local_bytes", need, self.budget.local_bytes, subject)
        remote_bytes = self.least_remote_bytes()
        if remote_bytes is not None:
            return self._infeasible("remote_bytes", remote_bytes, self.budget.remote_bytes, subject)
        at_any_time = self.changed(max_overhead=None)._first(least_time)
        if at_any_time is not None:
            need = at_any_time.best.key[0] / self.base_seconds - 1
            return self._infeasible("max_overhead", need, self.max_overhead, subject)
        # Two limits bind at once: say what the local one would have to be without the others.
        alone = self.changed(budget=Budget(), max_overhead=None)._first(least_memory)
        need = alone.best.key[0] if alone is not None else 0
        return self._infeasible("local_bytes", need, self.budget.local_bytes, subject)

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
        # Where one plan is both the fastest and the smallest, there is nothing to balance.
        return least_time if knee.fast_bytes == knee.small_bytes else knee

    def _first(self, objective: Objective) -> Answer | None:
        return next(iter(self._ranked(objective)), None)

    def _ranked(self, objective: Objective) -> list[Answer]:
        seconds = None if self.max_overhead is None else self.base_seconds * (1 + self.max_overhead)
        limits = Limits(budget=self.budget, seconds=seconds)
        answers = []
        for strategy in self.strategies:
            best = best_setting(
                strategy, costs=self.costs, limits=limits, objective=objective, model=self.model
            )
            if best is not None:
                answers.append(Answer(strategy=strategy, best=best))
        # Sorting is stable, so that ties stay in the order of the strategies.
        return sorted(answers, key=lambda answer: answer.best.key)

    def _infeasible(self, binding: str, need: float, have: float | None, subject: str) -> Infeasible:
        return Infeasible(binding=binding, need=need, have=have if have is not None else 0, subject=subject)
