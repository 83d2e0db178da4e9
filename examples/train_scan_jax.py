"""The shortest training loop in JAX: a recurrent spiking layer finds the busiest channel within 2.5 MB."""

import jax
import jax.numpy as jnp

from ckptplan.jax import bptt

STEPS, BATCH, NEURONS = 512, 16, 64


@jax.custom_jvp
def spike(v):
    return (v > 0).astype(v.dtype)


@spike.defjvp
def surrogate(primals, tangents):
    return spike(*primals), tangents[0] / (1 + 10 * jnp.abs(primals[0])) ** 2


def loss_of(weights, data, target):
    def cell(state, x):
        v, z = state
        v = 0.9 * v * (1 - z) + x @ weights["in"] + z @ weights["back"]
        z = spike(v - 1)
        return (v, z), z @ weights["out"]

    def loss(t, output):
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(output), target[:, None], 1)) / STEPS

    start = jnp.zeros((BATCH, NEURONS))
    return bptt(cell, (start, start), data, loss, memory="2.5 MB")[0]


@jax.jit
def train(weights, key):
    keys = jax.random.split(key)
    target = jax.random.randint(keys[0], (BATCH,), 0, 3)
    data = jax.random.bernoulli(keys[1], 0.1 + 0.7 * jax.nn.one_hot(target, 3), (STEPS, BATCH, 3)) * 1.0
    loss, gradient = jax.value_and_grad(loss_of)(weights, data, target)
    return loss, jax.tree.map(lambda w, g: w - 0.5 * g, weights, gradient)


shapes = {"in": (3, NEURONS), "back": (NEURONS, NEURONS), "out": (NEURONS, 3)}
keys = jax.random.split(jax.random.key(0), 3)
weights = {
    name: jax.random.normal(key, shape) / shape[0] ** 0.5
    for key, (name, shape) in zip(keys, shapes.items(), strict=True)
}
for step in range(20):
    loss, weights = train(weights, jax.random.key(step))
    print(f"{step:3d}  loss {loss:.3f}")
