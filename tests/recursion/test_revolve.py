"""Binomial checkpointing: the numbers of the literature, its recurrence, and chunks."""

from functools import cache
from math import inf

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ckptplan.model.budget import Budget
from ckptplan.model.record import Parameters
from ckptplan.model.workload import ACTION_TIMES
from ckptplan.recursion import revolve
from ckptplan.recursion.classical import solve_classical
from ckptplan.recursion.growing import count_chunks, growth_ratio, list_chunk_ends
from ckptplan.recursion.pricing import tally
from ckptplan.recursion.problem import Prices, Problem
from ckptplan.strategies.registry import closed_form_of
from tests.support import CLOSED, ask, one_cost, plain_costs


@pytest.mark.parametrize(
    ("steps", "slots", "again"),
    [(100, 3, 490), (256, 8, 804), (1000, 10, 3636), (1000, 50, 1948), (4096, 12, 18100), (4096, 64, 10077)],
)
def test_known_counts(steps: int, slots: int, again: int) -> None:
    """Griewank and Walther's k T - C(s + k, s + 1), and the strategy's closed form."""
    assert revolve.count_recomputed(steps, chunk=1, slots=slots) == again
    setting = Parameters(chunk_size=1, nb_local=slots)
    counts = closed_form_of("revolve").counts(
        low=closed_form_of("revolve").point(setting, steps=steps),
        high=closed_form_of("revolve").point(setting, steps=steps),
        steps=steps,
    )
    assert counts.recomputed_steps[0] == again


def test_it_is_its_recurrence() -> None:
    """For all T up to 200 and s up to 12: advance to a checkpoint, reverse the rest, come back."""
    table = np.zeros((13, 201), dtype=np.int64)
    for steps in range(1, 201):
        table[1, steps] = steps * (steps - 1) // 2
    for slots in range(2, 13):
        for steps in range(2, 201):
            lengths = np.arange(1, steps)
            table[slots, steps] = np.min(lengths + table[slots, lengths] + table[slots - 1, steps - lengths])
    for slots in range(1, 13):
        numbers = np.arange(1, 201)
        found, _ = revolve.count_at(numbers, chunk=np.array([1]), slots=np.array([slots]))
        assert (found == table[slots, 1:]).all()
        assert [revolve.count_recomputed(int(n), chunk=1, slots=slots) for n in numbers] == found.tolist()


def test_it_saves_no_more_than_any_schedule_that_runs_as_few_steps_again() -> None:
    """max(C(s + k - 2, s - 1), n - C(s + k - 1, s)): for all n up to 60 and s up to 8, every split is tried."""

    @cache
    def least(pieces: int, slots: int) -> tuple[int, int]:
        """Steps that run again, and saves, the first state included."""
        if pieces == 1:
            return 0, 0
        found = []
        for left in range(1, pieces):
            if pieces - left == 1 or slots > 1:
                first, rest = least(left, slots), least(pieces - left, slots - 1)
                found.append((left + first[0] + rest[0], max(first[1], 1) + rest[1]))
        return min(found)

    for slots in range(1, 9):
        for pieces in range(1, 61):
            counted = revolve.count_recomputed(pieces, chunk=1, slots=slots)
            assert (counted, revolve.count_saves(pieces, slots=slots)) == least(pieces, slots)
    numbers = np.arange(1, 1500)
    for slots in (1, 2, 3, 8, 100):
        saves = revolve.count_at(numbers, chunk=np.array([1]), slots=np.array([slots]))[1]
        sweeps = revolve.count_sweeps_at(numbers, slots=np.array([slots]))
        assert saves.tolist() == [revolve.count_saves(int(n), slots=slots) for n in numbers]
        assert all(sweeps[n - 1] >= revolve.least_sweeps(n, slots) for n in range(2, 1500))


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 30, 100])
def test_the_counts_in_closed_form_are_those_of_the_tree(steps: int) -> None:
    """For every number of slots that the solver lists."""
    state, tape = 3, 5
    problem = Problem(
        steps=steps, free_bytes=None, state_bytes=state, tape_bytes=tape, prices=Prices(recompute=1.0),
        least_write=inf, least_read=inf, front=True,
    )  # fmt: skip
    candidates = solve_classical(problem).candidates
    assert candidates
    for candidate in candidates:
        slots = (candidate.local_bytes - tape) // state
        given, counted = (
            tally(tree, state_bytes=state, tape_bytes=tape)
            for tree in (candidate.build(), revolve.make_revolve_tree(slots, steps=steps))
        )
        assert given == counted
        assert given.recomputed_steps == candidate.extra


def test_arrays_and_numbers_agree_where_sweeps_are_many_and_counts_saturate() -> None:
    for steps, chunk, slots in (
        (10**9, 1, 1),
        (10**12, 7, 1),
        (10**9, 3, 2),
        (5000, 1, 1),
        (9, 10, 0),
        (11, 10, 0),
    ):
        found, _ = revolve.count_at(np.array([steps]), chunk=np.array([chunk]), slots=np.array([slots]))
        assert found[0] == revolve.count_recomputed(steps, chunk=chunk, slots=slots)
    assert revolve.count_recomputed(10**12, chunk=1, slots=1) == revolve.MOST


@pytest.mark.parametrize("slots", [0, 1, 2, 5])
@pytest.mark.parametrize(("transfer", "recompute"), [(0.0, 1.0), (3.0, 1.0), (10.0, 0.1), (40.0, 2.0)])
def test_disk_revolve_is_its_recurrence(slots: int, transfer: float, recompute: float) -> None:
    """Aupy et al. 2016: a segment is written and read once, and reversed by binomial checkpointing.

    With little remote memory there are fewer segments; with all the slots that a tape leaves, no others.
    """

    @cache
    def least(steps: int, most: int) -> float:
        alone = revolve.count_recomputed(steps, chunk=1, slots=slots) * recompute
        segments = (
            transfer
            + (y + revolve.count_recomputed(y, chunk=1, slots=slots)) * recompute
            + least(steps - y, most - 1)
            for y in range(1, steps)
            if most
        )
        return min([alone, *segments])

    for steps in (*range(1, 40), 89):
        costs = plain_costs(
            steps, tape_bytes=50, recompute_seconds=recompute, message_seconds=0.0,
            write_seconds=transfer / 4, read_seconds=transfer * 3 / 4,
        )  # fmt: skip
        for most in (0, 1, 2, 3, 7, steps):
            budget = Budget(local_bytes=50 + 10 * slots, remote_bytes=most * 1000)
            answer = ask(costs=costs, budget=budget, strategies=("disk-revolve",)).best()
            wanted = least(steps, most)
            assert (answer is None) == (wanted >= revolve.MOST * recompute)
            if answer is not None:
                assert answer.key[0] - costs.sweep_seconds == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize(("alpha", "least"), [(1, 91), (2, 128), (5, 204)])
def test_growing_chunks_need_less_than_equal_ones(alpha: int, least: int) -> None:
    """Least peaks in states at T = 4096 (docs/optimality.md); 127, 181 and 286 for equal chunks."""
    p, q = growth_ratio(state=1, tape=alpha)
    lengths = np.arange(1, 4097)
    number = count_chunks(np.full(4096, 4096), chunk=lengths, p=np.array([p]), q=np.array([q]))
    assert (number - 1 + lengths * alpha).min() == least


def test_growing_chunks_never_need_more_and_reach_standards_longest() -> None:
    """On the paper's tile Standard ends at 3,260 steps and growing chunks at 3,560."""
    for steps in (5, 60, 333):
        for state, tape in ((1, 1), (3, 7), (5, 2)):
            costs = plain_costs(steps, state_bytes=state, tape_bytes=tape)
            p, q = growth_ratio(state=state, tape=tape)
            for chunk in range(1, steps + 1):
                equal = one_cost(CLOSED["standard"], costs, {"chunk_size": chunk})
                grown = one_cost(
                    CLOSED["growing"], costs, {"chunk_size": chunk, "state_units": p, "tape_units": q}
                )
                assert grown.seconds[0] == equal.seconds[0]
                assert grown.local_peak_bytes[0] <= equal.local_peak_bytes[0]


def test_growth_is_never_rounded_up() -> None:
    for state in range(1, 40):
        for tape in range(1, 200):
            p, q = growth_ratio(state=state, tape=tape)
            assert p >= 1
            assert p * tape <= state * q


def test_chunks_are_counted_as_they_are_cut() -> None:
    for steps in (1, 2, 17, 200):
        for chunk in (1, 3, 50, 300):
            for p, q in ((1, 1), (3, 1), (2, 7), (1, 100)):
                number = count_chunks(
                    np.array([steps]), chunk=np.array([chunk]), p=np.array([p]), q=np.array([q])
                )[0]
                assert number == len(list_chunk_ends(steps, chunk=min(chunk, steps), p=p, q=q)) + 1


prices = st.sampled_from([0.0, 0.1, 1.0, 7.0])


@given(
    steps=st.integers(1, 24), slots=st.integers(0, 4), write=prices, read=prices, paid=st.tuples(*[prices] * 4),
    recompute=st.sampled_from([0.1, 1.0]),
)  # fmt: skip
# A plan without a slot saves nothing and is chosen, though it is not the least: with a tie, and without one.
@example(steps=4, slots=1, write=0.1, read=1.0, paid=(0.0, 0.0, 1.0, 0.0), recompute=1.0)
@example(steps=20, slots=1, write=0.01, read=1.0, paid=(0.0, 0.0, 0.12, 0.0), recompute=1.0)
def test_disk_revolve_is_the_least_of_its_form_but_for_the_saves_it_would_make_if_they_were_free(
    steps: int, slots: int, write: float, read: float, paid: tuple[float, ...], recompute: float
) -> None:
    """Remote checkpoints in the first sweep only, single steps between them: all splits are tried."""
    a, k, paid_save, back = paid
    costs = plain_costs(
        steps, tape_bytes=50, write_seconds=write, read_seconds=read, message_seconds=0.0,
        recompute_seconds=recompute, **dict(zip(ACTION_TIMES, paid, strict=True)),
    )  # fmt: skip

    @cache
    def owned(pieces: int, free: int, s: float) -> float:
        """The first state is in a slot; ``free`` slots are left, and a save costs ``s``."""
        if pieces == 1:
            return k
        return min(
            (
                a + y * recompute + local(pieces - y, free, s) + back + owned(y, free, s)
                for y in range(1, pieces)
            ),
            default=inf,
        )

    @cache
    def local(pieces: int, free: int, s: float) -> float:
        if pieces == 1:
            return k
        return s + owned(pieces, free - 1, s) if free else inf

    @cache
    def whole(pieces: int, s: float) -> float:
        """The first state is not stored, and the first sweep is still to come."""
        remote = (
            write + a + y * recompute + whole(pieces - y, s) + read + local(y, slots, s)
            for y in range(1, pieces)
        )
        return min([local(pieces, slots, s), *remote])

    budget = Budget(local_bytes=50 + 10 * slots)
    answer = ask(costs=costs, budget=budget, strategies=("disk-revolve",)).best()
    unpaid = costs.model_copy(update={"save_seconds": 0.0})
    free = ask(costs=unpaid, budget=budget, strategies=("disk-revolve",)).best()
    assert answer is not None
    assert free is not None
    assert free.key[0] - costs.sweep_seconds == pytest.approx(whole(steps, 0.0), abs=1e-9)
    extra, least = answer.key[0] - costs.sweep_seconds, whole(steps, paid_save)
    saves = free.totals(unpaid).local_saves
    assert least - 1e-9 <= extra <= least + saves * paid_save + 1e-9
