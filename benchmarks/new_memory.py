"""What the first touch of new memory takes of a training step in JAX: python -m benchmarks.new_memory.

A plain ``jax.lax.scan`` over a GRU, one thread, processor time; and the pages that the process is given in each
run. The environment decides whether memory is kept (docs/accuracy.md): run it with and without.
"""

from __future__ import annotations

import os
import statistics
import time

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp

from benchmarks.harness import table
from ckptplan.calibration.host import count_new_pages, time_new_page

STEPS, BATCH, NEURONS, ROUNDS = (128, 512, 1_280), 32, 128, 15


def gru(weights: tuple[jax.Array, jax.Array], state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Take a step of a GRU."""
    r, z, n = jnp.split(x @ weights[0], 3, axis=-1)
    hr, hz, hn = jnp.split(state @ weights[1], 3, axis=-1)
    update = jax.nn.sigmoid(z + hz)
    state = (1 - update) * jnp.tanh(n + jax.nn.sigmoid(r + hr) * hn) + update * state
    return state, state


def measure(steps: int) -> tuple[float, float]:
    """Return the seconds of a training step, and the pages of new memory in it: medians."""
    keys = jax.random.split(jax.random.key(0), 3)
    weights = tuple(0.1 * jax.random.normal(key, (NEURONS, 3 * NEURONS)) for key in keys[:2])
    inputs = jax.random.normal(keys[2], (steps, BATCH, NEURONS))

    @jax.jit
    def train(weights: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        def loss(weights: tuple[jax.Array, jax.Array]) -> jax.Array:
            step = lambda state, x: gru(weights, state, x)  # noqa: E731
            return jnp.square(jax.lax.scan(step, jnp.zeros((BATCH, NEURONS)), inputs)[1]).mean()

        gradients: tuple[jax.Array, jax.Array] = jax.grad(loss)(weights)
        return gradients

    jax.block_until_ready(train(weights))
    rounds = []
    for _ in range(ROUNDS):
        pages, began = count_new_pages(), time.process_time()
        jax.block_until_ready(train(weights))
        rounds.append((time.process_time() - began, count_new_pages() - pages))
    seconds, new = zip(*rounds, strict=True)
    return statistics.median(seconds), statistics.median(new)


if __name__ == "__main__":
    found = [(steps, *measure(steps)) for steps in STEPS]
    print(table(["T", "ms", "new pages"], [[str(t), f"{1e3 * s:.1f}", f"{new:,.0f}"] for t, s, new in found]))
    print(f"\nthe first touch of a page: {1e6 * time_new_page():.2f} us")
