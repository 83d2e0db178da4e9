"""Law: a cell or a loss that keeps something to itself is right or refused by name, under every plan."""

from __future__ import annotations

import pytest

from tests.torch.impure import functions, gradients, losses, modules, randomness, spiking, statistics
from tests.torch.impure.cases import CASES
from tests.torch.impure.outcome import STRATEGIES, run

FAMILIES = (functions, gradients, losses, modules, randomness, spiking, statistics)


# PyTorch's compiler looks at the gradient of each state that it is called with.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", CASES)
def test_it_is_right_or_refused(name: str, strategy: str) -> None:
    outcome = run(CASES[name], strategy)
    assert outcome.kind != "different"
    if CASES[name].right:
        assert outcome.kind == "right", outcome.message
