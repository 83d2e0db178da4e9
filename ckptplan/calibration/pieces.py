"""Makes a step of K steps of a cell, so that compiled pieces are measured and planned as steps are."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree

from ckptplan.torch.compiled.steps import run_with_outputs


class PieceCell(torch.nn.Module):
    """Runs K steps of a cell as a single one; inputs have the steps first, the output is a list."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, state: Any, inputs: Any) -> tuple[Any, list[Any]]:
        """Return the state after the last step, and the outputs of all."""
        outputs, state = run_with_outputs(self.inner, None, 0, state, inputs)
        return state, outputs


def compute_piece_loss(_: int, outputs: list[Any]) -> torch.Tensor:
    """Return the loss of a piece: the sum of those of its steps, which are means of squares."""
    firsts = [_pytree.tree_leaves(one)[0] for one in outputs]
    squares = [(one if one.is_floating_point() else one.float()).square().mean() for one in firsts]
    return torch.stack(squares).sum()
