"""On a CUDA device: a limit holds by the compiler's own count, and remote states are in pinned host memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from ckptplan.planning.playback import make_schedule
from tests.jax.support import data, difference, limited, noisy_loss, remote, under

pytestmark = pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a CUDA device")
STEPS, BATCH, NEURONS = 256, 32, 256
MIB = 2**20


def network() -> tuple[Any, Any]:
    """Weights and inputs."""
    keys = jax.random.split(jax.random.key(0), 2)
    weights = jax.random.normal(keys[0], (NEURONS, NEURONS)) / NEURONS**0.5
    return weights, jax.random.normal(keys[1], (STEPS, BATCH, NEURONS))


def loss(scan: Any, weights: Any, xs: Any) -> Any:
    def cell(h: Any, x: Any) -> tuple[Any, Any]:
        h = jnp.tanh(h @ weights + x)
        return h, (h**2).mean()

    return scan(cell, jnp.zeros((BATCH, NEURONS)), xs)[1].sum()


def compile_gradient(scan: Any) -> Any:
    return jax.jit(jax.grad(lambda *given: loss(scan, *given))).lower(*network()).compile()


@pytest.mark.parametrize("mib", [6, 12, 24])
def test_the_limit_holds_by_the_compilers_count(mib: int) -> None:
    program = compile_gradient(limited(mib * MIB))
    found: Any = program.memory_analysis()
    assert found.temp_size_in_bytes + found.output_size_in_bytes <= mib * MIB
    theirs = compile_gradient(jax.lax.scan)(*network())
    assert difference(program(*network()), theirs) <= 1e-9


@pytest.mark.parametrize("compiled", [False, True])
def test_states_in_host_memory_come_back_as_they_went(compiled: bool) -> None:
    weights, state, xs = data()

    def gradient(scan: Any) -> Any:
        of_one: Any = jax.grad(lambda one: noisy_loss(scan, one, state, xs))
        return (jax.jit(of_one) if compiled else of_one)(weights)

    assert difference(gradient(under(remote())), gradient(jax.lax.scan)) <= 1e-9


def test_remote_states_are_not_in_device_memory() -> None:
    bytes_of: dict[str, int] = {}
    plans = {
        "local": make_schedule("standard", steps=STEPS, chunk_size=4),
        "remote": make_schedule("double", steps=STEPS, chunk_size=4, remote_chunk_size=16),
    }
    theirs = compile_gradient(jax.lax.scan)(*network())
    for name, plan in plans.items():
        program = compile_gradient(under(plan))
        found: Any = program.memory_analysis()
        bytes_of[name] = found.temp_size_in_bytes
        assert difference(program(*network()), theirs) <= 1e-9
    # Local: 64 states; remote: 4 at a time.
    assert bytes_of["local"] - bytes_of["remote"] >= 50 * BATCH * NEURONS * 4
