"""Builds the cells of PyTorch that a name can refer to: built-in ones, and those of the user's own modules.

A piece of K steps is a cell, too, so that compiled pieces are measured and planned as steps are.
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
from torch.utils import _pytree

from ckptplan.calibration.cell_spec import FIRST_STEP, CellSpec, blame_cell, call_factory
from ckptplan.errors import InputError, quote_value
from ckptplan.torch.adapters import TorchCell
from ckptplan.torch.compiling.steps import run_steps
from ckptplan.torch.inputs import make_sequence
from ckptplan.torch.lif import LIF
from ckptplan.torch.memory import available_bytes
from ckptplan.torch.meters import Clock, choose_clock
from ckptplan.torch.trees import byte_size, flatten
from ckptplan.units import format_bytes


class PieceCell(torch.nn.Module):
    """Runs K steps of a cell as a single one; inputs have the steps first, the output is a list."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, state: Any, inputs: Any) -> tuple[Any, list[Any]]:
        """Return the state after the last step, and the outputs of all."""
        outputs, state = run_steps(self.inner, None, 0, state, inputs)
        return state, outputs


def compute_piece_loss(_: int, outputs: list[Any]) -> torch.Tensor:
    """Return the loss of a piece: the sum of those of its steps, which are means of squares."""
    firsts = [_pytree.tree_leaves(one)[0] for one in outputs]
    squares = [(one if one.is_floating_point() else one.float()).square().mean() for one in firsts]
    return torch.stack(squares).sum()


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
        """Return inputs for ``steps`` steps, time first. Raises InputError if the factory's function fails."""
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
        return byte_size((*weights, *flatten(self.state)[0], *flatten(inputs)[0]))

    @property
    def loss(self) -> Callable[[int, Any], torch.Tensor]:
        """The loss of a step, or of a piece: a mean of squares, which takes negligible time."""
        return _compute_loss if self.piece is None else compute_piece_loss


def _compute_loss(_: int, output: Any) -> torch.Tensor:
    values = flatten(output)[0][0]
    return (values if values.is_floating_point() else values.float()).square().mean()


def check_device(device: str) -> None:
    """Raise InputError if a device, 'cpu' or 'cuda', is not available."""
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("no CUDA device is available", field="device", value=device, accepted="cpu")


def _to_double(tensors: Any) -> Any:
    leaves, structure = flatten(tensors)
    return structure.fill([leaf.double() if leaf.is_floating_point() else leaf for leaf in leaves])


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
    return network if spec.compile is None else _join_steps(network, spec.compile)


def _join_steps(network: MeasuredNetwork, steps: int) -> MeasuredNetwork:
    """Return a network whose steps are pieces of so many steps; a chunk cell runs its steps one by one."""
    make_inputs = network.make_inputs

    def make_pieces(count: int) -> Any:
        leaves, structure = flatten(make_inputs(count * steps))
        return structure.fill([leaf.unflatten(0, (count, steps)) for leaf in leaves])

    return replace(network, cell=PieceCell(network.cell), make_inputs=make_pieces, piece=steps)


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
    """Run a step and its loss, without a tape. Raises InputError if the cell fails."""
    leaves, structure = make_sequence(network.inputs(1), steps=1).piece(0, 1)
    shapes = ", ".join(f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape[1:])}" for leaf in leaves)
    accepted = "cell(state, x) -> (state, output), the output floats first; other inputs come from the factory"
    note = f" (inputs of a step: {shapes})"
    with blame_cell(FIRST_STEP, accepted=accepted, note=note), torch.no_grad():
        _, output = network.cell(network.state, structure.fill([leaf[0] for leaf in leaves]))
        network.loss(0, output)


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
