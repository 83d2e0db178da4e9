"""A planning question, and its answer over several strategies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from ckptplan.cost import paper
from ckptplan.cost.exact import overhead
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
        lifted = {
            "max_overhead": self.changed(max_overhead=None),
            "remote_bytes": self.changed(budget=replace(self.budget, remote_bytes=None)),
            "local_bytes": self.changed(budget=replace(self.budget, local_bytes=None)),
        }
        free = self.changed(budget=Budget(), max_overhead=None)
        limits: dict[str, float | None] = {
            "local_bytes": self.budget.local_bytes,
            "remote_bytes": self.budget.remote_bytes,
            "max_overhead": self.max_overhead,
        }
        for questions in (lifted, dict.fromkeys(lifted, free)):
            for binding, question in questions.items():
                have, need = limits[binding], question._least(binding)
                if have is not None and need is not None and need > have:
                    return Infeasible(binding=binding, need=need, have=have, subject=subject)
        raise AssertionError("infeasible, yet each limit alone can be met")

    def _least(self, limit: str) -> float | None:
        """Return the least of what a limit bounds, None where nothing fits the other limits."""
        objective = {
            "local_bytes": least_memory,
            "remote_bytes": least_remote_memory,
            "max_overhead": least_time,
        }[limit]
        found = self._first(objective)
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
        # Where one plan is both the fastest and the smallest, there is nothing to balance.
        return least_time if knee.fast_bytes == knee.small_bytes else knee

    def _first(self, objective: Objective) -> Answer | None:
        return next(iter(self._ranked(objective)), None)

    def _ranked(self, objective: Objective) -> list[Answer]:
        limits = Limits(budget=self.budget, max_overhead=self.max_overhead, base_seconds=self.base_seconds)
        answers = []
        for strategy in self.strategies:
            best = best_setting(
                strategy, costs=self.costs, limits=limits, objective=objective, model=self.model
            )
            if best is not None:
                answers.append(Answer(strategy=strategy, best=best))
        # Sorting is stable, so that ties stay in the order of the strategies.
        return sorted(answers, key=lambda answer: answer.best.key)
