"""Compares chunks of a ``ChunkCell`` with its steps: what they return, and where their gradients are compared.

A rehearsal takes a few steps of ``forward`` under autograd, and the same steps in chunks. The steps go on from
the numbers that chunks leave: with others, which differ by rounding, other neurons might fire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from ckptplan.errors import InputError
from ckptplan.torch.cell_calls import ClosedCell
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.inputs import Sequence
from ckptplan.torch.trees import Leaves, flatten, is_differentiable
from ckptplan.torch.trial import are_equal, copy_leaves

#: The steps of a chunk that is compared with steps.
_FEW = 3
#: The most steps that run until an output is not zero: silent neurons hide what spikes would add.
_MOST_SILENT = 64

_STEP_BY_STEP = "cell=lambda state, x: cell(state, x), which runs step by step under autograd"
_ACCEPTED = f"a ChunkCell whose methods say the same as its forward; or {_STEP_BY_STEP}"


def refuse_backward_hooks(cell: ChunkCell) -> None:
    """Raise InputError for hooks on the backward pass of a cell, which no chunk calls."""
    everywhere = torch_module._global_backward_hooks or torch_module._global_backward_pre_hooks
    hooked = [
        f"{type(cell).__name__}{'.' * bool(name)}{name}"
        for name, one in cell.named_modules()
        if everywhere or one._backward_hooks or one._backward_pre_hooks
    ]
    if hooked:
        raise InputError(
            f"{hooked[0]} has a hook on its backward pass{' (one of all modules)' if everywhere else ''}: "
            "chunks have a backward pass of their own, which does not call it",
            field="cell",
            accepted=f"hooks on the parameters; or {_STEP_BY_STEP}",
        )


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Some steps that a cell has run."""

    #: The leaves of the states after each step, time first, and of the outputs.
    states: Leaves
    outputs: Leaves
    #: What the next steps need of these.
    last: Any


def run_chunk(cell: ChunkCell, state: Any, inputs: Sequence, start: int, stop: int, *, before: Any) -> Chunk:
    """Run steps from a state, given what ``last`` returned for those ``before``."""
    leaves, structure = flatten(state)
    pieces, nest = inputs.piece(start, stop)
    given = copy_leaves(leaves), copy_leaves(pieces)
    with torch.no_grad(), torch.autocast(device_type=pieces[0].device.type, enabled=False):
        states, saved = cell.run(structure.fill(given[0]), nest.fill(given[1]), before)
        return Chunk(
            states=tuple(leaf.detach() for leaf in flatten(states)[0]),
            outputs=flatten(cell.dense(saved))[0],
            last=cell.last(saved),
        )


def run_chunks(cell: ChunkCell, state: Any, inputs: Sequence, start: int, stop: int, *, before: Any) -> Leaves:
    """Return the leaves of the states after each step, time first, of short chunks one after another.

    So what a chunk hands on to the next one is compared with steps, too. Arguments are those of ``run_chunk``.
    """
    own, (leaves, structure), parts = cell.for_sequence(), flatten(state), []
    for first in range(start, stop, _FEW):
        last = min(stop, first + _FEW)
        chunk = run_chunk(own, structure.fill(leaves), inputs, first, last, before=before)
        parts.append(chunk.states)
        leaves, before = tuple(leaf[-1] for leaf in chunk.states), chunk.last
    return tuple(torch.cat(leaf) for leaf in zip(*parts, strict=True))


def find_active(
    cell: ChunkCell, state: Any, inputs: Sequence, *, each: int, steps: int
) -> tuple[int, Any, Any]:
    """Return a step before which neurons fired, the state there, and what ``last`` returned for those before.

    It is looked for in runs of ``each`` of T ``steps``, and the last one looked at if all are silent.
    """
    own, (leaves, structure), start, before = cell.for_sequence(), flatten(state), 0, None
    while start + each < min(steps, _MOST_SILENT):
        found = run_chunk(own, structure.fill(leaves), inputs, start, start + each, before=before)
        start, leaves, before = start + each, tuple(leaf[-1].clone() for leaf in found.states), found.last
        if any(bool(leaf.any()) for leaf in found.outputs):
            break
    return start, structure.fill(leaves), before


class StepByStep(ClosedCell):
    """Takes the steps of a cell as a plain loop does; of a ``ChunkCell``, with the numbers that a chunk left.

    Arguments:
        cell: the cell.
        states: the leaves of the states after each step, time first; none for those that its steps return.
    """

    def __init__(self, cell: Any, states: Leaves = ()) -> None:
        self._cell, self._states, self._step = cell, states, 0

    def __call__(self, state: Any, x: Any) -> Any:
        """Take a step. Raises InputError if a chunk left something else."""
        if not self._states:
            return self._cell(state, x)
        # Chunks run in full precision.
        with torch.autocast(device_type=self._states[0].device.type, enabled=False):
            after, output = self._cell(state, x)
        leaves, structure = flatten(after)
        left = tuple(leaf[self._step] for leaf in self._states)
        if not are_equal(tuple(one.detach() for one in leaves), left):
            raise InputError(
                f"{type(self._cell).__name__}.run: the state after step {self._step} of a chunk is not what "
                "forward returns",
                field="cell",
                accepted=_ACCEPTED,
            )
        self._step += 1
        pairs = zip(leaves, left, strict=True)
        moved = [one + (to - one.detach()) if is_differentiable(one) else to for one, to in pairs]
        return structure.fill(moved), output


def make_reverse_error(cell: ChunkCell, what: str) -> InputError:
    """Return the error for chunks whose gradients are not those of steps; ``what`` says which."""
    return InputError(
        f"{type(cell).__name__}.reverse is not the backward pass of its forward: {what}",
        field="cell",
        accepted=_ACCEPTED,
    )
