"""Chunks treat states, losses and batch statistics as single steps do, or say why they cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ckptplan import InputError
from ckptplan.torch import LIF, ChunkStack, SpikingLayer, bptt, wrap, wrap_layers
from tests.torch.support import assert_close, gradients, plain
from tests.torch.zoo import import_quietly

STEPS = 60


def mean(_: int, output: torch.Tensor) -> torch.Tensor:
    return output.mean()


def make_layer(**options: Any) -> SpikingLayer:
    torch.manual_seed(0)
    return SpikingLayer(5, 7, threshold=0.3, dtype=torch.float64, **options)


@pytest.mark.parametrize("names", [("membrane", "synapse"), ("synapse", "membrane")])
@pytest.mark.parametrize("is_stacked", [False, True])
def test_the_order_of_the_state_s_names_does_not_matter(names: tuple[str, ...], is_stacked: bool) -> None:
    layer = make_layer(synapse_decay=0.8)
    cell: Any = ChunkStack(layer, LIF(7, 4, dtype=torch.float64)) if is_stacked else layer
    inputs = torch.randn(STEPS, 3, 5, dtype=torch.float64)
    # The first call has the order of the layer, and tries its steps.
    for order in (("membrane", "synapse"), names):
        state: Any = {name: torch.rand(3, 7, dtype=torch.float64) for name in order}
        state = (state, cell.layers[1].initial_state(3)) if is_stacked else state
        outputs, final = plain(cell, inputs, state, STEPS)
        theirs = gradients(sum((mean(0, output) for output in outputs), torch.zeros(())), [layer.weight])
        result = bptt(cell, inputs, state, mean, memory="100 kB")
        assert_close(gradients(result.loss, [layer.weight]), theirs, relative=1e-10)
        ours = result.state[0] if is_stacked else result.state
        theirs_final = final[0] if is_stacked else final
        assert_close(
            [ours[name] for name in names], [theirs_final[name].detach() for name in names], relative=1e-10
        )


@pytest.mark.parametrize("kind", [LIF, SpikingLayer])
def test_a_layer_may_have_no_bias(kind: Any) -> None:
    layer = kind(5, 7, threshold=0.3, spiking_inputs=True, dtype=torch.float64)
    layer.bias = None
    inputs, state = (torch.rand(STEPS, 3, 5) > 0.5).double(), layer.initial_state(3)
    theirs = gradients(
        sum(map(torch.mean, plain(layer, inputs, state, STEPS)[0]), torch.zeros(())), [layer.weight]
    )
    result = bptt(layer, inputs, state, mean, memory="40 kB")
    assert_close(gradients(result.loss, [layer.weight]), theirs, relative=1e-10)


FUNCTIONAL, LAYER, NEURON = (
    import_quietly(f"spikingjelly.activation_based.{name}") for name in ("functional", "layer", "neuron")
)


@pytest.mark.parametrize(
    "make", [lambda: LAYER.BatchNorm1d(6), lambda: NEURON.SlidingPSN(k=3)], ids=["BatchNorm", "SlidingPSN"]
)
def test_layers_that_read_several_time_steps_at_once_are_refused(make: Callable[[], Any]) -> None:
    """Pieces would give other results. Without gradients the whole sequence is one call."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(LAYER.Linear(4, 6), make(), NEURON.LIFNode()).double()
    FUNCTIONAL.set_step_mode(net, "m")
    data = torch.rand(STEPS, 3, 4, dtype=torch.float64)
    wrapped = wrap(net, memory="10 MB", reset=FUNCTIONAL.reset_net)
    with pytest.raises(InputError, match=r"another gradient if 2 time steps are one call.*wrap_layers"):
        wrapped(data)
    with pytest.raises(InputError, match="another gradient"):
        wrapped.check(data)
    with torch.no_grad():
        expected = wrapped(data)
    if hasattr(net[1], "running_mean"):
        net.eval()
        assert wrapped(data).requires_grad
        net.train()
    FUNCTIONAL.reset_net(net)
    torch.testing.assert_close(net(data), expected)


def test_neurons_that_store_all_time_steps_are_refused() -> None:
    """Each piece would replace the stored potentials of the piece before."""
    neurons = NEURON.LIFNode(step_mode="m", store_v_seq=True)
    wrapped = wrap(torch.nn.Sequential(LAYER.Linear(4, 6, step_mode="m"), neurons), memory="10 MB")
    with pytest.raises(InputError, match=r"net: stores the potentials of all time steps in 1.v_seq"):
        wrapped(torch.rand(STEPS, 3, 4))
    neurons.store_v_seq = False
    assert wrapped(torch.rand(STEPS, 3, 4)).requires_grad


def test_neurons_between_batch_norms_are_wrapped_one_by_one() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(LAYER.Linear(4, 6), LAYER.BatchNorm1d(6), NEURON.LIFNode()).double()
    FUNCTIONAL.set_step_mode(net, "m")
    data = torch.rand(STEPS, 3, 4, dtype=torch.float64)
    theirs = gradients(net(data).square().mean(), list(net.parameters()))
    FUNCTIONAL.reset_net(net)
    wrap_layers(net, memory="10 MB")
    assert_close(gradients(net(data).square().mean(), list(net.parameters())), theirs, relative=1e-10)


class Warmed:
    """A loss that weighs with a rate of its own, after more steps than are tried."""

    def __init__(self) -> None:
        self.rate = 0.0

    def __call__(self, step: int, output: torch.Tensor) -> torch.Tensor:
        if step >= 40:
            self.rate = 0.9 * self.rate + 0.1 * float(output.detach().mean())
        weighted: torch.Tensor = output * (1 + 5 * self.rate)
        return weighted.sum()


def test_losses_with_a_memory_are_refused_since_chunks_compute_them_twice() -> None:
    """In the trial, or after the backward pass if they change later. Step by step they are right."""
    layer, inputs, history = make_layer(), torch.randn(STEPS, 3, 5, dtype=torch.float64), list[int]()
    teacher = torch.nn.Linear(5, 7, dtype=torch.float64)

    def record(step: int, output: torch.Tensor) -> torch.Tensor:
        history.append(step)
        return output.mean()

    def run(cell: Any, loss: Any) -> None:
        bptt(cell, inputs, layer.initial_state(3), loss, memory="100 kB").loss.backward()

    def compare(step: int, output: torch.Tensor) -> torch.Tensor:
        difference: torch.Tensor = output - target[step]
        return difference.square().mean()

    target = teacher(inputs)
    with pytest.raises(
        InputError, match=r"loss: changes history, and SpikingLayer computes losses a second time"
    ):
        run(layer, record)
    assert history == []
    with pytest.raises(InputError, match=r"loss: the sum of the losses is .* when they are computed again"):
        run(layer, Warmed())
    with pytest.raises(
        InputError, match=r"gradient of target is missing .*a loss of tensors that have no graph"
    ):
        run(layer, compare)
    for loss in (record, Warmed(), compare):
        run(lambda state, x: layer(state, x), loss)  # noqa: PLW0108 - no ChunkCell
    assert history == list(range(STEPS))
