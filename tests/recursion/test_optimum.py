"""The general optimum: equal to an exhaustive search, to classical problems, and executable as told."""

from math import inf
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptplan.model.split import Where
from ckptplan.recursion import bounds
from ckptplan.recursion.memorisation import Memorisation, count_forward_operations
from ckptplan.recursion.problem import Problem
from ckptplan.recursion.revolve import count_recomputed
from ckptplan.recursion.schedule_tree import grow_tree
from ckptplan.recursion.single_tape import SingleTape, is_classical
from ckptplan.recursion.solver import solve
from ckptplan.recursion.table_problem import WORK
from ckptplan.recursion.tables import Tables
from ckptplan.recursion.tally import tally
from ckptplan.recursion.tree import Part, UnitSizes
from ckptplan.schedule.simulator import play
from tests.recursion.exhaustive import Prices, least_cost
from tests.support import plain_costs

CASES = [(seed, 4) for seed in range(290)] + [(seed, 5) for seed in range(290, 320)]


@pytest.mark.parametrize("block", range(16))
def test_it_equals_an_exhaustive_search(block: int) -> None:
    """320 random problems: alpha from 1/3 to 4, f, r, w and read all different among them, remote included."""
    for seed, most in CASES[block * 20 : block * 20 + 20]:
        random = Random(seed)  # noqa: S311 - no secret
        steps = most if seed % 4 == 0 else random.randint(1, most)
        state, tape = random.randint(1, 3), random.randint(1, 4)
        units = random.randint(tape, tape + 3 * state + random.randint(0, 4))
        forward, recompute = random.choice([1.0, 2.0]), random.choice([0.1, 0.5, 1.0, 2.5])
        write, read = random.choice([0.0, 0.3, 1.0, 2.0, 6.0]), random.choice([0.0, 0.2, 1.0, 3.0])
        expected = least_cost(steps, Prices(units, state, tape, forward, recompute, write, read))
        tables = Tables(
            steps=steps, units=units, sizes=UnitSizes(state, tape), recompute=recompute, write=write, read=read
        )
        found = tables.value(Part(Where.UNSTORED, steps, units)) + steps * forward
        assert found == pytest.approx(expected, abs=1e-9), seed


sizes = st.builds(UnitSizes, st.integers(1, 4), st.integers(1, 9))
prices = st.sampled_from([0.0, 0.1, 1.0, 3.0, 20.0])


@given(
    steps=st.integers(1, 60), units=st.integers(1, 40), sizes=sizes, recompute=st.sampled_from([0.1, 1.0, 2.0]),
    write=prices | st.just(inf), read=prices,
)  # fmt: skip
def test_every_value_has_its_schedule(
    steps: int, units: int, sizes: UnitSizes, recompute: float, write: float, read: float
) -> None:
    """The decisions, counted part by part and played, cost what the table says, in the memory it had."""
    tables = Tables(steps=steps, units=units, sizes=sizes, recompute=recompute, write=write, read=read)
    root = Part(Where.UNSTORED, steps, units)
    value = tables.value(root)
    if value == inf:
        return
    tree = grow_tree(root, tables.decide, sizes=sizes)
    counted = tally(tree, state_bytes=sizes.state, tape_bytes=sizes.tape)
    moved = counted.remote_writes * write if counted.remote_writes else 0.0
    assert counted.recomputed_steps * recompute + moved + counted.remote_reads * read == pytest.approx(
        value, abs=1e-9
    )
    costs = plain_costs(steps, state_bytes=sizes.state, tape_bytes=sizes.tape, remote_state_bytes=1)
    trace = play(tree.actions(), costs=costs)
    assert trace.local_peak_bytes == counted.local_bytes <= units
    assert (trace.recomputed_steps, trace.remote_writes, trace.remote_reads, trace.remote_peak_bytes) == (
        counted.recomputed_steps,
        counted.remote_writes,
        counted.remote_reads,
        counted.remote_states,
    )


@given(
    steps=st.integers(1, 700), tape=st.integers(1, 9), more=st.integers(0, 8), state=st.integers(1, 9),
    recompute=st.sampled_from([0.1, 1.0, 2.0]), write=prices | st.just(inf), read=prices,
)  # fmt: skip
def test_the_classical_case_is_the_general_one(
    steps: int, tape: int, more: int, state: int, recompute: float, write: float, read: float
) -> None:
    """With room for a single tape, binomial checkpointing and one recursion over t give every value."""
    sizes, units = UnitSizes(min(state, tape), tape), tape + min(more, tape - 1)
    assert is_classical(units=units, sizes=sizes)
    single = SingleTape(steps=steps, units=units, sizes=sizes, recompute=recompute, write=write, read=read)
    reached = min(steps, 120) + 1
    tables = Tables(steps=reached - 1, units=units, sizes=sizes, recompute=recompute, write=write, read=read)
    np.testing.assert_allclose(single.unstored[:reached], tables.unstored[:, units], rtol=1e-12)
    np.testing.assert_allclose(single.remote[:reached], tables.remote[:, units], rtol=1e-12)
    if single.unstored[steps] < inf:
        root = Part(Where.UNSTORED, steps, units)
        tree = grow_tree(root, single.decide, sizes=sizes)
        counted = tally(tree, state_bytes=sizes.state, tape_bytes=sizes.tape)
        moved = counted.remote_writes * write if counted.remote_writes else 0.0
        total = counted.recomputed_steps * recompute + moved + counted.remote_reads * read
        assert total == pytest.approx(single.unstored[steps], abs=1e-9)
        assert counted.local_bytes <= units


def test_without_remote_memory_it_is_revolve() -> None:
    """H-Revolve and Disk-Revolve with no disk: one tape, s slots."""
    for slots in (1, 2, 5):
        single = SingleTape(
            steps=150, units=6 + slots, sizes=UnitSizes(1, 6), recompute=1.0, write=inf, read=inf
        )
        assert single.unstored[1:].tolist() == [
            count_recomputed(t, chunk=1, slots=slots) for t in range(1, 151)
        ]


@given(
    steps=st.integers(2, 150), units=st.integers(2, 25), sizes=sizes, recompute=st.sampled_from([0.1, 1.0]),
    write=prices, read=prices, block=st.integers(1, 60),
)  # fmt: skip
def test_bounds_never_pass_the_optimum(
    steps: int, units: int, sizes: UnitSizes, recompute: float, write: float, read: float, block: int
) -> None:
    tables = Tables(steps=steps, units=units, sizes=sizes, recompute=recompute, write=write, read=read)
    optimum = tables.value(Part(Where.UNSTORED, steps, units))
    least = bounds.solve_blocks(tables)
    tapes = bounds.bound_by_tapes(steps=steps, units=units, tape=sizes.tape, recompute=recompute)
    assert bounds.bound_by_blocks(least[: min(block, steps) + 1], steps=steps) <= optimum + 1e-9
    assert tapes <= optimum + 1e-9


def problem(steps: int, **changes: float) -> Problem:
    return Problem(
        **{
            "steps": steps,
            "free_bytes": 30,
            "state_bytes": 1,
            "tape_bytes": 1,
            "recompute": 0.1,
            "write": 20.0,
            "read": 20.0,
            "least_write": 20.0,
            "least_read": 20.0,
            **changes,
        }  # type: ignore[arg-type]
    )


def test_beyond_the_tables_a_schedule_and_a_bound_enclose_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forced out of its reach on problems whose optimum is known."""
    for steps, changes in ((800, {}), (1500, {"write": 2.0, "least_write": 2.0}), (1000, {"free_bytes": 120})):
        exact = solve(problem(steps, **changes), effort="thorough")
        assert exact is not None
        assert exact.exact
        optimum = min(candidate.extra for candidate in exact.candidates)
        assert exact.least_extra == pytest.approx(optimum)
        monkeypatch.setitem(WORK, "quick", 4 * 10**6)
        quick = solve(problem(steps, **changes), effort="quick")
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
    found = solve(problem(900, free_bytes=10**6, state_bytes=9973, tape_bytes=31337), effort="quick")
    assert found is not None
    assert not found.exact
    assert "bytes are lost for each state held" in found.rounding
    best = min(found.candidates, key=lambda candidate: candidate.extra)
    trace = play(best.build().actions(), costs=plain_costs(900, state_bytes=9973, tape_bytes=31337))
    assert trace.local_peak_bytes <= best.local_bytes <= 10**6
    assert found.least_extra <= best.extra


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
    methods=st.sampled_from([(1, 0), (0, 1), (1, 1)]),
)  # fmt: skip
def test_memorisation_is_executed_as_counted_and_never_beats_the_optimum(
    steps: int, units: int, sizes: UnitSizes, methods: tuple[int, int]
) -> None:
    hidden, internal = map(bool, methods)
    table = Memorisation(steps=steps, units=units, sizes=sizes, hidden=hidden, internal=internal)
    if steps == 1 or units < sizes.state or table.local[steps, units - sizes.state] == inf:
        return
    root = Part(Where.UNSTORED, steps, units)
    tree = grow_tree(root, table.decide, sizes=sizes)
    trace = play(tree.actions(), costs=plain_costs(steps, state_bytes=sizes.state, tape_bytes=sizes.tape))
    assert trace.recomputed_steps == table.local[steps, units - sizes.state]
    assert trace.local_peak_bytes <= units
    best = Tables(steps=steps, units=units, sizes=sizes, recompute=1.0, write=inf, read=inf)
    assert best.value(root) <= trace.recomputed_steps
