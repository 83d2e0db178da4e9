"""Cells, plans and plain backpropagation to compare with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

import ckptplan
from ckptplan import Plan
from ckptplan.torch import run_call
from ckptplan.torch.fit import limited
from ckptplan.torch.pieces import compiled, length

#: A machine whose numbers do not matter: plans are made in units of one state.
MACHINE = ckptplan.HardwareProfile(
    name="units",
    local_bytes=10**9,
    write_bytes_per_second=1e3,
    read_bytes_per_second=1e3,
    latency_seconds=0,
    synchronisation_seconds=0.1,
)


def plan_of(
    steps: int, strategy: str = "double", *, states: int = 12, alpha: float = 2, state_bytes: int = 1
) -> Plan:
    """A plan within some states of local memory, whose tapes are ``alpha`` states."""
    workload = ckptplan.Workload(
        name="units",
        steps=steps,
        state_bytes=state_bytes,
        tape_bytes=round(alpha * state_bytes),
        forward_seconds=1,
        backward_seconds=2,
        recompute_seconds=1,
    )
    return ckptplan.optimize(workload, MACHINE, strategies=[strategy], local_bytes=states * state_bytes)


def plain(cell: Any, inputs: Any, state: Any, steps: int) -> tuple[list[Any], Any]:
    """Plain backpropagation through time: all outputs, and the final state."""
    outputs = []
    for step in range(steps):
        state, output = cell(state, inputs[step])
        outputs.append(output)
    return outputs, state


def gru(seed: int = 0, *, dtype: torch.dtype = torch.float64) -> tuple[Any, list[torch.Tensor]]:
    """A GRU cell with 5 inputs and 7 units, and its parameters."""
    torch.manual_seed(seed)
    module = torch.nn.GRUCell(5, 7).to(dtype)

    def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = module(x, state)
        return state, state

    return cell, list(module.parameters())


def job(steps: int, *, dtype: torch.dtype = torch.float64, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and an initial state of batch 3, both with a gradient."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(steps, 3, 5, dtype=dtype, generator=generator, requires_grad=True)
    state = torch.randn(3, 7, dtype=dtype, generator=generator, requires_grad=True)
    return inputs, state


def gradients(loss: torch.Tensor, wanted: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients, zero where there is none."""
    found = torch.autograd.grad(loss, list(wanted), allow_unused=True, materialize_grads=True)
    return list(found)


def assert_close(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], *, relative: float) -> None:
    """Each gradient is within a share of its largest entry."""
    for one, other in zip(ours, theirs, strict=True):
        scale = float(other.abs().max()) if other.numel() else 0.0
        assert float((one - other).abs().max()) <= relative * max(scale, 1e-30)


def forget_measurements() -> None:
    """Forget what earlier calls showed: their kinds, their sizes and the lengths of their pieces."""
    run_call.forget_calls()
    limited.forget_sizes()
    length.forget_lengths()
    compiled.forget_pieces()


def read_least(error: Exception) -> int:
    """Return the least limit that an error names."""
    found = re.search(r"at least .*?\(([\d,]+) bytes", str(error))
    assert found is not None
    return int(found[1].replace(",", ""))
