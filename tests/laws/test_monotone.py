"""Law 6: more memory never makes the best plan slower; more steps never make it faster or smaller."""

from hypothesis import given
from hypothesis import strategies as st

from ckptplan.model.budget import Budget
from ckptplan.model.step_costs import StepCosts
from ckptplan.search.question import Question
from tests.support import CLOSED, ask, changed, step_costs


def question(costs: StepCosts, local_bytes: int | None, objective: str = "time") -> Question:
    return ask(
        costs=costs,
        budget=Budget(local_bytes=local_bytes),
        strategies=tuple(CLOSED.values()),
        objective=objective,
    )


@given(costs=step_costs(steps=st.integers(1, 200)), less=st.integers(1, 10**6), more=st.integers(0, 10**6))
def test_more_memory_is_never_slower(costs: StepCosts, less: int, more: int) -> None:
    small = question(costs, costs.resident_bytes + less).best()
    large = question(costs, costs.resident_bytes + less + more).best()
    if small is not None:
        assert large is not None
        assert large.key[0] <= small.key[0]


@given(costs=step_costs(steps=st.integers(1, 200)), more=st.integers(0, 200), local=st.integers(1, 10**6))
def test_more_steps_are_never_faster(costs: StepCosts, more: int, local: int) -> None:
    short = question(costs, costs.resident_bytes + local)
    long = short.replace(costs=changed(costs, steps=costs.steps + more))
    best_short, best_long = short.best(), long.best()
    if best_long is not None:
        assert best_short is not None
        assert best_short.key[0] <= best_long.key[0]


@given(costs=step_costs(steps=st.integers(1, 200)), more=st.integers(0, 200))
def test_more_steps_never_need_less_memory(costs: StepCosts, more: int) -> None:
    """What lets the largest T be found by bisection."""
    short = question(costs, None, "memory").best()
    long = question(changed(costs, steps=costs.steps + more), None, "memory").best()
    assert short is not None
    assert long is not None
    assert short.key[0] <= long.key[0]
