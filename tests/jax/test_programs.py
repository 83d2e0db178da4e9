"""Programs of many kinds have the values, types and gradients of ``jax.lax.scan``, or are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental.ode import odeint

import ckptplan.jax
from ckptplan import InputError
from ckptplan.jax.tapes import TAPES
from tests.jax.support import STEPS, data, difference, limited, standard, under

PLANS: dict[str, Callable[..., Any]] = {
    **{tape: under(standard(), tape=tape) for tape in TAPES},
    "memory": limited("1 MB"),
}
SCALES = jnp.arange(1.0, 5.0)


@jax.custom_vjp
def scaled(x: Any) -> Any:
    """A function whose rule closes over an array."""
    return jnp.tanh(x * SCALES)


scaled.defvjp(lambda x: (scaled(x), x), lambda x, g: (g * SCALES * (1 - jnp.tanh(x * SCALES) ** 2),))


def solve(x: Any) -> Any:
    return odeint(lambda y, _: jnp.tanh(y) * SCALES, x, jnp.array([0.0, 0.3]))[-1]


def loop(x: Any) -> Any:
    """A function that is called in a loop of the step."""
    return jax.lax.scan(lambda c, _: (scaled(c) / 2, None), x, None, 3)[0]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("inner", [scaled, jax.jit(scaled), loop, solve], ids=["plain", "jit", "loop", "ode"])
def test_a_rule_may_close_over_what_has_no_gradient(inner: Callable[[Any], Any], plan: str) -> None:
    """JAX has no gradient for it and asks for none, so a plan asks for none either."""
    weights, state, xs = data()

    def loss(scan: Any, weights: Any) -> Any:
        return jnp.sum(scan(lambda h, x: (inner(h @ weights + x),) * 2, state, xs)[1] ** 2)

    ours, theirs = (
        jax.jit(jax.value_and_grad(lambda one, scan=scan: loss(scan, one)))(weights)
        for scan in (PLANS[plan], jax.lax.scan)
    )
    assert difference(ours, theirs) <= 1e-12


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("number", [0, 0.5], ids=["integer", "float"])
def test_types_give_way_to_others_as_those_of_scan_do(number: float, plan: str) -> None:
    """A Python number as a state leaves bfloat16 as it is, with and without a gradient."""

    def run(scan: Any, start: Any) -> Any:
        final, outputs = scan(lambda h, _: (h + 1, h), start, jnp.ones(STEPS))
        return [one * jnp.bfloat16(2) for one in (final, outputs)]

    assert [one.dtype for one in run(PLANS[plan], number)] == [one.dtype for one in run(jax.lax.scan, number)]
    if isinstance(number, float):
        found = jax.vjp(lambda start: run(PLANS[plan], start), number)[0]
        assert {one.dtype for one in found} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize("plan", PLANS)
def test_inputs_give_way_to_states_as_those_of_scan_do(plan: str) -> None:
    xs = jnp.broadcast_to(jnp.asarray(0.5), (STEPS,))
    found = [
        jax.grad(lambda h, scan=scan: scan(lambda h, x: (h * x + h, h), h, xs)[0])(jnp.bfloat16(1))
        for scan in (PLANS[plan], jax.lax.scan)
    ]
    assert found[0].dtype == found[1].dtype == jnp.bfloat16
    assert difference(found[0].astype(float), found[1].astype(float)) <= 2e-2


def test_a_step_may_return_a_list() -> None:
    xs = jnp.arange(float(STEPS))
    theirs: Any = jax.lax.scan
    found = [scan(lambda h, x: [h * 0.9 + x, h], 1.0, xs) for scan in (PLANS["residuals"], theirs)]
    assert difference(found[0], found[1]) <= 1e-15


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_what_a_callback_returns_may_differ_when_a_step_runs_again(ordered: bool, nested: bool) -> None:
    def noise(x: Any) -> Any:
        return x * io_callback(lambda: np.ones(()), jax.ShapeDtypeStruct((), jnp.float64), ordered=ordered)

    def cell(h: Any, x: Any) -> Any:
        return h + (jax.jit(noise)(x) if nested else noise(x)), None

    with pytest.raises(InputError, match="f: uses what io_callback returns"):
        under(standard())(cell, 0.0, jnp.ones(STEPS))


@pytest.mark.parametrize("plan", PLANS)
def test_a_pure_callback_and_one_without_a_result_are_fine(plan: str) -> None:
    seen: list[float] = []

    def cell(h: Any, x: Any) -> Any:
        jax.debug.callback(lambda x: seen.append(float(x)), x)
        factor = jax.pure_callback(np.cos, jax.ShapeDtypeStruct((), jnp.float64), jax.lax.stop_gradient(x))
        return jnp.tanh(h + x * factor), h

    def loss(scan: Any, xs: Any) -> Any:
        return jnp.sum(scan(cell, 0.0, xs)[1] ** 2)

    xs = jnp.linspace(0, 1, STEPS)
    ours, theirs = (jax.grad(lambda xs, scan=scan: loss(scan, xs))(xs) for scan in (PLANS[plan], jax.lax.scan))
    jax.effects_barrier()
    assert difference(ours, theirs) <= 1e-12
    assert set(seen) == set(xs.tolist())


@pytest.mark.parametrize(
    ("after", "path"),
    [
        (lambda s: {**s, "a": (s["a"][0], (s["b"],))}, r"\['a'\]\[1\]"),
        (lambda s: {**s, "b": None}, r"\['b'\]"),
    ],
)
def test_a_change_of_structure_is_named_by_its_path(after: Any, path: str) -> None:
    start = {"a": (1.0, 2.0), "b": 3.0}
    with pytest.raises(InputError, match=rf"f: changes the structure of its state{path}: "):
        under(standard())(lambda state, _: (after(state), None), start, jnp.ones(STEPS))


FORWARD: dict[str, Callable[[Any], Any]] = {
    "jvp": lambda loss: jax.jvp(loss, (1.0,), (1.0,)),
    "jvp in jit": lambda loss: jax.jit(lambda one: jax.jvp(loss, (one,), (1.0,)))(1.0),
    "jvp of jit": lambda loss: jax.jvp(jax.jit(loss), (1.0,), (1.0,)),
    "linearize": lambda loss: jax.linearize(loss, 1.0)[1](1.0),
    "jacfwd": lambda loss: jax.jacfwd(loss)(1.0),
}


@pytest.mark.parametrize("way", FORWARD)
def test_forward_mode_is_refused_by_name(way: str) -> None:
    def loss(scale: Any) -> Any:
        return under(standard())(lambda h, x: (jnp.tanh(h * scale + x), None), 0.0, jnp.ones(STEPS))[0]

    with pytest.raises(InputError, match="derivatives in forward mode of a loop under a plan"):
        FORWARD[way](loss)


@pytest.mark.parametrize("what", ["state", "inputs"])
def test_explicit_axes_of_a_mesh_are_refused_by_name(what: str) -> None:
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        spec = jax.sharding.PartitionSpec(*([None] if what == "inputs" else []), "x")
        given = jax.device_put(jnp.ones((STEPS, 4)[-len(spec) :]), jax.sharding.NamedSharding(mesh, spec))
        state, xs = (jnp.zeros(4), given) if what == "inputs" else (given, jnp.ones((STEPS, 4)))
        with pytest.raises(InputError, match="sharded over explicit axes of a mesh"):
            ckptplan.jax.scan(lambda h, x: (h + x, None), state, xs, plan=standard())


def count_compilations(run: Callable[[], Any]) -> int:
    """The programs that are compiled meanwhile."""
    found = 0

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        nonlocal found
        found += "backend_compile" in event and duration_secs > 0

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jax.block_until_ready(run())
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return found


@jax.custom_jvp
def steep(x: Any) -> Any:
    return (x > 0).astype(x.dtype)


steep.defjvp(lambda primals, tangents: (steep(*primals), tangents[0] / (1 + jnp.abs(primals[0])) ** 2))


@pytest.mark.parametrize("plan", ["residuals", "memory"])
@pytest.mark.parametrize("how", ["value", "gradient"])
def test_a_second_call_without_jit_compiles_nothing(how: str, plan: str) -> None:
    """Also of a function that is made anew for each call, with other numbers in what it closes over."""
    weights, state, xs = data()

    def loss(scan: Any, weights: Any) -> Any:
        return jnp.sum(scan(lambda h, x: (jnp.tanh(h @ weights + x) + steep(h),) * 2, state, xs)[1] ** 2)

    change = (lambda one: one) if how == "value" else jax.grad

    def run(scan: Any, weights: Any) -> Any:
        return change(lambda one: loss(scan, one))(weights)

    assert count_compilations(lambda: run(PLANS[plan], weights)) > 0
    weights = weights + 0.25
    assert count_compilations(lambda: run(PLANS[plan], weights)) == 0
    assert difference(run(PLANS[plan], weights), run(jax.lax.scan, weights)) <= 1e-12


def test_calls_that_look_alike_keep_their_derivatives() -> None:
    """Rules of one name with other slopes, and functions outside that are called back."""

    def gradient(scan: Any, slope: float) -> Any:
        @jax.custom_jvp
        def spike(x: Any) -> Any:
            return (x > 0).astype(x.dtype)

        spike.defjvp(lambda primals, tangents: (spike(*primals), slope * tangents[0]))

        def factor(x: Any) -> Any:
            return slope * np.ones_like(x)

        def cell(h: Any, x: Any) -> Any:
            called = jax.pure_callback(factor, jax.ShapeDtypeStruct((), h.dtype), jax.lax.stop_gradient(h))
            return jnp.tanh(h * called + x) + spike(h), h

        return jax.grad(lambda start: scan(cell, start, jnp.linspace(-1.0, 1.0, STEPS))[0])(0.3)

    for slope in (0.5, 0.9, 0.5):
        assert difference(gradient(PLANS["residuals"], slope), gradient(jax.lax.scan, slope)) <= 1e-12
