"""Law 4: no strategy beats the optimum, no schedule its bound; and every solved schedule costs what it says."""

import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice, pairwise
from math import inf
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import ckptplan
from ckptplan.errors import CkptplanError
from ckptplan.model.budget import Budget
from ckptplan.model.goal import ObjectiveName
from ckptplan.model.step_costs import StepCosts
from ckptplan.paper.setting import load_paper_setting
from ckptplan.recursion import pricing, solver
from ckptplan.recursion import problem as problems
from ckptplan.recursion.problem import Prices, Problem, SolvedProblem
from ckptplan.schedule.actions import Action, Save
from ckptplan.schedule.simulator import Trace, play
from ckptplan.search.question import find_reason
from ckptplan.strategies.registry import select_strategies
from tests.laws.test_problems import is_vain
from tests.support import SOLVED, ask, changed, plain_costs, step_costs, totals_of

ALL = tuple(select_strategies(["all"]))
lengths = st.one_of(st.integers(1, 12), st.integers(13, 64))
objectives = st.sampled_from(["time", "memory", "balanced"])


@given(costs=step_costs(steps=lengths), local=st.integers(0, 40_000))
def test_law_4_no_strategy_beats_the_optimum(costs: StepCosts, local: int) -> None:
    """Without synchronisation and without overlap, remote memory unbounded, all fifteen strategies."""
    costs = changed(costs, overlaps_compute=False, message_seconds=0.0)
    question = ask(costs=costs, budget=Budget(local_bytes=costs.resident_bytes + local), strategies=ALL)
    answers = question.rank()
    if not answers:
        return
    best = next(answer for answer in answers if answer.strategy.name == "optimal")
    # Where a local save or load costs more than a detour by way of remote memory, the bound lies below.
    assert best.least_seconds is not None
    assert best.least_seconds <= best.key[0] * (1 + 1e-12)
    if Prices.of(costs, remote=True).recursion_is_exact:
        assert best.least_seconds == pytest.approx(best.key[0], rel=1e-12)
        assert all(best.key[0] <= answer.key[0] * (1 + 1e-12) for answer in answers)


@given(
    costs=step_costs(steps=lengths),
    local=st.integers(0, 40_000),
    remote=st.none() | st.integers(0, 40_000),
)
def test_no_schedule_beats_the_bound(costs: StepCosts, local: int, remote: int | None) -> None:
    """Messages that carry several states, overlap and a limit of remote memory included."""
    budget = Budget(local_bytes=costs.resident_bytes + local, remote_bytes=remote)
    answers = ask(costs=costs, budget=budget, strategies=ALL).rank()
    bounds = [one.least_seconds for one in answers if not one.strategy.is_closed_form]
    for answer in answers:
        for bound in bounds:
            assert bound is None or bound <= answer.key[0] * (1 + 1e-12)


def two_sizes(steps: int, state: int, tape: int, transfer: float) -> StepCosts:
    prices = {"write_seconds": transfer, "read_seconds": transfer, "message_seconds": 0}
    return plain_costs(steps, state_bytes=state, tape_bytes=tape, **prices)


@given(
    costs=st.builds(
        two_sizes, st.integers(2, 40), st.integers(90, 600), st.integers(90, 600), st.sampled_from([0.01, 1, 9])
    ),
    share=st.floats(0, 1), work=st.sampled_from([3_000, 20_000, 100_000]),
)  # fmt: skip
@example(costs=two_sizes(30, 494, 391, 0.01), share=0.9, work=20_000)
def test_the_bound_holds_however_coarse_the_units_are(costs: StepCosts, share: float, work: int) -> None:
    """Rounding and horizons forced: never above the optimum in bytes, nor above any strategy's time."""
    most = costs.steps * costs.tape_bytes
    budget = Budget(local_bytes=costs.tape_bytes + int(share * (most - costs.tape_bytes)))
    exact = ask(costs=costs, budget=budget, strategies=(SOLVED["optimal"],), effort="thorough").best()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(problems.WORK, "quick", work)
        answers = ask(costs=costs, budget=budget, strategies=ALL).rank()
    bounds = [one.least_seconds for one in answers if not one.strategy.is_closed_form]
    least = max((bound for bound in bounds if bound is not None), default=0.0)
    assert least <= (inf if exact is None else exact.key[0]) * (1 + 1e-12)
    for answer in answers:
        assert least <= answer.key[0] * (1 + 1e-12)


@pytest.mark.parametrize(
    ("steps", "state", "tape", "budget", "transfer"),
    [(1000, 513516, 714629, 464620140, 0.0), (200, 494, 391, 32062, 0.01)],
)
def test_memory_that_rounding_wastes_does_not_raise_the_bound(
    steps: int, state: int, tape: int, budget: int, transfer: float
) -> None:
    """There Remote was quicker than what no schedule was said to be."""
    costs = two_sizes(steps, state, tape, transfer)
    strategies = tuple(select_strategies(["optimal", "standard", "remote"]))
    answers = ask(costs=costs, budget=Budget(local_bytes=budget), strategies=strategies).rank()
    bound = next(one for one in answers if one.strategy.name == "optimal")
    assert bound.least_seconds is not None
    assert bound.least_seconds <= min(one.key[0] for one in answers) * (1 + 1e-12)


def test_a_bound_above_a_plan_is_never_told_as_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even by lowering it to the plan's time: a gap of 0 would be read as a proof."""
    solve = solver.solve

    def wrongly(problem: Problem) -> SolvedProblem | None:
        found = solve(problem)
        return None if found is None else replace(found, least_extra=1e6)

    monkeypatch.setattr("ckptplan.recursion.solver.solve", wrongly)
    with pytest.raises(CkptplanError, match="please report it"):
        ckptplan.optimize(load_paper_setting().workload, ckptplan.load_profile("ipu-mk2"))


@given(costs=step_costs(steps=lengths), local=st.integers(0, 40_000), remote=st.integers(0, 40_000))
def test_with_little_remote_memory_no_form_that_is_considered_beats_the_optimum(
    costs: StepCosts, local: int, remote: int
) -> None:
    """One remote period, segments read once, and what moves nothing.

    If transfers overlap compute, only the bound is proved.
    """
    budget = Budget(local_bytes=costs.resident_bytes + local, remote_bytes=remote)
    names = ["optimal", "disk-revolve", "periodic", "bptt-msm", "standard"]
    answers = ask(costs=costs, budget=budget, strategies=tuple(select_strategies(names))).rank()
    times = {answer.strategy.name: answer.key[0] for answer in answers}
    solved = next((answer for answer in answers if answer.strategy.name == "optimal"), None)
    assert not times or solved is not None
    if solved is not None:
        assert solved.least_seconds is not None
        least = solved.least_seconds if costs.overlaps_compute else times["optimal"]
        assert all(least <= seconds * (1 + 1e-12) for seconds in times.values())


def test_a_remote_state_replaces_a_load_that_costs_something_if_transfers_are_hidden() -> None:
    """Remote memory holds one state, and the recursion wants two."""
    costs = changed(
        two_sizes(3, 10, 40, 0.0), remote_state_bytes=1, record_overhead_seconds=1.0, load_seconds=1.0,
        overlaps_compute=True,
    )  # fmt: skip
    best = ask(costs=costs, budget=Budget(local_bytes=104, remote_bytes=1), strategies=("optimal",)).best()
    assert totals_of(best).local_loads == 0


def test_with_little_remote_memory_the_optimum_uses_what_there_is() -> None:
    """T = 1000, one byte each, transfers of 20 steps: 28 % were lost by doing without any remote memory."""
    costs = changed(two_sizes(1000, 1, 1, 20.0), remote_state_bytes=1)
    budget = Budget(local_bytes=6, remote_bytes=15)
    winner = ask(costs=costs, budget=budget, strategies=ALL).best()
    assert winner is not None
    assert winner.strategy.name == "optimal"
    assert totals_of(winner).remote_peak_bytes <= 15
    assert winner.key[0] <= 6525
    assert winner.least_seconds == pytest.approx(6447)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "remote"), [(100_000, 0), (10**6, 0), (100_000, 3)])
def test_long_sequences_in_local_memory_are_revolve(steps: int, remote: int) -> None:
    """Room for one tape and nine states: binomial checkpointing has no end at 30,000 steps."""
    costs = changed(two_sizes(steps, 1, 10, 1.0), remote_state_bytes=1)
    budget = Budget(local_bytes=19, remote_bytes=remote)
    question = ask(costs=costs, budget=budget, strategies=tuple(select_strategies(["optimal", "revolve"])))
    times = {answer.strategy.name: answer.key[0] for answer in question.rank()}
    assert times["optimal"] <= times["revolve"]
    solution = question.replace(strategies=("optimal",)).rank()[0]
    assert solution.least_seconds is not None
    if remote == 0:
        assert solution.least_seconds == times["optimal"]


@given(
    costs=st.builds(
        two_sizes, st.integers(1, 30), st.integers(1, 9), st.integers(1, 30), st.sampled_from([0.1, 1.0, 9.0])
    ),
    local=st.integers(1, 1000), most=st.sampled_from([0.05, 0.2, 1.0, 2.0]),
)  # fmt: skip
@example(costs=two_sizes(28, 1, 1, 0.1), local=25, most=0.05)
@example(costs=two_sizes(64, 1, 20, 1.0), local=39, most=2.0)
@example(costs=two_sizes(64, 1, 1, 1.0), local=64, most=0.3)
def test_least_memory_is_the_least_there_is(costs: StepCosts, local: int, most: float) -> None:
    """With a byte less no schedule keeps the overhead, whatever there is room for: one tape, or all of them."""
    question = ask(
        costs=costs,
        budget=Budget(local_bytes=local),
        strategies=(SOLVED["optimal"],),
        objective="memory",
        max_overhead=most,
    )
    quickest = question.replace(objective="time")
    winner = question.best()
    assert (winner is None) == (quickest.best() is None)
    if winner is not None:
        smaller = quickest.replace(local_bytes=int(winner.key[0]) - 1).best()
        # The same sum in another order may end on the other side of the limit.
        assert smaller is None or smaller.key[0] >= costs.base_seconds * (1 + most) * (1 - 1e-12)


@pytest.mark.parametrize("name", sorted(SOLVED))
@given(
    costs=step_costs(steps=lengths), local=st.integers(0, 40_000), remote=st.none() | st.integers(0, 40_000),
    objective=objectives,
)  # fmt: skip
@example(costs=plain_costs(9, tape_bytes=50), local=120, remote=0, objective="time")
@example(costs=plain_costs(3, state_bytes=90, message_seconds=0.0), local=105, remote=0, objective="time")
def test_solved_schedules_are_played_at_their_cost_and_within_their_budget(
    name: str, costs: StepCosts, local: int, remote: int | None, objective: ObjectiveName
) -> None:
    """Laws 1 and 2 for schedules of decisions, read from the data of a plan; no save is freed at once."""
    budget = Budget(local_bytes=costs.resident_bytes + local, remote_bytes=remote)
    question = ask(costs=costs, budget=budget, strategies=(SOLVED[name],), objective=objective)
    winner = question.best()
    if winner is None:
        return
    totals = totals_of(winner)
    actions = list(SOLVED[name].actions(winner.parameters, steps=costs.steps, splits=winner.splits))
    assert not [pair for pair in pairwise(actions) if is_vain(*pair)]
    trace = play(actions, costs=costs, budget=budget)
    assert trace.seconds == pytest.approx(totals.seconds, rel=1e-12)
    assert trace.local_peak_bytes == totals.local_peak_bytes
    assert trace.remote_peak_bytes == totals.remote_peak_bytes
    for field in ("recomputed_steps", "remote_writes", "remote_reads", "messages"):
        assert getattr(trace, field) == getattr(totals, field)


@pytest.mark.parametrize("name", sorted(SOLVED))
@given(
    costs=step_costs(steps=st.integers(1, 12)), local=st.integers(0, 12_000),
    remote=st.none() | st.integers(0, 9_000), most=st.none() | st.floats(0, 2),
)  # fmt: skip
def test_what_has_no_schedule_has_a_reason(
    name: str, costs: StepCosts, local: int, remote: int | None, most: float | None
) -> None:
    """A limit that is told, with what it would have to be, is one that is broken."""
    budget = Budget(local_bytes=costs.resident_bytes + local, remote_bytes=remote)
    question = ask(costs=costs, budget=budget, strategies=(SOLVED[name],), max_overhead=most)
    if question.best() is not None:
        return
    reason = find_reason(question, subject=name)
    assert reason.need < reason.have if reason.binding == "steps" else reason.need > reason.have
    if reason.binding == "local_bytes":
        enough = question.replace(local_bytes=int(reason.need), remote_bytes=None, max_overhead=None)
        assert enough.best() is not None


def test_the_optimum_of_the_papers_job_saves_no_state_in_vain() -> None:
    """T = 4,096: 21 of its 238 saves were freed at once. What it costs is what it was with them."""
    workload = load_paper_setting().workload.with_steps(4096)
    plan = ckptplan.optimize(workload, ckptplan.load_profile("ipu-mk2"), strategies=["optimal"])
    schedule = list(ckptplan.actions(plan))
    assert not [pair for pair in pairwise(schedule) if is_vain(*pair)]
    assert sum(isinstance(action, Save) for action in schedule) == 217
    trace = ckptplan.simulate(plan)
    assert (trace.recomputed_steps, trace.messages, trace.local_peak_bytes) == (7902, 0, 638_976)
    assert (plan.predicted.recomputed_steps, plan.predicted.local_peak_bytes) == (7902, 638_976)
    assert trace.seconds == plan.predicted.seconds == pytest.approx(0.03233592)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SOLVED))
def test_short_sequences_of_many_bytes_take_little_memory_to_plan(name: str) -> None:
    """Tables grow with steps times units: five steps whose sizes share no unit had tables of 40 GiB."""
    for steps in (1, 2, 5):
        costs = two_sizes(steps, 10_000_019, 100_000_007, 1.0)
        budget = Budget(local_bytes=220_000_000)
        question = ask(costs=costs, budget=budget, strategies=(SOLVED[name],))
        tracemalloc.start()
        found = question.best()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 10**9
        assert found is not None or find_reason(question, subject=name).binding == "steps"


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "local"), [(3 * 10**7, 60), (2 * 10**7, 10**7)])
def test_long_sequences_beside_compute_are_counted_and_not_played(
    steps: int, local: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tens of millions of actions took a quarter of a minute; plans that move nothing need none of it."""
    played: list[int] = []

    def counted(actions: Iterable[Action], **given: Any) -> Trace:
        some = list(islice(actions, problems.MOST_SIMULATED + 1))
        played.append(len(some))
        return play(some, **given)

    monkeypatch.setattr(pricing, "play", counted)
    costs = changed(two_sizes(steps, 1, 3, 1.0), overlaps_compute=True)
    winner = ask(costs=costs, budget=Budget(local_bytes=local), strategies=("optimal",)).best()
    assert sum(played) <= problems.MOST_SIMULATED
    assert winner is None or totals_of(winner).messages == 0


@pytest.mark.parametrize("name", ["disk-revolve", "optimal", "periodic"])
def test_buffers_are_for_what_moves(name: str) -> None:
    """Beside compute, too: one step needs its tape and no more."""
    costs = plain_costs(1, tape_bytes=20, overlaps_compute=True)
    winner = ask(costs=costs, budget=Budget(local_bytes=20), strategies=(name,)).best()
    assert winner is not None
    assert winner.key == (3.0, 20, 0)
