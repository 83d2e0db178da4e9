"""Each closed form (the table of docs/equations.md) equals a step-by-step execution."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptplan.model.record import Parameters
from tests.strategies.reference import PROGRAMS, execute
from tests.support import CLOSED, one_cost, plain_costs, setting_of, settings_of


def test_every_strategy_has_an_execution_to_compare_with() -> None:
    assert set(PROGRAMS) == set(CLOSED)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("steps", [1, 2, 3, 7, 12, 17])
def test_counts_and_peaks_of_all_settings(name: str, steps: int) -> None:
    """Recomputed steps, states, messages, actions and both peaks, for every legal setting."""
    strategy = CLOSED[name]
    for state_bytes, tape_bytes in ((1, 1), (3, 17), (5, 2)):
        costs = plain_costs(steps, state_bytes=state_bytes, tape_bytes=tape_bytes)
        for setting in settings_of(strategy, steps, state_bytes=state_bytes, tape_bytes=tape_bytes):
            done = execute(name, steps=steps, state_bytes=state_bytes, tape_bytes=tape_bytes, **setting)
            point = strategy.point(Parameters(setting), steps=steps)
            counts = strategy.counts(low=point, high=point, steps=steps)
            cost = one_cost(strategy, costs, setting)
            assert counts.recomputed_steps[0] == done.runs - steps, setting
            assert counts.remote_writes[0] == counts.remote_reads[0] == done.moved, setting
            assert counts.messages[0] == done.messages_out + done.messages_in, setting
            assert (counts.advances[0], counts.chunks[0]) == (done.advances, done.chunks), setting
            assert (counts.local_saves[0], counts.local_loads[0]) == (done.saves, done.loads), setting
            assert cost.local_peak_bytes[0] == done.local_peak, setting
            assert cost.remote_peak_bytes[0] == done.remote_peak * costs.remote_state_bytes, setting


@given(data=st.data(), name=st.sampled_from(sorted(PROGRAMS)), steps=st.integers(18, 300))
def test_counts_and_peaks_of_long_sequences(data: st.DataObject, name: str, steps: int) -> None:
    """The same for random settings of longer sequences."""
    strategy = CLOSED[name]
    chunk = data.draw(st.integers(1, steps), label="chunk_size")
    other = data.draw(st.integers(1, steps), label="second parameter")
    setting = dict(setting_of(strategy, (chunk, other), plain_costs(steps, state_bytes=7, tape_bytes=20)))
    done = execute(name, steps=steps, state_bytes=7, tape_bytes=20, **setting)
    point = strategy.point(Parameters(setting), steps=steps)
    counts = strategy.counts(low=point, high=point, steps=steps)
    cost = one_cost(strategy, plain_costs(steps, state_bytes=7, tape_bytes=20), setting)
    assert counts.recomputed_steps[0] == done.runs - steps
    assert (counts.remote_writes[0], counts.messages[0]) == (done.moved, 2 * done.messages_out)
    assert (counts.advances[0], counts.chunks[0]) == (done.advances, done.chunks)
    assert (counts.local_saves[0], counts.local_loads[0]) == (done.saves, done.loads)
    assert (cost.local_peak_bytes[0], cost.remote_peak_bytes[0]) == (done.local_peak, done.remote_peak * 1000)


@pytest.mark.parametrize("name", ["standard", "remote"])
def test_a_chunk_longer_than_the_sequence_is_the_sequence(name: str) -> None:
    strategy = CLOSED[name]
    assert one_cost(strategy, plain_costs(5), {"chunk_size": 99}) == one_cost(
        strategy, plain_costs(5), {"chunk_size": 5}
    )


@pytest.mark.parametrize(("name", "segment"), [("double", "remote_chunk_size"), ("nested", "segment_size")])
def test_segments_are_clamped_between_chunk_and_sequence(name: str, segment: str) -> None:
    """C is clamped to T, rc to c <= rc <= T."""
    strategy = CLOSED[name]
    clamped = strategy.clamp(Parameters({"chunk_size": 9, segment: 2}), steps=100)
    assert clamped == Parameters({"chunk_size": 9, segment: 9})
    clamped = strategy.clamp(Parameters({"chunk_size": 900, segment: 200}), steps=100)
    assert clamped == Parameters({"chunk_size": 100, segment: 100})


def test_more_slots_than_checkpoints_change_nothing() -> None:
    strategy = CLOSED["hierarchical"]
    few = one_cost(strategy, plain_costs(20), {"chunk_size": 5, "nb_local": 3})
    assert few == one_cost(strategy, plain_costs(20), {"chunk_size": 5, "nb_local": 1000})
