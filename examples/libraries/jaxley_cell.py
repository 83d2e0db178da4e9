"""Jaxley: the simulation of a neuron within a limit, by one assignment. Install: pip install jaxley.

    python examples/libraries/jaxley_cell.py

Jaxley asks for the lengths of nested checkpoints (``checkpoint_lengths``). ``ckptplan.jax.scan`` takes a limit.
"""

import functools
import importlib

import jax
import jax.numpy as jnp
import jaxley
from compare_jax import compare
from jaxley.channels import HH

from ckptplan.jax import scan

MEMORY = "1 MB"
STEP, DURATION = 0.025, 50.0  # ms

jax.config.update("jax_enable_x64", True)
integration = importlib.import_module("jaxley.integrate")
jaxley_scan = integration.nested_checkpoint_scan

branch = jaxley.Branch(jaxley.Compartment(), ncomp=4)
cell = jaxley.Cell(branch, parents=[-1, 0, 0, 1, 1])
cell.insert(HH())
cell.branch(0).comp(0).record(verbose=False)
current = jaxley.step_current(i_delay=1.0, i_dur=20.0, i_amp=0.1, delta_t=STEP, t_max=DURATION)
cell.branch(0).comp(0).stimulate(current, verbose=False)
cell.make_trainable("radius", verbose=False)
parameters = cell.get_parameters()


def build(checkpoint_lengths=None, memory=None):
    """Return the compiled gradient of a loss of the voltages, and a function that runs it."""
    planned = functools.partial(jaxley_scan, scan_fn=functools.partial(scan, memory=memory))
    integration.nested_checkpoint_scan = jaxley_scan if memory is None else planned

    def loss(parameters):
        voltages = jaxley.integrate(
            cell, params=parameters, delta_t=STEP, checkpoint_lengths=checkpoint_lengths
        )
        return jnp.mean((voltages + 60) ** 2)

    compiled = jax.jit(jax.grad(loss)).lower(parameters).compile()
    return compiled, functools.partial(compiled, parameters)


if __name__ == "__main__":
    ways = {
        "plain": build(),
        "checkpoint_lengths=[45]*2": build(checkpoint_lengths=[45, 45]),
        f"memory={MEMORY!r}": build(memory=MEMORY),
    }
    compare(ways, memory=MEMORY)
