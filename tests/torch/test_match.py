"""A plan that was made for other sizes than those of the cell is noticed, and exhausted memory is explained."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ckptplan
from ckptplan import InputError
from ckptplan.torch import LIF, OutOfMemory, PlanMismatch, bptt, measured_sizes, unroll, wrap
from ckptplan.torch.adapters import TorchCell
from ckptplan.torch.checking.match import forget_matches
from tests.torch.support import MACHINE, plan_of

STEPS, BATCH, INPUTS = 40, 4, 5


def mean_square(_: int, output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


@pytest.fixture(autouse=True)
def forget() -> None:
    """Begin as in a new process."""
    forget_matches()
    torch.manual_seed(0)


def make_cell(kind: str, width: int) -> Any:
    if kind == "LIF":
        return LIF(INPUTS, width)
    return TorchCell(getattr(nn, kind)(INPUTS, width))


def make_state(cell: Any) -> Any:
    return cell.initial_state(BATCH) if isinstance(cell, LIF) else None


def make_plan(sizes: Any, strategy: str, steps: int = STEPS) -> ckptplan.Plan:
    """Return a plan with room for nine states and tapes, or for all tapes."""
    workload = ckptplan.Workload(
        name="measured", steps=steps, **vars(sizes), forward_seconds=1, backward_seconds=2, recompute_seconds=1
    )
    room = 9 * sizes.state_bytes + 9 * sizes.tape_bytes + steps * sizes.resident_bytes_per_step
    room += steps * sizes.tape_bytes if strategy == "base" else 0
    return ckptplan.optimize(workload, MACHINE, strategies=[strategy], local_bytes=room)


def run(cell: Any, plan: Any, **options: Any) -> Any:
    inputs = torch.randn(plan.steps, BATCH, INPUTS)
    return bptt(cell, inputs, make_state(cell), mean_square, plan=plan, **options)


@pytest.mark.parametrize("strategy", ["base", "standard", "revolve"])
@pytest.mark.parametrize("kind", ["RNNCell", "GRUCell", "LSTMCell", "LIF"])
def test_a_plan_for_the_measured_sizes_fits_and_another_one_warns_once(kind: str, strategy: str) -> None:
    cell = make_cell(kind, 8)
    sizes = measured_sizes(cell, torch.randn(STEPS, BATCH, INPUTS), make_state(cell), mean_square)
    plan = make_plan(sizes, strategy)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlanMismatch)
        run(cell, plan, strict=True)
    large = make_cell(kind, 80)
    with pytest.warns(PlanMismatch, match="more than the .* that it was planned for") as warned:
        run(large, plan)
    assert f"the plan is for states of {sizes.state_bytes:,} B" in str(warned[0].message)
    assert f"those of the cell are of {10 * sizes.state_bytes:,} B" in str(warned[0].message)
    assert Path(warned[0].filename) == Path(__file__)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlanMismatch)
        run(large, plan)
    for _ in range(2):
        with pytest.raises(InputError, match="plan: the plan is for states"):
            run(large, plan, strict=True)


def test_a_plan_with_edited_parameters_says_what_it_takes() -> None:
    cell = make_cell("GRUCell", 8)
    plan = make_plan(measured_sizes(cell, torch.randn(STEPS, BATCH, INPUTS), None, mean_square), "standard")
    edited = plan.model_copy(update={"parameters": type(plan.parameters)({"chunk_size": STEPS})})
    with pytest.warns(PlanMismatch, match="its parameters are not those that it was planned with"):
        run(cell, edited)


def test_wrapped_modules_and_outputs_are_compared_too() -> None:
    cell = make_cell("GRUCell", 8)
    plan = make_plan(measured_sizes(cell, torch.randn(STEPS, BATCH, INPUTS), None, mean_square), "standard")
    data = torch.randn(STEPS, BATCH, INPUTS)
    with pytest.warns(PlanMismatch, match="the plan is for states"):
        unroll(make_cell("GRUCell", 80), data, None, plan=plan)
    with pytest.raises(InputError, match="the plan is for states"):
        wrap(nn.GRUCell(INPUTS, 80), plan=plan, strict=True)(data)


def test_plans_without_sizes_are_not_compared() -> None:
    run(make_cell("GRUCell", 80), plan_of(STEPS, states=20), strict=True)


def test_measuring_leaves_everything_as_it_was() -> None:
    net, record = nn.Sequential(nn.Linear(INPUTS, INPUTS), nn.BatchNorm1d(INPUTS), nn.Dropout()), list[int]()

    def cell(state: Any, x: Any) -> Any:
        record.append(1)
        state = torch.tanh(state + net(x))
        return state, state

    before, drawn = {name: one.clone() for name, one in net.state_dict().items()}, torch.get_rng_state()
    sizes = measured_sizes(
        cell, torch.randn(STEPS, BATCH, INPUTS, generator=torch.Generator()), torch.zeros(BATCH, INPUTS)
    )
    # Running statistics, and the number of batches in them, are a part of the state.
    assert sizes.state_bytes == 4 * (BATCH * INPUTS + 2 * INPUTS) + 8
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(before[name], one) for name, one in net.state_dict().items())
    assert record == []


@pytest.mark.parametrize("when", ["forward", "backward", "base"])
def test_exhausted_memory_is_explained(when: str) -> None:
    plan = plan_of(STEPS, "base" if when == "base" else "standard", states=999 if when == "base" else 20)
    module, calls = nn.Linear(INPUTS, INPUTS), []

    def cell(state: Any, x: Any) -> Any:
        calls.append(x)
        # The trial takes fewer steps than that.
        is_backward = torch._C._current_graph_task_id() != -1
        if is_backward if when == "backward" else len(calls) > 30:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        state = torch.tanh(module(x) + state)
        return state, state

    inputs, state = torch.randn(STEPS, BATCH, INPUTS), torch.zeros(BATCH, INPUTS)
    with pytest.raises(OutOfMemory, match="memory ran out: the plan predicts"):
        bptt(cell, inputs, state, mean_square, plan=plan, verify=False).loss.backward()
