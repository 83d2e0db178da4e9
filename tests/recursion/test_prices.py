"""Law: no schedule costs less than the bound by prices, within any number of units."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptplan.recursion.prices import bound_by_prices
from ckptplan.recursion.problem import Prices
from ckptplan.recursion.tables import Tables
from ckptplan.recursion.tree import UnitSizes

costs = st.sampled_from([0.0, 0.25, 1.0, 3.0])


@settings(max_examples=200)
@given(
    steps=st.integers(1, 60),
    state=st.integers(1, 4),
    tape=st.integers(1, 5),
    more=st.integers(0, 14),
    write=st.sampled_from([0.3, 1.0, 4.0, 50.0, float("inf")]),
    read=st.sampled_from([0.5, 1.0, 30.0]),
    paid=st.fixed_dictionaries(dict.fromkeys(("advance", "chunk", "save", "load"), costs)),
)
def test_no_schedule_costs_less_than_the_bound_by_prices(
    steps: int, state: int, tape: int, more: int, write: float, read: float, paid: dict[str, float]
) -> None:
    job: dict[str, Any] = {
        "steps": steps,
        "units": tape + more,
        "sizes": UnitSizes(state, tape),
        "prices": Prices(recompute=1.0, write=write, read=read if write < np.inf else np.inf, **paid),
    }
    least = bound_by_prices(**job, first=tape, most_levels=64)
    optimum = Tables(**job).unstored[steps]
    assert (least[tape:] <= optimum[tape:] * (1 + 1e-9)).all()
