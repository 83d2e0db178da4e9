"""Each closed form (the table of docs/equations.md) equals a step-by-step execution."""

import pytest

from ckptplan.model.record import Parameters
from tests.laws.test_settings import check_executed
from tests.strategies.reference import PROGRAMS
from tests.support import CLOSED, one_cost, plain_costs, settings_of


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
            check_executed(strategy, Parameters(setting), costs)


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


@pytest.mark.parametrize(
    ("name", "setting", "steps", "regular"),
    [
        # A checkpoint before each of 5 chunks, the first of them ragged or not, is Standard.
        ("revolve", {"chunk_size": 2, "nb_local": 4}, 10, True),
        ("revolve", {"chunk_size": 2, "nb_local": 4}, 9, True),
        ("revolve", {"chunk_size": 2, "nb_local": 4}, 11, False),
        # A single chunk does not grow.
        ("growing", {"chunk_size": 10, "state_units": 1, "tape_units": 1}, 10, True),
        ("growing", {"chunk_size": 9, "state_units": 1, "tape_units": 1}, 10, False),
        ("double-growing", {"chunk_size": 4, "remote_chunk_size": 4}, 10, True),
        ("double-growing", {"chunk_size": 3, "remote_chunk_size": 4}, 10, False),
    ],
)
def test_schedules_of_equal_chunks_are_regular(
    name: str, setting: dict[str, int], steps: int, regular: bool
) -> None:
    assert CLOSED[name].is_regular(Parameters(setting), steps=steps) == regular


def test_settings_of_revolve_whose_steps_cannot_be_counted_are_excluded() -> None:
    """T = 10**12 with one slot: 5 * 10**23 steps run again, or 5 * 10**17 with chunks of 10**6 steps."""
    for chunk, admitted in ((1, False), (10**6, True)):
        point = CLOSED["revolve"].point(Parameters(chunk_size=chunk, nb_local=1), steps=10**12)
        assert CLOSED["revolve"].admits(low=point, high=point, steps=10**12) == admitted
