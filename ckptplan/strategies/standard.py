"""Implements Base, Standard and Growing: a local checkpoint before each chunk; each but the last runs again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ckptplan.cost import paper
from ckptplan.cost.arrays import Integers, ceil_div
from ckptplan.cost.exact import Cost, Counts
from ckptplan.model.budget import Budget
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion import growing
from ckptplan.schedule.actions import Action
from ckptplan.schedule.segments import reverse_between, reverse_locally
from ckptplan.strategies.closed_form import Box, Capacity, ClosedForm
from ckptplan.strategies.protocol import Columns, Splits


def _print_base(*, low: Columns, high: Columns, costs: StepCosts) -> Cost:
    memory = paper.memory_base(T=costs.steps, M_a=costs.tape_bytes, M_others=costs.resident_bytes)
    return Cost(
        seconds=np.array([paper.base_seconds(costs)]),
        local_peak_bytes=np.array([memory]),
        remote_peak_bytes=np.zeros(1, dtype=np.int64),
    )


class Base(ClosedForm):
    """Plain backpropagation through time: keep every tape, recompute nothing.

    Section III-A of the paper.
    """

    name = "base"
    rank = 0
    parameter_names = ()
    printed = staticmethod(_print_base)

    def candidates(self, *, costs: StepCosts, budget: Budget) -> Box | None:
        return Box.of() if Capacity.within(budget, costs=costs).tapes >= costs.steps else None

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        return Counts(
            recomputed_steps=np.zeros(1, dtype=np.int64), chunks=np.array([1]), tapes=np.array([steps])
        )

    def actions(self, parameters: Parameters, *, steps: int, splits: Splits = None) -> Iterator[Action]:
        return reverse_locally(0, steps, steps)


def _print_standard(*, low: Columns, high: Columns, costs: StepCosts) -> Cost:
    checkpoints = paper.nb_checkpoints(T=costs.steps, chunk_size=high["chunk_size"])
    seconds = paper.standard_seconds(costs)
    return Cost(
        seconds=np.full(len(checkpoints), seconds),
        local_peak_bytes=paper.memory_standard(
            chunk_size=low["chunk_size"],
            nb_checkpoints=checkpoints,
            M_s=costs.state_bytes,
            M_a=costs.tape_bytes,
            M_others=costs.resident_bytes,
        ),
        remote_peak_bytes=np.zeros_like(checkpoints),
    )


class Standard(ClosedForm):
    """A local checkpoint before each chunk; each chunk but the last runs again.

    Section III-B of the paper; chunks of ``chunk_size`` steps, the ragged one first.
    """

    name = "standard"
    rank = 1
    parameter_names = ("chunk_size",)
    printed = staticmethod(_print_standard)

    def candidates(self, *, costs: StepCosts, budget: Budget) -> Box | None:
        capacity = Capacity.within(budget, costs=costs)
        # There must be room for n - 1 checkpoints: ceil(T / c) - 1 <= room.
        least = ceil_div(costs.steps, capacity.local_checkpoints + 1)
        return Box.of(chunk_size=(least, capacity.tapes))

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        # A longer chunk has a longer tape, but fewer checkpoints and less recomputation.
        return count_actions(ceil_div(steps, high["chunk_size"]), low=low, high=high, steps=steps)

    def actions(self, parameters: Parameters, *, steps: int, splits: Splits = None) -> Iterator[Action]:
        return reverse_locally(0, steps, parameters["chunk_size"])


class Growing(ClosedForm):
    """Standard with chunks that grow towards the start: equal recomputation, less memory.

    The last chunk has ``chunk_size`` steps, the j-th before it floor(j state_units / tape_units) more.
    """

    name = "growing"
    rank = 6
    parameter_names = ("chunk_size", "state_units", "tape_units")
    always_regular = False

    def candidates(self, *, costs: StepCosts, budget: Budget) -> Box | None:
        p, q = growing.growth_ratio(state=costs.state_bytes, tape=costs.tape_bytes)
        most = Capacity.within(budget, costs=costs).tapes
        return Box.of(chunk_size=(1, most), state_units=(p, p), tape_units=(q, q))

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        total = np.full_like(high["chunk_size"], steps)
        chunks = growing.count_chunks(
            total, chunk=high["chunk_size"], p=high["state_units"], q=high["tape_units"]
        )
        return count_actions(chunks, low=low, high=high, steps=steps)

    def regular(self, parameters: Parameters, *, steps: int) -> bool:
        return parameters["chunk_size"] >= steps

    def actions(self, parameters: Parameters, *, steps: int, splits: Splits = None) -> Iterator[Action]:
        chunk, p, q = (parameters[name] for name in self.parameter_names)
        return reverse_between(0, steps, growing.list_chunk_ends(0, steps, chunk=chunk, p=p, q=q))


def count_actions(chunks: Integers, *, low: Columns, high: Columns, steps: int) -> Counts:
    """Return the counts of at least so many chunks, of which all but the last have a checkpoint."""
    checkpoints = chunks - 1
    return Counts(
        recomputed_steps=steps - high["chunk_size"],
        advances=checkpoints,
        chunks=chunks,
        local_saves=checkpoints,
        local_loads=checkpoints,
        tapes=low["chunk_size"],
        local_checkpoints=checkpoints,
    )


STRATEGIES = (Base(), Standard(), Growing())
