"""The base class of all strategies: a name, parameters and a schedule.

There are two kinds. A few parameters determine a ``ClosedForm``; ``ckptplan.search`` chooses them. A
``Solved`` strategy finds its schedule itself, decision by decision.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Self, TypeAlias, cast

from ckptplan.cost.arrays import Integers
from ckptplan.cost.exact import Cost, cost_of
from ckptplan.errors import InputError
from ckptplan.model.budget import Budget
from ckptplan.model.goal import CacheName, Model
from ckptplan.model.prediction import Totals
from ckptplan.model.record import Parameters
from ckptplan.model.split import Split
from ckptplan.model.step_costs import StepCosts
from ckptplan.schedule.actions import Action

#: Parameter name -> one value per box (or point), int64 arrays of shape (n,).
Columns: TypeAlias = Mapping[str, Integers]
#: The parameter K: the first sweep keeps the caches of the last K steps, or of all steps if it is left out.
CACHED_STEPS = "cached_steps"
#: A plan's decisions, for strategies that need them besides parameters.
Splits: TypeAlias = Sequence[Split] | None


class Strategy(ABC):
    """One way to place checkpoints.

    To add a strategy, add a module to this package that ends in ``STRATEGIES = (MyStrategy(),)``.
    """

    #: The name that users type.
    name: ClassVar[str]
    #: Whether it is searched if no strategy is named.
    by_default: ClassVar[bool] = True
    #: Place in the order that breaks ties and sorts tables (docs/finding-optima.md).
    rank: ClassVar[int]
    #: Names of the integers that determine the schedule, in the order that breaks ties.
    parameter_names: ClassVar[tuple[str, ...]]
    #: Names of further integers of plans for jobs with caches, in order.
    cache_names: ClassVar[tuple[str, ...]] = ()
    #: The caches that its schedules may keep.
    cache_choices: ClassVar[tuple[CacheName, ...]] = ("all",)
    #: Whether a few parameters determine the schedule, so that its cost is a formula.
    is_closed_form: ClassVar[bool]
    #: Whether naming it selects the closed forms, too: some of their schedules are not among its own.
    beside_closed_forms: ClassVar[bool] = False
    #: Whether each of its schedules is regular: loops with fixed strides, or a static graph, can run it.
    always_regular: ClassVar[bool]
    #: Whether it may use remote memory.
    moves_states: ClassVar[bool] = True
    #: Bounds by the paper's printed equations, None if the paper has none for this strategy.
    printed: ClassVar[Callable[..., Cost] | None] = None

    def __new__(cls) -> Self:
        """Return the only instance of the class, also for pickle: strategies are told apart by identity."""
        if "_only" not in vars(cls):
            cls._only = super().__new__(cls)
        return cast("Self", vars(cls)["_only"])

    @property
    def simplicity(self) -> tuple[bool, bool, bool, int]:
        """The place in the order from simple to complicated, which decides between equally fast plans.

        Closed forms come before strategies that list their decisions (and take long to solve, so that an
        interruption leaves the best closed form); regular strategies before irregular ones; strategies that
        move nothing before those that do. ``rank`` then goes from few chunks and messages to many.
        """
        return not self.is_closed_form, not self.always_regular, self.moves_states, self.rank

    def is_regular(self, parameters: Parameters, *, steps: int) -> bool:
        """Return whether loops with fixed strides, or a static graph, can run the schedule."""
        return self.always_regular

    @abstractmethod
    def actions(self, parameters: Parameters, *, steps: int, splits: Splits = None) -> Iterator[Action]:
        """Yield the actions of a clamped setting's schedule."""

    @abstractmethod
    def totals(self, parameters: Parameters, *, costs: StepCosts, splits: Splits = None) -> Totals:
        """Return the cost of a schedule by the exact model. Raises InputError."""

    def cost(self, parameters: Parameters, *, costs: StepCosts, model: Model = "exact") -> Cost:
        """Return the cost of one setting, as arrays of one element. Raises InputError if it lacks the model."""
        if model == "paper":
            raise no_equation(self.name)
        return cost_of(self.totals(parameters, costs=costs))

    def costs_of(self, costs: StepCosts) -> StepCosts:
        """Return the costs that the strategy counts with."""
        return costs

    def bound_seconds(self, costs: StepCosts, budget: Budget) -> float:
        """Return a lower bound on the seconds of any schedule within the budget, which needs no search."""
        return costs.sweep_seconds

    def allows(self, choice: CacheName | None) -> bool:
        """Return whether the strategy has schedules that keep the caches that a caller asks for."""
        return choice is None or choice in self.cache_choices

    def name_cache(self, parameters: Parameters, *, splits: Splits = None) -> CacheName:
        """Return which caches a schedule keeps."""
        return "all"

    def clamp(self, parameters: Parameters, *, steps: int) -> Parameters:
        """Return the setting that is executed: a chunk is at most as long as the sequence."""
        return parameters

    def check(self, parameters: Parameters, *, steps: int, splits: Splits = None) -> None:
        """Raise InputError unless the parameters have the strategy's names, and clamping changes no value.

        If the strategy needs ``splits``, they must contain the whole schedule.
        """
        self.check_names(parameters)
        clamped = self.clamp(parameters, steps=steps)
        if clamped != parameters:
            raise InputError(
                f"{dict(parameters)} is not a setting for {steps} steps",
                field="parameters",
                value=dict(parameters),
                accepted=f"for example {dict(clamped)}" if clamped else "none",
            )

    def check_names(self, parameters: Parameters) -> None:
        """Raise InputError unless the parameters have the strategy's parameter names, in order.

        Names from ``cache_names`` may follow.
        """
        further = [name for name in self.cache_names if name in parameters]
        if tuple(parameters) != (*self.parameter_names, *further):
            raise InputError(
                f"{self.name} takes {', '.join(self.parameter_names) or 'no parameters'}",
                field="parameters",
                value=dict(parameters),
            )


def no_equation(strategy: str) -> InputError:
    """Return the error for a strategy for which the paper prints no equation."""
    return InputError("the paper prints no equation for this strategy", field="model", value=strategy)
