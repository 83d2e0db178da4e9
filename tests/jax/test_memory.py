"""Compiled programs take the memory that was predicted, for plans of every strategy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import ckptplan
from ckptplan.jax import bptt, plan_for
from tests.jax import programs
from tests.jax.support import bytes_of

STEPS, SHAPE = 600, (programs.BATCH, programs.NEURONS)
#: Those that keep nothing in remote memory.
LOCAL = ("standard", "nested", "growing", "revolve", "optimal")


@pytest.fixture(autouse=True)
def single_precision() -> Iterator[None]:
    with jax.enable_x64(False):
        yield


def plan_within(memory: int | str) -> ckptplan.Plan:
    """A plan for a GRU whose tapes have leaves of the shape of its state."""
    case = programs.make("GRU", STEPS)
    return plan_for(partial(programs.gru, case.weights), jnp.zeros(SHAPE), case.xs, mean_square, memory=memory)


def mean_square(_: Any, output: Any) -> Any:
    return jnp.mean(output**2)


def compiled_bytes(plan: ckptplan.Plan) -> int:
    case = programs.make("GRU", STEPS)

    def loss(weights: Any, xs: Any) -> Any:
        return bptt(partial(programs.gru, weights), jnp.zeros(SHAPE), xs, mean_square, plan=plan)[0]

    return bytes_of(jax.jit(jax.grad(loss)).lower(case.weights, case.xs))


@pytest.mark.parametrize("share", [0.03, 0.2])
@pytest.mark.parametrize("strategy", LOCAL)
def test_a_plan_of_any_strategy_takes_what_was_predicted(strategy: str, share: float) -> None:
    """Also where it has its most checkpoints when it has few tapes: within 5 %, with little memory, too."""
    workload = plan_within("1 GB").workload
    budget = workload.workspace_bytes + int(share * STEPS * workload.tape_bytes)
    machine = ckptplan.HardwareProfile(name="host", local_bytes=2**30, remote_bytes=0)
    plan = ckptplan.optimize(workload, machine, strategies=[strategy], local_bytes=budget)
    predicted = plan.predicted.local_peak_bytes
    assert abs(compiled_bytes(plan) - predicted) <= 0.05 * predicted
