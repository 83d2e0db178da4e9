"""Defines the answer of a search: a setting of a closed form, or a solved schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields

from ckptplan.cost import paper
from ckptplan.cost.exact import Cost, cost_of, overhead
from ckptplan.model.goal import Model
from ckptplan.model.prediction import PaperPrediction, Predicted, Totals
from ckptplan.model.record import Parameters
from ckptplan.model.split import Split
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.pricing import price_tree
from ckptplan.recursion.schedule_tree import read_tree
from ckptplan.strategies.adopted import read_setting
from ckptplan.strategies.closed_form import ClosedForm
from ckptplan.strategies.protocol import Strategy, no_equation
from ckptplan.strategies.solved import Solution

#: The totals that a plan states; how often each action occurs follows from its schedule.
_TOTALS = tuple(
    field.name for field in fields(Totals) if field.name in {stated.name for stated in fields(Predicted)}
)


@dataclass(frozen=True, kw_only=True)
class Answer(ABC):
    """The best setting or schedule of one strategy, for sequences of ``steps`` steps.

    ``key`` holds the objective's numbers, by which answers are ranked, the most important first.
    """

    strategy: Strategy
    parameters: Parameters
    key: tuple[float, ...]
    steps: int

    @property
    @abstractmethod
    def regular(self) -> bool:
        """Whether loops with fixed strides, or a static graph, can run the schedule."""

    @property
    def splits(self) -> tuple[Split, ...] | None:
        """The decisions of the schedule; None if the parameters determine it."""
        return None

    @property
    def least_seconds(self) -> float | None:
        """A proven lower bound on the seconds of any schedule within the budget; None if there is none."""
        return None

    @property
    @abstractmethod
    def notes(self) -> tuple[str, ...]:
        """What the search could not prove, as text."""

    @abstractmethod
    def totals(self, costs: StepCosts) -> Totals:
        """Return the cost of this schedule by the exact model, at any costs of equally many steps."""

    @abstractmethod
    def cost(self, costs: StepCosts, model: Model) -> Cost:
        """Return the cost by the given model, as arrays of one element.

        Raises InputError if the strategy lacks the model.
        """

    def predicted(self, costs: StepCosts) -> Predicted:
        """Return the totals as a plan's prediction, with that of the printed equations."""
        totals = self.totals(costs)
        return Predicted(
            **{name: getattr(totals, name) for name in _TOTALS},
            overhead=max(0.0, float(overhead(totals.seconds, costs.base_seconds))),
            paper=self._printed(costs),
        )

    def _printed(self, costs: StepCosts) -> PaperPrediction | None:
        return None


@dataclass(frozen=True, kw_only=True)
class ClosedFormAnswer(Answer):
    """A setting of a closed form.

    ``gap`` is 0 if it is proved to be the optimum. Otherwise another setting could be better by at most this
    share of the key's first entry.
    """

    strategy: ClosedForm
    gap: float = 0.0

    @property
    def regular(self) -> bool:
        return self.strategy.regular(self.parameters, steps=self.steps)

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.gap:
            return ()
        return (f"thousands of settings tie; this one is proved within {self.gap:.1g} of the best",)

    def totals(self, costs: StepCosts) -> Totals:
        return self.strategy.totals(self.parameters, costs=costs)

    def cost(self, costs: StepCosts, model: Model) -> Cost:
        return self.strategy.cost(self.parameters, costs=costs, model=model)

    def _printed(self, costs: StepCosts) -> PaperPrediction | None:
        if self.strategy.printed is None:
            return None
        cost = self.strategy.cost(self.parameters, costs=costs, model="paper")
        seconds = float(cost.seconds[0])
        return PaperPrediction(
            seconds=seconds,
            overhead=float(overhead(seconds, paper.base_seconds(costs))),
            local_peak_bytes=int(cost.local_peak_bytes[0]),
        )


@dataclass(frozen=True, kw_only=True)
class SolvedAnswer(Answer):
    """A schedule that a strategy found at the costs ``solved_at``."""

    solution: Solution
    solved_at: StepCosts

    @property
    def regular(self) -> bool:
        return self.solution.regular

    @property
    def splits(self) -> tuple[Split, ...]:
        return self.solution.splits

    @property
    def least_seconds(self) -> float | None:
        return self.solution.least_seconds

    @property
    def notes(self) -> tuple[str, ...]:
        return self.solution.notes

    def totals(self, costs: StepCosts) -> Totals:
        if costs is self.solved_at or costs == self.solved_at:
            return self.solution.totals
        setting = read_setting(self.parameters, self.splits, steps=costs.steps)
        if setting is not None:
            return setting.strategy.totals(setting.parameters, costs=costs)
        return price_tree(read_tree(self.parameters, self.splits, steps=costs.steps), costs=costs)

    def cost(self, costs: StepCosts, model: Model) -> Cost:
        if model == "paper":
            raise no_equation(self.strategy.name)
        return cost_of(self.totals(costs))
