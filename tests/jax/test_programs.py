"""Programs of many kinds have the values, types and gradients of ``jax.lax.scan``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental.ode import odeint

from ckptplan.jax.tapes import TAPES
from ckptplan.planning.playback import make_schedule
from tests.jax.support import STEPS, data, difference, limited, noisy_loss, standard, under

WAYS: dict[str, Callable[..., Any]] = {
    **{tape: under(standard(), tape=tape) for tape in TAPES},
    "memory": limited("1 MB"),
}
SCALES = np.arange(1.0, 5.0)


@jax.custom_vjp
def scaled(x: Any) -> Any:
    """A function whose rule closes over an array, which has no gradient in JAX."""
    return jnp.tanh(x * SCALES)


scaled.defvjp(lambda x: (scaled(x), x), lambda x, g: (g * SCALES * (1 - jnp.tanh(x * SCALES) ** 2),))


@jax.custom_jvp
def steep(x: Any) -> Any:
    return (x > 0).astype(x.dtype)


steep.defjvp(lambda primals, tangents: (steep(*primals), tangents[0] / (1 + jnp.abs(primals[0])) ** 2))


@jax.custom_vjp
def drifting(w: Any) -> Any:
    """A function whose gradient is the same in each step."""
    return w


drifting.defvjp(lambda w: (w, w), lambda w, _: (w / 9,))


def run_cell(inner: Callable[[Any], Any], scan: Any, w: Any, h: Any, xs: Any, **options: Any) -> Any:
    """A loss of a recurrent layer with some activation."""
    return jnp.sum(scan(lambda h, x: (inner(h @ w + x),) * 2, h, xs, **options)[1] ** 2)


def of_few_bits(kind: Any, scan: Any, w: Any, h: Any, xs: Any) -> Any:
    def cell(state: Any, x: Any) -> Any:
        h = jnp.tanh(state[0] @ w + x + state[1].astype(jnp.float64))
        return (h, h.astype(kind)), h

    return (scan(cell, (h, h.astype(kind)), xs)[1] ** 2).sum()


def of_complex_states(scan: Any, w: Any, h: Any, xs: Any) -> Any:
    mixed = (w + 1j * w.T) / 3
    final, waves = scan(lambda z, x: (jnp.tanh(z @ mixed * 1j + x),) * 2, h + 0j, xs)
    return jnp.sum(jnp.abs(waves) ** 2) + jnp.sum(jnp.real(final))


def of_plain_numbers(scan: Any, w: Any, h: Any, xs: Any) -> Any:
    state, outputs = scan(
        lambda s, x: ((jnp.sin(s[0] * x.sum()), 2), (s[0], 3, True, 1.5)), (h[0, 0] + 0.5, 2), xs
    )
    return state[0] * state[1] * w.sum() + sum(jnp.sum(one * xs.sum((1, 2))) for one in outputs)


def of_a_tree(scan: Any, w: Any, h: Any, xs: Any) -> Any:
    """Dictionaries, lists, None and an integer array among states, inputs and outputs."""

    def cell(state: Any, x: Any) -> Any:
        inner = [jnp.tanh(one @ w + x["x"] * x["n"]) for one in state["layers"]]
        return {"layers": inner, "none": None, "n": state["n"] + x["n"]}, [inner[0], None, {"n": state["n"]}]

    start = {"layers": [h, h + 1], "none": None, "n": 0}
    final, outputs = scan(cell, start, {"x": xs, "n": jnp.arange(STEPS) % 3})
    return jnp.sum(final["layers"][1]) * final["n"] + jnp.sum(outputs[0] ** 2) + jnp.sum(outputs[2]["n"])


def of_what_is_passed_on(scan: Any, w: Any, h: Any, xs: Any) -> Any:
    """States and outputs that a step does not change: JAX takes them out of the loop."""
    (h, same), (outputs, passed) = scan(
        lambda s, x: ((jnp.tanh(s[0] @ w * s[1] + x), s[1]), (s[0], x)), (h, h + 1), xs
    )
    return sum(jnp.sum(one**3) for one in (h, same, outputs, passed))


def of_a_callback(scan: Any, w: Any, h: Any, xs: Any) -> Any:
    def cell(h: Any, x: Any) -> Any:
        factor = jax.pure_callback(
            np.cos, jax.ShapeDtypeStruct(x.shape, x.dtype), jax.lax.stop_gradient(x), vmap_method="sequential"
        )
        jax.debug.callback(lambda _: None, x)
        return jnp.tanh(h @ w + x * factor), h

    return jnp.sum(scan(cell, h, xs)[1] ** 2)


def of_branches(scan: Any, w: Any, h: Any, xs: Any) -> Any:
    def cell(h: Any, x: Any) -> Any:
        h = jax.lax.cond(x[0, 0] > 0, lambda h: jnp.tanh(h @ w + x), lambda h: jnp.sin(h @ w.T) * x, h)
        return h, jax.lax.fori_loop(0, 3, lambda _, h: jnp.cos(h * 2), h)

    return jnp.sum(scan(cell, h, xs)[1] ** 2)


def of_a_solver(x: Any) -> Any:
    return odeint(lambda y, _: jnp.tanh(y) * SCALES, x, jnp.array([0.0, 0.3]))[-1]


def in_a_loop(x: Any) -> Any:
    return jax.lax.scan(lambda c, _: (scaled(c) / 2, None), x, None, 3)[0]


PROGRAMS: dict[str, Callable[..., Any]] = {
    "integers, booleans, empty arrays and keys": noisy_loss,
    "a rule that closes over an array": partial(run_cell, scaled),
    "such a rule under jit": partial(run_cell, jax.jit(scaled)),
    "such a rule in a loop": partial(run_cell, in_a_loop),
    "a solver of differential equations": partial(run_cell, of_a_solver),
    "a surrogate gradient": partial(run_cell, lambda x: jnp.sin(x) + steep(x)),
    "a gradient that is the same in each step": lambda scan, w, h, xs: (
        scan(lambda h, x: (jnp.tanh(h @ drifting(w) + x @ w), h), h, xs)[1] ** 2
    ).sum(),
    "a checkpoint in the step": partial(run_cell, jax.checkpoint(jnp.tanh)),
    "samples in the step": partial(run_cell, jax.vmap(jnp.tanh, 1, 1)),
    "products of one precision": partial(
        run_cell, lambda x: jnp.matmul(jnp.sin(x), jnp.cos(x.T @ x), precision="highest") / 9
    ),
    "from the end": partial(run_cell, jnp.tanh, reverse=True),
    "all steps at once": partial(run_cell, jnp.tanh, unroll=True),
    "five steps at once": partial(run_cell, jnp.tanh, unroll=5, reverse=True),
    "a split transpose": partial(run_cell, jnp.tanh, _split_transpose=True),
    "8 bits": partial(of_few_bits, jnp.float8_e4m3fn),
    "4 bits": partial(of_few_bits, jnp.float4_e2m1fn),
    "complex states": of_complex_states,
    "plain numbers": of_plain_numbers,
    "a tree": of_a_tree,
    "what is passed on": of_what_is_passed_on,
    "a callback": of_a_callback,
    "branches": of_branches,
    "no inputs": lambda scan, w, h, xs: (
        (scan(lambda h, _: (jnp.tanh(h @ w + 1), h), h, length=9)[1] ** 2).sum() + xs.sum()
    ),
    "a list for a pair": lambda scan, w, h, xs: scan(lambda h, x: [jnp.tanh(h @ w) + x, h], h, xs)[1].sum(),
    "no gradient of the weights": lambda scan, w, h, xs: run_cell(
        jnp.tanh, scan, jax.lax.stop_gradient(w), h, xs
    ),
    "an unused input": lambda scan, w, h, xs: scan(lambda h, _: (jnp.tanh(h @ w + 1), None), h, xs)[0].sum(),
    "no outputs of a real number": lambda scan, w, h, xs: jnp.sum(
        scan(lambda h, x: (jnp.tanh(h @ w + x), jnp.argmax(h)), h, xs)[0]
    ),
    "a single step": lambda scan, w, h, xs: run_cell(jnp.tanh, scan, w, h, xs[:1]),
    "a transform inside": lambda scan, w, h, xs: jnp.sum(
        scan(lambda h, x: (jax.grad(lambda h: jnp.sum(jnp.sin(h @ w) * x))(h), h), h, xs)[1] ** 2
    ),
}
#: Programs whose sequence is not of ``STEPS`` steps.
OTHER_LENGTHS = {
    name: make_schedule("base", steps=steps) for name, steps in {"no inputs": 9, "a single step": 1}.items()
}


def differentiate(program: str, scan: Any) -> Any:
    return jax.jit(jax.value_and_grad(partial(PROGRAMS[program], scan), (0, 1, 2)))(*data())


@cache
def find_reference(program: str) -> Any:
    """Return what a program gives with ``jax.lax.scan``: compiled once for all ways."""
    return differentiate(program, jax.lax.scan)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_values_and_gradients_are_those_of_scan(program: str, way: str) -> None:
    """Random numbers are the same when a step runs again."""
    scan = WAYS[way]
    if program in OTHER_LENGTHS and way != "memory":
        scan = under(OTHER_LENGTHS[program], tape=way)
    ours, theirs = differentiate(program, scan), find_reference(program)
    jax.effects_barrier()
    assert difference(ours, theirs) <= 1e-12
    assert [one.dtype for one in jax.tree.leaves(ours)] == [one.dtype for one in jax.tree.leaves(theirs)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", [0, 0.5], ids=["integer", "float"])
def test_types_give_way_to_others_as_those_of_scan_do(number: float, way: str) -> None:
    """A Python number as a state leaves bfloat16 as it is, with and without a gradient."""

    def run(scan: Any, start: Any) -> Any:
        final, outputs = scan(lambda h, _: (h + 1, h), start, jnp.ones(STEPS))
        return [one * jnp.bfloat16(2) for one in (final, outputs)]

    assert [one.dtype for one in run(WAYS[way], number)] == [one.dtype for one in run(jax.lax.scan, number)]
    if isinstance(number, float):
        found = jax.vjp(lambda start: run(WAYS[way], start), number)[0]
        assert {one.dtype for one in found} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize("way", WAYS)
def test_inputs_give_way_to_states_as_those_of_scan_do(way: str) -> None:
    xs = jnp.broadcast_to(jnp.asarray(0.5), (STEPS,))
    found = [
        jax.grad(lambda h, scan=scan: scan(lambda h, x: (h * x + h, h), h, xs)[0])(jnp.bfloat16(1))
        for scan in (WAYS[way], jax.lax.scan)
    ]
    assert found[0].dtype == found[1].dtype == jnp.bfloat16
    assert difference(found[0].astype(float), found[1].astype(float)) <= 2e-2


def test_effects_without_a_gradient_are_those_of_scan() -> None:
    """Callbacks that are ordered, and those whose results nobody uses."""
    called: list[float] = []

    def cell(h: Any, x: Any) -> Any:
        jax.debug.callback(lambda x: called.append(float(x)), x, ordered=True)
        io_callback(lambda _: None, None, h)
        return h + x, None

    assert jax.jit(lambda xs: under(standard())(cell, 0.0, xs)[0])(jnp.arange(20.0)) == 190
    jax.effects_barrier()
    assert called == list(range(20))


def test_arguments_may_be_donated() -> None:
    weights, state, xs = data()
    theirs = run_cell(jnp.tanh, jax.lax.scan, weights, state, xs)
    run = jax.jit(
        lambda state, xs: WAYS["memory"](lambda h, x: (h @ weights + x, x), state, xs), donate_argnums=1
    )
    final, given = run(state, jnp.array(xs))
    assert difference([final, given], jax.lax.scan(lambda h, x: (h @ weights + x, x), state, xs)) <= 1e-13
    assert difference(run_cell(jnp.tanh, WAYS["memory"], weights, state, given), theirs) <= 1e-13


def test_a_sequence_without_steps_is_that_of_scan() -> None:
    final, none = WAYS["memory"](lambda h, x: (h + x, h), 1.0, jnp.ones(0))
    assert (final, none.shape) == (1.0, (0,))
