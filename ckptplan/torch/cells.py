"""Builds PyTorch cells by name: built-in cells, and cells of the user's own modules.

Compiled pieces of K time steps are measured and planned as steps are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ckptplan.errors import InputError, quote_value
from ckptplan.model.cell_spec import FIRST_STEP, Announce, CellSpec, blame_cell, call_factory
from ckptplan.planning.playback import make_schedule
from ckptplan.torch import CompileFallback
from ckptplan.torch.adapters import TorchCell
from ckptplan.torch.backend import TorchNetwork, TorchProgram
from ckptplan.torch.device.memory import available_bytes
from ckptplan.torch.lif import LIF
from ckptplan.torch.run.inputs import Inputs
from ckptplan.torch.state.nests import flatten
from ckptplan.units import format_bytes

_ITEM_BYTES = 4
_FACTORY = (
    "a factory that returns (cell, state), or (cell, state, inputs) where inputs(steps) returns tensors, "
    "time first; it is called with those of batch, inputs, neurons and device that it takes"
)
#: How many pieces the sequence has with which pieces are compiled.
_COMPILED_PIECES = 4


def build_torch_network(
    spec: CellSpec,
    *,
    batch: int,
    device: str,
    seed: int,
    remote_dir: Path | None = None,
    announce: Announce | None = None,
) -> TorchNetwork:
    """Return the network of a spec. Announce and compile its pieces if it has any. Raises InputError.

    The seed determines weights and data.
    """
    if spec.name in _BUILT_IN:
        # Anybody's file may have huge numbers, and the system kills a process that takes too much.
        gates = spec.neurons * (spec.inputs + spec.neurons)
        _require_room(_ITEM_BYTES * (gates + batch * spec.neurons), subject=str(spec), device=device)

    def make_normal(steps: int) -> torch.Tensor:
        _require_room(
            _ITEM_BYTES * steps * batch * spec.inputs, subject=f"inputs for {steps:,} steps", device="cpu"
        )
        return torch.randn(steps, batch, spec.inputs).to(torch.device(device))

    torch.manual_seed(seed)
    cell, state, make_inputs = _call_factory(spec, batch=batch, device=device)

    def make_blamed(steps: int) -> Any:
        with blame_cell(f"its inputs for {steps} steps", accepted=_FACTORY):
            return (make_inputs or make_normal)(steps)

    network = TorchNetwork(
        cell=cell,
        state=state,
        device=torch.device(device),
        make_inputs=make_blamed,
        seed=seed,
        remote_dir=remote_dir,
    )
    _run_first_step(network)
    if spec.compile is None:
        return network
    if announce is not None:
        announce(f"compiling pieces of {spec.compile} steps, besides the time below")
    return compile_pieces(replace(network, piece=spec.compile))


def compile_pieces(network: TorchNetwork) -> TorchNetwork:
    """Compile the pieces of a network, and return it. Raises InputError with the reason if this fails."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            TorchProgram(network, make_schedule("base", steps=_COMPILED_PIECES)).time()
        except InputError as error:
            reasons = [str(warning.message) for warning in caught if warning.category is CompileFallback]
            if error.field != "compile" or not reasons:
                raise
            raise InputError(
                f"is {network.piece}, but {reasons[-1]}",
                field="compile",
                value=network.piece,
                accepted=error.accepted,
            ) from None
    return network


def _require_room(need: int, *, subject: str, device: str) -> None:
    """Raise InputError if more bytes are needed than are free."""
    free = available_bytes(torch.device(device))
    if free is not None and need > free:
        raise InputError(
            f"{subject} would take at least {format_bytes(need)}, and {format_bytes(free)} are free",
            field="cell",
            accepted="fewer inputs, neurons, steps, or a smaller batch",
        )


def _run_first_step(network: TorchNetwork) -> None:
    """Run a step with its loss, without a tape. Raises InputError if the cell fails."""
    inputs = Inputs(network.inputs(1), 1)
    named = [(str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape[1:])) for leaf in inputs.leaves]
    shapes = ", ".join(f"{dtype} {shape}" for dtype, shape in named)
    accepted = "cell(state, x) -> (state, output), the output floats first; other inputs come from the factory"
    note = f" (inputs of a step: {shapes})"
    with blame_cell(FIRST_STEP, accepted=accepted, note=note):
        network.run_step()


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
        # Without a module, parameters cannot be counted, and their gradients cannot be compared.
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
