"""Law: a front is never above the plan of any budget, and no strategy beats ``optimal``, on fronts or alone."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptplan
from ckptplan import ParetoFront
from ckptplan.cost.case import Case
from ckptplan.model.step_costs import StepCosts
from ckptplan.paper.setting import load_paper_setting
from ckptplan.recursion import problem as problems
from ckptplan.search.question import Question
from ckptplan.search.trace_solved import StrategyFront
from ckptplan.strategies.answer import Answer
from ckptplan.studies.pareto import trace_fronts
from tests.support import CLOSED, SOLVED, ask, step_costs

ROUNDING = 1e-12
EVERY = (*CLOSED.values(), *SOLVED.values())


def draw_budgets(costs: StepCosts, count: int) -> list[int]:
    """Return budgets between a tape and all tapes, half of them evenly spread, half in the logarithm."""
    chance = random.Random(1)  # noqa: S311 - no secrets
    most = costs.steps * costs.tape_bytes
    least = min(costs.tape_bytes, most - 1)
    even = [chance.randint(least, most) for _ in range(count // 2)]
    logs = [round(math.exp(chance.uniform(math.log(max(1, least)), math.log(most)))) for _ in even]
    return [costs.resident_bytes + free for free in (*even, *logs)]


def fastest_on(front: StrategyFront, local_bytes: int) -> float:
    place = int(np.searchsorted(front.front.local_peak_bytes, local_bytes, side="right")) - 1
    return float(front.front.seconds[place]) if place >= 0 else math.inf


def check(question: Question, budgets: list[int]) -> None:
    """Check each budget: nothing that is found for it alone beats the common front."""
    every = trace_fronts(question)
    some = trace_fronts(question, budgets=np.unique(budgets))
    (bounds,) = [front.bounds for front in every if front.strategy.name == "optimal"]
    assert len(bounds)
    for budget in budgets:
        answers = question.replace(local_bytes=budget, headroom=0.0).rank()
        if not answers:
            continue
        least = min(answer.totals(question.costs).seconds for answer in answers)
        assert min(fastest_on(front, budget) for front in every) <= least * (1 + ROUNDING), budget
        assert min(fastest_on(front, budget) for front in some) <= least * (1 + ROUNDING), budget
        check_bound(answers, float(bounds.within(np.array([budget]))[0]))


def check_bound(answers: list[Answer], bound: float) -> None:
    """Check that a front's bound is at least as strong as what the plan of the budget proves."""
    for answer in answers:
        if answer.strategy.name == "optimal" and answer.least_seconds is not None:
            assert bound >= answer.least_seconds * (1 - ROUNDING)


@given(costs=step_costs(steps=st.integers(1, 24)))
@settings(max_examples=15)
def test_the_common_front_is_below_every_plan(costs: StepCosts) -> None:
    """With action costs, messages and overlap, where the optimum is only a bound, too."""
    check(ask(costs=costs, strategies=EVERY), draw_budgets(costs, 6))


@pytest.mark.parametrize("columns", [2, 9, 30])
@given(costs=step_costs(steps=st.integers(8, 40)))
@settings(max_examples=6)
def test_so_it_is_where_no_table_holds_the_whole_sequence(columns: int, costs: StepCosts) -> None:
    """The tables are made small, so that schedules are put together from parts and chunks."""
    before = problems.WORK["quick"]
    problems.WORK["quick"] = costs.steps**2 * columns
    try:
        check(ask(costs=costs, strategies=EVERY), draw_budgets(costs, 6))
    finally:
        problems.WORK["quick"] = before


#: Cases in which points of the front were left out, or its bounds were weaker than a plan's.
LEFT_OUT = [
    ("paper-snn", "ipu-mk2", 512, (289_152, 292_992)),
    ("gru", "nvidia-a100-80gb", 132, ()),
    ("lstm-stack", "ipu-mk2", 100, ()),
]


@pytest.mark.parametrize(("workload", "profile", "steps", "missing"), LEFT_OUT)
def test_no_budget_is_left_out_above_256_levels_of_memory(
    workload: str, profile: str, steps: int, missing: tuple[int, ...]
) -> None:
    paper = load_paper_setting().workload
    job = (paper if workload == paper.name else ckptplan.load_workload(workload)).with_steps(steps)
    machine = ckptplan.load_profile(profile)
    front = ckptplan.pareto(job, machine, strategies=["optimal"], exact=True)
    costs = Case(workload=job, profile=machine).costs
    for budget in (*missing, *draw_budgets(costs, 16)):
        place = front.place_within(budget)
        if place is not None:
            plan = ckptplan.optimize(job, machine, strategies=["optimal"], local_bytes=budget)
            assert front.seconds[place] <= plan.predicted.seconds * (1 + ROUNDING), budget
            assert front.bounds.within(np.array([budget]))[0] <= plan.predicted.seconds * (1 + ROUNDING)


def fronts_of(names: str) -> ParetoFront:
    job = load_paper_setting().workload.with_steps(512)
    return ckptplan.pareto(job, ckptplan.load_profile("ipu-mk2"), strategies=names, exact=True)


def test_plans_of_a_long_front_have_the_cost_of_their_point() -> None:
    """Their schedules are made when they are asked for."""
    front = fronts_of("optimal")
    assert len(front) > 500
    for place in range(0, len(front), 41):
        trace = ckptplan.simulate(front[place])
        assert trace.seconds == pytest.approx(front.seconds[place], rel=1e-9)
        assert trace.local_peak_bytes == front.local_peak_bytes[place]
