"""Networks with a kind: their sizes are what PyTorch's cells keep, and their work is what these compute."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ckptplan import InputError, Workload
from ckptplan.model.network import Network

BATCH, INPUTS, HIDDEN = 4, 16, 32


def network(**changes: Any) -> Network:
    return Network(**{"kind": "gru", "inputs": INPUTS, "neurons": HIDDEN, "batch": BATCH, **changes})


class ConvLSTM(torch.nn.Module):
    """One layer, as people write it."""

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.gates = torch.nn.Conv2d(inputs + channels, 4 * channels, 3, padding=1)

    def forward(self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]) -> Any:
        h, c = state
        i, f, g, o = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


def kept_bytes(cell: torch.nn.Module, x: torch.Tensor, state: Any) -> int:
    """The bytes that autograd keeps of one step, in whole storages, without weights."""
    weights = {one.untyped_storage().data_ptr() for one in cell.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = cell(x, state)
    del out
    return sum(one.nbytes() for place, one in kept.items() if place not in weights)


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


CELLS: dict[str, Any] = {
    "gru": (torch.nn.GRUCell(INPUTS, HIDDEN), tensor(BATCH, HIDDEN)),
    "lstm": (torch.nn.LSTMCell(INPUTS, HIDDEN), (tensor(BATCH, HIDDEN), tensor(BATCH, HIDDEN))),
    "convlstm": (
        ConvLSTM(INPUTS, HIDDEN),
        (tensor(BATCH, HIDDEN, 8, 8), tensor(BATCH, HIDDEN, 8, 8)),
    ),
}


@pytest.mark.parametrize("kind", CELLS)
def test_sizes_and_work_are_those_of_the_cell_of_pytorch(kind: str) -> None:
    """Tape and inputs together: PyTorch keeps the inputs of a step, of which the sequence holds one copy."""
    cell, state = CELLS[kind]
    image = {"height": 8, "width": 8} if kind == "convlstm" else {}
    x = tensor(BATCH, INPUTS, *image.values())
    described = network(kind=kind, **image)
    sizes = described.sizes(units=1)
    states = state if isinstance(state, tuple) else (state,)
    assert sizes["state_bytes"] == sum(one.nbytes for one in states)
    assert sizes["tape_bytes"] + sizes["resident_bytes_per_step"] == kept_bytes(cell, x, state)
    assert sizes["resident_bytes_per_step"] == x.nbytes
    # The weights, their gradients, and two moments of Adam.
    assert sizes["resident_bytes"] == 4 * sum(one.nbytes for one in cell.parameters())
    with FlopCounterMode(display=False) as counter:
        cell(x, state)
    assert described.operations().forward_flops == counter.get_total_flops()


def test_layers_share_the_neurons_and_feed_each_other() -> None:
    """Two layers of 16: 3 x 16 x (16 inputs + 16) weights, then 3 x 16 x (16 + 16)."""
    weights = 2 * 3 * 16 * (16 + 16)
    assert network(layers=2).operations().forward_flops == 2 * BATCH * weights
    assert network(layers=2).sizes(units=1)["resident_bytes"] == 4 * 4 * (weights + 2 * 6 * 16)


def test_a_spiking_network_carries_membranes_and_spikes() -> None:
    sizes = network(kind="snn").sizes(units=1)
    assert sizes["state_bytes"] == sizes["tape_bytes"] == BATCH * HIDDEN * 2 * 4
    assert network(kind="snn").operations().forward_flops == 2 * BATCH * HIDDEN * (INPUTS + HIDDEN)


def test_units_share_everything() -> None:
    whole, part = network().sizes(units=1), network().sizes(units=8)
    assert all(part[field] == -(-whole[field] // 8) for field in whole)


def test_a_backward_step_has_twice_the_work() -> None:
    work = network(dtype="bfloat16").operations()
    assert work.dtype == "bfloat16"
    assert (work.backward_flops, work.backward_kernels) == (2 * work.forward_flops, 2 * work.forward_kernels)
    assert work.forward_bytes == network().operations().forward_bytes / 2


def test_a_network_without_a_kind_is_as_before() -> None:
    """Its file has no new fields; it multiplies the weights of neurons that spike."""
    old = Network(neurons=12, layers=3, batch=5, activity=0.5)
    assert not {"kind", "inputs", "height", "width", "kernel"} & old.model_dump().keys()
    assert old.operations().forward_flops == 2 * 5 * 12 * 4 * 0.5


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"inputs": None}, "inputs"),
        ({"kind": "convlstm"}, "height"),
        ({"height": 8}, "height"),
        ({"kind": None}, "inputs"),
        ({"layers": 64}, "neurons"),
        ({"kind": "transformer"}, "kind"),
    ],
)
def test_what_does_not_belong_to_a_kind_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        network(**changes)
    assert caught.value.field == field


def test_a_workload_follows_its_batch() -> None:
    job = Workload(
        name="w", steps=8, units=1, network=network(), forward_seconds=1.0, backward_seconds=1.0,
        recompute_seconds=1.0,
    )  # type: ignore[call-arg]  # fmt: skip
    assert job.with_batch(2 * BATCH).tape_bytes == 2 * job.tape_bytes
