"""The interpreter enforces every law (docs/schedule-format.md) and says which one, where and in what state."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptplan
from ckptplan import IllegalAction, InputError
from ckptplan.model.record import Parameters
from ckptplan.paper.setting import load_paper_setting
from ckptplan.schedule.actions import (
    Action,
    Advance,
    Backward,
    Free,
    Load,
    Record,
    Save,
    Tier,
    Transfer,
)
from ckptplan.schedule.simulator import Trace, play
from ckptplan.schedule.timeline import Event
from tests.schedule.fuzz import random_schedule
from tests.support import CLOSED, changed, plain_costs, setting_of, small_plan

LOCAL, REMOTE = Tier.LOCAL, Tier.REMOTE


def played(*actions: Action, steps: int = 4, **costs: object) -> Trace:
    return play(actions, costs=plain_costs(steps, **costs))


STANDARD = (
    Save(0, LOCAL),
    Advance(0, 2),
    Record(2, 4),
    Backward(2, 4),
    Load(0, LOCAL),
    Free(0, LOCAL),
    Record(0, 2),
    Backward(0, 2),
)


def test_standard_with_two_chunks() -> None:
    """4 steps of f + b = 3 s and 2 steps again; one checkpoint and two tapes at the worst moment."""
    trace = played(*STANDARD)
    assert (trace.seconds, trace.recomputed_steps, trace.actions) == (4 * 3 + 2, 2, 8)
    assert (trace.local_peak_bytes, trace.remote_peak_bytes, trace.messages) == (30, 0, 0)
    assert tuple(CLOSED["standard"].actions(Parameters(chunk_size=2), steps=4)) == STANDARD


@pytest.mark.parametrize(
    ("actions", "number", "law"),
    [
        ([Advance(1, 2)], 1, "a run starts at the working state"),
        ([Advance(0, 0)], 1, "a range holds at least one step"),
        ([Record(0, 5)], 1, "a run never passes the adjoint"),
        ([Record(0, 4), Backward(0, 4), Record(0, 1)], 3, "a run starts at the working state"),
        ([Save(0, LOCAL), Record(0, 2), Load(0, LOCAL), Record(0, 2)], 4, "a step is recorded once"),
        ([Advance(0, 4), Backward(3, 4)], 2, "a backward finds every tape: that of step 3 is missing"),
        ([Advance(0, 2), Record(2, 4), Backward(0, 4)], 3, "that of step 1 is missing"),
        ([Record(0, 4), Backward(0, 3)], 2, "steps are reversed in order: the next one is 3"),
        ([Record(0, 4), Backward(4, 4)], 2, "a range holds at least one step"),
        ([Record(0, 4), Backward(-1, 4)], 2, "a range holds at least one step"),
        ([Save(1, LOCAL)], 1, "a save stores the working state"),
        ([Save(0, LOCAL), Save(0, LOCAL)], 2, "nothing is stored twice in one tier"),
        ([Save(0, REMOTE), Save(0, REMOTE)], 2, "nothing is stored twice in one tier"),
        ([Load(0, LOCAL)], 1, "a load finds its state"),
        ([Load(0, REMOTE)], 1, "a load finds its state"),
        ([Free(0, LOCAL)], 1, "a free finds its state"),
        ([Free(0, REMOTE)], 1, "a free finds its state"),
        ([Transfer((), LOCAL, REMOTE)], 1, "a transfer moves at least one state, each once"),
        ([Save(0, LOCAL), Transfer((0, 0), LOCAL, REMOTE)], 2, "a transfer moves at least one state"),
        ([Save(0, LOCAL), Transfer((0,), LOCAL, LOCAL)], 2, "to the other tier"),
        ([Transfer((0,), LOCAL, REMOTE)], 1, "a transfer finds its states: 0 is not stored there"),
        ([Save(0, LOCAL), Save(0, REMOTE), Transfer((0,), LOCAL, REMOTE)], 3, "nothing is stored twice"),
        ([Record(0, 4)], 2, "every step is reversed: steps 0 to 3 are not"),
        ([Save(0, LOCAL), Record(0, 4), Backward(0, 4)], 4, "nothing is left stored at the end"),
        ([Save(0, REMOTE), Record(0, 4), Backward(0, 4)], 4, "nothing is left stored at the end"),
        ([], 1, "every step is reversed"),
        (["advance"], 1, "this is not an action"),
    ],
)
def test_each_law_is_enforced_and_named(actions: Sequence[Action], number: int, law: str) -> None:
    with pytest.raises(IllegalAction) as caught:
        played(*actions)
    error = caught.value
    assert error.number == number
    assert law in error.law
    assert "working state" in error.state
    assert f"action {number}" in str(error)
    assert error.details()["law"] == error.law
    assert isinstance(error, InputError)


def test_tapes_may_be_scattered_and_consumed_in_parts() -> None:
    trace = played(Record(0, 2), Record(2, 4), Backward(1, 4), Backward(0, 1))
    assert trace.local_peak_bytes == 40


def test_what_is_held_is_told_short() -> None:
    saves = [action for state in range(20) for action in (Save(state, LOCAL), Advance(state, state + 1))]
    with pytest.raises(IllegalAction, match=r"local \[0, 1, 2\]\.\.19 \(20\)"):
        played(*saves, Backward(0, 30), steps=30)


def test_remote_transfers_cost_a_message_each() -> None:
    """2 x (0.5 + 3 or 4) s for one state, and one message for two."""
    one = played(Save(0, REMOTE), Advance(0, 4), Load(0, REMOTE), Free(0, REMOTE), Record(0, 4), Backward(0, 4))
    assert one.seconds == 4 * 3 + 4 + (0.5 + 3) + (0.5 + 4)
    assert (one.remote_peak_bytes, one.messages) == (1000, 2)
    two = played(
        *(Save(0, LOCAL), Advance(0, 1), Save(1, LOCAL), Transfer((0, 1), LOCAL, REMOTE)),
        *(Record(1, 4), Backward(1, 4), Transfer((0, 1), REMOTE, LOCAL)),
        *(Free(1, LOCAL), Load(0, LOCAL), Free(0, LOCAL), Record(0, 1), Backward(0, 1)),
    )
    assert two.seconds == 4 * 3 + 1 + (0.5 + 6) + (0.5 + 8)
    assert (two.remote_writes, two.remote_reads, two.messages) == (2, 2, 2)


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("name", sorted(CLOSED))
def test_the_timeline_is_complete_and_without_gaps(name: str, overlaps: bool) -> None:
    """Each track runs forward; compute is busy or waits until the end; the peak is seen."""
    strategy = CLOSED[name]
    costs = changed(plain_costs(37, resident_bytes=5, record_overhead_seconds=0.25), overlaps_compute=overlaps)
    parameters = setting_of(strategy, (3, 7), costs)
    events: list[Event] = []
    trace = play(strategy.actions(parameters, steps=37), costs=costs, sink=events.append)
    tracks = {track: [e for e in events if e.track == track] for track in ("compute", "write", "read")}
    for bars in tracks.values():
        assert all(before.end <= after.start + 1e-9 for before, after in pairwise(bars))
    busy = tracks["compute"] if overlaps else sorted(events, key=lambda event: (event.start, event.end))
    assert busy[0].start == 0
    assert all(before.end == pytest.approx(after.start) for before, after in pairwise(busy))
    assert busy[-1].end == pytest.approx(trace.seconds)
    assert max(event.local_bytes for event in events) == trace.local_peak_bytes
    assert max(event.remote_bytes for event in events) == trace.remote_peak_bytes
    stalls = sum(event.end - event.start for event in events if event.stall)
    assert stalls == pytest.approx(trace.stall_seconds)


def test_a_plan_is_played_at_its_predicted_cost() -> None:
    for profile in ("ipu-mk2", "nvidia-h200"):
        plan = ckptplan.optimize(
            load_paper_setting().workload, ckptplan.load_profile(profile), max_overhead="5000%"
        )
        trace = ckptplan.simulate(plan)
        assert trace.seconds == pytest.approx(plan.predicted.seconds, rel=1e-9)
        for name in ("local_peak_bytes", "remote_peak_bytes", "recomputed_steps", "messages"):
            assert getattr(trace, name) == plan.predicted[name]


def test_another_schedule_is_played_at_the_costs_and_limits_of_a_plan() -> None:
    plan = ckptplan.optimize(
        load_paper_setting().workload, ckptplan.load_profile("ipu-mk2"), strategies="paper"
    )
    with pytest.raises(IllegalAction, match="needed of a local budget of 638,976"):
        ckptplan.simulate(plan, schedule=[Record(0, 4096), Backward(0, 4096)])
    assert sum(isinstance(action, Save) for action in ckptplan.actions(plan)) == 15 + 15 * 16


def test_a_plan_by_the_printed_equations_may_need_more_than_they_say() -> None:
    """They are played without limits, since they are another model of the memory."""
    plan = ckptplan.optimize(load_paper_setting().workload, ckptplan.load_profile("ipu-mk2"), model="paper")
    assert ckptplan.simulate(plan).local_peak_bytes <= plan.predicted.local_peak_bytes


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 7), overlaps=st.booleans())
def test_the_timeline_tells_what_the_trace_tells(seed: int, steps: int, overlaps: bool) -> None:
    """On any legal schedule: the peaks are seen, held bytes come in order of time, and no bar is cut off."""
    costs = changed(plain_costs(steps, resident_bytes=7, tape_bytes=30), overlaps_compute=overlaps)
    events: list[Event] = []
    trace = play(random_schedule(seed, steps), costs=costs, sink=events.append)
    assert max(event.local_bytes for event in events) == trace.local_peak_bytes
    assert max(event.remote_bytes for event in events) == trace.remote_peak_bytes
    assert all(before.held_at <= after.held_at for before, after in pairwise(events))
    assert max(event.end for event in events) == pytest.approx(trace.seconds)
    assert sum(event.recomputed_steps for event in events) == trace.recomputed_steps
    for event in events:
        # Beside compute, a write holds its bytes from when it is issued.
        issued = overlaps and event.track == "write"
        assert event.held_at == (event.start if issued else pytest.approx(max(event.end, event.held_at)))


def test_a_state_on_its_way_is_waited_for_before_it_is_freed() -> None:
    trace = play(
        [Save(0, REMOTE), Free(0, REMOTE), Record(0, 2), Backward(0, 2)],
        costs=changed(plain_costs(2, write_seconds=100.0), overlaps_compute=True),
    )
    assert trace.seconds == 100.5 + 6


def test_the_remote_budget_of_a_plan_is_enforced() -> None:
    plan = small_plan()
    ckptplan.simulate(plan)
    tight = plan.goal.model_copy(update={"remote_bytes": plan.predicted.remote_peak_bytes - 1})
    with pytest.raises(IllegalAction, match="4,239,360 bytes are needed of a remote budget of 4,239,359"):
        ckptplan.simulate(plan.model_copy(update={"goal": tight}))


def test_a_plan_by_the_printed_equations_is_not_held_to_its_budget() -> None:
    """They ignore the buffers of transfers that overlap compute, which the schedule needs."""
    plan = small_plan("remote", profile="nvidia-h200", local_bytes="345 MB")
    tight = plan.goal.model_copy(update={"local_bytes": plan.predicted.local_peak_bytes - 1})
    with pytest.raises(IllegalAction):
        ckptplan.simulate(plan.model_copy(update={"goal": tight}))
    paper = tight.model_copy(update={"model": "paper"})
    assert ckptplan.simulate(plan.model_copy(update={"goal": paper})).messages
