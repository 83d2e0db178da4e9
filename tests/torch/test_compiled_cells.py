"""Law: compiled cells are not compiled again each time a sequence runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ckptplan.torch import bptt
from tests.torch.support import job, plan_of

STEPS = 12


class Recurrent(torch.nn.Module):
    """A cell that is a module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.GRUCell(5, 7).double()

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next state, twice."""
        state = self.inner(x, state)
        return state, state


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_module_is_a_cell_and_not_compiled_again_in_each_call() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, examples: Any) -> Any:
        del examples
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    cell = torch.compile(Recurrent(), backend=backend)
    inputs, state = job(STEPS)

    def train() -> int:
        loss = bptt(cell, inputs, state, lambda _, output: output.square().mean(), plan=plan_of(STEPS)).loss
        loss.backward()
        return len(graphs)

    assert train() > 0
    usual = train()
    assert [train(), train()] == [usual, usual]
