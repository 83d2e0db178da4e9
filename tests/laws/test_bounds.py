"""Law: the bounds of a box hold at each of its points, and are exact where the box is a point."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptplan.model.step_costs import StepCosts
from tests.support import CLOSED, columns_of, fixed, settings_of, step_costs


@given(data=st.data(), costs=step_costs(steps=st.integers(1, 24)), name=st.sampled_from(sorted(CLOSED)))
def test_bounds_hold_in_the_box(data: st.DataObject, costs: StepCosts, name: str) -> None:
    """Seconds, local and remote bytes of both models, at every legal setting in a random box."""
    strategy = CLOSED[name]
    numbers = st.integers(1, costs.steps)
    sizes = {"state_bytes": costs.state_bytes, "tape_bytes": costs.tape_bytes}
    given_by_size = {name: [value, value] for name, value in fixed(strategy, **sizes).items()}
    ends = {
        p: given_by_size.get(p) or sorted(data.draw(st.tuples(numbers, numbers), label=p))
        for p in strategy.parameter_names
    }
    inside = [
        setting
        for setting in settings_of(strategy, costs.steps, **sizes)
        if all(ends[p][0] <= value <= ends[p][1] for p, value in setting.items())
    ]
    low = {p: np.array([end[0]], dtype=np.int64) for p, end in ends.items()}
    high = {p: np.array([end[1]], dtype=np.int64) for p, end in ends.items()}
    admitted = strategy.admits(low=low, high=high, steps=costs.steps)
    if admitted is not None and not admitted[0]:
        # What is not admitted holds no legal setting, or only ones that equal a smaller setting.
        assert not inside or name in ("hierarchical", "revolve")
        return
    for model in ("exact", "paper") if strategy.printed else ("exact",):
        bound = strategy.evaluate(low=low, high=high, costs=costs, model=model)
        points = columns_of(inside)
        cost = strategy.evaluate(low=points, high=points, costs=costs, model=model)
        assert (cost.seconds >= bound.seconds).all()
        assert (cost.local_peak_bytes >= bound.local_peak_bytes).all()
        assert (cost.remote_peak_bytes >= bound.remote_peak_bytes).all()


@pytest.mark.parametrize("name", ["double", "nested"])
def test_bounds_do_not_overflow(name: str) -> None:
    """The widest box of the longest sequence: (s-1) c alone would pass 2**63."""
    steps = 10**12
    low = {p: np.array([1], dtype=np.int64) for p in CLOSED[name].parameter_names}
    high = {p: np.array([steps], dtype=np.int64) for p in CLOSED[name].parameter_names}
    counts = CLOSED[name].counts(low=low, high=high, steps=steps)
    assert counts.recomputed_steps[0] == 0
