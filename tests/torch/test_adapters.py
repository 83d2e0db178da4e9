"""Cells that people bring, under a plan: gradients are those of plain backpropagation through time."""

from __future__ import annotations

import copy
import io
import pickle
from importlib import import_module
from typing import Any

import pytest
import torch

from ckptplan import InputError
from ckptplan.torch import bptt, unroll
from ckptplan.torch.adapters import NorseCell, SnnTorchCell, SpikingJellyCell, TorchCell
from tests.torch.support import assert_close, gradients, plain, plan_of

STEPS = 20
PLAN = plan_of(STEPS, "double", states=8)


def check(cell: Any, state: Any) -> None:
    inputs = torch.randn(STEPS, 3, 5, generator=torch.Generator().manual_seed(3), requires_grad=True)
    wanted = [inputs, *cell.parameters()]
    weight = torch.randn(STEPS, generator=torch.Generator().manual_seed(4))
    outputs, _ = plain(cell, inputs.unbind(), state, STEPS)
    assert any(output.any() for output in outputs)
    expected = sum((weight[t] * output.sum() for t, output in enumerate(outputs)), torch.zeros(()))
    theirs = gradients(expected, wanted)
    assert any(one.any() for one in theirs)
    result = bptt(cell, inputs, state, lambda t, output: weight[t] * output.sum(), plan=PLAN)
    assert torch.allclose(result.loss, expected)
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-5)


@pytest.mark.parametrize("kind", ["RNNCell", "GRUCell", "LSTMCell"])
def test_cells_of_torch(kind: str) -> None:
    torch.manual_seed(0)
    check(TorchCell(getattr(torch.nn, kind)(5, 7)), None)


@pytest.mark.parametrize("kind", ["Leaky", "Synaptic", "Alpha", "RLeaky", "Lapicque"])
@pytest.mark.filterwarnings("ignore")
def test_neurons_of_snntorch(kind: str) -> None:
    snntorch = import_module("snntorch")
    torch.manual_seed(0)
    given: dict[str, Any] = {"beta": 0.9, "threshold": 0.5}
    if kind in ("Synaptic", "Alpha"):
        given["alpha"] = 0.95
    if kind == "RLeaky":
        given |= {"linear_features": 7}
    neuron = getattr(snntorch, kind)(**given)
    check(SnnTorchCell(neuron, torch.nn.Linear(5, 7)), None)


@pytest.mark.filterwarnings("ignore")
def test_a_neuron_that_hides_its_state_is_refused() -> None:
    snntorch = import_module("snntorch")
    with pytest.raises(InputError, match="neuron: hides its state"):
        SnnTorchCell(snntorch.Leaky(beta=0.9, init_hidden=True))


@pytest.mark.parametrize("kind", ["LIFRecurrentCell", "LSNNRecurrentCell"])
@pytest.mark.filterwarnings("ignore")
def test_cells_of_norse(kind: str) -> None:
    norse = import_module("norse.torch")
    torch.manual_seed(0)
    cell = getattr(norse, kind)(5, 7)
    torch.nn.init.uniform_(cell.input_weights, 0, 20)
    check(NorseCell(cell), None)


@pytest.mark.filterwarnings("ignore")
def test_stateful_nodes_of_spikingjelly() -> None:
    neuron = import_module("spikingjelly.activation_based.neuron")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), neuron.LIFNode(), torch.nn.Linear(7, 4), neuron.IFNode())
    for module in net:
        if isinstance(module, torch.nn.Linear):
            module.weight.data *= 5
    cell = SpikingJellyCell(net)
    check(cell, cell.initial_state())
    # The net itself was never stepped.
    assert cell.initial_state() == (0.0, 0.0)


def surrogate(x: torch.Tensor) -> torch.Tensor:
    """A surrogate that can be pickled; those of snnTorch cannot."""
    return (x > 0).to(x) + torch.sigmoid(x) - torch.sigmoid(x).detach()


def adapted(package: str) -> Any:
    """An adapter of each kind, with weights of its own and recurrent ones."""
    torch.manual_seed(0)
    if package == "torch":
        return TorchCell(torch.nn.LSTMCell(5, 7))
    if package == "norse":
        cell = import_module("norse.torch").LSNNRecurrentCell(5, 7)
        torch.nn.init.uniform_(cell.input_weights, 0, 20)
        return NorseCell(cell)
    if package == "snntorch":
        neuron = import_module("snntorch").RLeaky(
            beta=0.9, linear_features=7, threshold=0.3, spike_grad=surrogate
        )
        return SnnTorchCell(neuron, torch.nn.Linear(5, 7))
    return SpikingJellyCell(net_of_spikingjelly())


def net_of_spikingjelly() -> Any:
    neuron = import_module("spikingjelly.activation_based.neuron")
    layer = import_module("spikingjelly.activation_based.layer")
    recurrent = layer.LinearRecurrentContainer(neuron.LIFNode(), 7, 7)
    dense = torch.nn.Linear(5, 7)
    torch.nn.init.uniform_(dense.weight, 0, 2)
    return torch.nn.Sequential(dense, recurrent, layer.Dropout(0.2), neuron.IFNode())


def outputs_of(cell: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    inputs = torch.rand(STEPS, 3, 5, generator=torch.Generator().manual_seed(3))
    torch.manual_seed(2)
    outputs, _ = unroll(cell, inputs, None, plan=PLAN)
    return outputs.detach(), gradients(outputs.square().sum(), list(cell.parameters()))


def by_deepcopy(cell: Any) -> Any:
    return copy.deepcopy(cell)


def by_pickle(cell: Any) -> Any:
    return pickle.loads(pickle.dumps(cell))  # noqa: S301 - made here


def by_saving(cell: Any) -> Any:
    file = io.BytesIO()
    torch.save(cell, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def by_state_dict(cell: Any) -> Any:
    other = adapted(next(one for one in PACKAGES if type(adapted(one)) is type(cell)))
    with torch.no_grad():
        for one in other.parameters():
            one.zero_()
    other.load_state_dict(cell.state_dict())
    return other


PACKAGES = ("torch", "norse", "snntorch", "spikingjelly")
WAYS = (by_deepcopy, by_pickle, by_saving, by_state_dict)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.filterwarnings("ignore")
def test_a_copy_of_an_adapter_is_a_cell_of_its_own(package: str, way: Any) -> None:
    """It gives the same outputs and gradients until its weights change; then those of the original stay."""
    cell = adapted(package)
    # A cell that was used before has kept nothing of it.
    outputs, expected = outputs_of(cell)
    other = way(cell)
    found, theirs = outputs_of(other)
    assert torch.equal(found, outputs)
    assert_close(theirs, expected, relative=1e-6)
    with torch.no_grad():
        for one in other.parameters():
            one.mul_(0.5)
    assert not torch.equal(outputs_of(other)[0], outputs)
    assert torch.equal(outputs_of(cell)[0], outputs)


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.filterwarnings("ignore")
def test_a_state_dict_names_each_parameter_once(package: str) -> None:
    cell = adapted(package)
    values = [value.data_ptr() for value in cell.state_dict().values() if value.numel()]
    assert len(set(values)) == len(values)
    assert {name for name, _ in cell.named_parameters()} <= set(cell.state_dict())


@pytest.mark.filterwarnings("ignore")
def test_a_neuron_of_snntorch_keeps_no_graph_of_a_step() -> None:
    """Its attributes are as before, so that the memory of a step is free when its tape is."""
    cell = adapted("snntorch")
    before = dict(cell.neuron._buffers)
    cell(None, torch.ones(3, 5))
    assert dict(cell.neuron._buffers) == before
    assert not hasattr(cell.neuron, "reset")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.filterwarnings("ignore")
def test_multi_step_mode_of_spikingjelly_is_refused(when: str) -> None:
    """In the constructor, and if it is set later; the batch would be taken for time."""
    functional = import_module("spikingjelly.activation_based.functional")
    net = net_of_spikingjelly()
    inputs = torch.rand(STEPS, 3, 5)
    if when == "before":
        functional.set_step_mode(net, "m")
        with pytest.raises(InputError, match=r"\(1\) is in multi-step mode.*set_step_mode\(net, \"s\"\)"):
            SpikingJellyCell(net)
        return
    cell = SpikingJellyCell(net)
    functional.set_step_mode(net, "m")
    with pytest.raises(InputError, match=r"is in multi-step mode.*set_step_mode\(net, \"s\"\)"):
        bptt(cell, inputs, None, lambda _, output: output.sum(), plan=PLAN)


@pytest.mark.filterwarnings("ignore")
def test_a_node_of_spikingjelly_that_keeps_all_its_states_is_refused() -> None:
    neuron = import_module("spikingjelly.activation_based.neuron")
    with pytest.raises(InputError, match=r"LIFNode \(1\) keeps the states of all steps.*store_v_seq=False"):
        SpikingJellyCell(torch.nn.Sequential(torch.nn.Linear(5, 7), neuron.LIFNode(store_v_seq=True)))


@pytest.mark.filterwarnings("ignore")
def test_a_module_that_returns_its_state_is_not_one_of_spikingjelly_that_keeps_it() -> None:
    rnn = import_module("spikingjelly.activation_based.rnn")
    nir = import_module("spikingjelly.activation_based.nir_exchange.from_nir")
    neuron = import_module("spikingjelly.activation_based.neuron")
    with pytest.raises(InputError, match=r"takes its state and returns it.*TorchCell"):
        SpikingJellyCell(rnn.SpikingLSTMCell(5, 7))
    with pytest.raises(InputError, match=r"takes its state and returns it.*NorseCell"):
        SpikingJellyCell(torch.nn.Sequential(nir._NIRStatefulModule(neuron.IFNode())))
    # Within a module that handles its state, it is a layer.
    SpikingJellyCell(torch.nn.ModuleDict({"cell": rnn.SpikingLSTMCell(5, 7)}))


@pytest.mark.filterwarnings("ignore")
def test_a_state_of_other_nodes_of_spikingjelly_is_refused() -> None:
    cell = adapted("spikingjelly")
    with pytest.raises(InputError, match=r"state: holds 1 values, and the nodes have 4 memories"):
        cell((torch.zeros(3, 7),), torch.zeros(3, 5))


@pytest.mark.filterwarnings("ignore")
def test_a_node_of_spikingjelly_that_is_used_twice_has_one_state() -> None:
    """As in its own loop, where the second use goes on from the first."""
    neuron = import_module("spikingjelly.activation_based.neuron")
    functional = import_module("spikingjelly.activation_based.functional")
    torch.manual_seed(0)
    shared, dense = neuron.LIFNode(), torch.nn.Linear(5, 7)
    torch.nn.init.uniform_(dense.weight, 0, 2)
    net = torch.nn.Sequential(dense, shared, torch.nn.Linear(7, 7), shared)
    inputs = torch.rand(STEPS, 3, 5)
    expected = torch.stack([net(x) for x in inputs])
    functional.reset_net(net)
    cell = SpikingJellyCell(net)
    assert len(cell.initial_state()) == 1
    outputs, _ = unroll(cell, inputs, None, plan=PLAN)
    wanted = list(cell.parameters())
    assert torch.equal(outputs, expected)
    ours, theirs = gradients(outputs.square().sum(), wanted), gradients(expected.square().sum(), wanted)
    assert_close(ours, theirs, relative=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_forward_hooks_of_nodes_of_spikingjelly_count() -> None:
    neuron = import_module("spikingjelly.activation_based.neuron")
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), neuron.LIFNode())
    cell = SpikingJellyCell(net)
    x = torch.full((3, 5), 10.0)
    _, before = cell(None, x)
    net[1].register_forward_hook(lambda _module, _inputs, output: 3 * output)
    assert torch.equal(cell(None, x)[1], 3 * before)


@pytest.mark.filterwarnings("ignore")
def test_a_layer_with_a_state_is_no_layer_of_a_neuron() -> None:
    snntorch = import_module("snntorch")
    layer = import_module("spikingjelly.activation_based.layer")
    neuron = snntorch.Leaky(beta=0.9)
    for one in (torch.nn.Sequential(torch.nn.Linear(5, 7), snntorch.Leaky(beta=0.9)), layer.SynapseFilter()):
        with pytest.raises(InputError, match="layer: has a second neuron or a memory"):
            SnnTorchCell(neuron, one)


@pytest.mark.filterwarnings("ignore")
def test_neurons_of_norse_that_loop_over_time_are_refused_with_their_cell() -> None:
    """Also within others, and classes that derive from them."""
    norse = import_module("norse.torch")

    class Own(norse.LIF):  # type: ignore[misc, name-defined]
        pass

    refused = {
        r"LIF takes whole.*LIFCell, which takes one step": norse.LIF(),
        r"LSNNRecurrent \(1\) takes whole.*LSNNRecurrentCell": norse.SequentialState(
            torch.nn.Linear(5, 7), norse.LSNNRecurrent(7, 7)
        ),
        r"Own takes whole.*derived from SNNCell": Own(),
        r"Lift \(0\) takes whole.*the module inside": norse.SequentialState(norse.Lift(torch.nn.Linear(5, 7))),
        r"GRU \(0\) takes whole.*GRUCell": norse.SequentialState(torch.nn.GRU(5, 7)),
    }
    for message, module in refused.items():
        with pytest.raises(InputError, match=message):
            NorseCell(module)


def test_an_adapter_takes_a_module() -> None:
    with pytest.raises(InputError, match="module: function is not a module"):
        NorseCell(lambda x, state: (x, state))  # type: ignore[arg-type]


def make_quiet(name: str) -> Any:
    """Return a network that keeps its neurons' states itself, and the function that resets it."""
    snntorch, utils = import_module("snntorch"), import_module("snntorch.utils")
    neuron = import_module("spikingjelly.activation_based.neuron")
    functional = import_module("spikingjelly.activation_based.functional")
    torch.manual_seed(0)
    if name == "hidden":
        leaky = snntorch.Leaky(beta=0.9, init_hidden=True)
        return torch.nn.Sequential(torch.nn.Linear(5, 7), leaky), utils.reset
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), neuron.LIFNode())
    if name == "multi":
        functional.set_step_mode(net, "m")
    return net, functional.reset_net


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("strategy", ["base", "standard", "revolve"])
@pytest.mark.parametrize("name", ["single", "multi", "hidden"])
def test_a_network_that_keeps_its_state_needs_no_adapter(name: str, strategy: str) -> None:
    """Also if inputs make nothing fire for half of the sequence."""
    net, reset = make_quiet(name)
    inputs = torch.zeros(STEPS, 3, 5)
    inputs[STEPS // 2 :] = 5 * torch.rand(STEPS - STEPS // 2, 3, 5)
    wanted = list(net.parameters())
    theirs = gradients(torch.stack([net(x).sum() for x in inputs]).sum(), wanted)
    assert any(bool(one.any()) for one in theirs)
    plan = plan_of(STEPS, strategy, states=100 if strategy == "base" else 16)
    for _ in range(2):
        reset(net)
        result = bptt(
            lambda state, x: (state, net(x)), inputs, torch.zeros(1), lambda _, output: output.sum(), plan=plan
        )
        assert_close(gradients(result.loss, wanted), theirs, relative=1e-5)
