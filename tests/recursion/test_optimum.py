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
from ckptplan.recursion.memorising import Memorisation
from ckptplan.recursion.prices import bound_by_prices
from ckptplan.recursion.pricing import Tally, tally
from ckptplan.recursion.problem import WORK, Prices, Problem, bound_by_tapes
from ckptplan.recursion.revolve import count_recomputed
from ckptplan.recursion.solver import solve
from ckptplan.recursion.tables import Tables, Values
from ckptplan.recursion.tree import Part, UnitSizes, grow_tree
from ckptplan.schedule.simulator import play
from tests.recursion.against_search import check_plan, check_recursion
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
    steps=st.integers(1, 60), units=st.integers(1, 40), sizes=sizes, recompute=st.sampled_from([0.1, 1.0, 2.0]),
    write=prices | st.just(inf), read=prices, paid=actions,
)  # fmt: skip
def test_every_value_has_its_schedule(
    steps: int, units: int, sizes: UnitSizes, recompute: float, write: float, read: float, paid: Paid
) -> None:
    """The decisions, counted part by part and played, cost what the table says, in the memory it had."""
    prices = Prices(recompute=recompute, write=write, read=read, **paid)
    tables = Tables(steps=steps, units=units, sizes=sizes, prices=prices)
    root = Part(Where.UNSTORED, steps, units)
    value = tables.value(root)
    if value == inf:
        return
    tree = grow_tree(root, tables.decide, sizes=sizes)
    counted = tally(tree, state_bytes=sizes.state, tape_bytes=sizes.tape)
    moved = counted.remote_writes * write if counted.remote_writes else 0.0
    total = counted.recomputed_steps * recompute + moved + counted.remote_reads * read
    assert total + action_cost(counted, prices) == pytest.approx(value, abs=1e-9)
    costs = plain_costs(steps, state_bytes=sizes.state, tape_bytes=sizes.tape, remote_state_bytes=1)
    trace = play(tree.actions(), costs=costs)
    assert trace.local_peak_bytes == counted.local_bytes <= units
    assert trace.remote_peak_bytes == counted.remote_states
    for name in Tally._fields[:-2]:
        assert getattr(trace, name) == getattr(counted, name)


def action_cost(counted: Tally, prices: Prices) -> float:
    """What the actions of a schedule cost."""
    counts = (counted.advances, counted.chunks, counted.local_saves, counted.local_loads)
    return sum(count * cost for count, cost in zip(counts, prices.actions, strict=True))


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
        moved = counted.remote_writes * write if counted.remote_writes else 0.0
        total = counted.recomputed_steps * recompute + moved + counted.remote_reads * read
        assert total + action_cost(counted, prices) == pytest.approx(single.unstored[steps], abs=1e-9)
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


@given(
    steps=st.integers(2, 150), units=st.integers(2, 25), sizes=sizes, recompute=st.sampled_from([0.1, 1.0]),
    write=prices | st.just(inf), read=prices, levels=st.integers(1, 8), paid=actions,
)  # fmt: skip
def test_bounds_never_pass_the_optimum(
    steps: int, units: int, sizes: UnitSizes, recompute: float, write: float, read: float, levels: int,
    paid: Paid,
) -> None:  # fmt: skip
    """That of the tapes, and those by prices within every number of units."""
    prices = Prices(recompute=recompute, **paid).lowered(write=write, read=read)
    job: dict[str, Any] = {"steps": steps, "units": units, "sizes": sizes, "prices": prices}
    optima = Tables(**job).unstored[steps]
    least = bound_by_prices(**job, first=min(sizes.tape, units), most_levels=levels)
    assert (least <= optima + 1e-9).all()
    tapes = bound_by_tapes(prices, steps=steps, units=units, tape=sizes.tape)
    assert tapes <= optima[units] + 1e-9


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


def count_forward_operations(*, steps: int, units: int, alpha: int, hidden: bool, internal: bool) -> float:
    """Return C(t, m) as the paper counts: forward operations, including the first sweep and each recording.

    ``units`` counts states, including the segment's start and excluding the tape being worked on. A stored
    tape takes ``alpha`` units and also restores the state behind it. For the paper's internal state
    memorisation, with tapes only, set ``alpha`` to 1 and let ``units`` count tapes.
    """
    table = np.full((steps + 1, units + 1), np.inf)
    table[0] = 0
    for t in range(1, steps + 1):
        row = table[t]
        if hidden:
            # Run all t steps, reverse the last one at once, and start again with t - 1.
            row[1:] = t + table[t - 1, 1:]
        np.minimum(row, _least(table, t, alpha=alpha, hidden=hidden, internal=internal), out=row)
        if hidden:
            row[0] = np.inf
    return float(table[steps, units])


def _least(table: Values, t: int, *, alpha: int, hidden: bool, internal: bool) -> Values:
    lengths = np.arange(1, t + 1)[:, None]
    least = np.full(table.shape[1], np.inf)
    if internal:
        rests = np.full((t, table.shape[1]), np.inf)
        rests[:, alpha:] = table[t - 1 :: -1][:t, : max(0, table.shape[1] - alpha)]
        np.minimum(least, (lengths + rests + table[:t]).min(axis=0), out=least)
    if hidden and t > 1:
        rests = np.full((t - 1, table.shape[1]), np.inf)
        rests[:, 1:] = table[t - 1 : 0 : -1, :-1]
        np.minimum(least, (lengths[:-1] + rests + table[1:t]).min(axis=0), out=least)
    return least


@pytest.mark.parametrize("alpha", [2, 5, 10])
def test_mixed_memorisation_at_5_percent(alpha: int) -> None:
    """Gruslys et al. 2016: 1.950 forward operations a step at 5 % of full memory, by their convention."""
    units = 1000 * alpha // 20
    count = count_forward_operations(steps=1000, units=units, alpha=alpha, hidden=True, internal=True)
    assert count / 1000 == pytest.approx(1.950, abs=5e-4)


def test_hidden_and_internal_memorisation_are_their_recurrences() -> None:
    """HSM is Revolve counted with its recordings; ISM is binomial, too."""
    for steps in (1, 2, 7, 30):
        for slots in (1, 2, 4, 40):
            hidden = count_forward_operations(steps=steps, units=slots, alpha=1, hidden=True, internal=False)
            assert hidden == count_recomputed(steps, chunk=1, slots=slots) + steps

    def internal(steps: int, tapes: int) -> float:
        if steps == 0 or tapes >= steps:
            return steps
        if tapes == 0:
            return inf
        return min(y + internal(steps - y, tapes - 1) + internal(y - 1, tapes) for y in range(1, steps + 1))

    for steps in range(1, 9):
        for tapes in range(1, 5):
            found = count_forward_operations(steps=steps, units=tapes, alpha=1, hidden=False, internal=True)
            assert found == internal(steps, tapes)


@given(
    steps=st.integers(1, 60), units=st.integers(1, 40), sizes=sizes,
    methods=st.sampled_from([(1, 0), (0, 1), (1, 1)]), recompute=st.sampled_from([0.1, 1.0]), paid=actions,
)  # fmt: skip
def test_memorisation_is_executed_as_counted_and_never_beats_the_optimum(
    steps: int, units: int, sizes: UnitSizes, methods: tuple[int, int], recompute: float, paid: Paid
) -> None:
    prices = Prices(recompute=recompute, **paid)
    hidden, internal = map(bool, methods)
    table = Memorisation(
        steps=steps, units=units, sizes=sizes, hidden=hidden, internal=internal, prices=prices
    )  # fmt: skip
    value = table.first_row()[units]
    if value == inf:
        return
    root = Part(Where.UNSTORED, steps, units)
    tree = grow_tree(root, table.decide, sizes=sizes)
    trace = play(tree.actions(), costs=plain_costs(steps, state_bytes=sizes.state, tape_bytes=sizes.tape))
    counted = tally(tree, state_bytes=sizes.state, tape_bytes=sizes.tape)
    for name in Tally._fields[:-2]:
        assert getattr(trace, name) == getattr(counted, name)
    assert trace.recomputed_steps * recompute + action_cost(counted, prices) == pytest.approx(value)
    assert trace.local_peak_bytes == counted.local_bytes <= units
    best = Tables(steps=steps, units=units, sizes=sizes, prices=prices)
    assert best.value(root) <= value * (1 + 1e-12)
    if not internal:
        # Single steps from slots: with free saves, binomial checkpointing is the best of them.
        slots = (units - sizes.tape) // sizes.state
        again = count_recomputed(steps, chunk=1, slots=slots)
        free = again * recompute + (steps - 1) * (prices.advance + prices.load) + steps * prices.chunk
        assert free <= value * (1 + 1e-12)
        assert prices.save or value == pytest.approx(free)
