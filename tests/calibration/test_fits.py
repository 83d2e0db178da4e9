"""Times that follow the model exactly are found exactly; the fit says where they do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptplan.calibration import step_times, transfer_times
from ckptplan.calibration.samples import Line, Sample, relative_least_squares
from ckptplan.model.step_costs import StepCosts
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.actions import Action
from ckptplan.schedule.simulator import play
from ckptplan.schedule.timeline import Event
from tests.support import plain_costs

times = st.floats(1e-6, 1e-2)
CHUNKS = (4, 8, 16, 32)


def events(actions: list[Action], costs: StepCosts) -> list[Event]:
    found: list[Event] = []
    play(actions, costs=costs, budget=None, sink=found.append)
    return found


@given(forward=times, recompute=times, overhead=times, backward=times)
def test_step_times_that_follow_the_model_are_found(
    forward: float, recompute: float, overhead: float, backward: float
) -> None:
    """Whatever they are: a schedule played at known costs is a measurement without noise."""
    timed = step_times.TimedSteps()
    for chunk in CHUNKS:
        schedule = make_schedule("nested", steps=8 * chunk, chunk_size=chunk, segment_size=4 * chunk)
        costs = plain_costs(
            schedule.steps,
            forward_seconds=forward,
            recompute_seconds=recompute,
            record_overhead_seconds=overhead,
            backward_seconds=backward,
        )
        timed.add(events(list(schedule), costs))
    found = step_times.fit_step_times(timed, chunks=CHUNKS)
    assert found.forward_seconds == pytest.approx(forward, rel=1e-6)
    assert found.recompute_seconds == pytest.approx(recompute, rel=1e-6)
    assert found.record_overhead_seconds == pytest.approx(overhead, rel=1e-6, abs=1e-9)
    assert found.backward_seconds == pytest.approx(backward, rel=1e-6)
    assert found.misfit < 1e-6
    assert all(spread == 0 for spread in found.spread.values())
    assert all(fit > 1 - 1e-9 for fit in found.fit.values())
    # Nothing is claimed of chunks that were not timed.
    assert found.shortest_chunk(tolerance=0.05) == CHUNKS[0] // 4


@given(beside=st.floats(1e-4, 1e-2))
def test_what_a_chunk_takes_beside_its_steps_is_found_and_bounds_the_chunks(beside: float) -> None:
    """With k seconds a chunk on top of s a step, chunks of n steps cost s + k / n: the model must cover it."""
    timed = step_times.TimedSteps()
    for chunk in CHUNKS:
        schedule = make_schedule("nested", steps=8 * chunk, chunk_size=chunk, segment_size=4 * chunk)
        costs = plain_costs(schedule.steps, forward_seconds=1e-3, recompute_seconds=1e-3, backward_seconds=2e-3)
        made = events(list(schedule), costs)
        timed.add([longer(event, beside) for event in made])
    found = step_times.fit_step_times(timed, chunks=CHUNKS)
    assert found.chunk_overhead_seconds == pytest.approx(3 * beside, rel=1e-3)
    assert found.slope_seconds == pytest.approx(4e-3, rel=1e-3)
    shortest = found.shortest_chunk(tolerance=0.05)
    model = found.forward_seconds + found.recompute_seconds + found.record_overhead_seconds
    model += found.backward_seconds
    assert 4e-3 + 3 * beside / shortest <= 1.05 * model * (1 + 1e-9)
    assert shortest == CHUNKS[0] // 4 or 4e-3 + 3 * beside / (shortest - 1) > 1.05 * model * (1 - 1e-9)


def longer(event: Event, seconds: float) -> Event:
    """An event that takes longer; where it stands does not matter."""
    from dataclasses import replace

    return replace(event, end=event.end + seconds) if event.end > event.start else event


@given(message=times, write=times, read=times)
def test_transfer_times_that_follow_the_model_are_found(message: float, write: float, read: float) -> None:
    """Messages of several numbers of states tell what is paid once from what each state takes."""
    groups = (8, 4, 2, 1)
    costs = plain_costs(8 * 16, message_seconds=message, write_seconds=write, read_seconds=read, tape_bytes=1)
    timed = transfer_times.TimedMessages()
    timed.add(events(list(transfer_times.make_grouped_actions(groups, chunk=8)), costs))
    found = transfer_times.fit_transfer_times(timed)
    assert found.message_seconds == pytest.approx(message, rel=1e-6, abs=1e-9)
    assert found.write_seconds == pytest.approx(write, rel=1e-6, abs=1e-9)
    assert found.read_seconds == pytest.approx(read, rel=1e-6, abs=1e-9)
    assert found.misfit < 1e-6


def test_shares_are_fitted_not_seconds() -> None:
    """Of 1 and 100 that should be equal, the middle by shares is near the small one."""
    assert relative_least_squares([(1,), (1,)], [1.0, 100.0])[0] == pytest.approx(1.0, abs=0.02)


def test_no_time_is_negative() -> None:
    """Where recording seems to take less than running, it adds nothing."""
    forward, overhead = relative_least_squares([(1, 0), (1, 1)], [1.0, 0.9])
    assert overhead == 0
    assert 0.9 < forward < 1.0


def test_a_spread_is_half_the_range_between_the_quartiles() -> None:
    assert Sample(values=(1.0, 2.0, 3.0, 4.0, 5.0)).spread == pytest.approx(1 / 3)
    assert Sample(values=(2.0, 2.0, 2.0)).spread == 0


def test_the_fit_of_a_line_says_how_straight_it_is() -> None:
    assert Line.through([(1, 3.0), (2, 5.0), (4, 9.0)]).fit == pytest.approx(1)
    assert Line.through([(1, 3.0), (2, 9.0), (4, 4.0)]).fit < 0.5
