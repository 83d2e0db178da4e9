"""A loop with everything in its state, and plans for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ckptplan
import ckptplan.jax
from ckptplan.jax.api import trace_scan
from ckptplan.jax.limit import Ways
from ckptplan.jax.tapes import TracedGradient, trace_gradient
from ckptplan.planning.playback import make_schedule

STEPS = 20


def standard(steps: int = STEPS) -> ckptplan.Schedule:
    """A schedule that runs steps again, with local checkpoints only."""
    return make_schedule("standard", steps=steps, chunk_size=6)


def remote(steps: int = STEPS) -> ckptplan.Schedule:
    """A schedule that keeps states in remote memory."""
    return make_schedule("double", steps=steps, chunk_size=3, remote_chunk_size=8)


def data(seed: int = 0) -> tuple[Any, Any, Any]:
    """Weights, the initial state and inputs."""
    random = np.random.default_rng(seed)
    weights, xs = random.standard_normal((4, 4)) / 2, random.standard_normal((STEPS, 2, 4))
    return jnp.asarray(weights), jnp.zeros((2, 4)), jnp.asarray(xs)


def noisy_loss(scan: Callable[..., Any], weights: Any, state: Any, xs: Any) -> Any:
    """A loss of a cell whose state has integers, booleans, an empty array and a random key."""

    def cell(state: Any, x: Any) -> Any:
        h, count, odd, nothing, key = state
        key, mine = jax.random.split(key)
        h = jnp.tanh(h @ weights.T + x + 0.1 * jax.random.normal(mine, h.shape) + count / 10)
        return (h, count + 1, ~odd, nothing, key), (h, count, (), None)

    start = (state, 0, jnp.array(False), jnp.zeros((0, 3)), jax.random.key(3))
    (h, count, odd, *_), (hs, counts, _, _) = scan(cell, start, xs)
    return jnp.sum(hs * hs) + jnp.sum(h) * count + jnp.sum(counts) * odd


def under(plan: Any, **more: Any) -> Callable[..., Any]:
    """``ckptplan.jax.scan`` under a plan, in place of ``jax.lax.scan``."""
    return lambda f, init, xs=None, **given: ckptplan.jax.scan(f, init, xs, plan=plan, **given, **more)


def limited(memory: int | str, **more: Any) -> Callable[..., Any]:
    """``ckptplan.jax.scan`` within a limit of memory, in place of ``jax.lax.scan``."""
    return lambda f, init, xs=None, **given: ckptplan.jax.scan(f, init, xs, memory=memory, **given, **more)


def run_python(*arguments: str, devices: int = 2) -> str:
    """Return what a program of Python prints on a number of devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def difference(ours: Any, theirs: Any) -> float:
    """The largest difference, as a share of the largest entry of each leaf."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return max(
        float(jnp.abs(one - other).max() / jnp.maximum(jnp.abs(other).max(), 1e-30)) for one, other in pairs
    )


def bytes_of(lowered: Any) -> int:
    """Compile a program, and return the bytes of its temporary arrays and results."""
    found = lowered.compile().memory_analysis()
    return int(found.temp_size_in_bytes + found.output_size_in_bytes)


def read_least(error: Any) -> int:
    """Return the least limit that a refusal names."""
    found = re.search(r"\(([\d,]+) bytes\)", str(error.value))
    assert found
    return int(found[1].replace(",", ""))


def trace_step(cell: Callable[..., Any], state: Any, xs: Any) -> TracedGradient:
    """A step and its backward pass, with the gradients of all that the cell closes over."""
    return trace_gradient(trace_scan(cell, state, xs, Ways(memory=1))[0].step)
