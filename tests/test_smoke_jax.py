"""A scan in JAX within a limit of memory has the results and the gradients of ``jax.lax.scan``."""

import jax
import jax.numpy as jnp
import numpy as np

import ckptplan.jax

STEPS, BATCH, NEURONS = 64, 4, 8


def test_a_scan_within_a_limit_is_that_of_jax() -> None:
    keys = jax.random.split(jax.random.key(0), 2)
    weights = jax.random.normal(keys[0], (NEURONS, NEURONS)) / NEURONS
    inputs = jax.random.normal(keys[1], (STEPS, BATCH, NEURONS))
    start = jnp.zeros((BATCH, NEURONS))

    def step(w: jax.Array, state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.tanh(state @ w + x)
        return state, state.sum()

    def plain(w: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda state, x: step(w, state, x), start, inputs)[1].sum()

    def limited(w: jax.Array) -> jax.Array:
        found = ckptplan.jax.scan(lambda state, x: step(w, state, x), start, inputs, memory="8 kB")
        return jnp.sum(found[1])

    loss, gradient = jax.jit(jax.value_and_grad(plain))(weights)
    mine, found = jax.jit(jax.value_and_grad(limited))(weights)
    np.testing.assert_allclose(mine, loss, rtol=1e-5)
    np.testing.assert_allclose(found, gradient, rtol=1e-4, atol=1e-5)
