"""Implements Revolve: binomial checkpointing in local memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import ceil_div
from ckptplan.cost.exact import Counts
from ckptplan.model.record import Parameters
from ckptplan.recursion import revolve
from ckptplan.schedule.actions import Action
from ckptplan.schedule.loops import Nest, cut_evenly, reverse_chunks
from ckptplan.strategies.closed_form import ClosedForm
from ckptplan.strategies.protocol import Columns, Splits


class Revolve(ClosedForm):
    """Binomial checkpointing in local memory, with the least recomputation.

    Revolve of Griewank and Walther 2000, with chunks of ``chunk_size`` steps in place of single steps.
    """

    name = "revolve"
    rank = 8
    parameter_names = ("chunk_size", "nb_local")
    always_regular = False

    def counts(self, *, low: Columns, high: Columns, steps: int) -> Counts:
        # Longer chunks and more checkpoints both reduce recomputation.
        again, saves = revolve.count_at(np.array([steps]), chunk=high["chunk_size"], slots=high["nb_local"])
        fewest_splits = ceil_div(steps, high["chunk_size"]) - 1
        # No number of saves is known to be the least in a box.
        is_point = (low["chunk_size"] == high["chunk_size"]) & (low["nb_local"] == high["nb_local"])
        return Counts(
            recomputed_steps=again,
            # Every split of a part adds a run, a load and a part; each part of one chunk is recorded.
            advances=fewest_splits,
            chunks=fewest_splits + 1,
            local_saves=np.where(is_point, saves, 0),
            local_loads=fewest_splits,
            tapes=low["chunk_size"],
            local_checkpoints=np.minimum(low["nb_local"], fewest_splits),
        )

    def admits(self, *, low: Columns, high: Columns, steps: int) -> npt.NDArray[np.bool_]:
        """Exclude slots that would stay empty, and settings whose recomputed steps cannot be counted."""
        useful: npt.NDArray[np.bool_] = low["nb_local"] <= np.maximum(1, ceil_div(steps, low["chunk_size"]) - 1)
        if steps < 2**31:
            # No step runs again T times, so T^2 bounds the count.
            return useful
        again, _ = revolve.count_at(np.array([steps]), chunk=high["chunk_size"], slots=high["nb_local"])
        admitted: npt.NDArray[np.bool_] = (again < revolve.MOST) & useful
        return admitted

    def is_regular(self, parameters: Parameters, *, steps: int) -> bool:
        # With a checkpoint before each chunk, it equals Standard.
        return steps <= parameters["chunk_size"] * (parameters["nb_local"] + 1)

    def loops(self, parameters: Parameters, *, steps: int) -> Nest:
        return reverse_chunks(*cut_evenly(steps, parameters["chunk_size"]))

    def actions(self, parameters: Parameters, *, steps: int, splits: Splits = None) -> Iterator[Action]:
        chunk, slots = parameters["chunk_size"], parameters["nb_local"]
        return revolve.make_revolve_tree(slots, steps=steps, chunk=chunk).actions()


STRATEGIES = (Revolve(),)
