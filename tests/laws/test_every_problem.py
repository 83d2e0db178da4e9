"""Laws 4 and 6 together, for every strategy: none beats the answer, and more memory makes none slower.

``CKPTPLAN_HYPOTHESIS=thorough`` draws ten thousand problems with costs of actions, transfers beside compute,
dear messages, and limits on both memories and on the overhead.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from ckptplan.model.budget import Budget
from ckptplan.model.goal import ObjectiveName
from ckptplan.model.step_costs import StepCosts
from ckptplan.search.question import Question
from ckptplan.strategies.answer import Answer
from ckptplan.strategies.registry import all_strategies
from tests.support import ask, step_costs

#: Ten problems for each example of other laws, in the profile that draws new ones.
_PROBLEMS = settings().max_examples * (10 if settings().max_examples >= 1000 else 1)
#: Share of a time by which another order of its terms may change it.
_ROUNDING = 1e-11


def answer_all(asked: Question) -> dict[str, Answer]:
    return {answer.strategy.name: answer for answer in asked.rank()}


@settings(max_examples=_PROBLEMS)
@given(
    costs=step_costs(steps=st.one_of(st.integers(1, 12), st.integers(13, 40))),
    local=st.integers(0, 40_000),
    remote=st.none() | st.integers(0, 40_000),
    most=st.none() | st.floats(0, 2),
    objective=st.sampled_from(["time", "memory", "balanced"]),
    more=st.tuples(st.integers(0, 40_000), st.none() | st.integers(0, 40_000)),
)
def test_no_strategy_beats_the_answer_and_more_memory_makes_none_slower(
    costs: StepCosts,
    local: int,
    remote: int | None,
    most: float | None,
    objective: ObjectiveName,
    more: tuple[int, int | None],
) -> None:
    budget = Budget(local_bytes=costs.resident_bytes + local, remote_bytes=remote)
    asked = ask(costs=costs, budget=budget, strategies=tuple(all_strategies()), max_overhead=most)
    small = answer_all(asked)
    if not small:
        return
    by_objective = asked.replace(objective=objective)
    first = by_objective.best()
    assert first is not None
    assert all(first.key <= answer.key for answer in by_objective.rank())
    grown = None if remote is None or more[1] is None else remote + more[1]
    large = answer_all(asked.replace(local_bytes=costs.resident_bytes + local + more[0], remote_bytes=grown))
    least = min(answer.key[0] for answer in large.values())
    for name, answer in small.items():
        quicker = large[name].key[0] if answer.strategy.is_closed_form else least
        assert quicker <= answer.key[0] * (1 + _ROUNDING)
