"""Times the kernels of a ``ChunkCell``, which compiled pieces of its steps have to beat."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from ckptplan.torch.backward import compute_gradients
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.trees import flatten, is_differentiable


def time_kernels(
    cell: ChunkCell,
    state: Any,
    inputs: Any,
    *,
    loss: Callable[[Any], Any],
    clock: Callable[[], float],
) -> tuple[float, float, float]:
    """Return the seconds of a chunk: run for the first time, replayed with its loss, and reversed.

    Arguments:
        cell: the cell.
        state: a state to start from.
        inputs: those of the chunk, time first.
        loss: returns the losses of the outputs of the chunk, or what gradients begin with.
        clock: returns seconds, once the device has finished.
    """
    cell = cell.for_sequence()
    with torch.no_grad():
        times = [clock()]
        _, saved = cell.run(state, inputs, None)
        times.append(clock())
        states = cell.replay(state, inputs, saved)
        gradients = _differentiate(cell.dense(saved), loss)
        leaves, structure = flatten(states)
        last = structure.fill([torch.ones_like(leaf[-1]) for leaf in leaves])
        times.append(clock())
        cell.reverse(
            state,
            states,
            inputs,
            saved,
            output_gradients=gradients,
            state_gradients=last,
            wants_inputs=False,
        )
        times.append(clock())
    run, replayed, reversed_ = (max(after - before, 1e-9) for before, after in pairwise(times))
    return run, replayed, reversed_


def _differentiate(outputs: Any, loss: Callable[[Any], Any]) -> Any:
    """Return the gradients of outputs; None for those without."""
    leaves, structure = flatten(outputs)
    with torch.enable_grad():
        roots = [
            leaf.detach().requires_grad_() if is_differentiable(leaf) else leaf.detach() for leaf in leaves
        ]
        ends = [one for one in flatten(loss(structure.fill(roots)))[0] if one.requires_grad]
        wanted = [root for root in roots if root.requires_grad]
        given = [torch.ones_like(one) for one in ends]
        found = compute_gradients(ends, given, wanted, parameters=())
    by_root = dict(zip(map(id, wanted), found, strict=True))
    gradients: Any = [by_root.get(id(root)) for root in roots]
    return structure.fill(gradients)
