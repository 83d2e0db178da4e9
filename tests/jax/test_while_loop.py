"""A while loop in JAX: gradients of a plain loop wherever it ends, and the runs of steps of the rule."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ckptplan import InputError
from ckptplan.jax import while_loop
from ckptplan.recursion.online import Snapshots, count_advances

WEIGHTS = jnp.array([[0.9, 0.2], [-0.3, 0.95]])
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


WAYS: list[dict[str, Any]] = [{"slots": 4, "max_steps": 60}, {"slots": 1}, {"memory": "1 kB"}]


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
    """Each without a tape, and once with one."""
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
    assert runs[0] == steps + count_advances(snapshots.held, steps, slots=slots)


@pytest.mark.parametrize("memory", [300_000, 1_000_000])
def test_the_compiled_program_keeps_the_limit(memory: int) -> None:
    """With what is temporary and the gradient of the weights."""
    start = jnp.ones((32, 64), jnp.float32)

    def last(weights: Any) -> Any:
        def body(state: Any) -> Any:
            return state[0] + 1, jnp.tanh(state[1] @ weights)

        return while_loop(lambda state: state[0] < 90, body, (jnp.int32(0), start), memory=memory)[1].sum()

    compiled = jax.jit(jax.grad(last)).lower(jnp.eye(64, dtype=jnp.float32)).compile()
    seen: Any = compiled.memory_analysis()
    assert memory / 2 < seen.temp_size_in_bytes + seen.output_size_in_bytes <= memory


def test_without_gradients_it_is_the_loop_of_jax() -> None:
    found = while_loop(lambda x: x < 100, lambda x: 2 * x, jnp.int32(3), slots=2)
    expected = jax.lax.while_loop(lambda x: x < 100, lambda x: 2 * x, jnp.int32(3))
    assert (found, found.dtype) == (expected, expected.dtype)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": None}, "slots: is missing (accepted: slots or memory)"),
        ({"memory": 100}, "slots: is given together with memory"),
        ({"slots": 0}, "slots: 0 is not accepted"),
        (
            {"slots": None, "memory": "8 B"},
            "memory: 8 B are too little for a held state and the tape of a step",
        ),
        ({"cond": 3}, "cond: 3 cannot be called"),
        ({"body": lambda x: (x, x)}, "f: changes the structure of its state"),
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
