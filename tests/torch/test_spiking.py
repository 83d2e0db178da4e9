"""Spiking layers under plans with every choice of caches: spikes and gradients are those of plain steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves, tree_map

from ckptplan import InputError
from ckptplan.model.goal import CacheName
from ckptplan.planning.playback import schedule_of
from ckptplan.strategies.registry import all_strategies
from ckptplan.torch import LIF, ChunkStack, SpikingLayer, bptt, check, surrogates, unroll
from tests.torch.support import assert_close, gradients, plain
from tests.torch.test_caches import loss, make_inputs, make_plan

#: Settings of a layer of 5 inputs and 7 neurons.
SETTINGS: dict[str, dict[str, Any]] = {
    "subtract": {},
    "reset to zero": {"reset": "zero"},
    "no reset": {"reset": "none"},
    "synapse": {"synapse_decay": 0.8},
    "adaptation": {"adaptation": 0.4, "adaptation_decay": 0.9},
    "learned decay": {"learn_decay": True, "reset": "zero", "surrogate": surrogates.atan()},
    "boxcar": {"surrogate": surrogates.boxcar(2.0)},
    "superspike": {"surrogate": surrogates.superspike(10.0), "recurrent": False},
    "all of it": {
        "synapse_decay": 0.7, "adaptation": 0.3, "learn_decay": True, "reset": "zero",
        "surrogate": surrogates.fast_sigmoid(5.0),
    },
}  # fmt: skip


def layer(**options: Any) -> SpikingLayer:
    torch.manual_seed(0)
    cell = SpikingLayer(5, 7, **{"threshold": 0.3, "dtype": torch.float64, **options})
    with torch.no_grad():
        cell.bias.uniform_(0, 0.1)
    return cell


def stack() -> ChunkStack:
    torch.manual_seed(0)
    options: dict[str, Any] = {"threshold": 0.2, "dtype": torch.float64}
    return ChunkStack(
        layer(adaptation=0.3),
        LIF(7, 6, spiking_inputs=True, **options),
        SpikingLayer(6, 7, synapse_decay=0.6, learn_decay=True, **options),
    )


CELLS: dict[str, Callable[[], Any]] = {
    **{name: partial(layer, **options) for name, options in SETTINGS.items()},
    "stack": stack,
}


def assert_like_plain(cell: Any, schedule: Any, *, steps: int, seed: int) -> None:
    """Spikes are equal, and gradients of weights, inputs and the first state within 1e-10."""
    inputs, _ = make_inputs(steps, seed)
    generator = torch.Generator().manual_seed(seed)

    def draw(leaf: torch.Tensor) -> torch.Tensor:
        return torch.randn(leaf.shape, dtype=leaf.dtype, generator=generator).abs_().requires_grad_()

    state = tree_map(draw, cell.initial_state(3))
    wanted = [*tree_leaves(state), inputs, *cell.parameters()]
    outputs, final = plain(cell, inputs, state, steps)

    def weigh(end: Any) -> torch.Tensor:
        return torch.stack([leaf.square().sum() for leaf in tree_leaves(end)]).sum()

    total = sum((loss(step, output) for step, output in enumerate(outputs)), weigh(final))
    expected = gradients(total, wanted)
    result = bptt(cell, inputs, state, loss, plan=schedule, final_loss=weigh)
    assert_close(gradients(result.loss, wanted), expected, relative=1e-10)
    stacked, _ = unroll(cell, inputs, state, plan=schedule)
    assert torch.equal(stacked, torch.stack(outputs))


@pytest.mark.parametrize("cache", get_args(CacheName))
@pytest.mark.parametrize("cell", CELLS)
@given(
    strategy=st.sampled_from(sorted(all_strategies())),
    steps=st.integers(2, 100),
    states=st.integers(4, 40),
    cache_bytes=st.sampled_from([10, 42, 168]),
    replay=st.sampled_from([0.1, 0.5, 0.9]),
    seed=st.integers(0, 99),
)
@settings(max_examples=3)
def test_spikes_and_gradients_equal_those_of_plain_steps(
    cell: str, cache: str, strategy: str, steps: int, states: int, cache_bytes: int, replay: float, seed: int
) -> None:
    plan = make_plan(
        steps, strategy=strategy, cache=cache, states=states, cache_bytes=cache_bytes, replay=replay
    )
    if plan is not None:
        assert_like_plain(CELLS[cell](), schedule_of(plan), steps=steps, seed=seed)


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_layer_without_further_memory_computes_what_lif_computes(recurrent: bool) -> None:
    ours, theirs = (
        layer(recurrent=recurrent),
        LIF(5, 7, threshold=0.3, recurrent=recurrent, dtype=torch.float64),
    )
    theirs.load_state_dict(ours.state_dict())
    inputs, state = make_inputs(60)
    stacked, _ = unroll(ours, inputs, {"membrane": state}, memory="1 MB")
    expected, _ = unroll(theirs, inputs, state, memory="1 MB")
    assert torch.equal(stacked, expected)
    assert_close(
        gradients(stacked.square().sum(), list(ours.parameters())),
        gradients(expected.square().sum(), list(theirs.parameters())),
        relative=1e-10,
    )


@pytest.mark.parametrize("cell", ["all of it", "stack"])
def test_a_layer_trains_within_a_limit(cell: str) -> None:
    network = CELLS[cell]()
    inputs, _ = make_inputs(600)
    assert check(network, inputs.detach(), network.initial_state(3), loss, memory="120 kB")


def test_a_stack_names_the_layer_that_it_cannot_run() -> None:
    with pytest.raises(InputError, match=r"layers\.1: .* is not a cell that runs chunks"):
        ChunkStack(layer(), torch.nn.Linear(7, 7))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"reset: is 'zeros'\. Did you mean 'zero'\?"):
        layer(reset="zeros")
    for wrong in ("atan", surrogates.atan):
        with pytest.raises(InputError, match=r"surrogate: .* has no derivative"):
            layer(surrogate=wrong)


@pytest.mark.parametrize(
    ("surrogate", "expected"),
    [
        (surrogates.fast_sigmoid(25.0), lambda x: 1 / (1 + 25 * abs(x)) ** 2),
        (surrogates.superspike(), lambda x: 1 / (1 + 100 * abs(x)) ** 2),
        (surrogates.atan(2.0), lambda x: 1 / (1 + (torch.pi * x) ** 2)),
        (surrogates.boxcar(0.5), lambda x: 2.0 * (abs(x) < 0.25)),
    ],
)
def test_surrogates_have_the_derivatives_of_their_namesakes(
    surrogate: surrogates.Surrogate, expected: Callable[[float], float]
) -> None:
    distances = torch.tensor([-2.0, -0.3, -0.1, 0.0, 0.2, 0.7])
    assert surrogate.derivative(distances.clone()).tolist() == pytest.approx(
        [expected(x) for x in distances.tolist()]
    )
    spikes = surrogates.Spike.apply(leaf := distances.clone().requires_grad_(), surrogate)  # type: ignore[no-untyped-call]
    assert spikes.tolist() == [0, 0, 0, 0, 1, 1]
    spikes.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == pytest.approx([expected(x) for x in distances.tolist()])
