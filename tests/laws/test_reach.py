"""How far strategies go that are solved: what is said without solving is what solving finds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptplan
from ckptplan import HardwareProfile, Infeasible, Workload
from ckptplan.model.budget import Budget
from ckptplan.model.step_costs import StepCosts
from ckptplan.search.objective import least_time
from tests.support import SOLVED, ask

#: No job below fits with more steps than this.
LONGEST = 12


@pytest.mark.parametrize("name", SOLVED)
@given(
    steps=st.integers(1, 24),
    state=st.integers(1, 9),
    tape=st.integers(1, 9),
    resident=st.integers(0, 5),
    local=st.none() | st.integers(0, 60),
    remote=st.none() | st.integers(0, 60),
    transfer=st.sampled_from([0.0, 0.3, 2.0, 20.0]),
    message=st.sampled_from([0.0, 5.0]),
    overlaps=st.booleans(),
)
def test_a_schedule_is_said_to_be_there_exactly_where_one_is_found(
    name: str,
    steps: int,
    state: int,
    tape: int,
    resident: int,
    local: int | None,
    remote: int | None,
    transfer: float,
    message: float,
    overlaps: bool,
) -> None:
    """``has_schedule`` builds nothing, and says what ``solve`` does; below the least there is none."""
    strategy = SOLVED[name]
    costs = StepCosts(
        steps=steps,
        state_bytes=state,
        tape_bytes=tape,
        resident_bytes=resident,
        remote_state_bytes=state,
        forward_seconds=1.0,
        backward_seconds=2.0,
        recompute_seconds=0.5,
        write_seconds=transfer,
        read_seconds=transfer,
        message_seconds=message,
        overlaps_compute=overlaps,
    )
    budget = Budget(local_bytes=local, remote_bytes=remote)
    question = ask(costs=costs, budget=budget, strategies=(strategy,))
    found = question.best()
    assert strategy.has_schedule(question.task(strategy, least_time)) == (found is not None)
    if found is not None and local is not None:
        assert strategy.least_local_bytes(costs) <= local


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVED)
@settings(max_examples=25)
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
    if reach.plan is not None and best is not None:
        assert (reach.plan.parameters, reach.plan.splits) == (best.parameters, best.splits)
        assert reach.plan.predicted == best.predicted
