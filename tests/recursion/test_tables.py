"""Laws of the tables of the general optimum: a random problem is tabulated, and each law looks at the table.

Every value has its schedule, bounds lie below it, and no strategy of memorisation beats it. A table for more
units, and one of promising splits alone, decide as the whole one does.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from ckptplan.model.prediction import COUNTS
from ckptplan.model.split import Where
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion.memorising import Memorisation
from ckptplan.recursion.prices import SLACK, bound_by_prices, find_promising_splits
from ckptplan.recursion.pricing import Tally, price_tree, tally
from ckptplan.recursion.problem import Prices, Problem
from ckptplan.recursion.revolve import count_recomputed
from ckptplan.recursion.solver import solve
from ckptplan.recursion.tables import Tables
from ckptplan.recursion.tree import Part, Tree, UnitSizes, grow_tree
from ckptplan.schedule.simulator import play
from tests.support import changed, plain_costs, step_costs


@dataclass(frozen=True, kw_only=True)
class Job:
    """A problem that is tabulated: ``more`` units are for a larger table, and ``levels`` are of prices."""

    steps: int
    units: int
    sizes: UnitSizes
    prices: Prices
    more: int
    levels: int

    @property
    def given(self) -> dict[str, Any]:
        """The arguments of a table."""
        return {"steps": self.steps, "units": self.units, "sizes": self.sizes, "prices": self.prices}

    @property
    def root(self) -> Part:
        """The whole sequence."""
        return Part(Where.UNSTORED, self.steps, self.units)

    @cached_property
    def tables(self) -> Tables:
        """The table of all splits."""
        return Tables(**self.given)

    @cached_property
    def value(self) -> float:
        """The optimum, infinite if nothing fits."""
        return float(self.tables.value(self.root))

    def grow(self, decide: Any) -> Tree:
        """Return the schedule of a table's decisions."""
        return grow_tree(self.root, decide, sizes=self.sizes)


def cost_of(counted: Tally, prices: Prices) -> float:
    """What a schedule costs beyond the first sweep: steps that run again, transfers and actions."""
    moved = counted.remote_writes * prices.write if counted.remote_writes else 0.0
    read = counted.remote_reads * prices.read if counted.remote_reads else 0.0
    counts = (counted.advances, counted.chunks, counted.local_saves, counted.local_loads)
    actions = sum(count * cost for count, cost in zip(counts, prices.actions, strict=True))
    return counted.recomputed_steps * prices.recompute + moved + read + actions


def check_tree(job: Job, tree: Tree, prices: Prices, value: float) -> None:
    """The decisions, counted part by part and played, cost what is said, in the memory there was."""
    counted = tally(tree, state_bytes=job.sizes.state, tape_bytes=job.sizes.tape)
    assert cost_of(counted, prices) == pytest.approx(value, abs=1e-9)
    sizes = {"state_bytes": job.sizes.state, "tape_bytes": job.sizes.tape, "remote_state_bytes": 1}
    trace = play(tree.actions(), costs=plain_costs(job.steps, **sizes))
    assert trace.local_peak_bytes == counted.local_bytes <= job.units
    assert trace.remote_peak_bytes == counted.remote_states
    for name in COUNTS:
        assert getattr(trace, name) == getattr(counted, name)


def check_schedule(job: Job) -> None:
    """Every value has its schedule."""
    if job.value < inf:
        check_tree(job, job.grow(job.tables.decide), job.prices, job.value)


def check_narrowed(job: Job) -> None:
    """A table for more units answers a smaller budget as a table for that budget does."""
    narrow = Tables(**{**job.given, "units": job.units + job.more}).narrow(job.units)
    np.testing.assert_array_equal(job.tables.unstored, narrow.unstored)
    if job.value < inf:
        assert list(job.grow(job.tables.decide).actions()) == list(job.grow(narrow.decide).actions())


def check_widened(job: Job) -> None:
    """A table that is made from a narrower one, of no fewer steps, equals the one of all splits."""
    given = {**job.given, "units": job.units + job.more, "steps": max(1, job.steps - job.levels)}
    whole, widened = Tables(**given), Tables(**given, known=job.tables)
    for name in ("unstored", "local", "remote", "chunk"):
        np.testing.assert_array_equal(getattr(widened, name), getattr(whole, name))


def check_promising(job: Job) -> None:
    """Promising splits give the optimum and its schedule, or show that they do not."""
    promising = find_promising_splits(**job.given) if job.sizes.tape <= job.units else None
    if promising is None:
        return
    narrow = Tables(**job.given, promising=promising)
    assert (narrow.unstored >= job.tables.unstored).all()
    assert promising.most / (1 + SLACK) <= job.value * (1 + 1e-9)
    if job.value > promising.most:
        assert narrow.value(job.root) > promising.most
        return
    assert narrow.value(job.root) == job.value
    assert list(job.grow(job.tables.decide).actions()) == list(job.grow(narrow.decide).actions())


def check_bounds(job: Job) -> None:
    """Bounds by tapes and by prices never pass the optimum, within any number of units."""
    prices = job.prices.lowered(write=job.prices.write, read=job.prices.read)
    given = {**job.given, "prices": prices}
    optima = Tables(**given).unstored[job.steps]
    if job.steps > 1 and job.units > 1:
        first = min(job.sizes.tape, job.units)
        assert (bound_by_prices(**given, first=first, most_levels=job.levels) <= optima + 1e-9).all()
        problem = Problem(
            steps=job.steps, free_bytes=job.units, state_bytes=job.sizes.state, tape_bytes=job.sizes.tape,
            prices=prices, least_write=prices.write, least_read=prices.read,
        )  # fmt: skip
        assert problem.bound_by_memory() <= optima[job.units] + 1e-9


def check_memorisation(job: Job) -> None:
    """Memorisation of states, of tapes or of both is executed as counted, and never beats the optimum."""
    prices = Prices(recompute=job.prices.recompute, **dict(zip(ACTIONS, job.prices.actions, strict=True)))
    best = Tables(**{**job.given, "prices": prices}).value(job.root)
    for hidden, internal in product((False, True), repeat=2):
        if not hidden and not internal:
            continue
        table = Memorisation(**{**job.given, "prices": prices}, hidden=hidden, internal=internal)
        value = table.first_row()[job.units]
        assert best <= value * (1 + 1e-12)
        if value == inf:
            continue
        check_tree(job, job.grow(table.decide), prices, value)
        if not internal:
            # Single steps from slots: with free saves, binomial checkpointing is the best of them.
            slots = (job.units - job.sizes.tape) // job.sizes.state
            again = count_recomputed(job.steps, chunk=1, slots=slots) * prices.recompute
            free = again + (job.steps - 1) * (prices.advance + prices.load) + job.steps * prices.chunk
            assert free <= value * (1 + 1e-12)
            assert prices.save or value == pytest.approx(free)


LAWS = (check_schedule, check_narrowed, check_widened, check_promising, check_bounds, check_memorisation)
ACTIONS = ("advance", "chunk", "save", "load")
costs = st.sampled_from([0.0, 0.1, 0.25, 1.0, 3.0, 5.0])
transfers = st.sampled_from([0.0, 0.1, 0.5, 1.0, 4.0, 20.0, 50.0])


@settings(max_examples=max(40, settings().max_examples))
@given(
    job=st.builds(
        Job,
        steps=st.integers(1, 60),
        units=st.integers(1, 40),
        sizes=st.builds(UnitSizes, st.integers(1, 4), st.integers(1, 9)),
        prices=st.builds(
            lambda recompute, write, read, paid: Prices(recompute=recompute, write=write, read=read, **paid),
            st.sampled_from([0.1, 1.0, 2.0]), transfers | st.just(inf), transfers,
            st.just({}) | st.fixed_dictionaries(dict.fromkeys(ACTIONS, costs)),
        ),
        more=st.integers(1, 12),
        levels=st.integers(1, 8),
    )
)  # fmt: skip
def test_a_table_keeps_all_laws(job: Job) -> None:
    for law in LAWS:
        note(f"law: {law.__doc__}")
        law(job)


sizes = st.integers(1, 60)


@given(
    costs=step_costs(steps=st.integers(1, 40)),
    held=st.fixed_dictionaries({"state_bytes": sizes, "tape_bytes": sizes, "cache_bytes": st.integers(0, 30)}),
    free=st.integers(1, 2000),
    cheap=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
    chunk=st.integers(1, 3),
    lacking=st.integers(0, 2),
)
def test_the_counted_time_of_transfers_beside_compute_is_the_played_one(
    costs: StepCosts, held: dict[str, int], free: int, cheap: float, chunk: int, lacking: int
) -> None:
    """Schedules for cheap transfers move many states, and compute waits for dear ones; chunks may be ragged."""
    costs = changed(costs, overlaps_compute=True, **held)
    prices = Prices.of(costs, remote=True)
    cheaper = replace(prices, write=cheap * prices.recompute, read=cheap * prices.recompute)
    solved = solve(
        Problem(
            steps=costs.steps, free_bytes=free, state_bytes=costs.state_bytes, tape_bytes=costs.recorded_bytes,
            cache_bytes=costs.cache_bytes, prices=cheaper, least_write=0.0, least_read=0.0, front=True,
        )
    )  # fmt: skip
    candidates = solved.candidates if solved is not None else []
    in_chunks = changed(costs, steps=costs.steps * chunk - min(lacking, chunk - 1))
    for candidate in candidates[:: max(1, len(candidates) // 3)]:
        tree = replace(candidate.build(), chunk=chunk, steps=in_chunks.steps, counted={})
        counted, trace = price_tree(tree, costs=in_chunks), play(tree.actions(), costs=in_chunks)
        assert counted.seconds == pytest.approx(trace.seconds, rel=1e-12)
        for name in (*COUNTS, "local_peak_bytes", "remote_peak_bytes"):
            assert getattr(counted, name) == getattr(trace, name)
