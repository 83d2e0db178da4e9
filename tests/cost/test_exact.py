"""The price of counted actions, by cases that can be checked by hand."""

import numpy as np

from ckptplan.cost.exact import overhead


def test_the_overhead_is_the_share_of_bases_time_that_is_added() -> None:
    """A schedule of 30 seconds takes half as long again as one of 20 seconds."""
    assert overhead(30.0, 20.0) == 0.5
    assert overhead(np.array([20.0, 30.0, 80.0]), 20.0).tolist() == [0.0, 0.5, 3.0]
    assert overhead(1.0, 0.0) == np.inf
