"""SimpleCell, GRUCell and OptimizedLSTMCell of flax.nnx under ckptplan.jax. Install: pip install ".[jax]" flax.

A network is split: parameters have gradients, and the rest is part of the state that steps hand on. The rest is
where nnx keeps running statistics and random numbers, as those of dropout; a cell alone has none. Never merge a
copy of a rest that a step closes over: every step would draw the same numbers, by ``jax.lax.scan``, too.
"""

import statistics
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp

from ckptplan.jax import bptt
from ckptplan.units import format_bytes

try:
    import optax
    from flax import nnx
except ModuleNotFoundError as error:
    print(f"{error.name} is not installed; install it with: pip install {error.name}", file=sys.stderr)
    sys.exit(2)

STEPS, BATCH, UNITS, CLASSES, TRAINED = 512, 16, 32, 3, 15
MEMORY = "1 MiB"
ADAM = optax.adam(1e-2)


class Network(nnx.Module):
    """A cell, dropout with random numbers of its own, and a readout."""

    def __init__(self, cell, rngs):
        self.cell = cell(CLASSES, UNITS, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.readout = nnx.Linear(UNITS, CLASSES, rngs=rngs)

    def __call__(self, carry, x):
        carry, output = self.cell(carry, x)
        return carry, self.readout(self.dropout(output))


@jax.jit
def batch_of(key):
    """Return noise with a class in it, of shape (STEPS, BATCH, CLASSES), and the classes."""
    first, second = jax.random.split(key)
    target = jax.random.randint(first, (BATCH,), 0, CLASSES)
    return jax.random.normal(second, (STEPS, BATCH, CLASSES)) + jax.nn.one_hot(target, CLASSES), target


def compile_gradient(memory, network, carry):
    """Return the compiled loss with its gradient, and the bytes that it adds to its arguments.

    Without a limit of memory, it is that of ``jax.lax.scan``.
    """
    graphdef, params, rest = nnx.split(network, nnx.Param, ...)

    def step(params, state, x):
        carry, rest = state
        network = nnx.merge(graphdef, params, rest)
        carry, logits = network(carry, x)
        _, _, rest = nnx.split(network, nnx.Param, ...)
        return (carry, rest), logits

    def whole_loss(params, rest, inputs, target):
        def loss(t, logits):
            return optax.softmax_cross_entropy_with_integer_labels(logits, target).mean() / STEPS

        start, mine = (carry, rest), partial(step, params)
        if memory is None:
            (_, rest), logits = jax.lax.scan(mine, start, inputs)
            return jax.vmap(loss)(jnp.arange(STEPS), logits).sum(), rest
        total, (_, rest) = bptt(mine, start, inputs, loss, memory=memory)
        return total, rest

    like = batch_of(jax.random.key(0))
    run = jax.jit(jax.value_and_grad(whole_loss, has_aux=True)).lower(params, rest, *like).compile()
    found = run.memory_analysis()
    return run, found.temp_size_in_bytes + found.output_size_in_bytes


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
def update(params, moments, gradient):
    """Return parameters and moments after a step of Adam."""
    changes, moments = ADAM.update(gradient, moments)
    return optax.apply_updates(params, changes), moments


def main():
    print(f"{STEPS} steps, batch {BATCH}, {UNITS} units; memory={MEMORY!r}")
    head = "cell                        jax.lax.scan           under a plan"
    print(f"{head}  gradients differ by  first and last loss")
    for cell in (nnx.SimpleCell, nnx.GRUCell, nnx.OptimizedLSTMCell):
        rngs = nnx.Rngs(0)
        network = Network(cell, rngs)
        carry = network.cell.initialize_carry((BATCH, CLASSES), rngs)
        plain, plain_bytes = compile_gradient(None, network, carry)
        planned, planned_bytes = compile_gradient(MEMORY, network, carry)
        _, params, rest = nnx.split(network, nnx.Param, ...)
        moments, losses = ADAM.init(params), []
        batch = batch_of(jax.random.key(1))
        differ = difference(planned(params, rest, *batch)[1], plain(params, rest, *batch)[1])
        times = [milliseconds(run, params, rest, *batch) for run in (plain, planned)]
        for number in range(TRAINED):
            (loss, rest), gradient = planned(params, rest, *batch_of(jax.random.key(number)))
            params, moments = update(params, moments, gradient)
            losses.append(float(loss))
        costs = [
            f"{format_bytes(size):>12} {taken:>8}"
            for size, taken in zip((plain_bytes, planned_bytes), times, strict=True)
        ]
        learned = f"{losses[0]:.3f} -> {losses[-1]:.3f}"
        print(f"{cell.__name__:17} {costs[0]}  {costs[1]}  {differ:19.1g}  {learned}", flush=True)


if __name__ == "__main__":
    main()
