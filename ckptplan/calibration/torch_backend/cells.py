"""Builds the cells of PyTorch that a name can refer to: built-in ones, and those of the user's own modules.

Compiled pieces of K time steps are measured and planned as steps are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ckptplan.calibration.cell_spec import FIRST_STEP, CellSpec, blame_cell, call_factory
from ckptplan.errors import InputError, quote_value
from ckptplan.torch.adapters import TorchCell
from ckptplan.torch.device.memory import available_bytes
from ckptplan.torch.device.meters import Clock, choose_clock
from ckptplan.torch.lif import LIF
from ckptplan.torch.run.inputs import Inputs
from ckptplan.torch.state.nests import count_bytes, flatten, map_leaves
from ckptplan.units import format_bytes

_ITEM_BYTES = 4
_FACTORY = (
    "a factory that returns (cell, state), or (cell, state, inputs) where inputs(steps) returns tensors, "
    "time first; it is called with those of batch, inputs, neurons and device that it takes"
)


@dataclass(frozen=True, kw_only=True)
class MeasuredNetwork:
    """A cell with its initial state, and inputs of any length, which are reproducible by the seed."""

    cell: Any
    state: Any
    device: torch.device
    make_inputs: Callable[[int], Any]
    parameters: tuple[torch.nn.Parameter, ...]
    seed: int
    #: K, if a step is a compiled piece of K steps.
    piece: int | None = None
    #: The folder of remote checkpoints; None for host memory.
    remote_dir: Path | None = None

    @property
    def clock(self) -> Clock:
        """The clock of its runs: processor time does not see a disk."""
        return choose_clock(self.device) if self.remote_dir is None else perf_counter

    def inputs(self, steps: int) -> Any:
        """Return inputs for ``steps`` steps, or pieces, time first.

        Raises InputError if the factory's function fails.
        """
        steps *= self.piece or 1
        torch.manual_seed(self.seed + 1)
        with blame_cell(f"its inputs for {steps} steps", accepted=_FACTORY):
            return self.make_inputs(steps)

    @contextmanager
    def in_double(self) -> Iterator[MeasuredNetwork]:
        """Return a copy whose parameters, state and inputs are of double precision, within a block."""
        cell = copy.deepcopy(self.cell).double()
        yield replace(
            self,
            cell=cell,
            state=_to_double(self.state),
            make_inputs=lambda steps: _to_double(self.make_inputs(steps)),
            parameters=tuple(one for one in cell.parameters() if one.requires_grad),
        )

    def bytes_before(self, inputs: Any) -> int:
        """Return the bytes in memory before a run: parameters, buffers, inputs and the initial state."""
        weights: tuple[torch.Tensor, ...] = self.parameters
        if isinstance(self.cell, torch.nn.Module):
            # Include frozen parameters.
            weights = (*self.cell.parameters(), *self.cell.buffers())
        return count_bytes((*weights, *flatten(self.state)[0], *flatten(inputs)[0]))


def compute_loss(_: int, output: Any) -> torch.Tensor:
    """Return the loss of a step: a mean of squares, which takes negligible time."""
    # PyTorch's compiler takes it as a whole.
    values: torch.Tensor = tree_leaves(output)[0]
    return (values if values.is_floating_point() else values.float()).square().mean()


def check_device(device: str) -> None:
    """Raise InputError if a device, 'cpu' or 'cuda', is not available."""
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("no CUDA device is available", field="device", value=device, accepted="cpu")


def _to_double(tensors: Any) -> Any:
    return map_leaves(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, tensors)


def build_network(spec: CellSpec, *, batch: int, device: str, seed: int) -> MeasuredNetwork:
    """Return the network of a spec; the seed determines weights and data. Raises InputError."""
    check_device(device)
    if spec.name in _BUILT_IN:
        # Its numbers may be those of anybody's file: the system ends a process that takes too much.
        gates = spec.neurons * (spec.inputs + spec.neurons)
        _require_room(_ITEM_BYTES * (gates + batch * spec.neurons), what=str(spec), device=device)

    def make_normal(steps: int) -> torch.Tensor:
        _require_room(
            _ITEM_BYTES * steps * batch * spec.inputs, what=f"inputs for {steps:,} steps", device="cpu"
        )
        return torch.randn(steps, batch, spec.inputs).to(torch.device(device))

    torch.manual_seed(seed)
    cell, state, make_inputs = _call_factory(spec, batch=batch, device=device)
    network = MeasuredNetwork(
        cell=cell,
        state=state,
        device=torch.device(device),
        make_inputs=make_inputs or make_normal,
        parameters=tuple(one for one in cell.parameters() if one.requires_grad),
        seed=seed,
    )
    run_step(network)
    return replace(network, piece=spec.compile)


def _require_room(need: int, *, what: str, device: str) -> None:
    """Raise InputError if more bytes are needed than are free."""
    free = available_bytes(torch.device(device))
    if free is not None and need > free:
        raise InputError(
            f"{what} would take at least {format_bytes(need)}, and {format_bytes(free)} are free",
            field="cell",
            accepted="fewer inputs, neurons, steps, or a smaller batch",
        )


def run_step(network: MeasuredNetwork) -> None:
    """Run a step or a piece with its losses, without a tape. Raises InputError if the cell fails."""
    inputs, state = Inputs(network.inputs(1), network.piece or 1), network.state
    named = [(str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape[1:])) for leaf in inputs.leaves]
    shapes = ", ".join(f"{dtype} {shape}" for dtype, shape in named)
    accepted = "cell(state, x) -> (state, output), the output floats first; other inputs come from the factory"
    note = f" (inputs of a step: {shapes})"
    with blame_cell(FIRST_STEP, accepted=accepted, note=note), torch.no_grad():
        for x in inputs.iterate_all():
            state, output = network.cell(state, x)
            compute_loss(0, output)


def _call_factory(spec: CellSpec, *, batch: int, device: str) -> tuple[Any, Any, Any]:
    """Return the cell, the state and the function of inputs of a factory. Raises InputError."""
    settings = {"batch": batch, "inputs": spec.inputs, "neurons": spec.neurons, "device": device}
    cell, state, make_inputs = call_factory(spec, _BUILT_IN, settings=settings, parts=2, factory=_FACTORY)
    if not flatten(state)[0]:
        raise InputError(
            f"{spec.name} returned a state without tensors, {quote_value(state)}, whose size is unknown",
            field="cell",
            accepted="the state that the first step begins with, as tensors: zeros of their shapes",
        )
    if not isinstance(cell, torch.nn.Module):
        # Without a module, parameters cannot be counted, nor their gradients compared.
        raise InputError(
            f"{spec.name} returned {quote_value(type(cell).__name__)} as its cell: no parameters can be found",
            field="cell",
            accepted="a torch.nn.Module; move a function into the forward of one",
        )
    return cell, state, make_inputs


def _make_lif(*, batch: int, inputs: int, neurons: int, device: str) -> tuple[Any, Any]:
    cell = LIF(inputs, neurons, device=device)
    with torch.no_grad():
        # With this scale, about 7 % of the neurons fire at a time, for any number of inputs.
        cell.weight.mul_(1.15)
    return cell, cell.initial_state(batch)


def _make_torch_factory(kind: Callable[..., torch.nn.Module], states: int) -> Callable[..., tuple[Any, Any]]:
    def make(*, batch: int, inputs: int, neurons: int, device: str) -> tuple[Any, Any]:
        zeros = torch.zeros(batch, neurons, device=device)
        cell = TorchCell(kind(inputs, neurons, device=device))
        return cell, (zeros, zeros.clone()) if states == 2 else zeros

    return make


_BUILT_IN: dict[str, Callable[..., Any]] = {
    "gru": _make_torch_factory(torch.nn.GRUCell, 1),
    "lif": _make_lif,
    "lstm": _make_torch_factory(torch.nn.LSTMCell, 2),
    "rnn": _make_torch_factory(torch.nn.RNNCell, 1),
}
