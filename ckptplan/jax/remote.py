"""Remote checkpoints of a program: arrays in the host memory of the device.

The loops of a program carry these arrays, and the forward pass hands them to the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ckptplan.errors import InputError
from ckptplan.jax.leaves import Arrays, make_room, put, release, run_if, take


def open_states(state: Sequence[Any], room: int) -> Arrays:
    """Return arrays in host memory with room for a number of states with these leaves."""
    return tuple(_move(buffer, jax.memory.Space.Host) for buffer in make_room(state, room, as_words=False))


def write_state(states: Arrays, state: Sequence[Any], number: Any) -> Arrays:
    """Return the arrays with a state written at a number."""
    return put(states, [_move(leaf, jax.memory.Space.Host) for leaf in state], number)


def read_state(states: Arrays, number: Any, like: Sequence[Any]) -> Arrays:
    """Return the state at a number. Its leaves have the types of ``like``."""
    return release([_move(leaf, jax.memory.Space.Device) for leaf in take(states, number)], like)


def _move(leaf: Any, space: Any) -> Any:
    return jax.device_put(leaf, space)


@cache
def rehearse_host(backend: str) -> None:
    """Test whether nested loops can move arrays to host memory and back unchanged. Raises InputError if not."""
    count = 3
    sent = np.random.default_rng(0).random((count, 16), np.float32)

    def move(given: jax.Array) -> jax.Array:
        def send(number: Any, held: Arrays) -> Any:
            return run_if(number >= 0, lambda held: write_state(held, [given[number]], number), held)

        def fetch(number: Any, fetched: Arrays) -> Arrays:
            back = run_if(number >= 0, lambda old: read_state(held, number, old), (given[0],))
            return put(fetched, back, number)

        held = jax.lax.fori_loop(0, count, send, open_states([jax.typeof(given[0])], count))
        (fetched,) = jax.lax.fori_loop(0, count, fetch, (jnp.zeros_like(given),))
        return jnp.asarray(fetched)

    try:
        with jax.ensure_compile_time_eval():
            why = "numbers came back changed" * bool((np.asarray(jax.jit(move)(sent)) != sent).any())
    except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError) as error:
        why = str(error).splitlines()[0]
    if why:
        raise InputError(
            f"keeps states in remote memory, and programs on {backend} cannot use host memory: {why}",
            field="plan",
            accepted="a plan with local checkpoints only",
        )
