"""brainstate: a recurrent network whose hidden states steps pass on. Install: pip install brainstate.

    python examples/libraries/brainstate_network.py

A step of ``ckptplan.jax.scan`` sets the hidden states, calls the network and returns them. The call stands in a
transformation of brainstate (``jit``, ``grad``), as every change of its states.
"""

import brainstate
import jax
import jax.numpy as jnp
from brainstate.transform import checkpointed_for_loop, for_loop
from compare_jax import compare

from ckptplan.jax import scan

MEMORY = "4 MB"
STEPS, BATCH, INPUTS, UNITS = 1000, 16, 8, 64

brainstate.random.seed(0)
network = brainstate.nn.Sequential(
    brainstate.nn.GRUCell(INPUTS, UNITS),
    brainstate.nn.GRUCell(UNITS, UNITS),
    brainstate.nn.Linear(UNITS, 2),
)
data = jax.random.normal(jax.random.key(0), (STEPS, BATCH, INPUTS))


def run_planned(network, data):
    """Return the outputs of all steps, as ``for_loop`` does."""
    hidden = network.states(brainstate.HiddenState)

    def read():
        return {key: state.value for key, state in hidden.items()}

    def write(values):
        for key, state in hidden.items():
            state.value = values[key]

    def step(values, x):
        write(values)
        output = network(x)
        return read(), output

    values, outputs = scan(step, read(), data, memory=MEMORY)
    write(values)
    return outputs


def build(run):
    """Return the compiled gradient of a loss of the outputs, and a function that runs it."""

    def loss():
        brainstate.nn.init_all_states(network, batch_size=BATCH)
        return jnp.mean(run(network, data) ** 2)

    gradient = brainstate.transform.jit(brainstate.transform.grad(loss, network.states(brainstate.ParamState)))
    return gradient.lower().compile(), gradient


if __name__ == "__main__":
    ways = {
        "plain": for_loop,
        "checkpointed_for_loop": checkpointed_for_loop,
        f"memory={MEMORY!r}": run_planned,
    }
    compare({name: build(run) for name, run in ways.items()}, memory=MEMORY)
