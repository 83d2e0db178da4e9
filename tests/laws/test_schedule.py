"""Laws 1 and 2: a schedule played step by step costs what its closed form says, at every action."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ckptplan.model.budget import Budget
from ckptplan.model.record import Parameters
from ckptplan.model.step_costs import StepCosts
from ckptplan.schedule.simulator import IllegalAction, play
from ckptplan.search.best_setting import find_best_setting
from ckptplan.search.boxes import BoxProblem, Limits
from ckptplan.search.objective import least_time
from ckptplan.strategies.protocol import Strategy
from tests.support import CLOSED, changed, plain_costs, setting_of, step_costs

NAMES = sorted(CLOSED)
#: Lengths that hold 1, divisible and indivisible cases.
lengths = st.one_of(st.integers(1, 40), st.integers(41, 400))


@pytest.mark.parametrize("name", NAMES)
@given(costs=step_costs(steps=lengths), first=st.integers(1, 500), second=st.integers(1, 500))
@example(costs=plain_costs(1), first=1, second=1)
@example(costs=plain_costs(1), first=9, second=9)
@example(costs=plain_costs(7), first=1, second=1)
@example(costs=plain_costs(10), first=3, second=500)
@example(costs=plain_costs(12, tape_bytes=120), first=500, second=2)
def test_law_1_serial(name: str, costs: StepCosts, first: int, second: int) -> None:
    """Counts and bytes exactly, and seconds, which are those counts times their costs, exactly too."""
    costs = changed(costs, overlaps_compute=False)
    strategy = CLOSED[name]
    parameters = setting_of(strategy, (first, second), costs)
    trace = play(strategy.actions(parameters, steps=costs.steps), costs=costs)
    point = strategy.point(parameters, steps=costs.steps)
    counts = strategy.counts(low=point, high=point, steps=costs.steps)
    cost = strategy.cost(parameters, costs=costs)
    assert trace.recomputed_steps == counts.recomputed_steps[0]
    assert trace.remote_writes == counts.remote_writes[0]
    assert trace.remote_reads == counts.remote_reads[0]
    assert trace.messages == counts.messages[0]
    assert (trace.advances, trace.chunks) == (counts.advances[0], counts.chunks[0])
    assert (trace.local_saves, trace.local_loads) == (counts.local_saves[0], counts.local_loads[0])
    assert trace.local_peak_bytes == cost.local_peak_bytes[0]
    assert trace.remote_peak_bytes == cost.remote_peak_bytes[0]
    assert trace.seconds == cost.seconds[0]
    assert trace.stall_seconds == 0


@pytest.mark.parametrize("name", NAMES)
@given(costs=step_costs(steps=lengths), first=st.integers(1, 500), second=st.integers(1, 500))
@example(costs=plain_costs(1), first=1, second=1)
@example(costs=plain_costs(13, write_seconds=0.0), first=2, second=2)
@example(costs=plain_costs(13, read_seconds=500.0), first=2, second=3)
def test_law_1_overlapped(name: str, costs: StepCosts, first: int, second: int) -> None:
    """The same if transfers overlap compute: seconds to 1e-9, peaks with both buffers."""
    costs = changed(costs, overlaps_compute=True)
    strategy = CLOSED[name]
    parameters = setting_of(strategy, (first, second), costs)
    trace = play(strategy.actions(parameters, steps=costs.steps), costs=costs)
    cost = strategy.cost(parameters, costs=costs)
    assert trace.seconds == pytest.approx(float(cost.seconds[0]), rel=1e-9)
    assert trace.local_peak_bytes == cost.local_peak_bytes[0]
    assert trace.remote_peak_bytes == cost.remote_peak_bytes[0]


@pytest.mark.parametrize("name", NAMES)
@given(costs=step_costs(steps=lengths), first=st.integers(1, 500), second=st.integers(1, 500))
def test_hiding_transfers_never_costs_time(name: str, costs: StepCosts, first: int, second: int) -> None:
    """Overlapped is never slower than serial, nor faster than compute or transfers alone."""
    strategy = CLOSED[name]
    parameters = setting_of(strategy, (first, second), costs)
    overlapped = strategy.cost(parameters, costs=changed(costs, overlaps_compute=True)).seconds[0]
    serial = strategy.cost(parameters, costs=changed(costs, overlaps_compute=False)).seconds[0]
    free = changed(costs, write_seconds=0, read_seconds=0, message_seconds=0)
    assert overlapped <= serial * (1 + 1e-12)
    assert overlapped >= strategy.cost(parameters, costs=free).seconds[0] * (1 - 1e-12)


@pytest.mark.parametrize("overlaps", [False, True])
@given(costs=step_costs(steps=lengths), local=st.integers(0, 10**6), remote=st.none() | st.integers(0, 10**6))
def test_law_2_a_plan_that_fits_keeps_its_budget_at_every_action(
    overlaps: bool, costs: StepCosts, local: int, remote: int | None
) -> None:
    """What the search finds is played under the budget it was found for; one byte less is noticed."""
    costs = changed(costs, overlaps_compute=overlaps)
    budget = Budget(local_bytes=costs.resident_bytes + local, remote_bytes=remote)
    for strategy in CLOSED.values():
        limits = Limits(budget=budget)
        best = find_best_setting(
            BoxProblem(strategy=strategy, costs=costs, limits=limits, objective=least_time)
        )
        if best is None:
            continue

        def schedule(strategy: Strategy = strategy, parameters: Parameters = best.parameters):  # type: ignore[no-untyped-def]
            return strategy.actions(parameters, steps=costs.steps)

        trace = play(schedule(), costs=costs, budget=budget)
        short = Budget(local_bytes=trace.local_peak_bytes - 1)
        with pytest.raises(IllegalAction, match="of a local budget"):
            play(schedule(), costs=costs, budget=short)
        if trace.remote_peak_bytes:
            with pytest.raises(IllegalAction, match="of a remote budget"):
                play(schedule(), costs=costs, budget=Budget(remote_bytes=trace.remote_peak_bytes - 1))
