"""A recurrent layer of spiking neurons, written by hand, in JAX. Install: pip install ".[jax]".

    python examples/spiking_layer_jax.py

The surrogate gradient is a ``jax.custom_jvp``. Peaks are the compiler's own (memory_analysis). Smaller limits
take more time, since steps run again.
"""

import statistics
import time
from functools import partial

import jax
import jax.numpy as jnp

from ckptplan.jax import scan
from ckptplan.units import format_bytes

STEPS, BATCH, INPUTS, NEURONS = 1024, 16, 8, 64
LIMITS = ("4 MiB", "1 MiB", "256 KiB")
DECAY, SLOPE = 0.9, 10.0


@jax.custom_jvp
def spike(x):
    """Return 1 where a membrane is over its threshold, with a surrogate gradient."""
    return (x > 0).astype(x.dtype)


@spike.defjvp
def _(primals, tangents):
    return spike(primals[0]), tangents[0] / (1 + SLOPE * jnp.abs(primals[0])) ** 2


def loss_of(scan, weights, spikes):
    """Return the mean square of the firing rates less 10 %."""

    def step(state, x):
        membranes, fired, total = state
        current = x @ weights["input"] + fired @ weights["recurrent"]
        membranes = DECAY * membranes + current - jax.lax.stop_gradient(fired)
        fired = spike(membranes - 1)
        return (membranes, fired, total + fired), None

    (_, _, total), _ = scan(step, (jnp.zeros((BATCH, NEURONS)),) * 3, spikes)
    return jnp.mean(jnp.square(total / STEPS - 0.1))


def measure(function, *arguments):
    """Return the results of a compiled function, its bytes and the median time of five calls."""
    run = jax.jit(function).lower(*arguments).compile()
    memory, seconds = run.memory_analysis(), []
    for _ in range(5):
        began = time.perf_counter()
        found = jax.block_until_ready(run(*arguments))
        seconds.append(time.perf_counter() - began)
    return found, memory.temp_size_in_bytes + memory.output_size_in_bytes, statistics.median(seconds)


def main():
    keys = jax.random.split(jax.random.key(0), 3)
    weights = {
        "input": jax.random.normal(keys[0], (INPUTS, NEURONS)) / 2,
        "recurrent": jax.random.normal(keys[1], (NEURONS, NEURONS)) / NEURONS,
    }
    spikes = jax.random.bernoulli(keys[2], 0.1, (STEPS, BATCH, INPUTS)).astype(jnp.float32)
    print(f"{STEPS} steps, batch {BATCH}, {NEURONS} neurons")
    print("memory=            peak      time  gradients differ by")
    plain = None
    for limit in (None, *LIMITS):
        run = jax.lax.scan if limit is None else partial(scan, memory=limit)
        gradient, size, seconds = measure(jax.grad(partial(loss_of, run)), weights, spikes)
        plain = plain or gradient
        pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(plain), strict=True)
        differ = max(float(jnp.abs(ours - theirs).max() / jnp.abs(theirs).max()) for ours, theirs in pairs)
        cost = f"{format_bytes(size):>12} {1000 * seconds:>6.0f} ms"
        print(f"{limit or 'jax.lax.scan':12} {cost}  {differ:19.1g}")


if __name__ == "__main__":
    main()
