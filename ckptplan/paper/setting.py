"""The workload and machine of section IV, with searches and costs for claims and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ckptplan.cost.case import Case
from ckptplan.errors import InputError
from ckptplan.model.budget import Budget
from ckptplan.model.goal import Goal, Model
from ckptplan.model.record import Parameters
from ckptplan.model.workload import Workload
from ckptplan.search.question import Question, find_reason
from ckptplan.storage.toml_files import load_profile, load_workload
from ckptplan.strategies.registry import closed_form_of
from ckptplan.studies.largest import find_last
from ckptplan.units import format_seconds

#: The parameter columns of every point. A cell is empty if the strategy lacks the parameter.
_PARAMETERS = ("chunk_size", "nb_local", "remote_chunk_size")


@dataclass(frozen=True, kw_only=True)
class Point:
    """A strategy with its parameters for a setting, and its cost."""

    setting: PaperSetting
    strategy: str
    parameters: Parameters
    seconds: float
    local_peak_bytes: int
    #: Whether the point fits both the local and the remote memory.
    fits: bool

    @property
    def overhead(self) -> float:
        """The time added to base's, as a fraction of base's time."""
        return self.seconds / self.setting.costs.base_seconds - 1

    @property
    def states(self) -> float:
        """The local peak less the resident bytes, in states."""
        costs = self.setting.costs
        return (self.local_peak_bytes - costs.resident_bytes) / costs.state_bytes

    @cached_property
    def printed(self) -> Point:
        """The same strategy and parameters, with the cost by the paper's equations."""
        return self.setting.evaluate(self.strategy, self.parameters, "paper")

    @property
    def row(self) -> dict[str, str | int | float | bool]:
        """The point as flat data, SI base units, with the same columns for every strategy."""
        workload = self.setting.workload
        return {
            "strategy": self.strategy,
            "steps": workload.steps,
            "neurons_per_unit": self.setting.neurons / self.setting.profile.units,
            "batch": workload.batch or 1,
            **{name: self.parameters.get(name, "") for name in _PARAMETERS},
            "seconds": self.seconds,
            "local_peak_bytes": self.local_peak_bytes,
            "fits": self.fits,
        }

    @property
    def parameters_text(self) -> str:
        """The parameters as text: 'chunk_size 16, remote_chunk_size 256'."""
        return ", ".join(f"{name} {value}" for name, value in self.parameters.items())

    def __str__(self) -> str:
        """Return 'Double with chunk_size 16, remote_chunk_size 256 (34.42 ms)'."""
        return f"{self.strategy.capitalize()} with {self.parameters_text} ({format_seconds(self.seconds)})"


#: The longest sequence that is tried, far longer than any in the paper.
MOST_STEPS = 2**24


@dataclass(frozen=True, kw_only=True)
class PaperSetting(Case):
    """A workload that describes its network, on a machine."""

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
    def with_caches(self) -> PaperSetting:
        """The same job with spikes as caches. Each plan decides which caches to keep (docs/cache.md)."""
        if self.workload.network is None:
            raise _no_network(self.workload)
        network = self.workload.network.replace(spikes=None)
        return PaperSetting(workload=self.workload.replace(network=network, basis={}), profile=self.profile)

    @property
    def neurons(self) -> int:
        """The neurons of the network, in all layers and units. Raises InputError without a network."""
        if self.workload.network is None:
            raise _no_network(self.workload)
        return self.workload.network.neurons

    def question(self, *strategies: str, budget: Budget | None = None, **wishes: Any) -> Question:
        """Return the question for the best parameters of ``strategies`` within the memory, or ``budget``."""
        limits = vars(self.budget if budget is None else budget)
        return Question(costs=self.costs, goal=Goal(strategies=strategies, **limits, **wishes))

    def best(self, *strategies: str, **wishes: Any) -> Point:
        """Return the best point. ``wishes`` are arguments of ``question``. Raises Infeasible."""
        question = self.question(*strategies, **wishes)
        winner = question.best()
        if winner is None:
            raise find_reason(question, subject=f"{', '.join(strategies)} does not fit")
        return self.evaluate(winner.strategy.name, winner.parameters)

    def evaluate(
        self, name: str, parameters: Mapping[str, int] | None = None, model: Model = "exact", /, **values: int
    ) -> Point:
        """Return a point of a strategy, by the exact model or the paper's equations.

        Parameters are given as a mapping, as keywords or both, and are clamped as in an execution.
        """
        strategy = closed_form_of(name)
        chosen = strategy.clamp(Parameters(parameters, **values), steps=self.costs.steps)
        cost = strategy.cost(chosen, costs=self.costs, model=model)
        return Point(
            setting=self,
            strategy=name,
            parameters=chosen,
            seconds=float(cost.seconds[0]),
            local_peak_bytes=int(cost.local_peak_bytes[0]),
            fits=bool(cost.within(self.budget)[0]),
        )

    def find_largest_steps(self, strategy: str, *, model: Model = "exact") -> int:
        """Return the largest T at which ``strategy`` fits the memory."""
        return find_largest(lambda steps: self.replace(steps=steps).question(strategy, model=model).fits())

    def count_free_states(self) -> int:
        """Return the number of states or tapes that fit the memory without the resident bytes."""
        costs = self.costs
        free = self.profile.local_bytes - costs.resident_bytes
        return max(0, free // max(costs.state_bytes, costs.tape_bytes))


def _no_network(workload: Workload) -> InputError:
    return InputError(f"workload {workload.name!r} has no network description", field="workload.network")


def find_largest(fits: Callable[[int], bool]) -> int:
    """Return the largest number that fits, 0 if none does.

    ``fits`` must be monotone: if it holds for a number, it holds for every smaller one. It is for plans: with
    clamped chunks, a plan for T steps or n neurons needs no more memory if T or n is smaller.
    """
    return find_last(fits, 1, MOST_STEPS)


def nearest_root(number: int) -> int:
    """Return the integer nearest to the square root."""
    root = math.isqrt(number)
    return root + (number - root * root > root)


def load_paper_setting() -> PaperSetting:
    """Return the setting of section IV: batch 120, 3 layers, 2 neurons a tile, fp32 on one Mk2 IPU.

    As in the paper, the spikes of all steps stay in local memory.
    """
    workload = load_workload("paper-snn")
    assert workload.network is not None  # noqa: S101 - it is built in
    resident = workload.network.replace(spikes="resident")
    spike_basis = {"resident_bytes_per_step": workload.basis["cache_bytes"]}
    basis = {field: entry for field, entry in workload.basis.items() if field != "cache_bytes"} | spike_basis
    workload = workload.replace(network=resident, basis=basis)
    return PaperSetting(workload=workload, profile=load_profile("ipu-mk2"))
