"""Optimal schedules of jobs whose caches take memory: what is kept, what it costs, and what is proved."""

import json
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ckptplan import (
    HardwareProfile,
    Workload,
    actions,
    compare,
    load_plan,
    load_schedule,
    optimize,
    pareto,
    save_plan,
    save_schedule,
    simulate,
)
from ckptplan.errors import InputError
from ckptplan.model.budget import Budget
from ckptplan.model.prediction import COUNTS
from ckptplan.model.split import Choice, Split
from ckptplan.model.step_costs import StepCosts
from ckptplan.recursion import problem as problems
from ckptplan.recursion.growing import CachedGrowth, _find_runs
from ckptplan.recursion.problem import Prices, Problem
from ckptplan.recursion.revolve import count_recomputed
from ckptplan.recursion.table_problem import clear_caches
from ckptplan.schedule.actions import Action, Advance
from ckptplan.schedule.simulator import play
from ckptplan.strategies.answer import Answer
from ckptplan.strategies.solved import Task
from tests.recursion import exhaustive
from tests.recursion.part_recursion import least_part_cost
from tests.support import SOLVED, ask, changed, totals_of

#: Share of a time by which another order of its terms may change it.
EXACT = 1e-9
OPTIMAL = SOLVED["optimal"]


def random_costs(random: Random, *, steps: int) -> StepCosts:
    """A job of small whole sizes; half of all jobs have costs of actions. Moving a cache takes too long."""
    paid = random.random() < 0.5
    actions = [random.choice([0.0, 0.1, 0.4, 1.0]) if paid else 0.0 for _ in range(4)]
    forward = random.choice([1.0, 2.0])
    return StepCosts(
        steps=steps, state_bytes=random.randint(1, 3), tape_bytes=random.randint(1, 4),
        cache_bytes=random.randint(1, 3), remote_state_bytes=1, forward_seconds=forward, backward_seconds=1.0,
        recompute_seconds=forward * random.choice([0.0, 0.1, 0.3, 0.5, 1.0]),
        write_seconds=random.choice([0.3, 1.0, 2.0, 6.0]), read_seconds=random.choice([0.2, 1.0, 3.0]),
        cache_write_seconds=2.0, cache_read_seconds=2.0,
        advance_seconds=actions[0], chunk_seconds=actions[1], save_seconds=actions[2], load_seconds=actions[3],
    )  # fmt: skip


def random_job(seed: int, *, steps: int) -> tuple[StepCosts, Budget]:
    """A job that the recursion covers, and a budget; one in three has no remote memory."""
    random = Random(seed)  # noqa: S311 - no secret
    costs = random_costs(random, steps=steps)
    while not Prices.of(costs, remote=True).recursion_is_exact:
        costs = random_costs(random, steps=steps)
    least = costs.recorded_bytes
    free = random.randint(least, least + 3 * (costs.state_bytes + costs.cache_bytes) + random.randint(0, 4))
    return costs, Budget(local_bytes=free, remote_bytes=None if seed % 3 else 0)


def search_prices(costs: StepCosts, budget: Budget) -> exhaustive.Prices:
    """The job for a search that knows no table."""
    moves = budget.remote_bytes is None
    return exhaustive.Prices(
        units=budget.local_bytes or 0, state=costs.state_bytes, tape=costs.tape_bytes,
        forward=costs.forward_seconds, recompute=costs.recompute_seconds,
        write=costs.write_seconds if moves else inf, read=costs.read_seconds if moves else inf,
        advance=costs.advance_seconds, chunk=costs.chunk_seconds, save=costs.save_seconds,
        load=costs.load_seconds, cache=costs.cache_bytes,
    )  # fmt: skip


def solve(costs: StepCosts, budget: Budget) -> Answer | None:
    """The plan of ``optimal``, played under the laws: each count, and each byte, is the predicted one."""
    answer = ask(costs=costs, budget=budget, strategies=("optimal",)).best()
    if answer is not None:
        check_played(answer, costs, budget)
    return answer


def check_played(answer: Answer, costs: StepCosts, budget: Budget) -> None:
    totals, actions = answer.totals(costs), list_actions(answer, costs)
    trace = play(actions, costs=costs, budget=budget)
    assert {name: getattr(trace, name) for name in COUNTS} == {name: getattr(totals, name) for name in COUNTS}
    assert (trace.local_peak_bytes, trace.remote_peak_bytes) == (
        totals.local_peak_bytes,
        totals.remote_peak_bytes,
    )
    assert trace.seconds == pytest.approx(totals.seconds, rel=EXACT)
    assert answer.least_seconds is not None
    assert answer.least_seconds <= totals.seconds * (1 + EXACT)


def list_actions(answer: Answer, costs: StepCosts) -> Iterable[Action]:
    return answer.strategy.actions(answer.parameters, steps=costs.steps, splits=answer.splits)


@pytest.mark.parametrize("block", range(8))
def test_a_plan_is_the_best_schedule_that_keeps_caches_of_whole_parts(block: int) -> None:
    """Up to seven steps, with and without remote memory and costs of actions."""
    for seed in range(30 * block, 30 * block + 30):
        costs, budget = random_job(seed, steps=1 + seed % 7)
        answer = solve(costs, budget)
        expected = least_part_cost(costs.steps, search_prices(costs, budget)) + costs.steps
        least = inf if answer is None else answer.key[0]
        assert least == pytest.approx(expected, abs=EXACT), seed


@pytest.mark.parametrize("block", range(3))
def test_offloaded_caches_take_no_longer_than_the_recursion_says(block: int) -> None:
    """A step whose cache is in remote memory runs again in r + 2 T_r, where that is less than f.

    Runs may be cut where not all of their caches fit, so that runs have to be free.
    """
    for seed in range(30 * block, 30 * block + 30):
        costs, budget = random_job(seed, steps=1 + seed % 7)
        gained = costs.forward_seconds - costs.recompute_seconds
        moving = Random(seed).uniform(0, 0.6) * gained  # noqa: S311 - no secret
        costs = changed(
            costs, cache_write_seconds=moving / 2, cache_read_seconds=moving / 2, remote_cache_bytes=3
        )
        answer = solve(costs, budget)
        prices = search_prices(costs, budget)
        expected = least_part_cost(costs.steps, prices)
        if budget.remote_bytes is None and not costs.advance_seconds:
            again = min(costs.forward_seconds, costs.recompute_seconds + moving)
            first = costs.steps * (costs.forward_seconds - again)
            expected = min(expected, least_part_cost(costs.steps, prices._replace(forward=again)) + first)
        least = inf if answer is None else answer.key[0]
        # The cache of a step that is written and read once each, and not before its last run, costs less.
        assert least <= expected + costs.steps + EXACT, seed


def test_a_plan_file_says_that_caches_move(tmp_path: Path) -> None:
    profile = HardwareProfile(
        name="near-memory", local_bytes=40_000, remote_bytes=10**8, write_bytes_per_second=5e7,
        read_bytes_per_second=5e7,
    )  # fmt: skip
    workload = Workload(
        name="spikes", steps=1_000, units=1, state_bytes=960, tape_bytes=960, cache_bytes=96,
        resident_bytes_per_step=0, forward_seconds=1e-5, backward_seconds=1e-5, recompute_seconds=1e-6,
        record_overhead_seconds=0.0,
    )  # fmt: skip
    plan = optimize(workload, profile, strategies="optimal", cache="offloaded")
    assert (plan.strategy, plan.cache) == ("optimal", "offloaded")
    assert 0 < plan.parameters["offloaded_steps"] < 1_000
    assert plan.predicted.offloaded_caches >= plan.parameters["offloaded_steps"]
    file = tmp_path / "plan.json"
    save_plan(plan, file)
    assert load_plan(file) == plan
    trace = simulate(plan)
    assert trace.seconds == pytest.approx(plan.predicted.seconds, rel=EXACT)
    assert trace.local_peak_bytes <= 40_000
    for name in ("s.csv", "s.jsonl"):
        save_schedule(plan, tmp_path / name)
        assert list(load_schedule(tmp_path / name)) == list(actions(plan))
    parameters = {**plan.parameters, "offloaded_steps": plan.parameters["offloaded_steps"] + 1}
    file.write_text(json.dumps({**json.loads(file.read_text()), "parameters": parameters}))
    with pytest.raises(InputError, match="offloaded_steps"):
        load_plan(file)


def test_a_front_has_the_caches_that_are_asked_for() -> None:
    front = pareto("paper-snn", "ipu-mk2", steps=100, cache="offloaded", points=5)
    assert {plan.cache for plan in front if plan.strategy != "base"} <= {"offloaded", "all"}
    assert not {"growing", "revolve", "disk-revolve", "periodic"} & set(front.strategies)
    for use in (pareto, optimize, compare):
        with pytest.raises(InputError, match="cache: 'offloaded' is kept by none of the strategies"):
            use("paper-snn", "ipu-mk2", steps=100, cache="offloaded", strategies="growing,revolve")


def test_strategies_without_the_caches_that_are_asked_for_are_left_out() -> None:
    compared = compare("paper-snn", "ipu-mk2", steps=4096, cache="segment", strategies="closed")
    assert set(compared) == {"base", "double", "nested", "double-growing"}


@pytest.mark.parametrize("block", range(4))
def test_no_plan_is_below_an_exhaustive_search_and_no_bound_above_it(block: int) -> None:
    """The search may keep the cache of any step after any run of it."""
    for seed in range(6 * block, 6 * block + 6):
        costs, budget = random_job(seed, steps=2 + seed % 2 + (seed % 6 == 5))
        answer = solve(costs, budget)
        expected = exhaustive.least_cost(costs.steps, search_prices(costs, budget)) + costs.steps
        if answer is None:
            assert expected == inf, seed
            continue
        assert answer.least_seconds is not None
        assert answer.least_seconds - EXACT <= expected <= answer.key[0] + EXACT, seed
        assert not answer.proved or answer.key[0] == pytest.approx(expected, abs=EXACT), seed


@given(seed=st.integers(0, 10**6), steps=st.integers(20, 90), share=st.floats(0.02, 0.9))
# A save costs as much as a write and a load: rounding alone tells which is less.
@example(seed=40, steps=20, share=0.5)
def test_blocks_of_several_steps_keep_the_budget_and_lose_little(seed: int, steps: int, share: float) -> None:
    """Where no table of single steps is affordable. No plan of blocks is quicker than one of single steps."""
    costs, budget = random_job(seed, steps=steps)
    free = costs.recorded_bytes + int(share * steps * costs.recorded_bytes)
    budget = replace(budget, local_bytes=free)
    exact = solve(costs, budget)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(problems, "WORK", dict.fromkeys(problems.WORK, 2_000))
        clear_caches()
        coarse = solve(costs, budget)
    clear_caches()
    if coarse is not None:
        assert exact is not None
        assert coarse.key[0] >= exact.key[0] * (1 - EXACT)


@given(
    steps=st.integers(1, 40), state=st.integers(1, 9), tape=st.integers(1, 20), cache=st.integers(0, 9),
    forward=st.sampled_from([1.0, 2.0]), replay=st.sampled_from([0.0, 0.1, 1.0, 3.0]),
    chunk=st.sampled_from([0.0, 1.0]), moving=st.sampled_from([0.0, 0.4, 9.0]),
)  # fmt: skip
def test_the_bound_by_memory_is_what_the_end_of_the_first_sweep_allows(
    steps: int, state: int, tape: int, cache: int, forward: float, replay: float, chunk: float, moving: float
) -> None:
    """The least over the tapes and the other caches that fit then, to within a part of a cache."""
    costs = StepCosts(
        steps=steps, state_bytes=state, tape_bytes=tape, cache_bytes=cache, remote_state_bytes=1,
        forward_seconds=forward, backward_seconds=1.0, recompute_seconds=replay, chunk_seconds=chunk,
        cache_write_seconds=moving,
    )  # fmt: skip
    prices = Prices.of(costs)
    job = Problem(
        steps=steps, free_bytes=None, state_bytes=state, tape_bytes=costs.recorded_bytes, cache_bytes=cache,
        prices=prices, least_write=inf, least_read=inf,
    )  # fmt: skip
    with_cache = min(replay, forward) if cache else replay
    without = min(forward, replay + moving) if cache else replay
    budgets = np.arange(steps * costs.recorded_bytes + 2)
    for free, bound in zip(budgets.tolist(), job.list_bounds_by_memory(budgets).tolist(), strict=True):
        most = min(steps, free // costs.recorded_bytes)
        if not most:
            assert bound == inf
            continue
        again = inf
        for tapes in range(most + 1):
            room = free - tapes * costs.recorded_bytes
            caches = min(steps - tapes, room // cache) if cache else steps - tapes
            again = min(again, (steps - tapes - caches) * without + caches * with_cache)
        expected = again + -(-steps // most) * chunk
        assert expected - (without - with_cache) - EXACT <= bound <= expected + EXACT
        assert bound == pytest.approx(replace(job, free_bytes=free).bound_by_memory())


def paper_snn(steps: int) -> StepCosts:
    """The spiking network of the paper on one chip, whose spikes are the caches."""
    return StepCosts(
        steps=steps, state_bytes=960, tape_bytes=960, cache_bytes=96, remote_state_bytes=1_413_120,
        forward_seconds=3.6e-6, backward_seconds=3.6e-6, recompute_seconds=0.36e-6,
        write_seconds=70.66e-6, read_seconds=70.66e-6, message_seconds=1.5e-6, cache_write_seconds=7.07e-6,
        cache_read_seconds=7.07e-6,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "most"),
    [
        pytest.param(4_096, 0.054, marks=pytest.mark.slow),
        (10_000, 0.33),
        pytest.param(100_000, 0.515, marks=pytest.mark.slow),
        (1_000_000, 0.57),
    ],
)
def test_sequences_have_no_limit(steps: int, most: float) -> None:
    """Time over base within 413 KiB, which hold the caches of 4,406 steps."""
    costs = paper_snn(steps)
    answer = find(costs, Budget(local_bytes=422_976))
    assert answer is not None
    totals = totals_of(answer)
    assert answer.least_seconds is not None
    assert costs.base_seconds < answer.least_seconds < totals.seconds < costs.base_seconds * (1 + most)
    assert totals.local_peak_bytes <= 422_976
    assert not answer.proved
    if steps < 10**6:
        check_played(answer, costs, Budget(local_bytes=422_976))


def task_of(costs: StepCosts, budget: Budget, *, alone: bool) -> Task:
    """The search for the quickest schedule."""
    return Task(costs=costs, budget=budget, choose=lambda cost: int(np.argmin(cost.seconds)), alone=alone)


def find(costs: StepCosts, budget: Budget) -> Answer | None:
    """The quickest schedule of ``optimal`` alone."""
    return OPTIMAL.solve(task_of(costs, budget, alone=True))


@given(seed=st.integers(0, 10**6), steps=st.integers(2, 12))
def test_a_front_holds_the_plan_of_every_budget(seed: int, steps: int) -> None:
    """Tables for the most memory decide for less memory, too."""
    costs, budget = random_job(seed, steps=steps)
    task = task_of(costs, replace(budget, local_bytes=None), alone=False)
    ranges = list(OPTIMAL.list_ranges(task, is_beaten=lambda *_: False))
    answers = [totals_of(answer) for budget_range in ranges for answer in budget_range.answers]
    for free in range(costs.recorded_bytes, steps * costs.recorded_bytes + 1, 3):
        alone = find(costs, replace(budget, local_bytes=free))
        listed = min((one.seconds for one in answers if one.local_peak_bytes <= free), default=inf)
        assert listed == pytest.approx(inf if alone is None else totals_of(alone).seconds, rel=EXACT)
        ends = [bound for budget_range in ranges for bound in budget_range.bounds]
        least = min(seconds for local_bytes, seconds in ends if local_bytes >= free)
        assert least <= listed * (1 + EXACT)


def test_a_long_sequence_within_few_tapes_has_a_plan_without_remote_memory() -> None:
    """One tape and two checkpoints: a plan is no slower than binomial checkpointing without caches."""
    costs, budget = paper_snn(6_000), Budget(local_bytes=3 * 960 + 96, remote_bytes=0)
    totals = totals_of(solve(costs, budget))
    binomial = count_recomputed(costs.steps, chunk=1, slots=2) * costs.forward_seconds
    assert totals.seconds <= (costs.base_seconds + binomial) * (1 + EXACT)


def test_a_part_keeps_its_caches_only_for_several_runs() -> None:
    """A plan with another decision is refused: memory would be counted that no schedule needs."""
    costs, budget = paper_snn(300), Budget(local_bytes=20_000)
    answer = find(costs, budget)
    assert answer is not None
    assert answer.splits is not None
    kept = next(split for split in answer.splits if split.choice is Choice.KEEP)
    advances = [one for one in list_actions(answer, costs) if isinstance(one, Advance)]
    assert {one.cached for one in advances} == {0, None}

    def change(split: Split) -> Split:
        same = (split.where, split.steps, split.units) == (kept.where, kept.steps, kept.units)
        return replace(split, choice=Choice.RECORD, length=1) if same and split.cached else split

    with pytest.raises(InputError, match="no possible decision"):
        answer.strategy.check(answer.parameters, steps=300, splits=tuple(map(change, answer.splits)))


def test_without_a_cache_nothing_is_decided_about_caches() -> None:
    """A plan names no cache, and runs keep all caches, which take no memory."""
    costs = changed(paper_snn(300), cache_bytes=0)
    answer = find(costs, Budget(local_bytes=40_000))
    assert answer is not None
    assert "cache_units" not in answer.parameters
    assert not any(split.cached for split in answer.splits or ())
    assert all(one.cached is None for one in list_actions(answer, costs) if isinstance(one, Advance))


def test_threads_that_count_chunks_at_once_share_what_is_known() -> None:
    """An internal, as a plan in a thread shows a race rarely: the runs of chunks are shared by all plans."""
    growth = CachedGrowth(state=3, tape=7, cache=2)
    steps = np.arange(1, 400)

    def count(chunk: int) -> list[int]:
        counted = growth.count_chunks(steps, chunk=np.full_like(steps, chunk), cached=steps // 2)
        return list(map(int, counted))

    chunks = range(2, 50)
    alone = [count(chunk) for chunk in chunks]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(3):
            _find_runs.cache_clear()
            with ThreadPoolExecutor(8) as pool:
                assert list(pool.map(count, chunks)) == alone
    finally:
        sys.setswitchinterval(before)
