"""Law: a table for many units of memory answers every smaller budget as a table for that budget does."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptplan.model.split import Where
from ckptplan.recursion.problem import Prices
from ckptplan.recursion.tables import Tables
from ckptplan.recursion.tree import Part, UnitSizes, grow_tree

costs = st.sampled_from([0.0, 0.25, 1.0, 3.0])
transfers = st.sampled_from([0.5, 4.0, float("inf")])


@settings(max_examples=60)
@given(
    steps=st.integers(1, 14),
    state=st.integers(1, 4),
    tape=st.integers(1, 5),
    less=st.integers(0, 12),
    more=st.integers(1, 12),
    prices=transfers.flatmap(
        lambda transfer: st.builds(
            Prices, recompute=st.just(1.0), write=st.just(transfer), read=st.just(transfer),
            advance=costs, chunk=costs, save=costs, load=costs,
        )
    ),
)  # fmt: skip
def test_a_narrowed_table_decides_as_one_made_for_its_units(
    steps: int, state: int, tape: int, less: int, more: int, prices: Prices
) -> None:
    units = tape + less

    def fill(most: int) -> Tables:
        return Tables(steps=steps, units=most, sizes=UnitSizes(state, tape), prices=prices)

    own, narrow = fill(units), fill(units + more).narrow(units)
    np.testing.assert_array_equal(own.unstored, narrow.unstored)
    root = Part(Where.UNSTORED, steps, units)
    if not np.isfinite(own.value(root)):
        return
    trees = [grow_tree(root, tables.decide, sizes=tables.sizes) for tables in (own, narrow)]
    assert list(trees[0].actions()) == list(trees[1].actions())
