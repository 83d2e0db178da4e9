"""Compares checkpointing of sequences of unknown length with schedules that know T, for a range of T.

A tape is as large as a state, and memory holds ``slots`` states and one tape. ``online`` runs each step once in
its sweep and then reverses the gaps. The optimum knows T, and no legal schedule runs fewer steps (``tables``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import Integers
from ckptplan.errors import InputError
from ckptplan.recursion.online import Snapshots, bound_advances
from ckptplan.recursion.problem import CELLS, Prices, most_units
from ckptplan.recursion.revolve import count_at
from ckptplan.recursion.tables import Tables
from ckptplan.recursion.tree import UnitSizes
from ckptplan.schedule.schedule import check_count


@dataclass(frozen=True, kw_only=True)
class OnlineFactors:
    """How many times steps run for T = first..last, shape (last - first + 1,), recordings included."""

    slots: int
    steps: Integers
    #: Runs of the online schedule, of the optimum that knows T, and of binomial checkpointing with one tape.
    online: Integers
    optimum: Integers
    revolve: Integers
    #: Proved bound on the runs of any one step if gaps are reversed binomially, its recording included.
    bound: Integers

    @property
    def over_optimum(self) -> npt.NDArray[np.float64]:
        """Runs of the online schedule divided by runs of the optimum."""
        ratio: npt.NDArray[np.float64] = self.online / self.optimum
        return ratio

    @property
    def over_revolve(self) -> npt.NDArray[np.float64]:
        """Advances of the online schedule divided by Revolve's. Advances are runs other than recordings."""
        ratio: npt.NDArray[np.float64] = (self.online - self.steps) / np.maximum(self.revolve - self.steps, 1)
        return ratio


def compare_online(*, slots: int, first: int = 1, last: int) -> OnlineFactors:
    """Count the runs of steps, online and with T known, for every T from ``first`` to ``last``.

    Raises InputError, also if the table of the optima is too large.
    """
    check_count("slots", slots)
    check_count("T", first)
    check_count("T", last, least=first)
    units = slots + 1
    if units > most_units(last):
        raise InputError(
            f"a table of the optima for {last:,} steps and {slots:,} slots is too large",
            field="T",
            value=last,
            accepted=f"fewer steps or slots: (T + 1) (slots + 2) up to {CELLS:,}",
        )
    tables = Tables(steps=last, units=units, sizes=UnitSizes(1, 1), prices=Prices(recompute=1.0))
    recomputed = tables.unstored.round()
    snapshots = Snapshots(slots)
    online = np.zeros(last - first + 1, dtype=np.int64)
    for steps in range(1, last + 1):
        if steps >= first:
            checkpoints = snapshots.settle(steps)
            gaps = np.diff([*checkpoints, steps])
            free = units - np.arange(len(checkpoints))
            online[steps - first] = 2 * steps + int(recomputed[gaps, free].sum())
        snapshots.offer(steps)
    lengths = np.arange(first, last + 1)
    revolve, _ = count_at(lengths, chunk=np.array([1]), slots=np.array([slots]))
    return OnlineFactors(
        slots=slots,
        steps=lengths,
        online=online,
        optimum=lengths + recomputed[first:, units].astype(np.int64),
        revolve=lengths + revolve,
        bound=np.array([1 + bound_advances(steps, slots=slots) for steps in lengths.tolist()]),
    )
