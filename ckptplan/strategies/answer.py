"""Defines the answer of a search: a setting of a closed form, or a schedule as a tree of decisions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from ckptplan.cost import paper
from ckptplan.cost.exact import Cost, cost_of, overhead
from ckptplan.model.goal import CacheName, Model
from ckptplan.model.prediction import STATED, PaperPrediction, Predicted, Totals
from ckptplan.model.record import Parameters
from ckptplan.model.split import Split
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.pricing import price_tree
from ckptplan.recursion.tree import Tree, write_splits
from ckptplan.strategies.protocol import Strategy


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The best setting or schedule of one strategy, at the costs ``solved_at``.

    ``key`` holds the objective's numbers, by which answers are ranked, the most important first; it is empty
    until the answer is ranked. ``least_seconds`` is a proven lower bound on the seconds of any schedule within
    the budget, None if there is none. ``notes`` say what the search could not prove. ``proved`` says that no
    legal schedule within the limits is better by the objective. ``gap`` is 0 unless another setting of a closed
    form could be better, by at most this share of the key's first entry.
    """

    strategy: Strategy
    parameters: Parameters
    solved_at: StepCosts
    #: The decisions and their cost; None if the parameters determine both.
    schedule: Tree | None = None
    solved: Totals | None = None
    key: tuple[float, ...] = ()
    least_seconds: float | None = None
    notes: tuple[str, ...] = ()
    proved: bool = False
    gap: float = 0.0

    @cached_property
    def splits(self) -> tuple[Split, ...] | None:
        """The decisions of the schedule, listed on first use; None if the parameters determine it."""
        return None if self.schedule is None else write_splits(self.schedule)

    @property
    def is_regular(self) -> bool:
        """Whether loops with fixed strides, or a static graph, can run the schedule."""
        return self.strategy.is_regular(self.parameters, steps=self.solved_at.steps)

    @property
    def cache(self) -> CacheName:
        """Which caches the schedule keeps."""
        return self.strategy.name_cache(self.parameters, splits=self.splits)

    def without_chunk_workspace(self, costs: StepCosts) -> Answer:
        """Return the answer, solved at ``costs.with_chunk_workspace``, at ``costs``.

        A schedule of single steps needs no workspace of chunks. The costs that the answer was solved at may
        also count the caches as resident bytes.
        """
        if self.solved is None or self.solved_at is costs:
            return self
        unused_workspace = costs.chunk_bytes if self.solved.chunks == costs.steps else 0
        solved = replace(self.solved, local_peak_bytes=self.solved.local_peak_bytes - unused_workspace)
        return replace(self, solved_at=costs, solved=solved)

    def totals(self, costs: StepCosts) -> Totals:
        """Return the cost of this schedule by the exact model, at any costs of equally many steps."""
        if self.solved is not None and (costs is self.solved_at or costs == self.solved_at):
            return self.solved
        if self.schedule is not None:
            return price_tree(self.schedule, costs=self.strategy.costs_of(costs))
        return self.strategy.totals(self.parameters, costs=costs)

    def cost(self, costs: StepCosts, model: Model = "exact") -> Cost:
        """Return the cost by the given model, as arrays of one element.

        Raises InputError if the strategy lacks the model.
        """
        if model == "exact":
            return cost_of(self.totals(costs))
        return self.strategy.cost(self.parameters, costs=costs, model=model)

    def seconds(self, costs: StepCosts, model: Model = "exact") -> float:
        """Return the seconds of one batch by the given model. Raises InputError as ``cost``."""
        return float(self.cost(costs, model).seconds[0])

    def predicted(self, costs: StepCosts) -> Predicted:
        """Return the totals as a plan's prediction, with the prediction of the printed equations."""
        totals = self.totals(costs)
        return Predicted(
            **{name: getattr(totals, name) for name in STATED},
            overhead=max(0.0, float(overhead(totals.seconds, costs.base_seconds))),
            paper=self._evaluate_paper(costs),
        )

    def _evaluate_paper(self, costs: StepCosts) -> PaperPrediction | None:
        if self.strategy.printed is None or self.cache != "all":
            # The paper keeps the caches of all steps.
            return None
        cost = self.cost(costs, "paper")
        seconds = float(cost.seconds[0])
        return PaperPrediction(
            seconds=seconds,
            overhead=float(overhead(seconds, paper.base_seconds(costs))),
            local_peak_bytes=int(cost.local_peak_bytes[0]),
        )
