"""The package pyadjoint executes translated plans, and its derivatives are those without checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
from checkpoint_schedules import EndReverse, Forward, Revolve
from pyadjoint import AdjFloat, Control, ReducedFunctional, Tape, continue_annotation, set_working_tape

import ckptplan
from ckptplan.interop import to_checkpoint_schedule

pytestmark = pytest.mark.slow

LOCAL = ["standard", "nested", "growing", "revolve", "optimal"]


def plan_for(steps: int, *, snapshots: int, strategies: str | None = None) -> ckptplan.Plan:
    """A plan within so many states, and the tape of a step, which is as large as a state."""
    workload = ckptplan.Workload(
        name="adjoint", steps=steps, state_bytes=1, tape_bytes=1, forward_seconds=1e-6, backward_seconds=2e-6,
        recompute_seconds=1e-6,
    )  # fmt: skip
    machine = ckptplan.HardwareProfile(
        name="host", local_bytes=10**9, remote_bytes=0, write_bytes_per_second=1e9, read_bytes_per_second=1e9
    )
    return ckptplan.optimize(workload, machine, local_bytes=snapshots + 1, strategies=strategies)


def differentiate(steps: int, schedule: Any) -> float:
    """The derivative of a recurrence by its coefficient; without a schedule nothing is recomputed."""
    tape = Tape()
    set_working_tape(tape)
    continue_annotation()
    if schedule is not None:
        tape.enable_checkpointing(schedule)
    coefficient, state = AdjFloat(0.3), AdjFloat(0.5)
    for _ in tape.timestepper(iter(range(steps))):
        state = state + AdjFloat(0.01) * coefficient * state * state
    return float(ReducedFunctional(state * state, Control(coefficient)).derivative())


@pytest.mark.parametrize("strategy", LOCAL)
@pytest.mark.parametrize("steps", [1, 7, 60])
def test_derivatives_are_those_without_checkpoints(strategy: str, steps: int) -> None:
    plan = plan_for(steps, snapshots=20, strategies=strategy)
    assert differentiate(steps, to_checkpoint_schedule(plan)) == differentiate(steps, None)


def count_again(schedule: Any, steps: int) -> int:
    """How many steps run again until the adjoint calculation ends."""
    runs = 0
    for action in schedule:
        if isinstance(action, Forward):
            runs += action.n1 - action.n0
        elif isinstance(action, EndReverse):
            break
    return runs - steps


@pytest.mark.parametrize(
    ("steps", "snapshots", "revolve", "planned"),
    [(100, 5, 316, 252), (100, 10, 222, 137), (400, 10, 1236, 917)],
)
def test_plans_run_fewer_steps_again_than_revolve(
    steps: int, snapshots: int, revolve: int, planned: int
) -> None:
    """The last case is that of docs/schedule-format.md."""
    assert count_again(Revolve(steps, snapshots), steps) == revolve
    assert count_again(to_checkpoint_schedule(plan_for(steps, snapshots=snapshots)), steps) == planned
