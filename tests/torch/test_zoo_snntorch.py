"""Every neuron and layer of snnTorch: gradients under plans are those of its own loop, or it is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import Conv2d, Linear

from ckptplan.torch.adapters import SnnTorchCell
from tests.torch.zoo import Animal, check, find_modules, import_quietly

snntorch = import_quietly("snntorch")
MODULES = find_modules(
    "snntorch",
    without={
        "backprop": "loops over time by itself",
        "export_nir": "exports networks",
        "functional": "losses, recorders and learners beside a network",
        "import_nir": "imports networks",
        "spikegen": "makes inputs",
        "spikeplot": "plots, and needs pandas",
        "spikevision": "data sets",
    },
)
EXCLUDED = {
    "neurons.LIF": "a base class",
    "neurons.SpikingNeuron": "a base class",
    "rleaky.RecurrentOneToOne": "a part of RLeaky",
    "rsynaptic.RecurrentOneToOne": "a part of RSynaptic",
    "leakykernel.LeakyKernel": "not exported, and has no forward",
    "leakyunroll.LeakyParallel": "not exported; the class of this name in leakyparallel is",
    "graded_spikes.GradedSpikes": "a layer; see GradedSpikes below",
}
TAKES_SEQUENCES = "takes whole sequences"


#: All surrogates but LSO, whose call fails within snnTorch.
SURROGATES = (
    "atan", "fast_sigmoid", "heaviside", "SFS", "sigmoid", "spike_rate_escape",
    "straight_through_estimator", "triangular",
)  # fmt: skip


class Net(torch.nn.Module):
    """A neuron behind a layer, as ``SnnTorchCell`` takes them."""

    def __init__(self, neuron: Any, layer: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.neuron, self.layer = neuron, layer


def dense(neurons: int = 7) -> Linear:
    one = Linear(5, neurons)
    torch.nn.init.uniform_(one.weight, -0.3, 0.6)
    return one


def make_leaky(one: Any, **given: Any) -> Net:
    return Net(one(beta=0.9, **given), dense())


def single(make: Any, **given: Any) -> Animal:
    """In single precision, in which the neuron makes its spikes or states whatever its inputs are."""
    return Animal(make=make, dtype=torch.float32, relative=2e-5, **given)


def settings() -> dict[str, Animal]:
    """Leaky with each of its settings, and those that only other neurons have."""
    given: dict[str, dict[str, Any]] = {
        "learned": {"learn_beta": True, "learn_threshold": True},
        "graded": {"graded_spikes_factor": 1.5, "learn_graded_spikes_factor": True},
        "zero": {"reset_mechanism": "zero"},
        "none": {"reset_mechanism": "none"},
        "without delay": {"reset_delay": False},
        "zero without delay": {"reset_delay": False, "reset_mechanism": "zero"},
        "inhibition": {"inhibition": True},
        "quantized": {"state_quant": import_quietly("snntorch.functional.quant").state_quant(4)},
        "output": {"output": True},
        "without surrogate": {"surrogate_disable": True},
        **{
            f"surrogate {name}": {"spike_grad": getattr(import_quietly("snntorch.surrogate"), name)()}
            for name in SURROGATES
        },
    }
    found = {
        f"Leaky, {name}": Animal(partial(make_leaky, snntorch.Leaky, **one)) for name, one in given.items()
    }
    recurrent: dict[str, dict[str, Any]] = {
        "one to one": {"all_to_all": False, "V": 0.5},
        "fixed": {"linear_features": 7, "learn_recurrent": False},
        "without delay": {"linear_features": 7, "reset_delay": False},
    }
    found |= {
        f"RLeaky, {name}": single(partial(make_leaky, snntorch.RLeaky, **one))
        for name, one in recurrent.items()
    }
    found["RLeaky, images"] = single(
        lambda: Net(snntorch.RLeaky(beta=0.9, conv2d_channels=2, kernel_size=3), Conv2d(2, 2, 3)),
        shape=(2, 2, 5, 5),
    )
    found["Leaky, surrogate SSO"] = Animal(
        lambda: Net(snntorch.Leaky(beta=0.9, spike_grad=import_quietly("snntorch.surrogate").SSO())),
        refused="draws random numbers in the backward pass",
    )
    found["GradedSpikes"] = Animal(
        lambda: Net(snntorch.Leaky(beta=0.9), snntorch.GradedSpikes(3, None)), shape=(3, 5)
    )
    found["BatchNormTT1d"] = Animal(
        lambda: Net(snntorch.Leaky(beta=0.9), snntorch.BatchNormTT1d(5, 1)[0]), statistics=True
    )
    return found


def neurons() -> dict[str, Animal]:
    both = {"alpha": 0.9, "beta": 0.8}

    def refused(make: Any) -> Animal:
        return Animal(lambda: Net(make()), refused=TAKES_SEQUENCES)

    return {
        "leaky.Leaky": Animal(lambda: Net(snntorch.Leaky(beta=0.9), dense())),
        "lapicque.Lapicque": Animal(lambda: Net(snntorch.Lapicque(beta=0.9), dense())),
        "synaptic.Synaptic": Animal(lambda: Net(snntorch.Synaptic(**both, learn_alpha=True), dense())),
        "alpha.Alpha": Animal(lambda: Net(snntorch.Alpha(**both, threshold=0.1), dense())),
        "deltaleaky.DeltaLeaky": Animal(
            lambda: Net(snntorch.DeltaLeaky(delta_threshold=0.5, beta=0.9, learn_beta=True), dense())
        ),
        "rleaky.RLeaky": single(
            lambda: Net(snntorch.RLeaky(beta=0.9, linear_features=7, learn_beta=True), dense())
        ),
        "rsynaptic.RSynaptic": single(lambda: Net(snntorch.RSynaptic(**both, linear_features=7), dense())),
        "slstm.SLSTM": single(lambda: Net(snntorch.SLSTM(7, 7, threshold=0.1), dense())),
        "sconv2dlstm.SConv2dLSTM": single(
            lambda: Net(snntorch.SConv2dLSTM(2, 3, 3, max_pool=2, threshold=0.1)), shape=(2, 2, 4, 4)
        ),
        "stateleaky.StateLeaky": refused(lambda: snntorch.StateLeaky(beta=0.9, channels=5)),
        "linearleaky.LinearLeaky": refused(lambda: snntorch.LinearLeaky(0.9, 5, 7)),
        "associative.AssociativeLeaky": refused(lambda: snntorch.AssociativeLeaky(5, 2, 2, 4)),
        "leakyparallel.LeakyParallel": refused(lambda: snntorch.LeakyParallel(5, 7)),
    }


ANIMALS = {**neurons(), **settings()}


def adapt(net: Any) -> SnnTorchCell:
    return SnnTorchCell(net.neuron, net.layer)


def run(cell: Any, inputs: list[Any], state: Any) -> tuple[list[Any], Any]:
    """SnnTorch's own loop: ``spikes, *state = neuron(layer(x), *state)``."""
    neuron = cell.module
    if state is None:
        state = neuron.reset_mem()
        if isinstance(state, torch.Tensor) or isinstance(neuron, snntorch.DeltaLeaky):
            state = (state,)
    outputs = []
    for x in inputs:
        spikes, *rest = neuron(x if cell.layer is None else cell.layer(x), *state)
        state = (spikes, *rest) if hasattr(neuron, "recurrent") else tuple(rest)
        outputs.append(spikes)
    return outputs, state


def test_every_class_of_the_package_is_here_or_left_out_for_a_reason() -> None:
    assert set(neurons()) | set(EXCLUDED) == set(MODULES)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", ANIMALS)
def test_gradients_are_those_of_its_own_loop(name: str, mode: str) -> None:
    check(ANIMALS[name], adapt, run, mode=mode)
