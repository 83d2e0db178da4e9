"""A plan whose sizes are not the cell's warns once, with both numbers, and never if they were measured."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ckptplan
from ckptplan.cost.case import Case
from ckptplan.schedule.simulator import play
from ckptplan.torch import LIF, PlanMismatch, bptt, measured_sizes, unroll, wrap
from ckptplan.torch.adapters import TorchCell
from ckptplan.units import format_bytes
from tests.torch.support import MACHINE, gru, plan_of

STEPS, BATCH, CHANNELS = 40, 4, 6
#: Strategies whose first recording holds all steps, a chunk, and a single step.
STRATEGIES = ("base", "standard", "revolve")
#: Calls are remembered by their sizes: each test has its own.
UNITS = itertools.count(20)


@pytest.fixture
def units() -> int:
    return next(UNITS)


def sum_of_squares(output: Any) -> torch.Tensor:
    leaves = output if isinstance(output, tuple) else (output,)
    return torch.stack([one.square().sum() for one in leaves]).sum()


def square(_: int, output: Any) -> torch.Tensor:
    leaves = output if isinstance(output, tuple) else (output,)
    return torch.stack([one.square().mean() for one in leaves]).sum()


def measure(cell: Any, state: Any = None, *, steps: int = STEPS, **losses: Any) -> Any:
    """Return the sizes of a cell with a loss of each step, or with other losses."""
    return measured_sizes(cell, torch.randn(steps, BATCH, CHANNELS), state, **(losses or {"loss": square}))


def plan_for(
    strategy: str, sizes: Any = None, *, state: int = 0, tape: int = 0, steps: int = STEPS, per: int = 1
) -> ckptplan.Plan:
    """Return a plan of a strategy for measured sizes or for others, on one unit or several."""
    state, tape = state or sizes.state_bytes, tape or sizes.tape_bytes
    resident = 0 if sizes is None else sizes.resident_bytes_per_step
    workload = ckptplan.Workload(
        name="sized", steps=steps, units=per, state_bytes=state, tape_bytes=tape,
        resident_bytes_per_step=resident, forward_seconds=1, backward_seconds=2, recompute_seconds=1,
    )  # fmt: skip
    machine = MACHINE if per == 1 else ckptplan.HardwareProfile(**{**dict(MACHINE), "units": per})
    room = steps * (state + tape) if strategy == "base" else 10 * state + 8 * tape
    return ckptplan.optimize(
        workload, machine, strategies=[strategy], local_bytes=room + resident * steps + state
    )


def make_gru(units: int) -> Any:
    return TorchCell(torch.nn.GRUCell(CHANNELS, units))


def run(cell: Any, plan: Any, *, batch: int = BATCH, state: Any = None, loss: Any = square, **more: Any) -> Any:
    inputs = torch.randn(plan.steps, batch, CHANNELS)
    result = bptt(cell, inputs, state, loss, plan=plan, **more)
    result.loss.backward()
    return result


def layered(units: int) -> Any:
    """Two layers and a trace in the state, a counter, and two outputs."""
    one, two = torch.nn.GRUCell(CHANNELS, units), torch.nn.LSTMCell(units, units)

    def cell(state: Any, x: Any) -> tuple[Any, Any]:
        first, second, trace, count = state
        first = one(x, first)
        second = two(first, second)
        trace = 0.9 * trace + second[0].sigmoid()
        return (first, second, trace, count + 1), (first * trace, second[0])

    cell.parameters = lambda: [*one.parameters(), *two.parameters()]  # type: ignore[attr-defined]
    return cell


def zeros(units: int) -> Any:
    one, two, three, four = torch.zeros(4, BATCH, units)
    return (one, (two, three), four, torch.zeros(1, dtype=torch.long))


CELLS: dict[str, Callable[[int], tuple[Any, Any]]] = {
    "RNN": lambda units: (TorchCell(torch.nn.RNNCell(CHANNELS, units)), None),
    "GRU": lambda units: (make_gru(units), None),
    "LSTM": lambda units: (TorchCell(torch.nn.LSTMCell(CHANNELS, units)), None),
    "layers": lambda units: (layered(units), zeros(units)),
    "LIF": lambda units: (LIF(CHANNELS, units), torch.zeros(BATCH, units)),
}
LOSSES: dict[str, dict[str, Any]] = {
    "each step": {"loss": square},
    "chunks": {"chunk_loss": lambda _, outputs: sum_of_squares(outputs)},
    "the last step": {"loss": lambda step, output: square(step, output) * (1 if step == STEPS - 1 else 0)},
    "the final state": {
        "loss": None,
        "final_loss": lambda state: torch.stack([one.float().exp().sum() for one in leaves_of(state)]).sum(),
    },
}


def leaves_of(tree: Any) -> list[torch.Tensor]:
    return [one for one in torch.utils._pytree.tree_leaves(tree) if isinstance(one, torch.Tensor)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("losses", LOSSES)
@pytest.mark.parametrize("name", CELLS)
def test_a_plan_of_measured_sizes_never_warns(name: str, losses: str, strategy: str, units: int) -> None:
    cell, state = CELLS[name](units)
    plan = plan_for(strategy, measure(cell, state, **LOSSES[losses]))
    run(cell, plan, state=state, strict=True, **{"loss": None, **LOSSES[losses]})


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("where", ["the last step", "the final state"])
def test_a_large_readout_at_the_end_is_no_part_of_a_steps_tape(where: str, strategy: str, units: int) -> None:
    """The first recording may hold it, once: the sizes of the steps before it fit."""
    cell = make_gru(units)
    inputs, head = torch.randn(STEPS, BATCH, CHANNELS), torch.nn.Linear(units, 300 * units)

    def read_out(state: torch.Tensor) -> torch.Tensor:
        read: torch.Tensor = head(state).tanh().exp().square().mean()
        return read

    losses: dict[str, Any] = {"loss": square, "final_loss": read_out}
    if where == "the last step":
        losses = {"loss": lambda t, one: read_out(one) if t == STEPS - 1 else 0 * one.sum()}
    plan = plan_for(strategy, measure(cell))
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlanMismatch)
        bptt(cell, inputs, None, plan=plan, parameters=head.parameters(), **losses).loss.backward()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nor_does_it_under_autocast_and_for_short_sequences(strategy: str, units: int) -> None:
    """Weights in another type are held once by each recording."""
    cell = make_gru(units)
    for steps in (2, 5, STEPS):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            run(cell, plan_for(strategy, measure(cell, steps=steps), steps=steps), strict=True)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", CELLS)
def test_a_plan_for_fewer_neurons_says_what_it_would_take(name: str, strategy: str, units: int) -> None:
    """Ten times as many neurons in the same plan."""
    cell, state = CELLS[name](units)
    sizes = measure(cell, state)
    plan = plan_for(strategy, sizes)
    cell, state = CELLS[name](10 * units)
    with pytest.warns(PlanMismatch, match="more than the") as warned:
        run(cell, plan, state=state)
    text = str(warned[0].message)
    assert f"the plan is for states of {sizes.state_bytes:,} B and tapes of {sizes.tape_bytes:,} B" in text
    large = measure(cell, state)
    assert f"those of the cell are of {large.state_bytes:,} B" in text
    assert "measured_sizes" in text
    assert Path(warned[0].filename) == Path(__file__)  # the line that called bptt


def test_the_peak_that_it_names_is_that_of_a_plan_with_the_right_sizes(units: int) -> None:
    """The state alone is wrong here: the tape that was planned is right."""
    cell = make_gru(units)
    sizes = measure(cell)
    wrong, right = plan_for("revolve", sizes, state=sizes.state_bytes // 2), plan_for("revolve", sizes)
    with pytest.warns(PlanMismatch) as warned:
        run(cell, wrong)
    needed = ckptplan.simulate(right, schedule=ckptplan.actions(wrong)).local_peak_bytes
    more = needed - wrong.predicted.local_peak_bytes
    assert f"it takes {format_bytes(needed)} of local memory, {format_bytes(more)} more than" in str(
        warned[0].message
    )


def test_a_plan_for_far_larger_sizes_says_that_its_room_could_save_time(units: int) -> None:
    cell = make_gru(units)
    plan = plan_for("standard", state=100 * 4 * BATCH * units, tape=800 * 4 * BATCH * units)
    with pytest.warns(PlanMismatch, match="could use the .* to save time"):
        run(cell, plan)


def test_it_warns_once_for_a_kind_of_call(units: int) -> None:
    cell = make_gru(units)
    plan = plan_for("standard", state=16, tape=64)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(3):
            run(cell, plan)
        run(cell, plan, batch=2 * BATCH)
        unroll(make_gru(next(UNITS)), torch.randn(STEPS, BATCH, CHANNELS), None, plan=plan)
    assert [warning.category for warning in warned] == [PlanMismatch] * 3
    assert {Path(warning.filename) for warning in warned} == {Path(__file__)}
    with pytest.raises(ckptplan.InputError, match="the plan is for states"):
        wrap(cell.module, plan=plan, strict=True)(torch.randn(STEPS, BATCH, CHANNELS))


def test_a_plan_whose_parameters_were_edited_beyond_its_budget_is_told(units: int, tmp_path: Path) -> None:
    """Its sizes are right: it takes more than its own budget by its own numbers."""
    cell = make_gru(units)
    plan = plan_for("standard", measure(cell))
    file = tmp_path / "plan.json"
    ckptplan.save_plan(plan, file)
    document = json.loads(file.read_text())
    document["parameters"]["chunk_size"] = STEPS
    file.write_text(json.dumps(document))
    edited = ckptplan.load_plan(file)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(cell, plan)
    costs = Case(workload=edited.workload, profile=edited.profile).costs
    needed = format_bytes(play(ckptplan.actions(edited), costs=costs).local_peak_bytes)
    with pytest.warns(PlanMismatch, match=f"the plan takes {needed} of local memory") as warned:
        run(cell, edited)
    assert len(warned) == 1
    with pytest.raises(ckptplan.InputError, match="not those that it was planned with"):
        run(cell, edited, strict=True)


def test_under_strict_it_is_an_error_every_time_and_the_second_time_before_anything_runs(units: int) -> None:
    cell = make_gru(units)
    plan = plan_for("standard", state=16, tape=64)
    calls: list[int] = []

    def loss(step: int, output: Any) -> torch.Tensor:
        calls.append(step)
        return square(step, output)

    for _ in range(2):
        calls.clear()
        with pytest.raises(ckptplan.InputError, match="the plan is for states of 16 B") as refused:
            run(cell, plan, loss=loss, strict=True)
        assert refused.value.field == "plan"
        assert "strict=False" in str(refused.value)
    assert set(calls) <= {0}  # the trial


def test_a_smaller_batch_after_one_that_fits_is_the_last_of_an_epoch(units: int) -> None:
    cell = make_gru(units)
    sizes = measure(cell)
    plan = plan_for("standard", sizes)
    run(cell, plan, strict=True)
    run(cell, plan, batch=1, strict=True)
    with pytest.raises(ckptplan.InputError):
        run(cell, plan, batch=2 * BATCH, strict=True)


def test_a_small_counter_in_the_state_is_not_worth_a_warning(units: int) -> None:
    cell, state = layered(10 * units), zeros(10 * units)
    sizes = measure(cell, state)
    run(cell, plan_for("standard", sizes, state=sizes.state_bytes - 8), state=state, strict=True)


def test_bytes_of_a_unit_are_multiplied_by_the_units(units: int) -> None:
    cell = make_gru(8 * units)
    sizes = measure(cell)
    each = plan_for("standard", state=sizes.state_bytes // 8, tape=sizes.tape_bytes // 8, per=8)
    run(cell, each, strict=True)
    with pytest.raises(ckptplan.InputError, match="on each unit"):
        run(cell, plan_for("standard", sizes, per=8), strict=True)


def test_plans_in_units_of_a_state_schedules_and_runs_without_gradient_are_not_compared() -> None:
    cell, _ = gru(dtype=torch.float32)
    inputs, state = torch.randn(STEPS, 3, 5), torch.zeros(3, 7)
    bptt(cell, inputs, state, square, plan=plan_of(STEPS), strict=True).loss.backward()
    with torch.no_grad():
        bptt(cell, inputs, state, square, plan=plan_for("standard", state=7, tape=7), strict=True)


def test_states_of_a_subclass_of_tensors_are_not_compared() -> None:
    """Their bytes may lie elsewhere, as those of a DTensor do."""

    class Tagged(torch.Tensor):
        pass

    plan = plan_for("standard", state=7, tape=7)
    weight = torch.ones(3, requires_grad=True)
    bptt(
        lambda state, x: (state * weight + x, state + x),
        torch.randn(STEPS, 2, 3),
        torch.zeros(2, 3).as_subclass(Tagged),
        lambda _, output: output.as_subclass(torch.Tensor).sum(),
        plan=plan,
        parameters=[weight],
        strict=True,
    ).loss.backward()


def test_a_tensor_changed_in_place_that_nobody_needs_does_not_disturb() -> None:
    """Autograd does not show what it saved of it."""
    weight = torch.ones(3, requires_grad=True)

    def cell(state: Any, x: Any) -> tuple[Any, Any]:
        unused = state.clone()
        lost = (unused * weight).detach() + (unused * weight).sum() * 0
        state = state + x
        return state, state + 0 * lost.detach() + weight

    plan = plan_for("standard", state=12, tape=24)
    bptt(
        cell, torch.randn(STEPS, 1, 3), torch.zeros(1, 3), square, plan=plan, parameters=[weight]
    ).loss.backward()


def test_measuring_leaves_everything_as_it_was() -> None:
    """Running statistics, and the number of batches in them, are a part of the state."""
    layers = torch.nn.Linear(CHANNELS, CHANNELS), torch.nn.BatchNorm1d(CHANNELS), torch.nn.Dropout()
    net, record = torch.nn.Sequential(*layers), list[int]()

    def cell(state: Any, x: Any) -> Any:
        record.append(1)
        state = torch.tanh(state + net(x))
        return state, state

    inputs, state = torch.randn(STEPS, BATCH, CHANNELS), torch.zeros(BATCH, CHANNELS)
    before, drawn = {name: one.clone() for name, one in net.state_dict().items()}, torch.get_rng_state()
    sizes = measured_sizes(cell, inputs, state)
    assert sizes.state_bytes == 4 * (BATCH * CHANNELS + 2 * CHANNELS) + 8
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(before[name], one) for name, one in net.state_dict().items())
    assert record == []
