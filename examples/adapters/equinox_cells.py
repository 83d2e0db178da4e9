"""GRUCell and LSTMCell of equinox under ckptplan.jax. Install: pip install ".[jax]" equinox.

A module of equinox is a pytree, so ``jax.grad`` differentiates the network itself, and the step closes over it:
``jax.lax.scan`` takes no module as its function, since it needs a function that can be hashed.
"""

import statistics
import sys
import time

import jax
import jax.numpy as jnp

from ckptplan.jax import bptt
from ckptplan.units import format_bytes

try:
    import equinox as eqx
    import optax
except ModuleNotFoundError as error:
    print(f"{error.name} is not installed; install it with: pip install {error.name}", file=sys.stderr)
    sys.exit(2)

STEPS, BATCH, UNITS, CLASSES, TRAINED = 512, 16, 32, 3, 15
MEMORY = "1 MiB"
ADAM = optax.adam(1e-2)


class Network(eqx.Module):
    """A cell and a readout; the state is that of the cell."""

    cell: eqx.Module
    readout: eqx.nn.Linear

    def __init__(self, cell, key):
        first, second = jax.random.split(key)
        self.cell = cell(CLASSES, UNITS, key=first)
        self.readout = eqx.nn.Linear(UNITS, CLASSES, key=second)

    def __call__(self, state, x):
        state = jax.vmap(self.cell)(x, state)
        hidden = state[0] if isinstance(state, tuple) else state
        return state, jax.vmap(self.readout)(hidden)


@jax.jit
def batch_of(key):
    """Return noise with a class in it, of shape (STEPS, BATCH, CLASSES), and the classes."""
    first, second = jax.random.split(key)
    target = jax.random.randint(first, (BATCH,), 0, CLASSES)
    return jax.random.normal(second, (STEPS, BATCH, CLASSES)) + jax.nn.one_hot(target, CLASSES), target


def compile_gradient(memory, network, start):
    """Return the compiled loss with its gradient, and the bytes that it adds to its arguments.

    Without a limit of memory, it is that of ``jax.lax.scan``.
    """

    def whole_loss(network, inputs, target):
        def step(state, x):
            return network(state, x)

        def loss(t, logits):
            return optax.softmax_cross_entropy_with_integer_labels(logits, target).mean() / STEPS

        if memory is None:
            _, logits = jax.lax.scan(step, start, inputs)
            return jax.vmap(loss)(jnp.arange(STEPS), logits).sum()
        return bptt(step, start, inputs, loss, memory=memory)[0]

    compiled = jax.jit(jax.value_and_grad(whole_loss)).lower(network, *batch_of(jax.random.key(0))).compile()
    found = compiled.memory_analysis()
    return compiled, found.temp_size_in_bytes + found.output_size_in_bytes


def milliseconds(run, *arguments):
    """Return the median time of five calls."""
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        jax.block_until_ready(run(*arguments))
        seconds.append(time.perf_counter() - began)
    return f"{1000 * statistics.median(seconds):.0f} ms"


@jax.jit
def difference(ours, theirs):
    """Return the largest difference of gradients, as a share of the largest entry of each array."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return jnp.stack([jnp.abs(one - other).max() / jnp.abs(other).max() for one, other in pairs]).max()


@jax.jit
def update(network, moments, gradient):
    """Return a network and moments after a step of Adam."""
    changes, moments = ADAM.update(gradient, moments)
    return optax.apply_updates(network, changes), moments


def main():
    print(f"{STEPS} steps, batch {BATCH}, {UNITS} units; memory={MEMORY!r}")
    head = "cell               jax.lax.scan           under a plan"
    print(f"{head}  gradients differ by  first and last loss")
    for cell in (eqx.nn.GRUCell, eqx.nn.LSTMCell):
        network = Network(cell, jax.random.key(0))
        zeros = jnp.zeros((BATCH, UNITS))
        start = (zeros, zeros) if cell is eqx.nn.LSTMCell else zeros
        plain, plain_bytes = compile_gradient(None, network, start)
        planned, planned_bytes = compile_gradient(MEMORY, network, start)
        moments, losses, batch = ADAM.init(network), [], batch_of(jax.random.key(1))
        differ = difference(planned(network, *batch)[1], plain(network, *batch)[1])
        times = [milliseconds(run, network, *batch) for run in (plain, planned)]
        for number in range(TRAINED):
            loss, gradient = planned(network, *batch_of(jax.random.key(number)))
            network, moments = update(network, moments, gradient)
            losses.append(float(loss))
        costs = [
            f"{format_bytes(size):>12} {taken:>8}"
            for size, taken in zip((plain_bytes, planned_bytes), times, strict=True)
        ]
        learned = f"{losses[0]:.3f} -> {losses[-1]:.3f}"
        print(f"{cell.__name__:8} {costs[0]}  {costs[1]}  {differ:19.1g}  {learned}", flush=True)


if __name__ == "__main__":
    main()
