"""Builds the cells of JAX that a name can refer to: built-in ones, and those of the user's own modules."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ckptplan.calibration.cell_spec import FIRST_STEP, CellSpec, blame_cell, call_factory
from ckptplan.errors import InputError
from ckptplan.jax.backend import JaxNetwork
from ckptplan.jax.cells import BUILT_IN_CELLS
from ckptplan.jax.leaves import has_gradient

_FACTORY = (
    "a factory that returns (step, parameters, state), or (step, parameters, state, inputs), where "
    "step(parameters, state, x) returns (state, output) and inputs(steps) returns arrays, time first; it is "
    "called with those of batch, inputs, neurons and seed that it takes"
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
        whole = list(leaves)
        for place, leaf in zip(places, given, strict=True):
            whole[place] = leaf
        return step(jax.tree.unflatten(tree, whole), state, x)

    def make_blamed(steps: int) -> Any:
        with blame_cell(f"its inputs for {steps} steps", accepted=_FACTORY):
            return (make_inputs or make_normal)(steps)

    network = JaxNetwork(
        step=filled,
        parameters=tuple(jnp.asarray(leaves[place]) for place in places),
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
        jax.eval_shape(network.plain(), network.parameters, network.state, xs)
