"""Compiled programs take the memory that was predicted, for plans of every strategy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ckptplan
from ckptplan.jax import bptt, plan_for
from ckptplan.jax.table import Layout, make_table
from ckptplan.planning.playback import make_schedule, schedule_of
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier

STEPS, BATCH, NEURONS = 600, 16, 96
#: Those that keep nothing in remote memory.
LOCAL = ("standard", "nested", "growing", "revolve", "optimal")


@dataclass(frozen=True)
class Case:
    """A cell with its weights and its first state."""

    cell: Callable[[Any, Any, Any], tuple[Any, Any]]
    weights: Any
    state: Any


def gru(weights: Any, h: Any, x: Any) -> tuple[Any, Any]:
    """A state of one leaf, and tapes with many leaves of its shape."""
    update, reset, new = jnp.split(x @ weights["x"], 3, -1)
    update, reset = jax.nn.sigmoid(update + h @ weights["z"]), jax.nn.sigmoid(reset + h @ weights["r"])
    h = update * h + (1 - update) * jnp.tanh(new + reset * (h @ weights["n"]))
    return h, h


def two_layers(weights: Any, state: Any, x: Any) -> tuple[Any, Any]:
    """Leaves of several shapes, in other numbers in states and in tapes, and an integer."""
    wide, narrow, count = state
    wide = jnp.tanh(x @ weights["x"] + wide @ weights["z"] + count / 1e4)
    narrow = jnp.tanh(narrow * weights["d"] + wide[:, :7])
    return (wide, narrow, count + 1), narrow


def normed(weights: Any, h: Any, x: Any) -> tuple[Any, Any]:
    """Weights that are computed from the parameters, the same for each step."""
    norm = jnp.linalg.norm(weights["z"], axis=0)
    h = jnp.tanh(h @ (weights["z"] / norm) + x @ jnp.tanh(weights["x"]))
    return h, h


def of_samples(weights: Any, h: Any, x: Any) -> tuple[Any, Any]:
    """Layers of single samples under ``vmap``: their products sum over another axis than the first."""
    h = jax.vmap(lambda h, x: jnp.tanh(weights["z"] @ h + weights["x"].T @ x))(h, x)
    return h, h


def make_case(name: str) -> Case:
    random = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return jnp.asarray(random.standard_normal(shape) / shape[0] ** 0.5, jnp.float32)

    wide = jnp.zeros((BATCH, NEURONS), jnp.float32)
    recurrent = {name: normal(NEURONS, NEURONS) for name in "zrn"}
    if name == "gru":
        return Case(gru, {"x": normal(5, 3 * NEURONS), **recurrent}, wide)
    weights = {"x": normal(5, NEURONS), "z": recurrent["z"], "d": normal(7)}
    if name in {"normed", "of samples"}:
        cell = normed if name == "normed" else of_samples
        return Case(cell, {name: weights[name] for name in "xz"}, wide)
    return Case(two_layers, weights, (wide, jnp.zeros((BATCH, 7), jnp.float32), jnp.int32(0)))


def loss_of(case: Case, weights: Any, xs: Any, **how: Any) -> Any:
    total, _ = bptt(
        lambda state, x: case.cell(weights, state, x),
        case.state,
        xs,
        lambda _, y: jnp.mean(y**2),
        **how,
    )
    return total


def compiled_bytes(case: Case, **how: Any) -> int:
    xs = jax.ShapeDtypeStruct((STEPS, BATCH, 5), jnp.float32)
    run = jax.jit(jax.grad(lambda *given: loss_of(case, *given, **how)))
    found: Any = run.lower(case.weights, xs).compile().memory_analysis()
    return int(found.temp_size_in_bytes + found.output_size_in_bytes)


def plan_within(case: Case, memory: int | str) -> ckptplan.Plan:
    xs = jax.ShapeDtypeStruct((STEPS, BATCH, 5), jnp.float32)
    return plan_for(
        lambda state, x: case.cell(case.weights, state, x),
        case.state,
        xs,
        lambda _, y: jnp.mean(y**2),
        memory=memory,
    )


@pytest.mark.parametrize("share", [0.03, 0.2])
@pytest.mark.parametrize("strategy", LOCAL)
def test_a_plan_of_any_strategy_takes_what_was_predicted(strategy: str, share: float) -> None:
    """Also where it has its most checkpoints when it has few tapes: within 5 %, with little memory, too."""
    case = make_case("gru")
    workload = plan_within(case, "1 GB").workload
    budget = workload.workspace_bytes + int(share * STEPS * workload.tape_bytes)
    machine = ckptplan.HardwareProfile(name="host", local_bytes=2**30, remote_bytes=0)
    plan = ckptplan.optimize(workload, machine, strategies=[strategy], local_bytes=budget)
    predicted = plan.predicted.local_peak_bytes
    assert abs(compiled_bytes(case, plan=plan) - predicted) <= 0.05 * predicted


@pytest.mark.parametrize("memory", [400_000, 700_000, "3 MB"])
@pytest.mark.parametrize("name", ["gru", "normed", "of samples", "two layers"])
def test_a_limit_holds_whatever_the_shapes(name: str, memory: int | str) -> None:
    """Leaves of other shapes cannot share buffers; a plan that needs them to is not chosen."""
    case = make_case(name)
    assert compiled_bytes(case, memory=memory) <= ckptplan.units.parse_bytes(memory)


@pytest.mark.parametrize("name", ["gru", "normed", "of samples", "two layers"])
def test_the_least_that_is_named_is_enough_and_nothing_is_advised_that_does_not_help(name: str) -> None:
    case = make_case(name)
    with pytest.raises(ckptplan.InputError, match=r"accepted: at least \S+ KiB \([\d,]+ bytes\)") as error:
        plan_within(case, 1)
    least = int(str(error.value).partition(" bytes)")[0].rpartition("(")[2].replace(",", ""))
    assert plan_within(case, least).predicted.local_peak_bytes <= least
    with pytest.raises(ckptplan.InputError) as error:
        plan_within(case, least * 9 // 10)
    for way in ("a batch of at most", "truncated BPTT", "remote memory"):
        assert way not in str(error.value)


def test_buffers_are_shared_only_where_that_saves_memory() -> None:
    leaf = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    standard = make_schedule("standard", steps=64, chunk_size=8)
    table = make_table(standard, steps=64, state=(leaf,), tape=(leaf,) * 3)
    assert table.layout == Layout.separate((leaf,), (leaf,) * 3)
    assert table.buffer_bytes == table.held_bytes
    plan = plan_within(make_case("gru"), 600_000)
    workload = plan.workload
    machine = ckptplan.HardwareProfile(name="host", local_bytes=2**30, remote_bytes=0)
    optimal = ckptplan.optimize(workload, machine, strategies=["optimal"], local_bytes=600_000)
    count = workload.tape_bytes // workload.state_bytes
    table = make_table(schedule_of(optimal), steps=STEPS, state=(leaf,), tape=(leaf,) * count)
    assert table.layout == Layout.shared((leaf,), (leaf,) * count)
    assert table.buffer_bytes == table.held_bytes


def test_a_checkpoint_and_a_tape_take_turns_in_a_place() -> None:
    """Two states are kept and dropped, then two tapes: room for two, not for four."""
    local = Tier.LOCAL
    actions: list[Action] = [
        Save(0, local),
        Advance(0, 1),
        Save(1, local),
        Free(1, local),
        Load(0, local),
        Free(0, local),
        Record(0, 2),
        Backward(0, 2),
    ]
    leaf = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    table = make_table(actions, steps=2, state=(leaf,), tape=(leaf,))
    assert table.rooms == (2,)
