"""States held while nobody knows how long the sequence is: the guarantee, the rule, and its work."""

from itertools import takewhile
from math import comb, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptplan.recursion.online import Snapshots, bound_advances, count_advances, list_milestones
from ckptplan.recursion.revolve import count_recomputed, least_sweeps


def sweep(slots: int, steps: int) -> Snapshots:
    """Return the states held when a sequence ends after so many steps."""
    snapshots = Snapshots(slots)
    for state in range(1, steps):
        snapshots.offer(state)
    return snapshots


def milestones_before(steps: int, *, slots: int) -> set[int]:
    """Return the states before so many steps that are milestones of their level."""
    states = (state for state, _ in list_milestones(slots))
    return set(takewhile(lambda state: state < steps, states))


@given(slots=st.integers(1, 60), steps=st.integers(1, 3000))
def test_no_step_needs_to_run_more_often_than_is_proved(slots: int, steps: int) -> None:
    """With the milestones alone: once in the sweep, and in its gap as often as binomial checkpointing needs."""
    held = sorted(sweep(slots, steps).fixed)
    gaps = zip(held, [*held[1:], steps], strict=True)
    runs = [
        1 + least_sweeps(end - start, slots - number) for number, (start, end) in enumerate(gaps) if end > start
    ]
    assert max(runs) <= bound_advances(steps, slots=slots)


@given(slots=st.integers(1, 60), steps=st.integers(1, 3000))
def test_all_steps_together_run_no_more_often_than_that(slots: int, steps: int) -> None:
    held = sweep(slots, steps).settle(steps)
    assert count_advances(held, steps, slots=slots) <= bound_advances(steps, slots=slots) * steps


@pytest.mark.parametrize("slots", [1, 2, 3, 10])
@pytest.mark.parametrize("runs", [1, 2, 3, 4])
def test_the_bound_is_the_least_that_any_rule_can_keep(slots: int, runs: int) -> None:
    """Gaps whose steps run r - 1 times more have at most C(s + r, s) - 1 steps in all."""
    most = sum(comb(slots - number + runs - 1, runs - 1) for number in range(slots))
    assert most == comb(slots + runs, slots) - 1
    assert bound_advances(most, slots=slots) == runs
    assert bound_advances(most + 1, slots=slots) == runs + 1


@given(slots=st.integers(1, 40), steps=st.integers(1, 2000))
def test_states_are_held_in_order_and_never_too_many(slots: int, steps: int) -> None:
    snapshots = Snapshots(slots)
    for state in range(1, steps):
        before = list(snapshots.held)
        gone = snapshots.offer(state)
        expected = [*before, state] if gone != state else before
        assert snapshots.held == [one for one in expected if one != gone or gone == state]
        assert len(snapshots.held) <= slots
        assert snapshots.held[0] == 0
        assert snapshots.fixed <= set(snapshots.held)


@pytest.mark.parametrize("slots", [3, 10, 50])
def test_comparisons_become_rare(slots: int) -> None:
    """Each costs O(s): with O(s log T) of them, the work of a step falls as s^2 log T / T."""
    for steps in (1_000, 10_000, 100_000):
        asked = sweep(slots, steps).questions
        milestones = len(milestones_before(steps, slots=slots))
        assert asked <= slots * (16 * log(steps / slots) + 16) + milestones
        if steps == 100_000:
            assert asked < steps / 5


@pytest.mark.parametrize(("slots", "steps"), [(1, 40), (2, 60), (5, 300), (12, 700)])
def test_what_is_dropped_costs_least_if_the_sequence_ended_with_the_next_step(slots: int, steps: int) -> None:
    """Where a state is compared at every step and none is a milestone, against all choices one by one."""
    snapshots = Snapshots(slots)
    fixed = milestones_before(steps, slots=slots)
    for state in range(1, steps):
        before, asked = list(snapshots.held), snapshots.questions
        snapshots.offer(state)
        if snapshots.questions == asked or state in fixed:
            continue
        choices = [before]
        choices += [
            [one for one in [*before, state] if one != gone] for gone in before if gone not in snapshots.fixed
        ]
        costs = [count_advances(held, state + 1, slots=slots) for held in choices]
        assert count_advances(snapshots.held, state + 1, slots=slots) == min(costs)


def test_a_single_slot_holds_the_first_state() -> None:
    assert sweep(1, 50).held == [0]
    assert count_advances([0], 50, slots=1) == 50 + count_recomputed(50, chunk=1, slots=1)
