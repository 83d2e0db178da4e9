"""Builds cells of JAX by name: built-in cells, and factories in the user's own modules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ckptplan.errors import InputError
from ckptplan.jax.backend import JaxNetwork
from ckptplan.jax.leaves import fill, has_gradient, pick
from ckptplan.model.cell_spec import FIRST_STEP, CellSpec, blame_cell, call_factory

#: The decay of a leaky neuron's membrane per step, and the steepness of the surrogate gradient.
_DECAY, _STEEPNESS = 0.9, 10.0
#: The scale of the weights of leaky neurons, at which a few percent of the neurons fire at a time.
_LIF_SCALE = 2.3


@jax.custom_jvp
def _spike(x: Any) -> Any:
    return (x > 0).astype(x.dtype)


@_spike.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (tangent,) = primals, tangents
    return _spike(x), tangent / (1 + _STEEPNESS * jnp.abs(x)) ** 2


def _lif(weights: Any, state: Any, x: Any) -> Any:
    membrane, spikes = state
    current = x @ weights["input"] + spikes @ weights["hidden"] + weights["bias"]
    membrane = _DECAY * membrane + current - jax.lax.stop_gradient(spikes)
    spikes = _spike(membrane - 1)
    return (membrane, spikes), spikes


def _rnn(weights: Any, h: Any, x: Any) -> Any:
    h = jnp.tanh(x @ weights["input"] + h @ weights["hidden"] + weights["bias"])
    return h, h


def _gru(weights: Any, h: Any, x: Any) -> Any:
    of_input = jnp.split(x @ weights["input"] + weights["bias"], 3, -1)
    of_hidden = jnp.split(h @ weights["hidden"] + weights["hidden_bias"], 3, -1)
    reset, update = (jax.nn.sigmoid(of_input[gate] + of_hidden[gate]) for gate in (0, 1))
    new = jnp.tanh(of_input[2] + reset * of_hidden[2])
    h = new + update * (h - new)
    return h, h


def _lstm(weights: Any, state: Any, x: Any) -> Any:
    h, c = state
    gates = jnp.split(x @ weights["input"] + h @ weights["hidden"] + weights["bias"], 4, -1)
    let_in, forget, out = (jax.nn.sigmoid(gates[gate]) for gate in (0, 1, 3))
    c = forget * c + let_in * jnp.tanh(gates[2])
    h = out * jnp.tanh(c)
    return (h, c), h


def _make(
    step: Callable[..., Any],
    *,
    gates: int,
    states: int,
    scale: float = 1.0,
    biases: tuple[str, ...] = ("bias",),
) -> Callable[..., Any]:
    """Return a factory with the weights of PyTorch's defaults, scaled."""

    def make(*, batch: int, inputs: int, neurons: int, seed: int) -> Any:
        random = np.random.default_rng(seed)
        bound = 1 / math.sqrt(neurons)

        def uniform(*shape: int, factor: float = 1.0) -> Any:
            return jnp.asarray(factor * random.uniform(-bound, bound, shape), jnp.float32)

        weights = {
            "input": uniform(inputs, gates * neurons, factor=scale),
            "hidden": uniform(neurons, gates * neurons),
            **{name: uniform(gates * neurons) for name in biases},
        }
        zeros = jnp.zeros((batch, neurons))
        return step, weights, (zeros,) * states if states > 1 else zeros

    return make


BUILT_IN_CELLS = {
    "gru": _make(_gru, gates=3, states=1, biases=("bias", "hidden_bias")),
    "lif": _make(_lif, gates=1, states=2, scale=_LIF_SCALE),
    "lstm": _make(_lstm, gates=4, states=2),
    "rnn": _make(_rnn, gates=1, states=1),
}


_FACTORY = (
    "a factory that returns (step, parameters, state), or (step, parameters, state, inputs), where "
    "step(parameters, state, x) returns (state, output) and inputs(steps) returns arrays, time first; it is "
    "called with its parameters among batch, inputs, neurons and seed"
)


def build_jax_network(spec: CellSpec, *, batch: int, seed: int) -> JaxNetwork:
    """Return the network of a spec; the seed determines weights and data. Raises InputError."""
    if spec.compile is not None:
        raise InputError(
            f"{spec} has compiled pieces, which are of PyTorch",
            field="cell",
            value=str(spec),
            accepted="a cell of JAX without compile: its programs are compiled as a whole",
        )

    def make_normal(steps: int) -> Any:
        random = np.random.default_rng(seed + 1)
        return jnp.asarray(random.standard_normal((steps, batch, spec.inputs), np.float32))

    settings = {"batch": batch, "inputs": spec.inputs, "neurons": spec.neurons, "seed": seed}
    step, parameters, state, make_inputs = call_factory(
        spec, BUILT_IN_CELLS, settings=settings, parts=3, factory=_FACTORY
    )
    if not jax.tree.leaves(state):
        raise InputError(
            f"{spec.full_name} returned a state without arrays", field="cell", accepted="zeros of its shapes"
        )
    leaves, tree = jax.tree.flatten(parameters)
    places = [place for place, leaf in enumerate(leaves) if hasattr(leaf, "dtype") and has_gradient(leaf)]
    if not places:
        raise InputError(
            f"{spec.full_name} returned parameters without a gradient, so there is nothing to plan",
            field="cell",
            accepted="arrays of real or complex numbers among the parameters",
        )

    def filled(given: Any, state: Any, x: Any) -> Any:
        return step(jax.tree.unflatten(tree, fill(leaves, places, given)), state, x)

    def make_blamed(steps: int) -> Any:
        with blame_cell(f"its inputs for {steps} steps", accepted=_FACTORY):
            return (make_inputs or make_normal)(steps)

    network = JaxNetwork(
        step=filled,
        parameters=tuple(map(jnp.asarray, pick(leaves, places))),
        state=jax.tree.map(jnp.asarray, state),
        make_inputs=make_blamed,
    )
    _check_step(network)
    return network


def _check_step(network: JaxNetwork) -> None:
    """Trace a sequence of one step by ``jax.lax.scan``, with its loss. Raises InputError if the cell fails."""
    xs = network.inputs(1)
    shapes = ", ".join(f"{leaf.dtype}{list(leaf.shape[1:])}" for leaf in jax.tree.leaves(xs))
    with blame_cell(FIRST_STEP, accepted=_FACTORY, note=f" (inputs of a step: {shapes})"):
        jax.eval_shape(network.loss_under(None), network.parameters, network.state, xs)
