"""How far strategies go that are solved: what is said without solving is what solving finds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptplan
from ckptplan import HardwareProfile, Infeasible, Workload
from tests.support import SOLVED

#: No job below fits with more steps than this.
LONGEST = 12


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVED)
@settings(max_examples=10)
@given(
    state=st.integers(1, 9),
    tape=st.integers(1, 9),
    a_step=st.integers(5, 8),
    local=st.integers(1, 60),
    remote=st.none() | st.integers(1, 60),
    overlaps=st.booleans(),
)
def test_the_largest_sequence_of_a_solved_strategy_is_that_of_brute_force(
    name: str, state: int, tape: int, a_step: int, local: int, remote: int | None, overlaps: bool
) -> None:
    """Every length is planned: none beyond what is found fits, and ``optimize`` has the same plan there."""
    workload = Workload(
        name="tiny",
        steps=1,
        state_bytes=state,
        tape_bytes=tape,
        resident_bytes_per_step=a_step,
        forward_seconds=1.0,
        backward_seconds=2.0,
        recompute_seconds=0.5,
    )
    profile = HardwareProfile(
        name="tiny",
        local_bytes=60,
        remote_bytes=None,
        write_bytes_per_second=3.0,
        read_bytes_per_second=4.0,
        latency_seconds=0.1,
        overlaps_compute=overlaps,
    )
    wishes = {
        "strategies": [name],
        "local_bytes": local,
        "remote_bytes": "unbounded" if remote is None else remote,
    }

    def planned(steps: int) -> ckptplan.Plan | None:
        try:
            return ckptplan.optimize(workload.with_steps(steps), profile, **wishes)  # type: ignore[arg-type]
        except Infeasible:
            return None

    plans = {steps: planned(steps) for steps in range(1, LONGEST + 2)}
    expected = max((steps for steps, plan in plans.items() if plan is not None), default=0)
    assert expected <= LONGEST
    reach = ckptplan.largest("T", workload, profile, **wishes)[name]  # type: ignore[arg-type]
    assert reach.value == expected
    best = plans.get(expected)
    assert (reach.plan is None) == (best is None)
    # Closed forms are planned beside the optimum.
    if reach.plan is not None and best is not None and best.strategy == name:
        assert (reach.plan.parameters, reach.plan.splits) == (best.parameters, best.splits)
        assert reach.plan.predicted == best.predicted
