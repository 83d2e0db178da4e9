"""A while loop in JAX: gradients of a plain loop wherever it ends, and the runs of steps of the rule."""

from __future__ import annotations

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ckptplan import InputError
from ckptplan.jax import while_loop
from ckptplan.jax.while_loop import _split
from ckptplan.recursion.online import Snapshots, count_advances
from ckptplan.recursion.revolve import count_recomputed
from tests.jax.support import bytes_of, run_python

WEIGHTS = jnp.array([[0.9, 0.2], [-0.3, 0.95]])
#: A constant of a program: the sizes of its axes, and the bits of an element.
CONSTANT = re.compile(r"stablehlo\.constant .*: tensor<((?:\d+x)*)[a-z]*(\d+)>")
START = jnp.array([[1.0, 0.5], [0.2, -0.7]])


def step(weights: Any, hidden: Any) -> Any:
    return jnp.tanh(hidden @ weights) + 0.02 * jnp.cos(hidden)


def online_loss(weights: Any, start: Any, steps: Any, **ways: Any) -> Any:
    def body(state: Any) -> Any:
        done, hidden = state
        return done + 1, step(weights, hidden)

    _, hidden = while_loop(lambda state: state[0] < steps, body, (jnp.int32(0), start), **ways)
    return (hidden**2).sum()


def plain_loss(weights: Any, start: Any, steps: int) -> Any:
    last, _ = jax.lax.scan(lambda hidden, _: (step(weights, hidden), None), start, None, length=steps)
    return (last**2).sum()


WAYS: list[dict[str, Any]] = [{"slots": 4, "max_steps": 60}, {"slots": 1}, {"memory": "1 kB", "max_steps": 60}]


@pytest.mark.parametrize("ways", WAYS)
def test_gradients_are_those_of_a_plain_loop_wherever_it_ends(ways: dict[str, Any]) -> None:
    """Thirty lengths with one compiled program, some beyond the table of the rule."""
    compiled = jax.jit(jax.value_and_grad(lambda *given: online_loss(*given, **ways), argnums=(0, 1)))
    for steps in np.random.default_rng(39).choice(120, 30, replace=False).tolist():
        value, found = compiled(WEIGHTS, START, steps)
        expected, gradients = jax.value_and_grad(plain_loss, argnums=(0, 1))(WEIGHTS, START, steps)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        for one, other in zip(found, gradients, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("slots", "steps"), [(1, 12), (3, 40), (5, 100), (10, 150)])
def test_steps_run_as_often_as_the_rule_says(slots: int, steps: int) -> None:
    """Those without a tape: what has effects is no part of the run of a step for its tape."""
    runs = [0]

    def count() -> None:
        runs[0] += 1

    def body(state: Any) -> Any:
        jax.debug.callback(count)
        return state[0] + 1, jnp.sin(state[1])

    def last(start: Any) -> Any:
        return while_loop(lambda state: state[0] < steps, body, (jnp.int32(0), start), slots=slots)[1]

    jax.grad(last)(1.0)
    jax.effects_barrier()
    snapshots = Snapshots(slots)
    for state in range(1, steps):
        snapshots.offer(state)
    assert runs[0] == count_advances(snapshots.held, steps, slots=slots)


@pytest.mark.parametrize(
    ("neurons", "memory", "max_steps"),
    [(64, 300_000, 10_000), (64, 1_000_000, 10_000), (1, 32_000, 2_000), (64, 300_000, 50)],
)
def test_the_compiled_program_keeps_the_limit(neurons: int, memory: int, max_steps: int) -> None:
    """With its constants, among them the table of the rule, and the gradient of the weights."""

    def last(weights: Any) -> Any:
        def body(state: Any) -> Any:
            return state[0] + 1, jnp.tanh(state[1] @ weights)

        start = jnp.int32(0), jnp.ones((32, neurons), jnp.float32)
        ways: dict[str, Any] = {"memory": memory, "max_steps": max_steps}
        return while_loop(lambda state: state[0] < 40, body, start, **ways)[1].sum()

    lowered = jax.jit(jax.grad(last)).lower(jnp.eye(neurons, dtype=jnp.float32))
    constants = sum(
        math.prod(int(size) for size in shape.split("x") if size) * int(bits) // 8
        for shape, bits in CONSTANT.findall(lowered.as_text())
    )
    assert constants + bytes_of(lowered) <= memory


@pytest.mark.parametrize("wide", [True, False])
def test_a_gap_is_split_so_that_the_fewest_steps_run_again(wide: bool) -> None:
    """Also where binomials are beyond 32 bits."""
    with jax.enable_x64(wide):
        check_splits()


def check_splits() -> None:
    split = jax.jit(_split)
    random = np.random.default_rng(3)
    for most in (30, 3000, 2**31 - 1):
        for free in (1, 2, 3, 5, 20, 300, 40_000):
            for length in (2, 3, most, *random.integers(2, most, 10).tolist()):
                ahead = int(split(jnp.int32(length), jnp.int32(free)))
                runs = ahead + sum(
                    count_recomputed(part, chunk=1, slots=slots)
                    for part, slots in ((ahead, free), (length - ahead, free - 1 or 1))
                )
                assert runs == count_recomputed(length, chunk=1, slots=free), (length, free)


@pytest.mark.parametrize("kind", [jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.complex64])
def test_numbers_of_any_size_have_gradients(kind: Any) -> None:
    def last(loop: Any, start: Any) -> Any:
        def body(state: Any) -> Any:
            return state[0] + 1, (state[1] * 0.75).astype(kind)

        final = loop(body, (jnp.int32(0), start))[1]
        return jnp.abs(final if jnp.iscomplexobj(final) else final.astype(jnp.float32)).sum()

    def ours(body: Any, start: Any) -> Any:
        return while_loop(lambda state: state[0] < 9, body, start, slots=3)

    def theirs(body: Any, start: Any) -> Any:
        return jax.lax.fori_loop(0, 9, lambda _, state: body(state), start)

    start = jnp.asarray([1.0, 0.5], kind)
    found, expected = (jax.grad(lambda one, loop=loop: last(loop, one))(start) for loop in (ours, theirs))
    assert found.dtype == kind
    np.testing.assert_array_equal(found, expected)


def read_outside(call: Any, like: Any) -> Any:
    return call(lambda: np.float32(1), jax.ShapeDtypeStruct((), like.dtype))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": None}, "slots: is missing (accepted: slots or memory)"),
        ({"memory": 100}, "slots: is given together with memory"),
        ({"slots": 0}, "slots: 0 is not accepted"),
        ({"slots": None, "memory": "much"}, "memory: 'much' is not"),
        ({"body": lambda x: x + read_outside(jax.experimental.io_callback, x)}, "body: uses what io_callback"),
        ({"cond": lambda x: read_outside(jax.experimental.io_callback, x) < 1}, "cond: uses what io_callback"),
        ({"max_steps": 0}, "max_steps: 0 is not accepted"),
    ],
)
def test_arguments_that_are_refused(change: dict[str, Any], message: str) -> None:
    call: dict[str, Any] = {
        "cond": lambda x: x < 1,
        "body": lambda x: x + 1.0,
        "state": 0.0,
        "slots": 3,
        **change,
    }
    with pytest.raises(InputError, match=re.escape(message)):
        while_loop(**call)


def test_a_limit_is_too_little_for_gradients_alone() -> None:
    def last(start: Any) -> Any:
        return while_loop(lambda x: x < 1, lambda x: x + 1.0, start, memory="8 B")

    assert last(0.0) == 1
    message = "memory: 8 B are too little for a held state, the tape of a step and the table of"
    with pytest.raises(InputError, match=re.escape(message)):
        jax.grad(last)(0.0)


@pytest.mark.parametrize("ways", [{"slots": 3}, {"memory": "1 MB"}], ids=["slots", "memory"])
@pytest.mark.parametrize("reads", [False, True], ids=["of its input", "of what it closes over"])
def test_a_rule_without_a_gradient_of_an_array_is_not_zero(ways: dict[str, Any], reads: bool) -> None:
    """JAX refuses what a function with a rule closes over; that of the state is right."""

    def loss(weights: Any, start: Any, run: Any) -> Any:
        @jax.custom_vjp
        def act(x: Any) -> Any:
            return jnp.tanh(x * weights)

        def back(x: Any, incoming: Any) -> Any:
            slope = 1 - jnp.tanh(x * weights) ** 2
            return (incoming * slope * weights if reads else incoming * slope,)

        act.defvjp(lambda x: (act(x), x), back)
        return jnp.sum(run(lambda x: (x[0] + 1, act(x[1]) + weights), (jnp.int32(0), start))[1])

    def ours(body: Any, start: Any) -> Any:
        return while_loop(lambda x: x[0] < 5, body, start, **ways)

    def theirs(body: Any, start: Any) -> Any:
        return jax.lax.fori_loop(0, 5, lambda _, x: body(x), start)

    weights, start = jnp.array([0.5, 1.0]), jnp.array([0.1, 0.2])
    found, expected = (jax.grad(loss, 1)(weights, start, run) for run in (ours, theirs))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    for gradient in (
        jax.grad(loss),
        jax.jit(jax.grad(loss), static_argnums=2),
        jax.grad(jax.jit(loss, static_argnums=2)),
    ):
        with pytest.raises(Exception, match="with respect to a closed-over value"):
            gradient(weights, start, ours)


def test_sums_over_an_axis_of_vmap_are_refused_by_name() -> None:
    """Elements whose loops end apart run steps again apart from each other."""

    def total(x: Any) -> Any:
        return jax.lax.psum(x, "i")

    for field, cond, body in (
        ("body", lambda x: x < 9, lambda x: x + total(x)),
        ("cond", lambda x: total(x) < 9, lambda x: x + 1),
    ):

        def run(x: Any, cond: Any = cond, body: Any = body) -> Any:
            return while_loop(cond, body, x, slots=3)

        with pytest.raises(InputError, match=rf"^{field}: calls psum.* over the axis 'i' of jax.vmap"):
            jax.vmap(run, axis_name="i")(jnp.arange(1.0, 4.0))


SPEC: Any = jax.sharding.PartitionSpec


def run_on_devices(cond: Any, body: Any, *, cast: bool = False) -> Any:
    """Return the gradient of weights that all devices share, of a loop on each device."""
    mesh = jax.make_mesh((jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    def shard(weights: Any, ends: Any) -> Any:
        if cast:
            weights = jax.lax.pcast(weights, "i", to="varying")
        start = jax.lax.pcast((jnp.int32(0), jnp.ones(2)), "i", to="varying")
        final = while_loop(lambda state: cond(state, ends[0]), lambda s: body(weights, s), start, slots=3)
        return jax.lax.psum(jnp.sum(final[1] ** 2), "i")

    of_all = jax.shard_map(shard, mesh=mesh, in_specs=(SPEC(), SPEC("i")), out_specs=SPEC())
    return jax.jit(jax.grad(of_all))(
        jnp.asarray([[0.5, 0.2], [0.1, 0.6]]), 5 + 3 * jnp.arange(jax.device_count())
    )


def count_to(state: Any, end: Any) -> Any:
    return state[0] < end


#: Steps whose weights all devices share: they take part once, more than once, and through other functions.
BODIES: tuple[Any, ...] = (
    lambda w, h: jnp.tanh(h @ w),
    lambda w, h: jnp.tanh(h @ w) + 0.2 * w[0],
    lambda w, h: jnp.exp(w[1]) * h * 0.5,
    lambda w, h: jnp.sin(h @ w) + jnp.cos(w).sum(0) * jax.nn.relu(h),
    lambda w, h: jnp.where(w[0] > 0.3, w[1], 0.9) * h + jax.lax.stop_gradient(w[1]),
)


def test_devices_whose_loops_end_apart_add_up_their_gradients_once() -> None:
    """Each sums its own, and all add these up when the last one is done: none waits for another in a step."""
    program = """
import jax, jax.numpy as jnp
from tests.jax.test_while_loop import BODIES, count_to, run_on_devices

for body in BODIES:
    found = run_on_devices(count_to, lambda w, s: (s[0] + 1, body(w, s[1])))

    def last(w, end):
        return jnp.sum(jax.lax.fori_loop(0, end, lambda _, h: body(w, h), jnp.ones(2)) ** 2)

    def every(w):
        return last(w, 5) + last(w, 8)

    expected = jax.grad(every)(jnp.asarray([[0.5, 0.2], [0.1, 0.6]]))
    print(jax.device_count(), float(jnp.abs(found - expected).max() / jnp.abs(expected).max()))
"""
    found = [line.split() for line in run_python("-c", program).splitlines()]
    assert [(devices, float(difference) <= 1e-5) for devices, difference in found] == [("2", True)] * len(
        BODIES
    )


def test_devices_that_would_wait_for_each_other_are_refused_by_name() -> None:
    """In a step, in a test, and in the gradient of a loop in a step, unless its weights vary before it."""

    def body(weights: Any, state: Any) -> Any:
        return state[0] + 1, jax.lax.fori_loop(0, 2, lambda _, h: jnp.tanh(h @ weights), state[1])

    def mean(state: Any) -> Any:
        return jax.lax.pcast(jax.lax.pmean(state, "i"), "i", to="varying")

    with pytest.raises(
        InputError, match=r"^body: has gradients that take psum.* over the axis 'i' of shard_map.*pcast"
    ):
        run_on_devices(count_to, body)
    with pytest.raises(InputError, match=r"^body: calls psum.* over the axis 'i' of shard_map"):
        run_on_devices(count_to, lambda w, s: (s[0] + 1, mean(s[1]) @ w))
    with pytest.raises(InputError, match=r"^cond: calls psum.* over the axis 'i' of shard_map"):
        run_on_devices(lambda s, end: (s[0] < end) & (mean(s[1]).sum() < 9), body)
    assert jnp.isfinite(run_on_devices(count_to, body, cast=True)).all()


def test_second_derivatives_are_refused_by_name() -> None:
    def last(start: Any) -> Any:
        return while_loop(lambda x: x < 100, lambda x: x * x, start, slots=3)

    with pytest.raises(InputError, match="second derivatives of a loop under a plan"):
        jax.grad(jax.grad(last))(2.0)
