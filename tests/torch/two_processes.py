"""Runs cases of parallel training in one of two processes, and writes what came out; see test_sharding.py.

    python -m tests.torch.two_processes RANK STORE RESULT CASE...

For each case: how far the gradients of a plan are from those of a plain loop with the same wrappers, relative
to their largest entry (a list; "missing" where there is none), or the message of the InputError.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import ckptplan
from ckptplan.torch import bptt, unroll
from tests.torch.support import plain, plan_of

STEPS = 10
#: The bytes of a state of 4 samples.
STATE = 4 * 6 * 8


class Cell(torch.nn.Module):
    """Two layers, so that there is something to shard by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.enter = (torch.nn.Linear(*size) for size in ((6, 8), (8, 6), (4, 6)))

    def forward(self, state: Any, x: Any) -> tuple[Any, Any]:
        state = torch.tanh(self.enter(x) + self.down(torch.relu(self.up(state))))
        return state, state


class Model(torch.nn.Module):
    """Computes the loss of a sequence, under a plan or in a plain loop."""

    def __init__(
        self, strategy: str | None, *, as_method: bool = False, stacks: bool = False, piece: int | None = None
    ) -> None:
        super().__init__()
        self.piece = piece
        self.plan = None if strategy is None else plan_of(STEPS, strategy, states=30, state_bytes=STATE)
        self.cell, self.head = Cell(), torch.nn.Linear(6, 2)
        self.as_method, self.stacks = as_method, stacks

    def step(self, state: Any, x: Any) -> tuple[Any, Any]:
        """A step that is a method of the module that calls bptt."""
        state, output = self.cell(state, x)
        return state, output

    def forward(self, inputs: Any, state: Any) -> Any:
        cell: Any = self.step if self.as_method else self.cell
        if self.stacks:
            outputs = (
                torch.stack(plain(cell, inputs, state, STEPS)[0])
                if self.plan is None
                else unroll(cell, inputs, state, plan=self.plan)[0]
            )
            return outputs[..., :4]

        def loss(_: int, output: Any) -> Any:
            return self.head(output).square().mean()

        if self.plan is None:
            return sum(loss(step, one) for step, one in enumerate(plain(cell, inputs, state, STEPS)[0]))
        if self.piece is None:
            return bptt(cell, inputs, state, loss, plan=self.plan).loss
        options: Any = {"compile": self.piece}
        result: Any = bptt(cell, inputs, state, loss, plan=self.plan, **options)
        assert result.piece == self.piece
        return result.loss


class Memory(torch.nn.Module):
    """Keeps its state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = Cell()
        self.state: Any = None

    def forward(self, x: Any) -> Any:
        self.state, _ = self.cell(self.state, x)
        return self.state


class Wrapped(torch.nn.Module):
    """A loss of the outputs of a network that keeps its state, wrapped or in a plain loop."""

    def __init__(self, strategy: str | None) -> None:
        super().__init__()
        self.loops = strategy is None
        self.net: Any = Memory()
        if strategy is not None:
            plan = plan_of(STEPS, strategy, states=30, state_bytes=STATE)
            self.net = ckptplan.torch.wrap(self.net, plan=plan)
        self.head = torch.nn.Linear(6, 2)

    def forward(self, inputs: Any, state: Any) -> Any:
        self.net.state = state
        outputs = torch.stack([self.net(x) for x in inputs]) if self.loops else self.net(inputs)
        return self.head(outputs).square().mean()


class Layers(torch.nn.Module):
    """Layers that each run the whole sequence."""

    def __init__(self, strategy: str | None) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Model(strategy, stacks=True) for _ in range(2))

    def forward(self, inputs: Any, state: Any) -> Any:
        for layer in self.layers:
            inputs = layer(inputs, state)
        return inputs.square().mean()


def shard(*names: str) -> Callable[[Any], Any]:
    """Return what shards the named parts of a model, '' for all of it."""

    def wrap(model: Any) -> Any:
        for name in names:
            fully_shard(model.get_submodule(name))
        return model

    return wrap


def wrap_part(name: str, kind: Callable[..., Any], **options: Any) -> Callable[[Any], Any]:
    """Return what puts a part of a model into a wrapper."""

    def wrap(model: Any) -> Any:
        if not name:
            return kind(model, **options)
        model.set_submodule(name, kind(model.get_submodule(name), **options))
        return model

    return wrap


def freeze(model: Any) -> Any:
    """Freeze a part and shard the whole."""
    model.cell.enter.requires_grad_(False)
    return fully_shard(model)


def shard_inner(model: Any) -> Any:
    """Shard each layer that calls a plan, and the whole."""
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=True)
    return fully_shard(model)


def tensor_parallel(model: Any) -> Any:
    """Split two layers of the cell between the processes."""
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model.cell, init_device_mesh("cpu", (2,)), plan)
    return model


def distribute(placement: Any) -> Callable[[Any], Any]:
    """Return what makes all parameters DTensors."""

    def part(_: str, module: Any, mesh: Any) -> None:
        for name, one in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(distribute_tensor(one.detach(), mesh, [placement])))

    return lambda model: distribute_module(model, init_device_mesh("cpu", (2,)), partition_fn=part)


CPU = {"device_id": torch.device("cpu")}
WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "fsdp": shard(""),
    "fsdp, frozen": freeze,
    "fsdp, method": shard(""),
    "fsdp, layers": shard_inner,
    "fsdp, resharded": lambda model: fully_shard(model, reshard_after_forward=True),
    "fsdp of the cell": shard("cell"),
    "fsdp of the cell and all": shard("cell", ""),
    "fsdp of a part": shard("cell.up"),
    "fsdp of a part and all": shard("cell.up", ""),
    "fsdp of the head and all": shard("head", ""),
    "fsdp of the cell, method": shard("cell", ""),
    "ddp": wrap_part("", DistributedDataParallel),
    "ddp, compiled": wrap_part("", DistributedDataParallel),
    "ddp, static": wrap_part("", DistributedDataParallel, static_graph=True),
    "ddp of the cell": wrap_part("cell", DistributedDataParallel),
    "ddp of a part": wrap_part("cell.up", DistributedDataParallel),
    "ddp of a part, static": wrap_part("cell.up", DistributedDataParallel, static_graph=True),
    "ddp of a part, unused": wrap_part("cell.up", DistributedDataParallel, find_unused_parameters=True),
    "ddp, wrapped network": wrap_part("", DistributedDataParallel),
    "ddp, wrapped network, unused": wrap_part("", DistributedDataParallel, find_unused_parameters=True),
    "dp": wrap_part("", torch.nn.DataParallel),
    "dp of a part": wrap_part("cell.up", torch.nn.DataParallel),
    "fsdp1": wrap_part("", FullyShardedDataParallel, **CPU),
    "fsdp1, original parameters": wrap_part("", FullyShardedDataParallel, use_orig_params=True, **CPU),
    "fsdp1 of a part": wrap_part("cell.up", FullyShardedDataParallel, use_orig_params=True, **CPU),
    "tensor parallel": tensor_parallel,
    "dtensor, replicated": distribute(Replicate()),
    "dtensor, sharded": distribute(Shard(0)),
    "dtensor, sharded, and its data": distribute(Shard(0)),
}


def data(case: str, rank: int, turn: int) -> tuple[Any, Any]:
    """Return inputs and a state: each process its own, unless they share one computation."""
    shared = case.startswith(("tensor", "dtensor"))
    generator = torch.Generator().manual_seed(10 * turn + (0 if shared else rank))
    inputs = torch.randn(STEPS, 4, 4, generator=generator, dtype=torch.float64)
    state = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    if case.startswith("dtensor"):
        mesh = init_device_mesh("cpu", (2,))
        ours = (Shard(1), Shard(0)) if case.endswith("data") else (Replicate(), Replicate())
        return distribute_tensor(inputs, mesh, [ours[0]]), distribute_tensor(state, mesh, [ours[1]])
    return inputs, state


def gradients(case: str, rank: int, strategy: str | None) -> list[torch.Tensor | None]:
    """Return the gradients of the second of two steps of training."""
    torch.manual_seed(0)
    made: Any
    if "wrapped" in case:
        made = Wrapped(strategy)
    elif "layers" in case:
        made = Layers(strategy)
    else:
        made = Model(strategy, as_method="method" in case, piece=3 if "compiled" in case else None)
    model = WRAPPERS[case](made.double())
    for turn in range(2):
        model.zero_grad()
        model(*data(case, rank, turn)).backward()
    return [None if one.grad is None else whole(one.grad).clone() for one in model.parameters()]


def compare(case: str, rank: int) -> Any:
    """Return the differences, over two plans, or a refusal."""
    expected = gradients(case, rank, None)
    assert any(one is not None and bool(one.any()) for one in expected)
    differences: list[Any] = []
    for strategy in ("standard", "revolve"):
        try:
            found = gradients(case, rank, strategy)
        except ckptplan.InputError as error:
            return str(error)
        for one, other in zip(found, expected, strict=True):
            if one is not None and other is not None:
                scale = max(float(other.abs().max()), 1e-30) if other.numel() else 1.0
                differences.append(float((one - other).abs().max()) / scale if other.numel() else 0.0)
            elif one is not None or other is not None:
                differences.append("missing")
    return differences


def evaluate(rank: int) -> Any:
    """Return the difference of losses without gradients, where sharded parts of a cell are right."""
    values = []
    for strategy in (None, "standard"):
        torch.manual_seed(0)
        model = shard("cell.up", "")(Model(strategy).double())
        with torch.no_grad():
            values.append(float(model(*data("fsdp", rank, 0))))
    return [abs(values[0] - values[1])]


def refuse_first(rank: int) -> Any:
    """Return the differences of a plain loop after a refusal, which must have left the sharded part alone."""
    torch.manual_seed(0)
    model = shard("cell.up")(Model("standard").double())
    try:
        model(*data("fsdp", rank, 1))
    except ckptplan.InputError:
        model.plan = None
        model(*data("fsdp", rank, 1)).backward()
    expected = gradients("fsdp of a part", rank, None)
    return [
        float((whole(one.grad) - other).abs().max())
        for one, other in zip(model.parameters(), expected, strict=True)
        if other is not None
    ]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that is not shared out."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


#: Cases that are no comparison of gradients.
SPECIAL: dict[str, Callable[[int], Any]] = {
    "fsdp of a part, no_grad": evaluate,
    "fsdp of a part, refused before": refuse_first,
}


def run_graph(graph: Any, *_: Any, **__: Any) -> Any:
    """Run a graph of PyTorch's compiler without making machine code of it, which takes seconds."""
    return graph.forward


def main(rank: str, store: str, result: str, *cases: str) -> None:
    torch.set_num_threads(1)
    if any("compiled" in case for case in cases):
        backend: Any = import_module("ckptplan.torch.compiling.backend")
        backend.compile_fx = run_graph
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
    found = {case: SPECIAL[case](int(rank)) if case in SPECIAL else compare(case, int(rank)) for case in cases}
    Path(result).write_text(json.dumps(found), encoding="utf-8")
    sys.stdout.flush()
    # Gloo's threads may still be releasing tensors, and abort if Python exits first (pytorch#179291).
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
