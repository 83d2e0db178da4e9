"""The workload and machine of section IV, and the questions that claims and figures ask about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckptplan.cost.case import Case
from ckptplan.errors import InputError
from ckptplan.model.budget import Budget
from ckptplan.model.goal import Goal, Model
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.model.workload import Workload
from ckptplan.search.boxes import Limits
from ckptplan.search.infeasibility import find_reason
from ckptplan.search.question import Question
from ckptplan.storage.toml_files import load_profile, load_workload
from ckptplan.strategies.registry import closed_form_of
from ckptplan.studies.largest import find_last
from ckptplan.units import format_seconds

#: Upper limit of the search for largest sizes, far above any length of the paper.
_MOST = 2**24


@dataclass(frozen=True, kw_only=True)
class Point:
    """A strategy with its parameters, and its cost by the exact model."""

    strategy: str
    parameters: Parameters
    steps: int
    neurons_per_unit: float
    batch: int
    seconds: float
    local_peak_bytes: int
    #: Whether it fits both the local and the remote budget.
    fits: bool

    @property
    def settings(self) -> str:
        """The parameters as text: 'chunk_size 16, remote_chunk_size 256'."""
        return ", ".join(f"{name} {value}" for name, value in self.parameters.items())

    def __str__(self) -> str:
        """Return 'Double with chunk_size 16, remote_chunk_size 256 (34.42 ms)'."""
        return f"{self.strategy.capitalize()} with {self.settings} ({format_seconds(self.seconds)})"


@dataclass(frozen=True, kw_only=True)
class PaperSetting:
    """A workload that describes its network, on a machine."""

    workload: Workload
    profile: HardwareProfile

    @property
    def budget(self) -> Budget:
        """The memory of the machine."""
        return Budget(local_bytes=self.profile.local_bytes, remote_bytes=self.profile.remote_bytes)

    def replace(self, *, steps: int, neurons: int | None = None, batch: int | None = None) -> PaperSetting:
        """Return the same job with another T, network size or batch; step times do not change."""
        workload = self.workload.with_steps(steps)
        workload = workload if neurons is None else workload.with_neurons(neurons)
        workload = workload if batch is None else workload.with_batch(batch)
        return PaperSetting(workload=workload, profile=self.profile)

    @property
    def costs(self) -> StepCosts:
        """Bytes and seconds of each action."""
        return Case(workload=self.workload, profile=self.profile).costs

    @property
    def neurons(self) -> int:
        """Neurons of the network, all layers and units together. Raises InputError without a network."""
        if self.workload.network is None:
            raise InputError(
                f"workload {self.workload.name!r} has no network description", field="workload.network"
            )
        return self.workload.network.neurons

    def question(self, *strategies: str, **wishes: Any) -> Question:
        """Return the question which setting of ``strategies`` is best within the memory."""
        budget: Budget = wishes.pop("budget", self.budget)
        wishes |= {"local_bytes": budget.local_bytes, "remote_bytes": budget.remote_bytes}
        return Question(costs=self.costs, goal=Goal(strategies=strategies, **wishes))

    def best(self, *strategies: str, **wishes: Any) -> Point:
        """Return the best point within the memory, or within ``wishes["budget"]``. Raises Infeasible."""
        question = self.question(*strategies, **wishes)
        winner = question.best()
        if winner is None:
            raise find_reason(question, subject=f"{', '.join(strategies)} does not fit")
        return self.evaluate(winner.strategy.name, winner.parameters)

    def evaluate(self, strategy: str, parameters: Mapping[str, int] | None = None, /, **more: int) -> Point:
        """Return the cost of one strategy; its parameters are a mapping, keywords or both."""
        return self.evaluate_all(strategy, [{**(parameters or {}), **more}])[0]

    def evaluate_all(self, name: str, settings: Sequence[Mapping[str, int]]) -> list[Point]:
        """Return the cost of each setting of parameters, clamped as for execution, in one evaluation."""
        costs, strategy = self.costs, closed_form_of(name)
        clamped = [strategy.clamp(Parameters(setting), steps=costs.steps) for setting in settings]
        columns = {
            parameter: np.array([setting[parameter] for setting in clamped], dtype=np.int64)
            for parameter in strategy.parameter_names
        }
        cost = strategy.evaluate(low=columns, high=columns, costs=costs, model="exact")
        units = self.profile.units
        return [
            Point(
                strategy=name,
                parameters=setting,
                steps=costs.steps,
                neurons_per_unit=self.neurons / units,
                batch=self.workload.batch or 1,
                seconds=float(seconds),
                local_peak_bytes=int(local),
                fits=bool(kept),
            )
            for setting, seconds, local, kept in zip(
                clamped,
                cost.seconds,
                cost.local_peak_bytes,
                Limits(budget=self.budget).keeps(cost),
                strict=True,
            )
        ]

    def evaluate_printed(self, point: Point) -> tuple[float, int]:
        """Return seconds and local peak bytes by the paper's equations, for a point of this setting."""
        cost = closed_form_of(point.strategy).cost(point.parameters, costs=self.costs, model="paper")
        return float(cost.seconds[0]), int(cost.local_peak_bytes[0])

    def find_largest_steps(self, strategy: str, *, model: Model = "exact") -> int:
        """Return the largest T at which ``strategy`` fits the memory."""
        return find_largest(lambda steps: self.replace(steps=steps).question(strategy, model=model).fits())

    def overhead(self, point: Point) -> float:
        """Return the time that a point adds to base's, as a fraction of base's; both for this setting's T."""
        return point.seconds / self.costs.base_seconds - 1

    def count_states(self, held: Point | int) -> float:
        """Return a point's local peak, or ``held`` bytes, less the resident bytes, in states."""
        local = held if isinstance(held, int) else held.local_peak_bytes
        return (local - self.costs.resident_bytes) / self.costs.state_bytes

    def count_free_states(self) -> int:
        """Return the number of states that fit besides the resident bytes; a tape counts as one."""
        costs = self.costs
        free = self.profile.local_bytes - costs.resident_bytes
        return max(0, free // max(costs.state_bytes, costs.tape_bytes))


def find_largest(fits: Callable[[int], bool]) -> int:
    """Return the largest number that fits, 0 if none does.

    ``fits`` must be monotone: if it holds for a number, it holds for every smaller one. Plans are: with
    its chunks clamped, a plan for T steps or n neurons needs no more memory for fewer.
    """
    return find_last(fits, 1, _MOST)


def nearest_root(number: int) -> int:
    """Return the integer nearest to the square root."""
    root = math.isqrt(number)
    return root + (number - root * root > root)


def load_paper_setting() -> PaperSetting:
    """Return batch 120, 3 layers, 2 neurons a tile, fp32 on one Mk2 IPU (section IV)."""
    return PaperSetting(workload=load_workload("paper-snn"), profile=load_profile("ipu-mk2"))
