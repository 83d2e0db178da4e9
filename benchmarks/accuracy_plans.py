"""The plans that a benchmark of accuracy measures, and the turns in which they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import ckptplan
from ckptplan import Plan
from ckptplan.calibration.calibrate import Calibrated
from ckptplan.planning.playback import group_same_schedules

BATCH, LENGTHS = 32, (512, 1280)
#: Budgets as shares of the checkpoints and tapes of base, without the resident bytes.
BUDGETS = (0.1, 0.3)
CALIBRATION_ROUNDS, ROUNDS = 7, 5
#: Steps of the reference.
REFERENCE_STEPS = 64
Time = TypeVar("Time")


@dataclass(frozen=True, kw_only=True)
class Point:
    """A plan, predicted and measured."""

    cell: str
    steps: int
    budget_bytes: int
    strategy: str
    #: Strategies whose best plan has the same schedule.
    same: tuple[str, ...]
    parameters: dict[str, int]
    chosen: bool
    predicted_seconds: float
    #: At the pace of the calibration.
    measured_seconds: float
    #: Half the range between the quartiles of the rounds, as a share.
    spread: float
    #: At the pace that the machine had.
    raw_seconds: float
    predicted_bytes: int
    measured_bytes: int
    counted_equal: bool


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The plans that could have been chosen for a budget, and base."""

    budget: int
    chosen: Plan
    #: Plans with the same schedule; the chosen one is the first of its group.
    groups: list[list[Plan]]
    #: Strategies that have no plan for the budget, and why.
    without: dict[str, str]


def find_candidates(found: Calibrated, *, steps: int, share: float, strategies: str | None) -> Candidates:
    """Return the best plan of each strategy for a share of what base keeps."""
    workload = found.workload.with_steps(steps)
    resident = workload.resident_bytes + workload.resident_bytes_per_step * steps + workload.workspace_bytes
    budget = resident + int(share * steps * workload.tape_bytes)
    compared = ckptplan.compare(workload, found.profile, strategies=strategies, local_bytes=budget)
    plans = [one for one in compared.values() if isinstance(one, Plan)]
    # Base fits none of the budgets: one run is enough.
    bases = [ckptplan.optimize(workload, found.profile, strategies=["base"])] if share == BUDGETS[0] else []
    return Candidates(
        budget=budget,
        chosen=plans[0],
        groups=group_same_schedules([*plans, *bases]),
        without={name: str(one) for name, one in compared.items() if not isinstance(one, Plan)},
    )


def list_parameters(plan: Plan) -> dict[str, int]:
    """Return the parameters of a plan that a table shows."""
    return {name: value for name, value in plan.parameters.items() if not name.endswith("units")}


def run_in_turn(
    jobs: Sequence[Callable[[], Time]], *, reference: Callable[[], Time], rounds: int
) -> list[list[tuple[Time, Time, Time]]]:
    """Run all jobs in turn, and return for each and each round its time between those of the reference.

    A round more comes first, which warms up.
    """
    found: list[list[tuple[Time, Time, Time]]] = [[] for _ in jobs]
    for number in range(rounds + 1):
        before = reference()
        for job, times in zip(jobs, found, strict=True):
            taken = job()
            after = reference()
            if number:
                times.append((before, taken, after))
            before = after
    return found
