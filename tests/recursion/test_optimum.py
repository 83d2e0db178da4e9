"""The general optimum: equal to an exhaustive search, to classical problems, and executable as told."""

from dataclasses import replace
from math import inf
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptplan.model.split import Where
from ckptplan.recursion.classical import SingleTape, is_classical
from ckptplan.recursion.pricing import tally
from ckptplan.recursion.problem import WORK, Prices, Problem
from ckptplan.recursion.revolve import count_recomputed
from ckptplan.recursion.solver import solve
from ckptplan.recursion.tables import Tables
from ckptplan.recursion.tree import Part, UnitSizes, grow_tree
from ckptplan.schedule.simulator import play
from tests.recursion.against_search import check_plan, check_recursion
from tests.recursion.test_tables import cost_of
from tests.support import plain_costs

#: Free actions, and any costs of actions.
Paid: TypeAlias = dict[str, float]
names = ("advance", "chunk", "save", "load")
actions: st.SearchStrategy[Paid] = st.just({}) | st.fixed_dictionaries(
    dict.fromkeys(names, st.sampled_from([0.0, 0.1, 1.0, 5.0]))
)


CASES = [(seed, 4) for seed in range(140)] + [(seed, 5) for seed in range(140, 160)]


@pytest.mark.parametrize(
    "block", [*range(14), *(pytest.param(one, marks=pytest.mark.slow) for one in (14, 15))]
)
def test_it_equals_an_exhaustive_search(block: int) -> None:
    """Random problems: alpha from 1/3 to 4, all prices different among them, actions and remote included."""
    covered = [check_recursion(seed, most=most) for seed, most in CASES[block * 10 : block * 10 + 10]]
    assert any(covered)


@pytest.mark.parametrize("block", range(6))
def test_plans_lie_between_their_bound_and_an_exhaustive_search(block: int) -> None:
    """Limits of remote memory included; without one, a plan is the least of all where actions are covered."""
    proved = [check_plan(seed, most=4) for seed in range(block * 10, block * 10 + 10)]
    assert any(proved)


@pytest.mark.parametrize("block", range(6))
def test_single_steps_do_not_pay_for_the_workspace_of_longer_chunks(block: int) -> None:
    """The least of all schedules, of which only those with a chunk of several steps need the workspace."""
    seeds = range(block * 10, block * 10 + 10)
    assert any(check_plan(seed, most=4, workspace=1 + seed % 5) for seed in seeds)


sizes = st.builds(UnitSizes, st.integers(1, 4), st.integers(1, 9))
prices = st.sampled_from([0.0, 0.1, 1.0, 3.0, 20.0])


@given(
    steps=st.integers(1, 700), tape=st.integers(1, 9), more=st.integers(0, 8), state=st.integers(1, 9),
    recompute=st.sampled_from([0.1, 1.0, 2.0]), write=prices | st.just(inf), read=prices, paid=actions,
)  # fmt: skip
def test_the_classical_case_is_the_general_one(
    steps: int, tape: int, more: int, state: int, recompute: float, write: float, read: float,
    paid: Paid,
) -> None:  # fmt: skip
    """With room for a single tape, binomial checkpointing and one recursion over t give every value.

    With costly saves, or local loads that cost more than remote ones, they give schedules and a bound.
    """
    sizes, units = UnitSizes(min(state, tape), tape), tape + min(more, tape - 1)
    assert is_classical(units=units, sizes=sizes)
    prices = Prices(recompute=recompute, write=write, read=read, **paid)
    single = SingleTape(steps=steps, units=units, sizes=sizes, prices=prices)
    reached = min(steps, 120) + 1
    tables = Tables(steps=reached - 1, units=units, sizes=sizes, prices=prices)
    exact = not prices.save and prices.load <= read
    cheaper = replace(prices, save=0.0, load=min(prices.load, read))
    free = single if exact else SingleTape(steps=steps, units=units, sizes=sizes, prices=cheaper)
    assert (free.unstored[:reached] <= tables.unstored[:, units] * (1 + 1e-12)).all()
    assert (single.unstored[:reached] >= tables.unstored[:, units] * (1 - 1e-12)).all()
    if exact and write < inf:
        np.testing.assert_allclose(single.remote[:reached], tables.remote[:, units], rtol=1e-12)
    if single.unstored[steps] < inf:
        root = Part(Where.UNSTORED, steps, units)
        tree = grow_tree(root, single.decide, sizes=sizes)
        counted = tally(tree, state_bytes=sizes.state, tape_bytes=sizes.tape)
        assert cost_of(counted, prices) == pytest.approx(single.unstored[steps], abs=1e-9)
        assert counted.local_bytes <= units


@given(steps=st.integers(64, 700), write=prices, read=prices, recompute=st.sampled_from([0.1, 1.0, 2.0]))
def test_splits_of_long_sequences_are_examined_in_pieces(
    steps: int, write: float, read: float, recompute: float
) -> None:
    """A piece is skipped only if no split in it costs less: every value is the same."""
    job: dict[str, Any] = {"steps": steps, "units": 5, "sizes": UnitSizes(1, 1)}
    one_by_one = SingleTape(**job, prices=Prices(recompute=recompute, write=write, read=read))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ckptplan.recursion.classical._FEW_PIECES", 1)
        in_pieces = SingleTape(**job, prices=Prices(recompute=recompute, write=write, read=read))
    np.testing.assert_allclose(in_pieces.unstored, one_by_one.unstored, rtol=1e-12)
    np.testing.assert_allclose(in_pieces.remote, one_by_one.remote, rtol=1e-12)


def test_without_remote_memory_it_is_revolve() -> None:
    """H-Revolve and Disk-Revolve with no disk: one tape, s slots."""
    for slots in (1, 2, 5):
        prices = Prices(recompute=1.0)
        single = SingleTape(steps=150, units=6 + slots, sizes=UnitSizes(1, 6), prices=prices)
        assert single.unstored[1:].tolist() == [
            count_recomputed(t, chunk=1, slots=slots) for t in range(1, 151)
        ]


def problem(steps: int, *, write: float = 20.0, **changes: Any) -> Problem:
    return Problem(
        **{
            "steps": steps,
            "free_bytes": 30,
            "state_bytes": 1,
            "tape_bytes": 1,
            "prices": Prices(recompute=0.1, write=write, read=20.0),
            "least_write": write,
            "least_read": 20.0,
            **changes,
        }
    )


def test_beyond_the_tables_a_schedule_and_a_bound_enclose_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forced out of its reach on problems whose optimum is known."""
    cases: dict[int, dict[str, Any]] = {800: {}, 1500: {"write": 2.0}, 1000: {"free_bytes": 120}}
    for steps, changes in cases.items():
        exact = solve(problem(steps, effort="thorough", **changes))
        assert exact is not None
        assert exact.exact
        optimum = min(candidate.extra for candidate in exact.candidates)
        assert exact.least_extra == pytest.approx(optimum)
        monkeypatch.setitem(WORK, "quick", 4 * 10**6)
        quick = solve(problem(steps, **changes))
        assert quick is not None
        assert not quick.exact
        found = min(candidate.extra for candidate in quick.candidates)
        assert quick.least_extra <= optimum + 1e-9
        assert found >= optimum - 1e-9
        for candidate in quick.candidates:
            tree = candidate.build()
            trace = play(
                tree.actions(),
                costs=plain_costs(
                    steps, state_bytes=1, tape_bytes=1, recompute_seconds=0.1, message_seconds=0.0,
                    write_seconds=changes.get("write", 20.0), read_seconds=20.0,
                ),
            )  # fmt: skip
            assert trace.local_peak_bytes <= candidate.local_bytes
            assert trace.seconds - steps * 3.0 <= candidate.extra + 1e-6


def test_sizes_that_share_no_unit_are_rounded_up_and_keep_the_budget() -> None:
    found = solve(problem(900, free_bytes=10**6, state_bytes=9973, tape_bytes=31337))
    assert found is not None
    assert not found.exact
    assert "bytes are lost for each state held" in found.notes[0]
    best = min(found.candidates, key=lambda candidate: candidate.extra)
    trace = play(best.build().actions(), costs=plain_costs(900, state_bytes=9973, tape_bytes=31337))
    assert trace.local_peak_bytes <= best.local_bytes <= 10**6
    assert found.least_extra <= best.extra
