"""Searches are remembered: who asks the same twice waits once."""

from collections.abc import Callable

import pytest

import ckptplan
from ckptplan.errors import Infeasible
from ckptplan.model.budget import Budget
from ckptplan.model.goal import ObjectiveName
from ckptplan.paper.setting import load_paper_setting
from ckptplan.search.best_setting import cached_best_setting
from ckptplan.search.objective import Least, least_memory, least_time
from ckptplan.search.question import find_reason
from tests.support import CLOSED, ask, plain_costs

COSTS = plain_costs(300)
#: Some that move nothing, whose searches are remembered, and one that does.
STRATEGIES = tuple(CLOSED[name] for name in ("standard", "nested", "growing", "revolve", "remote"))


def searches_of(ask: Callable[[], object]) -> tuple[int, int]:
    """How many searches were made anew, and how many were remembered."""
    before = cached_best_setting.cache_info()
    ask()
    after = cached_best_setting.cache_info()
    return after.misses - before.misses, after.hits - before.hits


def assert_remembered(search: Callable[[], object]) -> None:
    cached_best_setting.cache_clear()
    made, hits = searches_of(search)
    assert made > 0
    assert searches_of(search) == (0, made + hits)


@pytest.mark.parametrize("objective", ["time", "memory", "balanced"])
def test_the_same_optimum_is_searched_once(objective: ObjectiveName) -> None:
    question = ask(costs=COSTS, budget=Budget(), strategies=STRATEGIES, objective=objective)
    assert_remembered(question.rank)
    assert_remembered(question.best)


@pytest.mark.parametrize(
    ("budget", "most"),
    [
        (Budget(local_bytes=5), None),
        (Budget(local_bytes=60, remote_bytes=0), 0.001),
        (Budget(local_bytes=200), 0.0),
    ],
)
def test_what_binds_is_searched_once(budget: Budget, most: float | None) -> None:
    """Each limit is lifted in turn, and the least that it would have to be is looked for."""
    moving_nothing = tuple(one for one in STRATEGIES if not one.moves_states)
    question = ask(costs=COSTS, budget=budget, strategies=moving_nothing, max_overhead=most)
    assert question.best() is None
    assert_remembered(lambda: find_reason(question, subject="it"))
    assert_remembered(question.least_remote_bytes)


@pytest.mark.parametrize("share", [0.9, 1.1])
def test_what_is_quicker_is_searched_once(share: float) -> None:
    question = ask(costs=COSTS, budget=Budget(local_bytes=600), strategies=STRATEGIES)
    winner = question.best()
    assert winner is not None
    assert_remembered(lambda: question.faster_than(share * winner.key[0]))


def test_a_plan_that_is_made_twice_is_searched_once() -> None:
    workload, profile = load_paper_setting().workload, ckptplan.load_profile("ipu-mk2")
    names = ["standard", "nested", "revolve", "remote"]
    assert_remembered(lambda: ckptplan.optimize(workload, profile, strategies=names))

    def in_vain() -> None:
        with pytest.raises(Infeasible):
            ckptplan.optimize(workload, profile, strategies=names, local_bytes="500 KiB")

    assert_remembered(in_vain)


def test_objectives_are_values() -> None:
    """Equal ones are equal wherever they were made, and others are not."""
    assert Least(least_time.columns) == least_time
    assert hash(least_time.alone()) == hash(least_time.alone())
    assert least_time.alone() == least_time.alone() != least_memory.alone()
    assert least_time.alone() != least_time


def test_progress_never_falls_while_several_strategies_are_solved() -> None:
    reported: list[tuple[int, int]] = []
    workload, profile = load_paper_setting().workload.with_steps(600), ckptplan.load_profile("ipu-mk2")
    ckptplan.optimize(
        workload,
        profile,
        strategies=["all"],
        local_bytes="300 KiB",
        progress=lambda *where: reported.append(where),
    )
    done, totals = zip(*reported, strict=True)
    assert len(set(totals)) == 1
    assert list(done) == sorted(done)
    assert done[0] == 0 < done[-1] <= totals[0]
