"""Law: promising splits give the optimum of the whole table and its schedule, or show that they do not."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptplan.model.split import Where
from ckptplan.recursion.prices import SLACK, find_promising_splits
from ckptplan.recursion.problem import Prices
from ckptplan.recursion.tables import Tables
from ckptplan.recursion.tree import Part, UnitSizes, grow_tree

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
def test_promising_splits_give_the_optimum(
    steps: int, state: int, tape: int, more: int, write: float, read: float, paid: dict[str, float]
) -> None:
    job: dict[str, Any] = {
        "steps": steps,
        "units": tape + more,
        "sizes": UnitSizes(state, tape),
        "prices": Prices(recompute=1.0, write=write, read=read if write < np.inf else np.inf, **paid),
    }
    promising = find_promising_splits(**job)
    if promising is None:
        return
    whole, narrow = Tables(**job), Tables(**job, promising=promising)
    root = Part(Where.UNSTORED, steps, whole.units)
    optimum = whole.value(root)
    assert (narrow.unstored >= whole.unstored).all()
    bound = promising.most / (1 + SLACK)
    assert bound <= optimum * (1 + 1e-9)
    if optimum > promising.most:
        assert narrow.value(root) > promising.most
        return
    assert narrow.value(root) == optimum
    trees = [grow_tree(root, tables.decide, sizes=tables.sizes) for tables in (whole, narrow)]
    assert list(trees[0].actions()) == list(trees[1].actions())
