"""Layers of spiking neurons of spyx under ckptplan.jax. Install: pip install ".[jax]" spyx.

``ckptplan.jax.scan`` takes the place of ``spyx.nn.run``, with the time first. spyx's modules are those of
flax.nnx: parameters are split off, and the states of all layers are a list that steps hand on.
"""

import statistics
import sys
import time

import jax
import jax.numpy as jnp

from ckptplan.jax import scan
from ckptplan.units import format_bytes

try:
    import optax
    import spyx
    from flax import nnx
except ModuleNotFoundError as error:
    print(f"{error.name} is not installed; install it with: pip install {error.name}", file=sys.stderr)
    sys.exit(2)

STEPS, BATCH, UNITS, CLASSES, TRAINED = 512, 16, 32, 3, 15
MEMORY = "512 KiB"
ADAM = optax.adam(1e-2)


def network_of(neurons):
    """Return two layers of spiking neurons and a leaky readout."""
    rngs = nnx.Rngs(0)
    return spyx.nn.Sequential(
        nnx.Linear(CLASSES, UNITS, rngs=rngs),
        neurons((UNITS,), rngs=rngs),
        nnx.Linear(UNITS, UNITS, rngs=rngs),
        spyx.nn.LIF((UNITS,), rngs=rngs),
        nnx.Linear(UNITS, CLASSES, rngs=rngs),
        spyx.nn.LI((CLASSES,), rngs=rngs),
    )


def run_under_a_plan(network, spikes):
    """Return what ``spyx.nn.run`` returns."""

    def step(state, x):
        output, state = network(x, state)
        return state, output

    state, outputs = scan(step, network.initial_state(BATCH), spikes, memory=MEMORY)
    return outputs, state


@jax.jit
def batch_of(key):
    """Return spikes of shape (STEPS, BATCH, CLASSES), of which those of the class are frequent."""
    first, second = jax.random.split(key)
    target = jax.random.randint(first, (BATCH,), 0, CLASSES)
    rates = 0.1 + 0.3 * jax.nn.one_hot(target, CLASSES)
    return jax.random.bernoulli(second, rates, (STEPS, BATCH, CLASSES)).astype(jnp.float32), target


def compile_gradient(run, network):
    """Return the compiled loss with its gradient, and the bytes that it adds to its arguments."""
    graphdef, params = nnx.split(network, nnx.Param)
    crossentropy = spyx.fn.integral_crossentropy(time_axis=0)

    def loss(params, spikes, target):
        outputs, _ = run(nnx.merge(graphdef, params), spikes)
        return crossentropy(outputs / STEPS, target)

    compiled = jax.jit(jax.value_and_grad(loss)).lower(params, *batch_of(jax.random.key(0))).compile()
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
def update(params, moments, gradient):
    """Return parameters and moments after a step of Adam."""
    changes, moments = ADAM.update(gradient, moments)
    return optax.apply_updates(params, changes), moments


def main():
    print(f"{STEPS} steps, batch {BATCH}, layers of {UNITS} neurons; memory={MEMORY!r}")
    head = "first layer             spyx.nn.run           under a plan"
    print(f"{head}  gradients differ by  first and last loss")
    for neurons in (spyx.nn.LIF, spyx.nn.RLIF, spyx.nn.ALIF, spyx.nn.CuBaLIF):
        network = network_of(neurons)
        plain, plain_bytes = compile_gradient(spyx.nn.run, network)
        planned, planned_bytes = compile_gradient(run_under_a_plan, network)
        params = nnx.state(network, nnx.Param)
        moments, losses = ADAM.init(params), []
        batch = batch_of(jax.random.key(1))
        differ = difference(planned(params, *batch)[1], plain(params, *batch)[1])
        times = [milliseconds(run, params, *batch) for run in (plain, planned)]
        for number in range(TRAINED):
            loss, gradient = planned(params, *batch_of(jax.random.key(number)))
            params, moments = update(params, moments, gradient)
            losses.append(float(loss))
        costs = [
            f"{format_bytes(size):>12} {taken:>8}"
            for size, taken in zip((plain_bytes, planned_bytes), times, strict=True)
        ]
        learned = f"{losses[0]:.3f} -> {losses[-1]:.3f}"
        print(f"{neurons.__name__:12} {costs[0]}  {costs[1]}  {differ:19.1g}  {learned}", flush=True)


if __name__ == "__main__":
    main()
