"""Implements Disk-Revolve and Periodic: remote segments, each read once, with Revolve inside."""

from __future__ import annotations

from abc import abstractmethod

from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.disk_revolve import find_segments
from ckptplan.recursion.periodic import find_periods
from ckptplan.recursion.problem import Family
from ckptplan.strategies.answer import Answer
from ckptplan.strategies.solved import Solved, Task


class RevolveInSegments(Solved):
    """Remote segments, each read once, with Revolve inside, all of whose schedules are priced at once."""

    @abstractmethod
    def find(self, task: Task) -> Family:
        """Return the schedules within the budget."""

    def solve(self, task: Task) -> Answer | None:
        return self.build_best([self.find(task)], task)

    def has_schedule(self, task: Task) -> bool:
        return len(self.find(task)) > 0


class DiskRevolve(RevolveInSegments):
    """Remote checkpoints in the first sweep only, Revolve between them.

    Disk-Revolve of Aupy, Herrmann, Hovland and Robert 2016, with one tape at a time, in closed form.
    """

    name = "disk-revolve"
    rank = 9

    def find(self, task: Task) -> Family:
        return find_segments(task.costs, task.budget)

    def least_local_bytes(self, costs: StepCosts) -> int:
        # With one tape at a time, keeping all tapes is not an alternative to a slot.
        slot = costs.state_bytes if costs.overlaps_compute and costs.steps > 1 else 0
        return costs.resident_bytes + costs.tape_bytes + slot


class Periodic(RevolveInSegments):
    """Remote segments of equal length, each read once, with Revolve inside.

    Periodic checkpointing of Aupy and Herrmann 2017; a grid of chunks and periods is searched.
    """

    name = "periodic"
    rank = 10

    def find(self, task: Task) -> Family:
        return find_periods(task.costs, task.budget, front=task.front)


STRATEGIES = (DiskRevolve(), Periodic())
