"""A spiking network of equinox learns handwritten digits, within a budget that a plain scan cannot meet.

    pip install ".[jax]" equinox scikit-learn
    python examples/train_digits_jax.py            # under a plan for 4 MB
    python examples/train_digits_jax.py --plain    # jax.lax.scan

The 8 x 8 images of scikit-learn's digits are presented row by row, 512 steps in all, as in train_digits.py. The
state carries the sum of the votes of the spikes, and the loss is that of the last state. The memory of both
programs is the compiler's own (memory_analysis), so the budget is checked before anything runs.
"""

import argparse
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp

import ckptplan
from ckptplan.jax import scan
from ckptplan.units import format_bytes, parse_bytes

try:
    import equinox as eqx
except ImportError:
    print("equinox is not installed; install it with: pip install equinox", file=sys.stderr)
    sys.exit(2)

ROWS, STEPS_A_ROW, CLASSES = 8, 64, 10
STEPS = ROWS * STEPS_A_ROW
DECAY, SLOPE = 0.95, 40.0


@jax.custom_jvp
def spike(x):
    """Return 1 where a membrane is over its threshold, with a surrogate gradient."""
    return (x > 0).astype(x.dtype)


@spike.defjvp
def _(primals, tangents):
    return spike(primals[0]), tangents[0] / (1 + SLOPE * jnp.abs(primals[0])) ** 2


class Network(eqx.Module):
    """Spiking neurons, and the votes of their spikes so far: state (membranes, spikes, votes)."""

    input: eqx.nn.Linear
    recurrent: eqx.nn.Linear
    readout: eqx.nn.Linear

    def __init__(self, neurons, key):
        first, second, third = jax.random.split(key, 3)
        self.input = eqx.nn.Linear(2 * ROWS, neurons, key=first)
        self.recurrent = eqx.nn.Linear(neurons, neurons, use_bias=False, key=second)
        self.readout = eqx.nn.Linear(neurons, CLASSES, key=third)

    def start(self, batch):
        """Return membranes at rest, no spikes and zero votes."""
        neurons = self.input.out_features
        return jnp.zeros((batch, neurons)), jnp.zeros((batch, neurons)), jnp.zeros((batch, CLASSES))

    def __call__(self, state, x):
        """Run a step and add the votes of its spikes."""
        membranes, spikes, votes = state
        current = jax.vmap(self.input)(x) + 0.1 * jax.vmap(self.recurrent)(spikes)
        membranes = DECAY * membranes + current - jax.lax.stop_gradient(spikes)
        spikes = spike(membranes - 1)
        return (membranes, spikes, votes + jax.vmap(self.readout)(spikes) / STEPS_A_ROW), None


def digits(samples, seed):
    """Return training images and digits, then test images and digits; a seed fixes the split."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        print("scikit-learn is not installed; install it with: pip install scikit-learn", file=sys.stderr)
        sys.exit(2)
    images, target = load_digits(return_X_y=True)
    order = jax.random.permutation(jax.random.key(seed), len(images))
    images, target = (
        jnp.asarray(images, jnp.float32).reshape(-1, ROWS, ROWS)[order] / 16,
        jnp.asarray(target)[order],
    )
    return images[360 : 360 + samples], target[360 : 360 + samples], images[:360], target[:360]


@jax.jit
def spikes_of(images, key):
    """Return spikes of shape (STEPS, batch, 16): the pixels of a row, and its number."""
    row = jnp.broadcast_to(jnp.eye(ROWS)[:, None], (ROWS, len(images), ROWS))
    rates = 0.3 * jnp.repeat(jnp.concatenate([images.swapaxes(0, 1), row], 2), STEPS_A_ROW, 0)
    return jax.random.bernoulli(key, rates).astype(jnp.float32)


def votes_of(network, spikes, scan):
    """Return the votes of a whole sequence by some scan."""

    def step(state, x):
        return network(state, x)

    (_, _, votes), _ = scan(step, network.start(spikes.shape[1]), spikes)
    return votes


def loss_of(network, spikes, target, memory):
    """Return the loss of a batch under a plan for ``memory``; without one, by ``jax.lax.scan``."""
    votes = votes_of(network, spikes, jax.lax.scan if memory is None else partial(scan, memory=memory))
    return -jnp.mean(jax.nn.log_softmax(votes)[jnp.arange(len(target)), target])


def compile_gradient(network, batch, memory):
    """Return the compiled loss with its gradient, and the bytes that it adds to its arguments."""
    like = (
        jax.ShapeDtypeStruct((STEPS, batch, 2 * ROWS), jnp.float32),
        jax.ShapeDtypeStruct((batch,), jnp.int32),
    )
    run = jax.jit(jax.value_and_grad(lambda *given: loss_of(*given, memory))).lower(network, *like).compile()
    found = run.memory_analysis()
    return run, found.temp_size_in_bytes + found.output_size_in_bytes


@jax.jit
def adam(network, moments, gradient, number, rate):
    """Return the network and its moments after a step of Adam; gradients are clipped at a norm of 1."""
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(one)) for one in jax.tree.leaves(gradient)))
    gradient = jax.tree.map(lambda one: one / jnp.maximum(norm, 1), gradient)
    first = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, moments[0], gradient)
    second = jax.tree.map(lambda old, new: 0.999 * old + 0.001 * new * new, moments[1], gradient)

    def change(weight, mean, square):
        return weight - rate * mean / (1 - 0.9**number) / (jnp.sqrt(square / (1 - 0.999**number)) + 1e-8)

    return jax.tree.map(change, network, first, second), (first, second)


@jax.jit
def accuracy(network, images, target):
    spikes = spikes_of(images, jax.random.key(1))
    return jnp.mean(votes_of(network, spikes, jax.lax.scan).argmax(1) == target)


def train(network, run, options, data):
    images, target, test_images, test_target = data
    zeros = jax.tree.map(jnp.zeros_like, network)
    key, moments, number = jax.random.key(options.seed), (zeros, zeros), 0
    batches = len(images) // options.batch
    for epoch in range(options.epochs):
        key, mine = jax.random.split(key)
        for some in jax.random.permutation(mine, len(images))[: batches * options.batch].reshape(batches, -1):
            key, mine = jax.random.split(key)
            loss, gradient = run(network, spikes_of(images[some], mine), target[some])
            number += 1
            rate = 0.5e-2 * (1 + jnp.cos(jnp.pi * number / (options.epochs * batches)))
            network, moments = adam(network, moments, gradient, number, rate)
        right = accuracy(network, test_images, test_target)
        print(f"epoch {epoch + 1:2d}  loss {loss:.3f}  test accuracy {right:.1%}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plain", action="store_true", help="jax.lax.scan, without a plan")
    parser.add_argument("--memory", default="4 MB", help="the budget (default: 4 MB)")
    for name, default in (("epochs", 10), ("batch", 64), ("neurons", 96), ("samples", 1437), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    data = digits(options.samples, options.seed)
    network = Network(options.neurons, jax.random.key(options.seed))
    try:
        budget = parse_bytes(options.memory)
        plain, plain_bytes = compile_gradient(network, options.batch, None)
        planned, planned_bytes = compile_gradient(network, options.batch, options.memory)
    except ckptplan.CkptplanError as error:
        parser.error(str(error))
    for name, size in (("jax.lax.scan", plain_bytes), ("under a plan", planned_bytes)):
        verdict = "within" if size <= budget else "over"
        print(f"{name}: {format_bytes(size)}, {verdict} the budget of {format_bytes(budget)}", flush=True)
    start = time.perf_counter()
    train(network, plain if options.plain else planned, options, data)
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
