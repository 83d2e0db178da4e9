"""Programs of many kinds, each with a loss over a sequence, for what must hold whatever the cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

BATCH, NEURONS = 16, 48
_WIDE = (BATCH, NEURONS)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A loss of a loop.

    ``loss(scan, weights, xs)`` calls ``scan(f, init, xs)`` in place of ``jax.lax.scan``.
    """

    loss: Callable[..., Any]
    weights: Any
    xs: Any


def _normal(*shape: int, seed: int = 0) -> Any:
    random = np.random.default_rng((seed, *shape))
    return jnp.asarray(random.standard_normal(shape) / max(1, shape[0]) ** 0.5, jnp.float32)


def _zeros(*shape: int) -> Any:
    return jnp.zeros(shape or _WIDE, jnp.float32)


def _of_outputs(
    cell: Callable[..., Any], state: Any, weights: Any, xs: Any, *, of_the_end: bool = False
) -> Case:
    """Return a case whose loss is of all outputs, or of the last state of a cell without outputs."""

    def loss(scan: Any, weights: Any, xs: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            return (cell(weights, state, x), None) if of_the_end else cell(weights, state, x)

        final, outputs = scan(step, state, xs)
        leaves = jax.tree.leaves(final if of_the_end else outputs)
        real = (leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating))
        return sum(jnp.mean(jnp.square(leaf.astype(jnp.float32))) for leaf in real)

    return Case(loss=loss, weights=weights, xs=xs)


_of_the_end = partial(_of_outputs, of_the_end=True)


def _inputs(steps: int, width: int = NEURONS) -> Any:
    return _normal(steps, BATCH, width, seed=1)


# Gated and plain layers.


def gru(weights: Any, h: Any, x: Any) -> Any:
    ir, iz, inn = jnp.split(x @ weights["x"], 3, -1)
    hr, hz, hn = jnp.split(h @ weights["h"], 3, -1)
    r, z = jax.nn.sigmoid(ir + hr), jax.nn.sigmoid(iz + hz)
    h = (1 - z) * jnp.tanh(inn + r * hn) + z * h
    return h, h


def lstm(weights: Any, state: Any, x: Any) -> Any:
    h, c = state
    i, f, g, o = jnp.split(x @ weights["x"] + h @ weights["h"], 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def gates(count: int) -> Any:
    """Return the weights of a layer with this number of gates."""
    return {"x": _normal(NEURONS, count * NEURONS), "h": _normal(NEURONS, count * NEURONS, seed=2)}


def _layer_norm(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5)


def normed(weights: Any, h: Any, x: Any) -> Any:
    h = jnp.tanh(_layer_norm(x @ weights["x"]) + _layer_norm(h @ weights["h"]))
    return h, h


def weight_normed(weights: Any, h: Any, x: Any) -> Any:
    matrix = weights["h"] / jnp.linalg.norm(weights["h"], axis=0)
    h = jnp.tanh(h @ matrix + x @ jnp.tanh(weights["x"]))
    return h, h


def deep(weights: Any, h: Any, x: Any) -> Any:
    h = h + x
    for layer in weights:
        h = h + 0.1 * jnp.tanh(h @ layer["h"]) @ layer["x"]
    return h, h[:, :4]


def noisy(weights: Any, state: Any, x: Any) -> Any:
    h, key = state
    key, mine = jax.random.split(key)
    h = jnp.tanh(h @ weights["h"] + x @ weights["x"] + 0.1 * jax.random.normal(mine, h.shape))
    return (h, key), h


# Spiking layers.


@jax.custom_jvp
def spike(x: Any) -> Any:
    return (x > 0).astype(x.dtype)


@spike.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return spike(primals[0]), tangents[0] / (1 + 10.0 * jnp.abs(primals[0])) ** 2


def leaky(weights: Any, state: Any, x: Any) -> Any:
    v, z = state
    v = 0.9 * v + x @ weights["x"] + z @ weights["h"] - jax.lax.stop_gradient(z)
    z = spike(v - 1.0)
    return (v, z), z


def _convolve(x: Any, kernel: Any) -> Any:
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def conv_spikes(weights: Any, state: Any, x: Any) -> Any:
    v, z = state
    v = 0.9 * v + _convolve(x, weights["x"]) + _convolve(z, weights["h"]) - z
    z = spike(v - 1.0)
    return (v, z), z.mean((1, 2))


# Equations: one step of a solver is a long chain of elementwise operations.


def hodgkin_huxley(weights: Any, state: Any, x: Any) -> Any:
    v, m, h, n = state
    current = x + spike(v) @ weights

    def rate(scale: float, shift: float, width: float) -> Any:
        return scale * jnp.exp(-(v + shift) / width)

    am = 0.1 * (v + 40) / (1 - jnp.exp(-(v + 40.0001) / 10))
    an = 0.01 * (v + 55) / (1 - jnp.exp(-(v + 55.0001) / 10))
    bh = 1 / (1 + jnp.exp(-(v + 35) / 10))
    step = 0.01
    m = m + step * (am * (1 - m) - rate(4, 65, 18) * m)
    h = h + step * (rate(0.07, 65, 20) * (1 - h) - bh * h)
    n = n + step * (an * (1 - n) - rate(0.125, 65, 80) * n)
    sodium, potassium = 120 * m**3 * h * (v - 50), 36 * n**4 * (v + 77)
    v = v + step * (current - sodium - potassium - 0.3 * (v + 54.4))
    return v, m, h, n


def runge_kutta(weights: Any, y: Any, x: Any) -> Any:
    def slope(y: Any) -> Any:
        return jnp.tanh(y @ weights["h"]) @ weights["x"] - y + x

    step, slopes = 0.1, [slope(y)]
    for _ in range(3):
        slopes.append(slope(y + 0.5 * step * slopes[-1]))
    return y + step * sum(slopes) / 4


def wave(weights: Any, state: Any, x: Any) -> Any:
    now, before = state
    laplacian = (
        jnp.roll(now, 1, 1) + jnp.roll(now, -1, 1) + jnp.roll(now, 1, 2) + jnp.roll(now, -1, 2) - 4 * now
    )
    after = 2 * now - before + weights**2 * laplacian
    after = after.at[:, 8, 8].add(x[:, 0])
    return (after, now), after[:, ::4, 4]


def spectral(weights: Any, u: Any, x: Any) -> Any:
    found = jnp.fft.rfft(u + 0.1 * x, axis=-1) * weights
    return jnp.tanh(jnp.fft.irfft(found, n=NEURONS, axis=-1))


def diagonal(weights: Any, h: Any, x: Any) -> Any:
    """A layer of complex states."""
    h = h * jnp.exp(weights["a"]) + (x @ weights["b"]).astype(jnp.complex64)
    return h, jnp.real(h @ weights["c"])


# Memories, updates in place, attention.


def scattered(weights: Any, memory: Any, x: Any) -> Any:
    place = jnp.argmax(x, -1)
    memory = memory.at[jnp.arange(BATCH), place].set(jnp.tanh(x @ weights))
    return memory, memory.mean(1)


def window(weights: Any, state: Any, x: Any) -> Any:
    keys, count = state
    keys = jax.lax.dynamic_update_index_in_dim(keys, x @ weights["x"], count % keys.shape[1], 1)
    scores = jax.nn.softmax(jnp.einsum("bn,btn->bt", x @ weights["h"], keys))
    return (keys, count + 1), jnp.einsum("bt,btn->bn", scores, keys)


def linear_attention(weights: Any, state: Any, x: Any) -> Any:
    q, k, v = jnp.split(x @ weights, 3, -1)
    state = 0.95 * state + jnp.einsum("bi,bj->bij", jax.nn.softmax(k), v)
    return state, jnp.einsum("bi,bij->bj", q, state)


def turing(weights: Any, state: Any, x: Any) -> Any:
    memory, h = state
    h = jnp.tanh(x @ weights["x"] + h @ weights["h"])
    write = jax.nn.softmax(jnp.einsum("bn,bkn->bk", h, memory))
    memory = memory * (1 - 0.5 * write[..., None]) + write[..., None] * h[:, None]
    return (memory, h), jnp.einsum("bk,bkn->bn", write, memory)


def kalman(weights: Any, state: Any, x: Any) -> Any:
    mean, cov = state
    mean, cov = weights @ mean, weights @ cov @ weights.T + 0.01 * jnp.eye(NEURONS)
    gain = jnp.linalg.solve(cov + jnp.eye(NEURONS), cov).T
    mean = mean + gain @ (x[0] - mean)
    return mean, cov - gain @ cov


def embedded(weights: Any, h: Any, token: Any) -> Any:
    h = jnp.tanh(weights["table"][token] + h @ weights["h"])
    return h, h


# Calls and loops in a step.


def inner_scan(weights: Any, h: Any, x: Any) -> Any:
    h, _ = jax.lax.scan(lambda h, _: (jnp.tanh(h @ weights["h"] + x @ weights["x"]), None), h, None, length=6)
    return h, h


def dictionary(weights: Any, state: Any, x: Any) -> Any:
    inner = [jnp.tanh(one @ weights["h"] + x) for one in state["layers"]]
    count = state["count"] + 1
    slow = 0.99 * state["slow"] + 0.01 * inner[-1].mean(-1)
    return {"layers": inner, "count": count, "slow": slow, "any": state["any"] | (count > 3)}, inner[-1][:, :3]


def widened(cell: Callable[..., Any]) -> Callable[..., Any]:
    """Products in bf16, the state in fp32."""

    def run(weights: Any, state: Any, x: Any) -> Any:
        low = jax.tree.map(lambda one: one.astype(jnp.bfloat16), (weights, state, x))
        state, output = cell(*low)
        return jax.tree.map(lambda one: one.astype(jnp.float32), state), output

    return run


def _half(tree: Any) -> Any:
    return jax.tree.map(lambda one: one.astype(jnp.bfloat16), tree)


def _of_batch(cell: Callable[..., Any], state: Any, weights: Any, xs: Any) -> Case:
    """Return a case whose batch is one of ``jax.vmap``."""

    def loss(scan: Any, weights: Any, xs: Any) -> Any:
        def one(state: Any, xs: Any) -> Any:
            return scan(lambda state, x: cell(weights, state, x), state, xs)[1]

        outputs = jax.vmap(one, (0, 1), 1)(state, xs)
        return jnp.mean(jnp.square(outputs))

    return Case(loss=loss, weights=weights, xs=xs)


def _of_models(cell: Callable[..., Any], state: Any, weights: Any, xs: Any, count: int) -> Case:
    """Return a case of several models side by side."""
    many = jax.tree.map(lambda one: jnp.stack([one * (1 + 0.1 * number) for number in range(count)]), weights)

    def loss(scan: Any, weights: Any, xs: Any) -> Any:
        def one(weights: Any) -> Any:
            return scan(lambda state, x: cell(weights, state, x), state, xs)[1]

        return jnp.mean(jnp.square(jax.vmap(one)(weights)))

    return Case(loss=loss, weights=many, xs=xs)


def _constant(cell: Callable[..., Any], state: Any, weights: Any, xs: Any) -> Case:
    """Return a case with a large array that has no gradient."""
    table = _normal(2000, NEURONS, seed=4)

    def run(weights: Any, state: Any, x: Any) -> Any:
        look = jax.lax.stop_gradient(table)
        return cell(weights, state, x + look[jnp.argmax(x[:, 0])])

    return _of_outputs(run, state, weights, xs)


def _tokens(steps: int, count: int) -> Any:
    return jnp.asarray(np.random.default_rng(0).integers(0, count, (steps, BATCH)))


def square(count: int = 2) -> Any:
    """Return the square weights of a layer."""
    return {name: _normal(NEURONS, NEURONS, seed=seed) for seed, name in enumerate("xhy"[:count])}


def _image(channels: int, steps: int) -> Any:
    return _normal(steps, 4, 12, 12, channels, seed=3)


_CASES: dict[str, Callable[[int], Case]] = {
    "GRU": lambda t: _of_outputs(gru, _zeros(), gates(3), _inputs(t)),
    "GRU in bf16": lambda t: _of_outputs(gru, _half(_zeros()), _half(gates(3)), _half(_inputs(t))),
    "GRU, products in bf16": lambda t: _of_outputs(widened(gru), _zeros(), gates(3), _inputs(t)),
    "LSTM": lambda t: _of_outputs(lstm, (_zeros(), _zeros()), gates(4), _inputs(t)),
    "LSTM, products in bf16": lambda t: _of_outputs(widened(lstm), (_zeros(), _zeros()), gates(4), _inputs(t)),
    "layer norm": lambda t: _of_outputs(normed, _zeros(), square(), _inputs(t)),
    "weight norm": lambda t: _of_outputs(weight_normed, _zeros(), square(), _inputs(t)),
    "a deep step": lambda t: _of_outputs(deep, _zeros(), [square() for _ in range(6)], _inputs(t)),
    "noise": lambda t: _of_outputs(noisy, (_zeros(), jax.random.key(0)), square(), _inputs(t)),
    "LIF": lambda t: _of_outputs(leaky, (_zeros(), _zeros()), square(), _inputs(t)),
    "convolutional LIF": lambda t: _of_outputs(
        conv_spikes,
        (_zeros(4, 12, 12, 8),) * 2,
        {"x": _normal(3, 3, 2, 8), "h": _normal(3, 3, 8, 8)},
        _image(2, t),
    ),
    "Hodgkin and Huxley": lambda t: _of_the_end(
        hodgkin_huxley,
        (_zeros() - 65, _zeros() + 0.05, _zeros() + 0.6, _zeros() + 0.3),
        square()["x"],
        _inputs(t),
    ),
    "Runge and Kutta": lambda t: _of_the_end(runge_kutta, _zeros(), square(), _inputs(t)),
    "waves": lambda t: _of_outputs(wave, (_zeros(BATCH, 16, 16),) * 2, _zeros(16, 16) + 0.3, _inputs(t, 4)),
    "Fourier": lambda t: _of_the_end(spectral, _zeros(), _normal(NEURONS // 2 + 1), _inputs(t)),
    "complex states": lambda t: _of_outputs(
        diagonal,
        jnp.zeros(_WIDE, jnp.complex64),
        {
            "a": jnp.asarray(-0.1 + 0.3j * np.arange(NEURONS), jnp.complex64),
            "b": _normal(NEURONS, NEURONS),
            "c": _normal(NEURONS, NEURONS).astype(jnp.complex64),
        },
        _inputs(t),
    ),
    "scatter into the state": lambda t: _of_outputs(
        scattered, _zeros(BATCH, 24, 24), _normal(24, 24), _inputs(t, 24)
    ),
    "a sliding window": lambda t: _of_outputs(
        window, (_zeros(BATCH, 20, NEURONS), jnp.int32(0)), square(), _inputs(t)
    ),
    "linear attention": lambda t: _of_outputs(
        linear_attention, _zeros(BATCH, 24, 24), _normal(24, 72), _inputs(t, 24)
    ),
    "a memory": lambda t: _of_outputs(turing, (_normal(BATCH, 10, NEURONS), _zeros()), square(), _inputs(t)),
    "Kalman": lambda t: _of_the_end(
        kalman, (_zeros(NEURONS), jnp.eye(NEURONS)), 0.5 * square()["x"], _inputs(t)
    ),
    "an embedding": lambda t: _of_outputs(
        embedded, _zeros(), {"table": _normal(4000, NEURONS), "h": square()["h"]}, _tokens(t, 4000)
    ),
    "a loop in the step": lambda t: _of_outputs(inner_scan, _zeros(), square(), _inputs(t)),
    "a tree": lambda t: _of_outputs(
        dictionary,
        {"layers": [_zeros(), _zeros()], "count": jnp.int32(0), "slow": _zeros(BATCH), "any": jnp.array(False)},
        square(),
        _inputs(t),
    ),
    "a large constant": lambda t: _constant(gru, _zeros(), gates(3), _inputs(t)),
    "a batch of vmap": lambda t: _of_batch(gru, _zeros(), gates(3), _inputs(t)),
    "a batch of vmap, LIF": lambda t: _of_batch(leaky, (_zeros(), _zeros()), square(), _inputs(t)),
    "models of vmap": lambda t: _of_models(gru, _zeros(), gates(3), _inputs(t), 3),
    "wide outputs": lambda t: _of_outputs(
        lambda w, h, x: (gru(w, h, x)[0], jnp.concatenate([h, x, h * x], -1)), _zeros(), gates(3), _inputs(t)
    ),
}
NAMES = tuple(_CASES)


def make(name: str, steps: int) -> Case:
    """Return a case by its name, for so many steps."""
    return _CASES[name](steps)
