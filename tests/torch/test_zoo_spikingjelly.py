"""Every neuron and layer of SpikingJelly: gradients under plans are those of its own loop, or it is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import Linear, Sequential
from torch.utils import _pytree

from ckptplan.torch.adapters import SpikingJellyCell, TorchCell
from tests.torch.zoo import STEPS, Animal, check, find_modules, import_quietly, run_cell

PACKAGE = "spikingjelly.activation_based"
base, functional = import_quietly(f"{PACKAGE}.base"), import_quietly(f"{PACKAGE}.functional")
layer, neuron = import_quietly(f"{PACKAGE}.layer"), import_quietly(f"{PACKAGE}.neuron")
encoding, rnn = import_quietly(f"{PACKAGE}.encoding"), import_quietly(f"{PACKAGE}.rnn")
surrogate, lava = import_quietly(f"{PACKAGE}.surrogate"), import_quietly(f"{PACKAGE}.lava_exchange")

#: Packages and modules that hold no neurons or layers of their own, or cannot be imported.
WITHOUT = {
    "ann2snn": "converts networks, and needs requests",
    "distributed": "shards networks over processes",
    "examples": "programs",
    "functional": "functions; its modules are wrappers of these",
    "learning": "learners beside a network, which need tensorboard",
    "lynxi_exchange": "exports to a chip",
    "memopt": "rewrites networks for another kind of checkpointing",
    "model": "networks of these layers, some of which need torchvision",
    "monitor": "recorders, which need tensorboard",
    "nir_exchange": "imports networks of these layers; its wrapper is refused below",
    "op_counter": "counters",
    "precision": "layers of another package, in eight bits",
    "profiler": "measures",
    "base": "the base class of the nodes",
}
#: Classes that cannot be stepped, for what they are.
EXCLUDED = {
    "encoding.StatefulEncoder": "a base class",
    "encoding.StatelessEncoder": "a base class",
    "spikezip.STBIFNode": "refuses autograd itself: for inference only",
    "surrogate.PoissonPass": "draws with the membrane as a probability, which it is not",
}
#: Neurons that only exist in multi-step mode.
MULTI_STEP = (
    "DSRIFNode", "DSRLIFNode", "GatedLIFNode", "ILCCUBALIFNode", "ILCIFNode", "ILCLIFNode", "NoisyCUBALIFNode",
    "NoisyILCCUBALIFNode", "NoisyNonSpikingIFNode", "NonSpikingIFNode", "NonSpikingLIFNode", "PSN",
)  # fmt: skip
TAKES_SEQUENCES = "takes whole sequences"


def behind(node: Any, *, neurons: int = 7) -> Sequential:
    """A node behind a dense layer, whose weights are learned."""
    dense = Linear(5, neurons, dtype=torch.float64)
    torch.nn.init.uniform_(dense.weight, -0.3, 1.0)
    return Sequential(dense, node)


def make_node(one: Any, **given: Any) -> Sequential:
    return behind(one(**given))


def fire(v: torch.Tensor) -> torch.Tensor:
    return (v > 0.5).to(v) + v - v.detach()


def integrate(x: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The core of a FlexSN node."""
    v = 0.9 * v + x
    return fire(v), v - fire(v)


def few_spike_table() -> Any:
    module = import_quietly(f"{PACKAGE}.neuron.few_spike")
    return module.FewSpikeTable([0.5, 0.3], [1.0, 0.5], [1.0, 0.5])


def image(*, channels: int = 2, size: tuple[int, ...] = (4, 4)) -> tuple[int, ...]:
    return (2, channels, *size)


MODULES = find_modules(PACKAGE, without=WITHOUT)


def nodes() -> dict[str, Animal]:
    """Neurons; those without an entry here are made without arguments."""
    given: dict[str, Any] = {
        "SimpleLIFNode": {"tau": 2.0, "decay_input": True},
        "LIAFNode": {"act": torch.tanh, "threshold_related": False},
        "SlidingPSN": {"k": 2},
        "MaskedPSN": {"k": 2, "T": STEPS + 2, "lambda_init": 1.0},
        "MPBNLIFNode": {"out_features": 7},
        "PSN": {"T": STEPS},
        "GatedLIFNode": {"T": STEPS},
        "FlexSN": {"core": integrate, "num_states": 1, "step_mode": "s"},
        "FewSpikeNode": {"table": few_spike_table()},
        "OutlierAwareThresholdNode": {
            "table": few_spike_table(), "outlier_table": few_spike_table(), "split_threshold": 1.0,
        },
        "HGNode": {"tables": [few_spike_table(), few_spike_table()], "gate_thresholds": [0.5]},
        **{f"ILC{one}Node": {"act_dim": 7, "dec_pop_dim": 1} for one in ("IF", "LIF", "CUBALIF")},
        "NoisyILCCUBALIFNode": {"act_dim": 7, "dec_pop_dim": 1},
        "NoisyCUBALIFNode": {"num_node": 7},
        "NoisyNonSpikingIFNode": {"num_node": 7},
    }  # fmt: skip
    found = {}
    for name, one in MODULES.items():
        if one.__module__.startswith(f"{PACKAGE}.neuron.") and name not in EXCLUDED:
            arguments = given.get(one.__name__, {})
            found[name] = Animal(
                partial(make_node, one, **arguments),
                refused=TAKES_SEQUENCES if one.__name__ in MULTI_STEP else None,
                statistics=one.__name__ == "MPBNLIFNode",
            )
    return found


def surrogates() -> dict[str, Animal]:
    given: dict[str, Any] = {"MultiLevelSpikeCount": {"max_spike_count": 4}}
    return {
        name: Animal(partial(make_node, neuron.LIFNode, surrogate_function=one(**given.get(one.__name__, {}))))
        for name, one in MODULES.items()
        if name.startswith("surrogate.") and name not in EXCLUDED
    }


class Unpooling(torch.nn.Module):
    """What a pooling layer took, in its place."""

    def __init__(self, pool: torch.nn.Module, unpool: torch.nn.Module) -> None:
        super().__init__()
        self.pool, self.unpool = pool, unpool

    def forward(self, x: torch.Tensor) -> Any:
        return self.unpool(*self.pool(x))


class Twice(torch.nn.Module):
    """A module that takes spikes and their trace, given the same for both."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> Any:
        return self.module((x, 0.5 * x))


def stateless() -> dict[str, Animal]:
    """Layers without memory, in one, two and three dimensions."""
    found = {
        "Linear": Animal(lambda: layer.Linear(5, 7)),
        "WSLinear": Animal(lambda: layer.WSLinear(5, 7)),
        "WSConv2d": Animal(lambda: layer.WSConv2d(2, 3, 3), shape=image()),
        "Flatten": Animal(layer.Flatten, shape=image()),
        "GroupNorm": Animal(lambda: layer.GroupNorm(2, 4), shape=image(channels=4)),
        "Upsample": Animal(lambda: layer.Upsample(scale_factor=2), shape=image()),
    }
    for dimension in (1, 2, 3):
        shape = image(size=(4,) * dimension)
        for kind, arguments in {
            "Conv": (2, 3, 3),
            "ConvTranspose": (2, 3, 3),
            "MaxPool": (2,),
            "AvgPool": (2,),
            "AdaptiveAvgPool": (2,),
        }.items():
            one = getattr(layer, f"{kind}{dimension}d")
            found[f"{kind}{dimension}d"] = Animal(partial(one, *arguments), shape=shape)
        pool, unpool = getattr(torch.nn, f"MaxPool{dimension}d"), getattr(layer, f"MaxUnpool{dimension}d")
        found[f"MaxUnpool{dimension}d"] = Animal(
            partial(Unpooling, pool(2, return_indices=True), unpool(2)),
            shape=shape,
        )
    return {f"stateless_wrapper.{name}": animal for name, animal in found.items()}


def norms() -> dict[str, Animal]:
    """BatchNorm and its variants, with statistics that run in train()."""
    found = {"NeuNorm": Animal(lambda: Sequential(neuron.IFNode(), layer.NeuNorm(2, 4, 4)), shape=image())}
    for dimension in (1, 2, 3):
        shape = (3, 5) if dimension == 1 else image(channels=5, size=(2,) * dimension)
        for kind, arguments in {
            "BatchNorm": (5,),
            "BatchNormThroughTime": (STEPS + 2, 5),
            "ThresholdDependentBatchNorm": (1.0, 1.0, 5),
            "TemporalEffectiveBatchNorm": (STEPS, 5),
        }.items():
            one = getattr(layer, f"{kind}{dimension}d")
            multi = kind.startswith("T")
            found[f"{kind}{dimension}d"] = Animal(
                partial(one, *arguments),
                shape=shape,
                refused=TAKES_SEQUENCES if multi else None,
                statistics=not multi,
            )
    return {f"bn.{name}": animal for name, animal in found.items()}


def layers() -> dict[str, Animal]:
    """Layers that keep something, containers, encoders, and cells with a state of their own."""

    def refused(make: Any) -> Animal:
        return Animal(make=make, refused=TAKES_SEQUENCES)

    dense = {name: getattr(layer, name) for name in ("SpikingSelfAttention", "QKAttention", "TokenQKAttention")}
    dense["ChannelQKAttention"] = layer.ChannelQKAttention
    containers = (
        "MultiStepContainer",
        "SeqToANNContainer",
        "TLastMultiStepContainer",
        "TLastSeqToANNContainer",
    )
    return {
        **{f"attention.{name}": refused(lambda one=one: one(8)) for name, one in dense.items()},
        "attention.SpikeDrivenSelfAttention": Animal(
            lambda: layer.SpikeDrivenSelfAttention(8),
            refused="LIFNode (shortcut_lif) is in multi-step mode",
        ),
        "attention.MultiDimensionalAttention": refused(lambda: layer.MultiDimensionalAttention(16, 16)),
        "attention.TemporalWiseAttention": refused(lambda: layer.TemporalWiseAttention(16)),
        **{
            f"container.{name}": refused(lambda name=name: getattr(layer, name)(Linear(5, 7)))
            for name in containers
        },
        "container.StepModeContainer": Animal(
            lambda: layer.StepModeContainer(True, "s", behind(neuron.LIFNode()))
        ),
        "container.ElementWiseRecurrentContainer": Animal(
            lambda: behind(layer.ElementWiseRecurrentContainer(neuron.LIFNode(), torch.add))
        ),
        "container.LinearRecurrentContainer": Animal(
            lambda: behind(layer.LinearRecurrentContainer(neuron.LIFNode(), 7, 7))
        ),
        "dropout.Dropout": Animal(lambda: Sequential(behind(neuron.LIFNode()), layer.Dropout(0.3))),
        "dropout.Dropout2d": Animal(lambda: layer.Dropout2d(0.3), shape=image(channels=5)),
        "dropout.DropConnectLinear": Animal(lambda: behind(layer.DropConnectLinear(7, 4))),
        "misc.Delay": Animal(lambda: behind(layer.Delay(2))),
        "misc.PrintShapeModule": Animal(lambda: behind(layer.PrintShapeModule())),
        "misc.SynapseFilter": Animal(lambda: behind(layer.SynapseFilter(tau=3.0, learnable=True))),
        "misc.VotingLayer": Animal(lambda: behind(layer.VotingLayer(7))),
        "misc.SpikeCountToBinary": refused(lambda: layer.SpikeCountToBinary(2)),
        "misc.TemporalBinSum": refused(lambda: layer.TemporalBinSum(2)),
        "online_learning.GradwithTrace": Animal(lambda: Twice(layer.GradwithTrace(Linear(5, 7)))),
        "online_learning.SpikeTraceOp": Animal(lambda: Twice(layer.SpikeTraceOp(Linear(5, 7)))),
        "online_learning.OTTTSequential": Animal(
            lambda: layer.OTTTSequential(
                behind(neuron.OTTTLIFNode()), layer.WSLinear(7, 4), neuron.OTTTLIFNode(v_threshold=0.1)
            )
        ),
        "encoding.LatencyEncoder": Animal(lambda: encoding.LatencyEncoder(6), largest=1),
        "encoding.PoissonEncoder": Animal(encoding.PoissonEncoder, largest=1),
        "encoding.WeightedPhaseEncoder": Animal(lambda: encoding.WeightedPhaseEncoder(4), largest=0.9),
        "encoding.PeriodicEncoder": Animal(
            lambda: encoding.PeriodicEncoder(torch.rand(4, 3, 5, dtype=torch.float64))
        ),
        "encoding.PopEncoder": Animal(lambda: encoding.PopEncoder(5, 4, 3, (0, 3), 0.5)),
        "encoding.PopSpikeEncoderRandom": Animal(lambda: encoding.PopSpikeEncoderRandom(5, 4, 3, (0, 3), 0.5)),
        "encoding.PopSpikeEncoderDeterministic": Animal(
            lambda: encoding.PopSpikeEncoderDeterministic(5, 4, 3, (0, 3), 0.5),
            refused="IFNode (neurons) is in multi-step mode",
        ),
        "lava_exchange.BatchNorm2d": Animal(
            lambda: lava.BatchNorm2d(5), shape=image(channels=5), statistics=True
        ),
        "lava_exchange.CubaLIFNode": Animal(lambda: behind(lava.CubaLIFNode(0.3, 0.3))),
        "rnn.SpikingLSTM": refused(lambda: rnn.SpikingLSTM(5, 7, 1)),
        "rnn.SpikingGRU": refused(lambda: rnn.SpikingGRU(5, 7, 1)),
        "rnn.SpikingVanillaRNN": refused(lambda: rnn.SpikingVanillaRNN(5, 7, 1)),
    }


CELLS = {name: one for name, one in MODULES.items() if name.startswith("rnn.") and name.endswith("Cell")}
ANIMALS = {**nodes(), **surrogates(), **stateless(), **norms(), **layers()}


def run(cell: Any, inputs: list[Any], state: Any) -> tuple[list[Any], Any]:
    """SpikingJelly's own loop."""
    net = cell.module
    functional.reset_net(net)
    base.load_memories(net, [_pytree.tree_map(lambda leaf: leaf, value) for value in state])
    outputs = [net(x) for x in inputs]
    end = tuple(base.extract_memories(net))
    functional.reset_net(net)
    return outputs, end


def test_every_class_of_the_package_is_here_or_left_out_for_a_reason() -> None:
    assert set(ANIMALS) | set(CELLS) | set(EXCLUDED) == set(MODULES)
    assert len(ANIMALS) > 120


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", ANIMALS)
def test_gradients_are_those_of_its_own_loop(name: str, mode: str) -> None:
    check(ANIMALS[name], SpikingJellyCell, run, mode=mode)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", CELLS)
def test_cells_with_a_state_of_their_own_are_those_of_torch(name: str, mode: str) -> None:
    animal = Animal(lambda: CELLS[name](5, 7))
    check(animal, TorchCell, run_cell, mode=mode)
