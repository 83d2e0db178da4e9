"""Adapters of cells that people bring: copies of them, what they refuse, and what they leave alone."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import Linear, ModuleDict, Sequential

from ckptplan import InputError
from ckptplan.torch import bptt, unroll
from ckptplan.torch.adapters import NorseCell, SnnTorchCell, SpikingJellyCell, TorchCell
from tests.torch.limit_tables import STRATEGIES, plan_steps
from tests.torch.support import assert_close, gradients, plan_of
from tests.torch.zoo import Animal, check, import_quietly, run_cell

snntorch, utils = import_quietly("snntorch"), import_quietly("snntorch.utils")
norse = import_quietly("norse.torch")
functional, layer, neuron, rnn, nir = (
    import_quietly(f"spikingjelly.activation_based.{name}")
    for name in ("functional", "layer", "neuron", "rnn", "nir_exchange.from_nir")
)
#: The packages warn about themselves.
pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = 20
PLAN = plan_of(STEPS, "double", states=8)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("kind", ["RNNCell", "GRUCell", "LSTMCell"])
def test_cells_of_torch_have_the_gradients_of_their_own_loop(kind: str, mode: str) -> None:
    """Neurons of the other packages are in ``test_zoo_snntorch.py`` and the files beside it."""
    check(Animal(lambda: getattr(torch.nn, kind)(5, 7)), TorchCell, run_cell, mode=mode)


def surrogate(x: torch.Tensor) -> torch.Tensor:
    """A surrogate that can be pickled; those of snnTorch cannot."""
    return (x > 0).to(x) + torch.sigmoid(x) - torch.sigmoid(x).detach()


def dense(largest: float = 2) -> Linear:
    """Return a layer whose weights make neurons fire."""
    linear = Linear(5, 7)
    torch.nn.init.uniform_(linear.weight, 0, largest)
    return linear


def net_of_spikingjelly() -> Any:
    recurrent = layer.LinearRecurrentContainer(neuron.LIFNode(), 7, 7)
    return Sequential(dense(), recurrent, layer.Dropout(0.2), neuron.IFNode())


def adapt_norse() -> NorseCell:
    cell = norse.LSNNRecurrentCell(5, 7)
    torch.nn.init.uniform_(cell.input_weights, 0, 20)
    return NorseCell(cell)


def adapt_snntorch() -> SnnTorchCell:
    leaky = snntorch.RLeaky(beta=0.9, linear_features=7, threshold=0.3, spike_grad=surrogate)
    return SnnTorchCell(leaky, Linear(5, 7))


#: An adapter of each kind, with weights of its own and recurrent ones.
ADAPTERS: dict[str, Callable[[], Any]] = {
    "torch": lambda: TorchCell(torch.nn.LSTMCell(5, 7)),
    "norse": adapt_norse,
    "snntorch": adapt_snntorch,
    "spikingjelly": lambda: SpikingJellyCell(net_of_spikingjelly()),
}


def adapted(package: str) -> Any:
    torch.manual_seed(0)
    return ADAPTERS[package]()


def outputs_of(cell: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    inputs = torch.rand(STEPS, 3, 5, generator=torch.Generator().manual_seed(3))
    torch.manual_seed(2)
    outputs, _ = unroll(cell, inputs, None, plan=PLAN)
    return outputs.detach(), gradients(outputs.square().sum(), list(cell.parameters()))


# Copies


def save_and_load(cell: Any) -> Any:
    file = io.BytesIO()
    torch.save(cell, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def load_state_dict(cell: Any) -> Any:
    other = adapted(next(package for package in ADAPTERS if type(adapted(package)) is type(cell)))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(cell.state_dict())
    return other


WAYS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda cell: pickle.loads(pickle.dumps(cell)),  # noqa: S301 - made here
    "save": save_and_load,
    "state dict": load_state_dict,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("package", ADAPTERS)
def test_a_copy_of_an_adapter_is_a_cell_of_its_own(package: str, way: str) -> None:
    """It gives the same outputs and gradients until its weights change; then those of the original stay."""
    cell = adapted(package)
    # A cell that was used before has kept nothing of it.
    outputs, expected = outputs_of(cell)
    other = WAYS[way](cell)
    found, theirs = outputs_of(other)
    assert torch.equal(found, outputs)
    assert_close(theirs, expected, relative=1e-6)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    assert not torch.equal(outputs_of(other)[0], outputs)
    assert torch.equal(outputs_of(cell)[0], outputs)


@pytest.mark.parametrize("package", ADAPTERS)
def test_a_state_dict_names_each_parameter_once(package: str) -> None:
    cell = adapted(package)
    values = [value.data_ptr() for value in cell.state_dict().values() if value.numel()]
    assert len(set(values)) == len(values)
    assert {name for name, _ in cell.named_parameters()} <= set(cell.state_dict())


# What is refused


def set_multi_step(net: Any) -> Any:
    functional.set_step_mode(net, "m")
    return net


def change_mode_later() -> None:
    """The batch would be taken for time."""
    cell = SpikingJellyCell(net_of_spikingjelly())
    set_multi_step(cell.module)
    bptt(cell, torch.rand(STEPS, 3, 5), None, lambda _, output: output.sum(), plan=PLAN)


class OwnNeuron(norse.LIF):  # type: ignore[misc, name-defined]
    """A neuron that loops over time, as the one that it derives from does."""


def adapt_nodes(*modules: Any) -> SpikingJellyCell:
    return SpikingJellyCell(Sequential(*modules))


def adapt_modules(*modules: Any) -> NorseCell:
    return NorseCell(norse.SequentialState(*modules))


def adapt_layer(second: torch.nn.Module) -> SnnTorchCell:
    return SnnTorchCell(snntorch.Leaky(beta=0.9), second)


LOOPS = r"LSNNRecurrent \(1\) takes whole.*LSNNRecurrentCell"
SECOND = "layer: has a second neuron or a memory"
MULTI_STEP = r"is in multi-step mode.*set_step_mode\(net, \"s\"\)"
STORES = "keeps the states of all steps.*store_v_seq=False"
OTHERS = "state: holds 1 values, and the nodes have 4 memories"
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: SnnTorchCell(snntorch.Leaky(beta=0.9, init_hidden=True)), "neuron: hides its state"),
    (lambda: adapt_layer(Sequential(dense(), snntorch.Leaky(beta=0.9))), SECOND),
    (lambda: adapt_layer(layer.SynapseFilter()), SECOND),
    (lambda: SpikingJellyCell(set_multi_step(net_of_spikingjelly())), rf"\(1\) {MULTI_STEP}"),
    (change_mode_later, MULTI_STEP),
    (lambda: adapt_nodes(dense(), neuron.LIFNode(store_v_seq=True)), rf"LIFNode \(1\) {STORES}"),
    (lambda: SpikingJellyCell(rnn.SpikingLSTMCell(5, 7)), "takes its state and returns it.*TorchCell"),
    (lambda: adapt_nodes(nir._NIRStatefulModule(neuron.IFNode())), "takes its state and returns it.*NorseCell"),
    (lambda: adapted("spikingjelly")((torch.zeros(3, 7),), torch.zeros(3, 5)), OTHERS),
    (lambda: NorseCell(norse.LIF()), "LIF takes whole.*LIFCell, which takes one step"),
    (lambda: adapt_modules(dense(), norse.LSNNRecurrent(7, 7)), LOOPS),
    (lambda: NorseCell(OwnNeuron()), "OwnNeuron takes whole.*derived from SNNCell"),
    (lambda: adapt_modules(norse.Lift(dense())), r"Lift \(0\) takes whole.*the module inside"),
    (lambda: adapt_modules(torch.nn.GRU(5, 7)), r"GRU \(0\) takes whole.*GRUCell"),
    (lambda: NorseCell(dense), "module: function is not a module"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_modules_that_an_adapter_cannot_step_are_refused_by_name(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_a_cell_of_spikingjelly_within_a_module_that_handles_its_state_is_a_layer() -> None:
    SpikingJellyCell(ModuleDict({"cell": rnn.SpikingLSTMCell(5, 7)}))


# What a step leaves and reads


def test_a_neuron_of_snntorch_keeps_no_graph_of_a_step() -> None:
    """Its attributes are as before, so that the memory of a step is free when its tape is."""
    cell = adapted("snntorch")
    before = dict(cell.neuron._buffers)
    cell(None, torch.ones(3, 5))
    assert dict(cell.neuron._buffers) == before
    assert not hasattr(cell.neuron, "reset")


def test_a_node_of_spikingjelly_that_is_used_twice_has_one_state() -> None:
    """As in its own loop, where the second use goes on from the first. The net itself is never stepped."""
    torch.manual_seed(0)
    shared = neuron.LIFNode()
    net = Sequential(dense(), shared, Linear(7, 7), shared)
    inputs = torch.rand(STEPS, 3, 5)
    expected = torch.stack([net(x) for x in inputs])
    functional.reset_net(net)
    cell = SpikingJellyCell(net)
    outputs, _ = unroll(cell, inputs, None, plan=PLAN)
    wanted = list(cell.parameters())
    assert torch.equal(outputs, expected)
    ours, theirs = gradients(outputs.square().sum(), wanted), gradients(expected.square().sum(), wanted)
    assert_close(ours, theirs, relative=1e-5)
    assert cell.initial_state() == (0.0,)


def test_forward_hooks_of_nodes_of_spikingjelly_count() -> None:
    net = Sequential(dense(), neuron.LIFNode())
    cell = SpikingJellyCell(net)
    x = torch.full((3, 5), 10.0)
    _, before = cell(None, x)
    net[1].register_forward_hook(lambda _module, _inputs, output: 3 * output)
    assert torch.equal(cell(None, x)[1], 3 * before)


#: Networks that keep their neurons' states themselves, and what resets each.
QUIET: dict[str, tuple[Callable[[], Any], Any]] = {
    "single": (lambda: Sequential(Linear(5, 7), neuron.LIFNode()), functional.reset_net),
    "multi": (lambda: set_multi_step(Sequential(Linear(5, 7), neuron.LIFNode())), functional.reset_net),
    "hidden": (lambda: Sequential(Linear(5, 7), snntorch.Leaky(beta=0.9, init_hidden=True)), utils.reset),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", QUIET)
def test_a_network_that_keeps_its_state_needs_no_adapter(name: str, strategy: str) -> None:
    """Also if inputs make nothing fire for half of the sequence."""
    torch.manual_seed(0)
    make, reset = QUIET[name]
    net, inputs = make(), torch.zeros(STEPS, 3, 5)
    inputs[STEPS // 2 :] = 5 * torch.rand(STEPS - STEPS // 2, 3, 5)
    wanted = list(net.parameters())
    theirs = gradients(torch.stack([net(x).sum() for x in inputs]).sum(), wanted)
    assert any(bool(gradient.any()) for gradient in theirs)
    plan = plan_steps(STEPS, strategy, states=16)

    def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return state, net(x)

    for _ in range(2):
        reset(net)
        result = bptt(cell, inputs, torch.zeros(1), lambda _, output: output.sum(), plan=plan)
        assert_close(gradients(result.loss, wanted), theirs, relative=1e-5)
