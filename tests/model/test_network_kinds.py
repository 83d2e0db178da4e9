"""Networks with a kind: their sizes are what PyTorch's cells keep, and their work is what these compute."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import ckptplan
from ckptplan import InputError, Workload
from ckptplan.model.network import Network
from ckptplan.report.formats import make_view

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


def test_spikes_of_a_network_with_an_activity_are_its_cache() -> None:
    """Two layers of 16 neurons, 4 samples: a quarter of 128 neurons spike in a step."""
    plain, active = (network(kind="snn", layers=2, **more) for more in ({}, {"activity": 0.25}))
    before, after = plain.sizes(units=1), active.sizes(units=1)
    assert (before["cache_bytes"], after["cache_bytes"]) == (0, BATCH * HIDDEN * 0.25 * 4)
    assert before["tape_bytes"] == 2 * after["tape_bytes"] == 2 * BATCH * HIDDEN * 4
    assert before["state_bytes"] == after["state_bytes"]
    # Inputs to the first layer, and three matrices of 16 x 16 that multiply spikes.
    inputs, others = INPUTS * 16, 3 * 16 * 16
    work = active.operations()
    assert work.forward_flops == plain.operations().forward_flops == 2 * BATCH * (inputs + others)
    assert work.recompute_flops == 2 * BATCH * (inputs + others / 4)
    assert plain.operations().recompute_flops is None
    assert work.recompute_bytes is not None
    assert work.forward_bytes - work.recompute_bytes == 4 * 0.75 * others


@pytest.mark.parametrize(
    ("changes", "each_step", "buffers"),
    [
        ({}, 64 * BATCH, 0),
        ({"input_bits": 1}, 2 * BATCH, 0),
        ({"dtype": "float16"}, 32 * BATCH, 0),
        ({"dtype": "float16", "input_bits": 64}, 128 * BATCH, 0),
        ({"input_storage": "generated"}, 0, 0),
        ({"input_storage": "streamed"}, 0, 2 * 64 * BATCH),
        ({"outputs": 5}, (64 + 20) * BATCH, 0),
        ({"outputs": 5, "output_bits": 8}, (64 + 5) * BATCH, 0),
        ({"outputs": 5, "output_storage": "streamed"}, 64 * BATCH, 2 * 20 * BATCH),
        ({"input_bits": 1, "input_storage": "streamed", "outputs": 5}, 20 * BATCH, 2 * 2 * BATCH),
    ],
)
def test_inputs_and_outputs_take_what_is_kept_of_them(
    changes: dict[str, Any], each_step: int, buffers: int
) -> None:
    """16 inputs of 32 bits, of 4 samples; streams have buffers for two steps."""
    described = network(**changes)
    sizes = described.sizes(units=1)
    assert sizes["resident_bytes_per_step"] == sum(described.count_data_bytes(units=1)) == each_step
    assert sizes["resident_bytes"] == described.count_weight_bytes(units=1) + buffers


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_bits": 0}, "input_bits"),
        ({"input_bits": 65}, "input_bits"),
        ({"input_storage": "remote"}, "input_storage"),
        ({"output_bits": 8}, "output_bits: needs the field outputs"),
        ({"kind": None, "inputs": None, "input_bits": 8}, "input_bits: needs the field kind"),
    ],
)
def test_what_inputs_and_outputs_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        network(**changes)


def test_streams_that_steps_wait_for_are_warned_of() -> None:
    """64 kB a step at 1 GB/s take 64 us."""
    job = ckptplan.load_workload("gru").replace_numbers(
        network=network(inputs=4096, input_storage="streamed"), forward_seconds=60e-6
    )
    for rate, warned in (("1 GB/s", True), ("2 GB/s", False)):
        machine = ckptplan.load_profile("ipu-mk2").replace_numbers(read_bytes_per_second=rate)
        plan = ckptplan.optimize(job.replace(timed_on=None), machine, steps=64)
        told = " ".join(str(block) for block in make_view(plan).blocks())
        assert ("the inputs of a step take 65.54 us to or from remote memory" in told) == warned


def test_an_activity_that_changes_moves_the_spikes_between_tape_and_cache() -> None:
    job = ckptplan.load_workload("snn-shd")
    silent = job.with_activity(0.0)
    assert (silent.tape_bytes, silent.cache_bytes) == (2 * job.tape_bytes, 0)
    assert silent.with_activity(0.042).tape_bytes == job.tape_bytes


def test_a_network_without_spikes_has_no_activity() -> None:
    with pytest.raises(InputError, match="activity: is a number of spiking networks; a gru has no spikes"):
        network(activity=0.1)


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
