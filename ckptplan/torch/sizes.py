"""Measures the sizes of a cell on its first steps, for a workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ckptplan.errors import InputError
from ckptplan.schedule.actions import Backward, Record
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.executor import Executor
from ckptplan.torch.inputs import make_sequence
from ckptplan.torch.planned import bptt_planned
from ckptplan.torch.sequence_watch import leave_as_found
from ckptplan.torch.trees import byte_size, flatten

#: Measure up to this many steps.
_STEPS = 16


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes in bytes, as the fields of a ``Workload`` of one unit."""

    state_bytes: int
    tape_bytes: int
    #: Outputs that a cell saves for the whole sequence, such as spikes; zero for most cells.
    resident_bytes_per_step: int


def measured_sizes(cell: Any, inputs: Any, state: Any, loss: Any = None, **more: Any) -> Sizes:
    """Run the first steps under autograd and count the storages they keep. Arguments are those of ``bptt``.

    ``Workload(**vars(measured_sizes(...)), name=..., steps=..., units=1, ...)`` also needs times; for plans
    that move nothing, only their ratios matter. Spikes are counted as they fire in the first steps; they take
    at most one bit per neuron and step. Raises InputError.
    """
    leaves = () if callable(inputs) else flatten(inputs)[0]
    length = len(leaves[0]) if leaves and leaves[0].dim() else 2
    steps = min(_STEPS, length)
    pieces, nest = make_sequence(inputs, steps=length).piece(0, steps)
    seen: list[tuple[int, int]] = []

    def observe(_: object, executor: Executor) -> None:
        seen.append((sum(tape.bytes for tape in executor.tapes), executor.engine.saved_bytes))

    first = nest.fill(copy_roots(pieces))
    if loss is None and not any(name.endswith("loss") for name in more):
        loss = _sum
    at_once = Schedule(steps=steps, actions=(Record(0, steps), Backward(0, steps)), local_states=steps)
    things = {"cell": cell, "loss": loss, **more}
    with torch.enable_grad(), leave_as_found(things, device=pieces[0].device if pieces else None):
        result = bptt_planned(cell, first, state, loss, plan=at_once, observer=observe, **more)
    if not seen:
        raise InputError(
            "has nothing that requires a gradient, so that no tape is kept",
            field="cell",
            accepted="a cell with parameters, parameters=[...], or inputs or a state that require a gradient",
        )
    tape, saved = max(seen)
    if not tape and not any(piece.numel() for piece in pieces):
        raise InputError(
            f"have no elements: the shape of a step is {tuple(pieces[0].shape[1:])}",
            field="inputs",
            accepted="a batch of at least one",
        )
    return Sizes(
        state_bytes=byte_size(flatten(result.state)[0]),
        tape_bytes=-(-tape // steps),
        resident_bytes_per_step=-(-saved // steps),
    )


def copy_roots(leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors outside of any graph, which require a gradient if the given ones do."""
    return [leaf.detach().requires_grad_(leaf.requires_grad) for leaf in leaves]


def _sum(_: int, output: Any) -> torch.Tensor:
    leaves = [torch.view_as_real(leaf) if leaf.is_complex() else leaf for leaf in flatten(output)[0]]
    return torch.stack([leaf.float().sum() for leaf in leaves]).sum()
