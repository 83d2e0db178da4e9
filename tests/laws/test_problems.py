"""Laws of one planning problem: a random problem is ranked once, and each law looks at the answers.

The chosen plan is the simplest that no other beats clearly (law 9). Plans are played at their cost and within
their budget (laws 1 and 2). More memory makes none slower, and more steps make none faster (law 6).
"""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given, note, settings
from hypothesis import strategies as st

from ckptplan.model.budget import Budget
from ckptplan.model.goal import Model
from ckptplan.planning.optimize import list_proofs
from ckptplan.planning.request import derive_bound
from ckptplan.schedule.actions import Action, Free, Save
from ckptplan.schedule.simulator import IllegalAction, play
from ckptplan.search.objective import least_time
from ckptplan.search.question import Question
from ckptplan.strategies.answer import Answer
from ckptplan.strategies.registry import all_strategies
from tests.support import CLOSED, SOLVED, ask, changed, plain_costs, step_costs

#: Strategies that include all solved ones, of short sequences.
MIXED = ("base", "standard", "nested", "double", "growing", *SOLVED)
#: Share of a time by which another order of its terms may change it.
ROUNDING = 1e-12


@st.composite
def questions(draw: st.DrawFn, *, strategies: Sequence[str] = tuple(CLOSED), most: int = 64) -> Question:
    """Any costs, limits, objective and resolution."""
    costs = draw(step_costs(steps=st.integers(1, most)))
    largest = costs.resident_bytes + costs.steps * (costs.tape_bytes + costs.state_bytes)
    model: Model = draw(st.sampled_from(["exact", "exact", "paper"]))
    is_priced = {name: model == "exact" or all_strategies()[name].printed is not None for name in strategies}
    return ask(
        costs=costs,
        budget=Budget(
            local_bytes=draw(st.none() | st.integers(1, largest)),
            remote_bytes=draw(st.none() | st.integers(0, costs.steps * costs.remote_state_bytes)),
        ),
        strategies=tuple(name for name in strategies if is_priced[name]),
        objective=draw(st.sampled_from(["time", "memory", "balanced"])),
        model=model,
        max_overhead=draw(st.none() | st.floats(0, 3)),
        resolution=draw(st.sampled_from([0.001, 0.01, 0.05, 0.2])),
    )


def mark_of(answer: Answer, question: Question) -> tuple[float, ...]:
    """What the numbers that decide would be if the plan were quicker by the resolution."""
    first, second, *_ = answer.key
    if len(answer.key) == 4:  # a knee has a coordinate before its seconds
        return (first - question.resolution,)
    if question.goal.objective == "memory":
        return first, second * (1 - question.resolution)
    return (first * (1 - question.resolution),)


def check_choice(question: Question, ranked: list[Answer]) -> None:
    """Law 9: no answer beats the first by more than the resolution, and each simpler one is worse."""
    assert question.best() == (ranked[0] if ranked else None)
    exactly = question.replace(resolution=0.0).rank()
    assert exactly == sorted(exactly, key=lambda answer: (answer.key, answer.strategy.rank))
    if not ranked:
        return
    first, *others = ranked
    assert [other.key for other in others] == sorted(other.key for other in others)
    mark = mark_of(first, question)
    for other in others:
        assert other.key[: len(mark)] >= mark
        assert other.strategy.simplicity > first.strategy.simplicity or other.key > first.key


def check_unsearched(question: Question, ranked: list[Answer]) -> None:
    """What is not searched cannot replace the first answer; if that is the least, so is its bound."""
    searched = question.rank_until_settled()
    assert searched[:1] == ranked[:1]
    if not ranked:
        return
    unsearched = {strategy.name for strategy in question.unsearched(ranked[0])}
    names = {answer.strategy.name for answer in ranked}
    assert {answer.strategy.name for answer in searched} == names - unsearched
    if not unsearched:
        return
    least = ranked[0].key[0]
    whole, some = (derive_bound(list_proofs(answers, question), least) for answers in (ranked, searched))
    if question.least_seconds == pytest.approx(least, rel=ROUNDING):
        assert all(answer.key[0] >= least * (1 - ROUNDING) for answer in ranked)
        assert whole == some
    else:
        assert not unsearched & CLOSED.keys()
        assert all(answer.key[0] >= least * (1 - question.resolution) for answer in ranked)
        assert some is not None
        assert some.gap <= question.resolution


def check_plays(question: Question, ranked: list[Answer]) -> None:
    """Laws 1 and 2: each plan is played at its cost within its budget; one byte less is noticed.

    No state is saved that the next action frees.
    """
    costs = question.costs
    for answer in ranked if question.goal.model == "exact" else ():
        actions = list(answer.strategy.actions(answer.parameters, steps=costs.steps, splits=answer.splits))
        assert not [pair for pair in pairwise(actions) if is_vain(*pair)]
        trace, totals = play(actions, costs=costs, budget=question.budget), answer.totals(costs)
        assert trace.seconds == pytest.approx(totals.seconds, rel=1e-9)
        for name in ("local_peak_bytes", "remote_peak_bytes", "recomputed_steps", "messages"):
            assert getattr(trace, name) == getattr(totals, name)
        with pytest.raises(IllegalAction, match="of a local budget"):
            play(actions, costs=costs, budget=Budget(local_bytes=trace.local_peak_bytes - 1))
        if trace.remote_peak_bytes:
            with pytest.raises(IllegalAction, match="of a remote budget"):
                play(actions, costs=costs, budget=Budget(remote_bytes=trace.remote_peak_bytes - 1))


def is_vain(action: Action, following: Action) -> bool:
    """Whether an action saves a state that the following one frees."""
    return isinstance(action, Save) and following == Free(action.state, action.tier)


def check_more(question: Question, _: list[Answer]) -> None:
    """Law 6: more memory makes no plan slower; more steps make none faster, nor smaller."""
    costs = question.costs
    quickest = question.replace(objective="time", resolution=0.0)
    local, remote = question.budget.local_bytes, question.budget.remote_bytes
    more = {
        "local_bytes": None if local is None else 2 * local,
        "remote_bytes": None if remote is None else remote + 999,
    }
    roomy = quickest.replace(**more)
    longer = changed(costs, steps=costs.steps + 1 + costs.steps // 3)
    limits = {"local_bytes": None, "remote_bytes": None, "max_overhead": None}
    smallest = question.replace(objective="memory", resolution=0.0, **limits)
    pairs = [
        (roomy, quickest),
        (quickest.replace(max_overhead=None), quickest.replace(max_overhead=None, costs=longer)),
        (smallest, smallest.replace(costs=longer)),
    ]
    for better, worse in pairs:
        easy, hard = better.best(), worse.best()
        assert hard is None or (easy is not None and easy.key[0] <= hard.key[0] * (1 + ROUNDING))


def check_beaten(question: Question, _: list[Answer]) -> None:
    """What beats a time is found, or that nothing does."""
    if question.goal.max_overhead is not None:
        return
    quickest = question.replace(objective="time", resolution=0.0)
    best = quickest.best()
    if best is None:
        assert quickest.faster_than(1e300) is None
        return
    for share in (0.7, 1.0, 1.3):
        quicker = quickest.faster_than(share * best.key[0])
        assert (quicker is not None) == (best.key[0] < share * best.key[0])
        assert quicker is None or quicker.key[0] == best.key[0]
    # A search below a time that some plan takes is the whole search.
    timed = question.replace(objective="time")
    for share in (1.0, 1.001, 3.0):
        assert timed.best_below(share * best.key[0]) == timed.best()


def check_reach(question: Question, ranked: list[Answer]) -> None:
    """A solved strategy says whether it has a schedule, and has none below its least memory."""
    if question.goal.max_overhead is not None or question.goal.model == "paper":
        return
    names = {answer.strategy.name for answer in ranked}
    local = question.budget.local_bytes
    for strategy in question.strategies:
        if strategy.name in SOLVED:
            solved = SOLVED[strategy.name]
            assert solved.has_schedule(question.task(solved, least_time)) == (solved.name in names)
            if solved.name in names and local is not None:
                assert solved.least_local_bytes(question.costs) <= local


LAWS = (check_choice, check_unsearched, check_plays, check_more, check_beaten, check_reach)


def check_all(question: Question) -> None:
    ranked = question.rank()
    for law in LAWS:
        note(f"law: {law.__doc__}")
        law(question, ranked)


@given(question=questions())
def test_a_problem_of_closed_forms_keeps_all_laws(question: Question) -> None:
    check_all(question)


@settings(max_examples=2 * settings().max_examples)
@given(question=questions(strategies=MIXED, most=14))
@example(question=ask(costs=plain_costs(9, tape_bytes=50), budget=Budget(local_bytes=120), strategies=SOLVED))
def test_a_problem_with_solved_strategies_keeps_all_laws(question: Question) -> None:
    check_all(question)
