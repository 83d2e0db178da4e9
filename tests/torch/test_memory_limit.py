"""Law: with ``memory=`` in place of a plan, calls stay within it, and have the gradients of a plain loop."""

from __future__ import annotations

import gc
import logging
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ckptplan
from ckptplan import InputError
from ckptplan.schedule.actions import Action, Advance, Backward, Record
from ckptplan.torch import LIF, bptt, check, measured_sizes, plan_for, scan, unroll, wrap
from ckptplan.torch.adapters import TorchCell
from ckptplan.torch.device.meters import LiveBytes, make_meter
from ckptplan.torch.fit import limited
from ckptplan.units import parse_bytes
from tests.torch.limit_tables import count_calls, mean_square
from tests.torch.limited_cells import CELLS, Layers
from tests.torch.support import (
    assert_close,
    forget_measurements,
    gradients,
    gru,
    job,
    plain,
    plan_of,
    read_least,
)

STEPS = 90
#: The share of a limit by which a call may pass it.
TOLERANCE = 0.03


@pytest.fixture(autouse=True)
def begin() -> None:
    """Begin as in a new process."""
    forget_measurements()
    torch.manual_seed(0)


def refuse(run: Callable[..., object], memory: Any = 500) -> tuple[str, int]:
    """Return the message for a limit that is too small, and the least limit that it names."""
    forget_measurements()
    with pytest.raises(InputError, match=r"are too little: this call needs .* of which") as error:
        run(memory)
    # It is one error, without the question of the planner that it answers.
    assert "Infeasible" not in "".join(traceback.format_exception(error.value))
    return str(error.value), read_least(error.value)


def count_peak(run: Callable[[], object]) -> int:
    with LiveBytes() as live:
        run()
    return int(live.peak)


def limited_gru(*, batch: int = 8, steps: int = STEPS) -> tuple[Any, Tensor]:
    return TorchCell(nn.GRUCell(16, 64)), torch.randn(steps, batch, 16)


def plan_gru(memory: Any, loss: Any = mean_square, *, steps: int = STEPS) -> ckptplan.Plan:
    cell, inputs = limited_gru(steps=steps)
    return plan_for(cell, inputs, torch.zeros(8, 64), loss, memory=memory)


# The law


def make_cell(name: str) -> Any:
    """Return a call as the first one of a process."""
    forget_measurements()
    torch.manual_seed(0)
    return CELLS[name]()


@cache
def find_least(name: str) -> tuple[list[Tensor], int]:
    """Return the gradients of a plain loop, and the least limit that a refusal names."""
    reference = make_cell(name)
    torch.manual_seed(1)
    reference.run("1 GB")
    theirs = [tensor.grad for tensor in reference.wanted if tensor.grad is not None]
    assert theirs
    return theirs, refuse(make_cell(name).run)[1]


@pytest.mark.parametrize("factor", [1, 2.5])
@pytest.mark.parametrize("name", CELLS)
def test_every_call_stays_within_the_limit_and_gives_the_gradients_of_a_plain_loop(
    name: str, factor: float
) -> None:
    """From the first call on; the least limit that a refusal names is enough."""
    theirs, least = find_least(name)
    limit, ours = int(factor * least), make_cell(name)
    for _ in range(3 if factor == 1 else 2):
        torch.manual_seed(1)
        assert count_peak(partial(ours.run, limit)) <= (1 + ours.tolerance) * limit + ours.beside
        found = [tensor.grad for tensor in ours.wanted if tensor.grad is not None]
        assert_close(found, theirs, relative=ours.relative)
        for tensor in ours.wanted:
            tensor.grad = None


@pytest.mark.parametrize("way", ["bptt", "final_loss", "unroll", "scan"])
def test_results_in_double_precision_are_those_of_a_plain_loop(way: str) -> None:
    cell, parameters = gru()
    inputs, state = job(STEPS)
    wanted = [inputs, state, *parameters]
    outputs, last = plain(cell, inputs, state, STEPS)
    stacked = torch.stack(outputs)
    expected = torch.stack([mean_square(0, output) for output in outputs]).sum()

    def run(memory: Any) -> Tensor:
        if way in ("bptt", "final_loss"):
            more: dict[str, Any] = {} if way == "bptt" else {"final_loss": lambda end: end.sum()}
            result = bptt(cell, inputs, state, mean_square, memory=memory, **more)
            assert isinstance(result.plan, ckptplan.Plan)
            assert result.plan.predicted.recomputed_steps > 0
            return result.loss
        if way == "unroll":
            found, final = unroll(cell, inputs, state, memory=memory)
        else:
            final, found = scan(cell, state, inputs, memory=memory)
        assert_close([found.detach(), final.detach()], [stacked.detach(), last.detach()], relative=1e-12)
        return torch.stack([mean_square(0, output) for output in found]).sum()

    if way == "final_loss":
        expected = expected + last.sum()
    limit = int(1.5 * refuse(run)[1])
    assert_close(gradients(run(limit), wanted), gradients(expected, wanted), relative=1e-12)


@pytest.mark.parametrize(
    ("name", "share"), [("gru", 0.5), ("gru", 0.15), ("lstm", 0.15), ("layers", 0.5), ("lif", 0.5)]
)
def test_a_plan_takes_most_of_what_the_limit_allows(name: str, share: float) -> None:
    """The limit is a share of what a plain loop takes."""
    lif = LIF(16, 64)
    cell, state = {
        "gru": (TorchCell(nn.GRUCell(16, 64)), torch.zeros(8, 64)),
        "lstm": (TorchCell(nn.LSTMCell(16, 64)), None),
        "layers": (Layers(), (torch.zeros(8, 32), torch.zeros(8, 32))),
        "lif": (lif, lif.initial_state(8)),
    }[name]
    inputs = torch.randn(300, 8, 16)
    at_once = plan_for(cell, inputs, state, mean_square, memory="1 GiB").predicted.local_peak_bytes
    plan = plan_for(cell, inputs, state, mean_square, memory=int(share * at_once))
    assert plan.predicted.local_peak_bytes >= 0.5 * share * at_once


# The plan says what runs


class Counted(nn.Module):
    """A network whose runs are counted outside of everything that is restored."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.h = nn.Linear(64, 64), torch.zeros(32, 64)
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed with the network

    def reset(self) -> None:
        self.h = torch.zeros(32, 64)

    def count(self) -> int:
        return os.fstat(self.file.fileno()).st_size

    def forward(self, x: Tensor) -> Tensor:
        os.write(self.file.fileno(), b".")
        self.h = torch.tanh(self.linear(x) + 0.5 * self.h)
        return self.h


@pytest.mark.parametrize("share", [2.5, 3.5, 4.5, 5.5, 7, 10])
def test_as_many_steps_run_as_the_plan_says(share: float) -> None:
    """A recording that is postponed, so that a loss of the outputs finds room, is a part of the plan."""
    net, data = Counted(), torch.randn(100, 32, 64)
    wrapped = wrap(net, memory=int(share * data.nbytes), reset=Counted.reset)
    extra = []
    for _ in range(3):
        before = net.count()
        wrapped(data).square().mean().backward()
        assert isinstance(wrapped.plan, ckptplan.Plan)
        extra.append(net.count() - before - 100 - wrapped.plan.predicted.recomputed_steps)
    # The first call tries and measures the first steps.
    assert extra[0] <= 20
    assert extra[1:] == [0, 0]
    net.file.close()


def test_a_plan_that_was_made_for_a_limit_runs_in_the_same_way_by_itself() -> None:
    """Also if its last recording is postponed: those steps run without a tape before the loss."""
    cell, inputs = TorchCell(nn.GRUCell(16, 128)), torch.randn(64, 16, 16)
    plans = [
        plan_for(cell, inputs, torch.zeros(16, 128), memory=int(share * 64 * 16 * 128 * 4))
        for share in (3.5, 4, 4.5, 5, 5.5, 6)
    ]
    plan = next(plan for plan in plans if any(entry.field == "postponed" for entry in plan.estimate_basis))
    actions: list[Action] = []
    stacked, _ = unroll(
        cell, inputs, torch.zeros(16, 128), plan=plan, observer=lambda action, _: actions.append(action)
    )
    stacked.sum().backward()
    backward = next(place for place, action in enumerate(actions) if isinstance(action, Backward))
    record = actions[backward - 1]
    assert isinstance(record, Record)
    assert actions[backward - 2] == Advance(record.start, record.stop)
    runs = sum(action.stop - action.start for action in actions if isinstance(action, Advance | Record))
    assert runs == 64 + plan.predicted.recomputed_steps


def test_sums_of_gradients_grow_in_place(tmp_path: Path) -> None:
    """Beside them there is the gradient of one parameter, in runs of several steps, too.

    A plan keeps its limit, also when it was saved and is given, and so does another one of its workload.
    """
    cell = TorchCell(nn.GRUCell(16, 256))
    inputs, state = torch.randn(40, 1, 16), torch.zeros(1, 256)
    limit = int(2.1 * sum(one.nbytes for one in cell.parameters()))
    plan = plan_for(cell, inputs, state, mean_square, memory=limit)
    assert plan.parameters["chunk_size"] > 1
    ckptplan.save_plan(plan, tmp_path / "plan.json")
    given = ckptplan.load_plan(tmp_path / "plan.json")
    again = ckptplan.optimize(plan.workload, plan.profile, local_bytes=plan.goal.local_bytes)
    choices: tuple[dict[str, Any], ...] = ({"memory": limit}, {"plan": given}, {"plan": again})

    def run(choice: dict[str, Any]) -> None:
        bptt(cell, inputs, state, mean_square, **choice).loss.backward()

    for choice in choices:
        for _ in range(2):
            cell.zero_grad()
            with make_meter(torch.device("cpu"), is_compiled=True) as allocated:
                run(choice)
        assert allocated.peak <= (1 + TOLERANCE) * limit
        cell.zero_grad()
        live = count_peak(partial(run, choice))
        assert live == pytest.approx(allocated.peak, rel=0.02)


def test_parameters_may_be_read_once_and_get_a_gradient_if_a_step_uses_them() -> None:
    cell, inputs = limited_gru()
    late, unused = nn.Linear(64, 16), nn.Linear(16, 16)

    def loss(step: int, output: Tensor) -> Tensor:
        # Only the last step uses it, so that it has to be named.
        return mean_square(step, late(output) if step == STEPS - 1 else output)

    named = iter([*late.parameters(), *unused.parameters()])
    bptt(cell, inputs, None, loss, memory="900 kB", parameters=named).loss.backward()
    assert late.weight.grad is not None
    assert unused.weight.grad is None


def test_a_plan_says_what_was_counted_and_needs_no_bandwidth() -> None:
    cell, _ = gru()
    inputs, state = job(STEPS)
    plan = plan_for(cell, inputs, state, mean_square, memory="80 kB")
    basis = {entry.field: entry.text for entry in plan.estimate_basis}
    assert "counted in the first 4 steps" in basis["workload.tape_bytes"]
    assert "timed once over the first 4 steps" in basis["workload.forward_seconds"]
    assert plan.profile.remote_bytes == 0


def test_what_a_loss_of_the_final_state_keeps_is_no_part_of_a_steps_tape() -> None:
    cell, head = TorchCell(nn.GRUCell(16, 30)), nn.Linear(30, 300)
    inputs, state, named = torch.randn(60, 8, 16), torch.zeros(8, 30), list(head.parameters())
    plan = plan_for(
        cell, inputs, state, final_loss=lambda end: head(end).square().mean(), memory="1 MB", parameters=named
    )
    assert plan.workload.tape_bytes == measured_sizes(cell, inputs, state).tape_bytes


# Room for a loss of the outputs


#: Ways to call whose outputs are of shape (64, 8, 32).
WITH_OUTPUTS: dict[str, Callable[[Any], Any]] = {
    "unroll": lambda memory: partial(_run_unroll, TorchCell(nn.GRUCell(16, 32)), memory),
    "wrap, GRUCell": lambda memory: wrap(nn.GRUCell(16, 32), memory=memory),
    "wrap, LSTM": lambda memory: wrap(nn.LSTM(16, 32), memory=memory),
    "wrap, GRU": lambda memory: wrap(nn.GRU(16, 32), memory=memory),
}
OUTPUTS = 64 * 8 * 32 * 4


def _run_unroll(cell: Any, memory: Any, inputs: Tensor) -> Any:
    return unroll(cell, inputs, torch.zeros(8, 32), memory=memory)


def take_last(outputs: Tensor) -> Tensor:
    return outputs[-1].sum()


def take_mean_square(outputs: Tensor) -> Tensor:
    return outputs.square().mean()


@pytest.mark.parametrize(
    ("share", "loss"), [(4, take_last), *((share, take_mean_square) for share in (6.5, 8.0, 10.0, 13.0, 30.0))]
)
@pytest.mark.parametrize("name", WITH_OUTPUTS)
def test_a_loss_of_the_outputs_finds_room(name: str, share: float, loss: Callable[[Tensor], Tensor]) -> None:
    """A mean of squares takes five times the outputs for a moment; a limit for a lighter loss is accepted."""
    limit, inputs = int(share * OUTPUTS), torch.randn(64, 8, 16)
    run = WITH_OUTPUTS[name](limit)
    for _ in range(3):
        assert count_peak(lambda: loss(run(inputs)[0]).backward()) <= (1 + TOLERANCE) * limit


def test_the_plan_of_a_loss_that_is_counted_takes_all_that_the_limit_allows() -> None:
    """Of outputs that are returned, a mean of squares is assumed; ``bptt`` has none to leave room for."""
    cell, inputs, state = TorchCell(nn.GRUCell(16, 32)), torch.randn(64, 8, 16), torch.zeros(8, 32)
    full = plan_for(cell, inputs, state, memory="1 GB")
    limit = int(1.03 * full.predicted.local_peak_bytes)
    assert full.strategy == plan_for(cell, inputs, state, mean_square, memory=limit).strategy == "base"
    assert plan_for(cell, inputs, state, memory=limit).strategy != "base"
    assert plan_for(cell, inputs, state, memory=2 * limit).strategy == "base"


def test_room_for_a_loss_costs_little_time() -> None:
    """The limit from which a loss has room may have a slower plan than a smaller one; no other limit has."""
    hidden, readout = nn.GRUCell(16, 64), nn.Linear(64, 8)

    def cell(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        state = hidden(x, state)
        return state, readout(state)

    outputs = 1024 * 16 * 8 * 4
    plans = [
        plan_for(cell, torch.randn(1024, 16, 16), torch.zeros(16, 64), memory=int(share * outputs))
        for share in (4.5, 5, 5.1, 5.2, 5.3, 5.5, 5.75, 6, 6.5, 7, 8, 9, 10, 12, 15, 20)
    ]
    seconds = [plan.predicted.seconds for plan in plans]
    slower = [later / min(seconds[:place]) for place, later in enumerate(seconds[1:], 1)]
    assert max(slower) <= 1.5
    assert max(slower[7:]) <= 1.03


# What is measured once, and what for itself


class Adjustable(nn.Module):
    """A cell with numbers that decide what a step keeps or works with, and one that decides nothing."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.linear, self.inner = nn.Linear(16, 16), inner or nn.Identity()
        self.depth, self.rows, self.calls = 1, 1, 0

    def forward(self, state: Tensor, x: Tensor) -> Any:
        self.calls += 1
        aside = torch.ones(self.rows, 16).cos().sum(0) * 0
        state = self.inner(torch.tanh(self.linear(state) + x + aside))
        for _ in range(self.depth):
            state = torch.tanh(state)
        return state, state


class Aside(nn.Module):
    """Works with much memory, if it trains."""

    def forward(self, state: Tensor) -> Tensor:
        return state + torch.ones(20_000 if self.training else 1, 16).cos().sum(0) * 0


@pytest.mark.parametrize(
    ("change", "measures"),
    [
        ({}, False),
        ({"steps": 200}, False),
        ({"memory": "900 kB"}, False),
        ({"cell": lambda net: lambda state, x: net(state, x)}, False),  # noqa: PLW0108 - a new function
        ({"depth": 100}, True),
        ({"rows": 1000}, True),
        ({"batch": 16}, True),
        ({"inner": Aside().eval()}, True),
    ],
    ids=["same", "length", "limit", "function", "depth", "workspace", "batch", "module"],
)
def test_a_call_is_measured_once_for_its_kind(change: dict[str, Any], measures: bool) -> None:
    """What steps count by tells no call from others; a constant that they read does. No result tells."""
    net = Adjustable()
    settings: dict[str, Any] = {"steps": STEPS, "batch": 8, "memory": "1 MB", "cell": None, **change}

    def run(steps: int, batch: int, memory: str, cell: Any) -> None:
        given = net if cell is None else cell(net)
        bptt(given, torch.randn(steps, batch, 16), torch.zeros(batch, 16), mean_square, memory=memory)

    make = settings["cell"]
    run(STEPS, 8, "1 MB", make)
    for name in ("depth", "rows", "inner"):
        if name in settings:
            setattr(net, name, settings.pop(name))
    with count_calls(limited, "measure") as measured:
        run(**settings)
    assert bool(measured) == measures


@pytest.mark.parametrize(
    ("name", "light", "heavy"),
    [
        ("depth", 1, 100),
        ("rows", 1, 20_000),
        ("inner", nn.Identity(), Aside()),
        ("inner", Aside().eval(), Aside()),
    ],
    ids=str,
)
def test_a_limit_that_is_enough_for_another_constant_is_refused(name: str, light: Any, heavy: Any) -> None:
    net, inputs, state = Adjustable(), torch.randn(64, 64, 16), torch.zeros(64, 16)

    def run(value: Any, memory: Any) -> Any:
        setattr(net, name, value)
        return bptt(net, inputs, state, mean_square, memory=memory)

    limit = int(1.1 * refuse(partial(run, light))[1])
    run(light, limit)
    with pytest.raises(InputError, match="are too little"):
        run(heavy, limit)
    run(light, limit)


def test_functions_with_other_weights_are_measured_each_for_itself() -> None:
    """The same code and states; only the weights between, which no module holds, tell them apart."""

    def make(width: int) -> Any:
        into, out = (torch.randn(*shape).requires_grad_() for shape in ((16, width), (width, 16)))
        return lambda state, x: (torch.tanh((state + x) @ into) @ out,) * 2

    inputs, state = torch.randn(STEPS, 8, 16), torch.zeros(8, 16)
    narrow, wide = (plan_for(make(width), inputs, state, mean_square, memory="20 MB") for width in (4, 400))
    assert wide.workload.tape_bytes > 5 * narrow.workload.tape_bytes


def test_later_data_may_need_more_than_those_of_earlier_calls() -> None:
    small, large = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 500), nn.Tanh(), nn.Linear(500, 6))

    def cell(state: Tensor, x: Tensor) -> Any:
        state = torch.tanh(state + small(x))
        return (state + large(state) if bool(x[0, 0] > 1) else state,) * 2

    calm = torch.randn(120, 16, 6).clamp(max=0.9)
    busy = calm.clone()
    busy[:, :, 0] = 2

    def run(inputs: Tensor) -> None:
        named = [*large.parameters()]
        result = bptt(cell, inputs, torch.zeros(16, 6), mean_square, memory=250_000, parameters=named)
        result.loss.backward()

    for inputs in (calm, busy):
        assert count_peak(partial(run, inputs)) <= (1 + TOLERANCE) * 250_000


def test_sizes_do_not_depend_on_the_limit() -> None:
    sizes = set()
    for memory in ("300 kB", "500 kB", "1 GB"):
        forget_measurements()
        workload = plan_gru(memory).workload
        sizes.add((workload.tape_bytes, workload.state_bytes))
    assert len(sizes) == 1


def test_a_plan_is_measured_within_its_limit() -> None:
    cell, inputs = limited_gru(batch=256)
    peak = count_peak(lambda: plan_for(cell, inputs, None, mean_square, memory=4_000_000))
    assert peak <= 4_000_000


def test_processes_agree_on_the_least() -> None:
    program = (
        "import sys, torch; from ckptplan.torch import LIF, plan_for\n"
        "torch.manual_seed(0); cell = LIF(16, 64)\n"
        "try: plan_for(cell, torch.randn(300, 8, 16), cell.initial_state(8), lambda t, o: o.mean(), "
        "memory=int(sys.argv[1]))\n"
        "except ValueError as error: print(error)"
    )

    def ask(memory: int) -> str:
        command = [sys.executable, "-c", program, str(memory)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert not ask(read_least(Exception(ask(1))))


# What calls say


@pytest.mark.parametrize(
    ("steps", "memory", "count"), [(STEPS, "auto", f"{STEPS} steps"), (1, "11 MB", "1 step")]
)
def test_the_log_says_what_a_plan_costs(
    steps: int, memory: str, count: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit of "auto" is most of what is free."""
    inputs, state = job(steps)
    with caplog.at_level(logging.INFO, logger="ckptplan.torch"):
        plan = plan_for(gru()[0], inputs, state, mean_square, memory=memory)
    assert plan.strategy == "base"
    assert plan.profile.local_bytes > 10**7
    (line,) = (record.getMessage() for record in caplog.records if record.name.startswith("ckptplan"))
    assert line.startswith(f"base for {count}: ")
    assert "+0% time over plain backpropagation" in line


def test_a_refusal_names_limits_that_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least limit, and a limit with which little runs again: at most 20 %, fewer than with the least."""
    monkeypatch.setattr("ckptplan.execution.advice.DEAR", 0.2)
    run = partial(plan_gru, steps=1500)
    text, least = refuse(run)
    named, price = re.search(r'memory="([^"]+)" for a plan that takes about \+(\d+)% time', text).groups()  # type: ignore[union-attr]
    assert int(price) <= 20
    assert parse_bytes(re.search(r'at least memory="([^"]+)"', text)[1]) == least  # type: ignore[index]
    assert parse_bytes(named) > least
    # Times are measured anew.
    assert run(named).predicted.overhead < 2
    for way in ("a batch of at most", "truncated BPTT", "remote memory"):
        assert way not in text


@pytest.mark.parametrize(("memory", "unit"), [("777 kB", "kB"), ("759 KiB", "KiB")])
def test_plans_and_refusals_have_the_units_of_the_limit(memory: str, unit: str) -> None:
    """Though the budget of the plan is smaller: a margin stays free, and room for a loss of the outputs."""

    def find_units(text: str) -> set[str]:
        return set(re.findall(r"\d ([kKM]i?B)\b", text))

    for loss in (mean_square, None):
        plan = plan_gru(memory, loss)
        assert plan.goal.local_bytes is not None
        assert plan.goal.local_bytes < plan.profile.local_bytes == parse_bytes(memory)
        assert find_units(str(plan)) == find_units(plan._repr_html_() or "") == {unit}
    text, _ = refuse(lambda memory: plan_gru(memory, None), f"7 {unit}")
    assert find_units(text) == {unit}


def test_what_is_advised_beside_more_memory_helps() -> None:
    cell, inputs = limited_gru(steps=400)
    state = torch.zeros(8, 64)
    plan = plan_for(cell, inputs, state, memory="1 GB")
    room = plan.workload.workspace_bytes + plan.workload.tape_bytes + 600_000
    text, _ = refuse(lambda memory: unroll(cell, inputs, state, memory=memory), room)
    assert "remote memory" not in text
    steps = int(400 * int(re.search(r"a sequence of about (\d+)%", text)[1]) / 100)  # type: ignore[index]
    forget_measurements()
    unroll(cell, inputs[:steps], state, memory=room)
    batch = int(8 * int(re.search(r"a batch of at most about (\d+)%", text)[1]) / 100)  # type: ignore[index]
    assert 1 <= batch <= 4
    unroll(cell, inputs[:, :batch], state[:batch], memory=room)


def test_remote_memory_is_advised_where_checkpoints_are_what_does_not_fit() -> None:
    run = partial(plan_gru, steps=200)
    text, least = refuse(run)
    # The least limit may have room to try the first steps, too.
    later = re.search(r"afterwards (\S+ \w+) are enough", text)
    text, _ = refuse(run, (parse_bytes(later[1]) if later else least) - 2_000)
    assert "a plan with remote memory" in text


@pytest.mark.parametrize(("shape", "asks"), [((16, 200, 5), True), ((200, 16, 5), False), ((16, 200), False)])
def test_inputs_that_look_as_if_the_batch_came_first_are_asked_about(
    shape: tuple[int, ...], asks: bool
) -> None:
    cell = TorchCell(nn.GRUCell(shape[-1], 7))
    text, _ = refuse(lambda memory: plan_for(cell, torch.randn(shape), None, mean_square, memory=memory), 1)
    asked = "Time is the first axis, so these inputs have 16 time steps and a batch of 200" in text
    assert asked is asks


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "plan: is missing, and so is memory"),
        ({"memory": "two"}, "memory: "),
        ({"memory": 0}, "memory: 0 is not positive"),
        ({"memory": -5}, "memory: "),
        ({"memory": "1 MB", "plan": plan_of(STEPS)}, "memory: is given together with plan"),
        ({"memory": "1 MB", "schedule": ()}, "schedule: is given together with memory"),
    ],
)
@pytest.mark.parametrize("call", [partial(bptt, loss=mean_square), unroll], ids=["bptt", "unroll"])
def test_limits_that_are_not_accepted(call: Any, arguments: dict[str, Any], message: str) -> None:
    inputs, state = job(STEPS)
    with pytest.raises(InputError, match=message):
        call(gru()[0], inputs, state, **arguments)


def test_scan_names_itself_when_it_refuses_an_argument() -> None:
    inputs, state = job(STEPS)
    message = r"mem: is not an argument of scan. Did you mean 'memory'.*accepted: .*plan, "
    with pytest.raises(InputError, match=message):
        scan(gru()[0], state, inputs, mem="40 kB")  # type: ignore[arg-type]


def test_sparse_gradients_are_refused() -> None:
    """Their sums grow with each step, as long as there are other rows."""
    table, cell = nn.Embedding(2_000, 16, sparse=True), nn.GRUCell(16, 64)

    def step(state: Tensor, x: Tensor) -> Any:
        state = cell(table(x), state)
        return state, state

    inputs, state = torch.randint(0, 2_000, (60, 8)), torch.zeros(8, 64)
    with pytest.raises(InputError, match="memory: is given for steps with sparse gradients"):
        bptt(step, inputs, state, mean_square, memory="2 MB")
    table.sparse = False
    bptt(step, inputs, state, mean_square, memory="2 MB").loss.backward()


# Other calls


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_call_without_gradients_needs_no_plan(mode: Any) -> None:
    cell, inputs = limited_gru()
    net = wrap(nn.GRUCell(16, 7), memory="1 MB")
    net(inputs)
    plan = net.plan
    with mode():
        result = bptt(cell, inputs, None, mean_square, memory="1 kB")
        outputs, _ = unroll(cell, inputs, None, memory="1 kB")
        net(inputs)
    assert result.plan.steps == STEPS
    assert not result.loss.requires_grad
    assert not outputs.requires_grad
    assert net.plan is plan


@pytest.mark.parametrize("share", [1, 2.5])
def test_inputs_that_a_function_makes_count_within_the_limit(share: float) -> None:
    data, cell, state = torch.randn(STEPS, 8, 256), TorchCell(nn.GRUCell(256, 16)), torch.zeros(8, 16)

    def make(start: int, stop: int) -> Tensor:
        return data[start:stop].clone()

    def plan(memory: Any) -> ckptplan.Plan:
        return plan_for(cell, make, state, mean_square, memory=memory, steps=STEPS)

    limit = int(share * refuse(plan)[1])
    options: dict[str, Any] = {"plan": plan(limit)}

    def run() -> None:
        bptt(cell, make, state, mean_square, **options).loss.backward()

    assert count_peak(run) <= (1 + TOLERANCE) * limit
    with pytest.raises(InputError, match="steps: is missing"):
        bptt(cell, make, state, mean_square, memory="300 kB")
    with pytest.raises(InputError, match="steps: '100' is not accepted"):
        plan_for(cell, make, state, mean_square, memory="300 kB", steps="100")  # type: ignore[arg-type]


def test_a_cell_is_checked_within_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    cell, _ = gru()
    inputs, state = job(STEPS)
    assert check(cell, inputs, state, mean_square, memory="60 kB")
    assert "loss: " in capsys.readouterr().out


def test_the_graph_of_a_state_that_is_carried_on_is_left_alone_when_a_call_is_measured() -> None:
    weight = torch.full((64,), 0.5, requires_grad=True)
    cell, inputs = limited_gru()
    result = bptt(cell, inputs, torch.exp(weight).expand(8, 64), mean_square, memory="900 kB")
    (gradient,) = torch.autograd.grad(result.loss, [weight])
    assert float(gradient.abs().sum()) > 0


def test_a_loss_of_a_state_that_grows_is_told_the_numbers_of_its_steps() -> None:
    """Also where sizes are measured, far into the sequence."""
    targets, weight, inputs = torch.randn(2, 200), torch.tensor(0.5, requires_grad=True), torch.randn(200, 2, 1)

    def cell(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.cat([state, x * weight], 1)
        return state, state.tanh()

    def loss(step: int, output: Tensor) -> Tensor:
        return (output[:, 1:] - targets[:, : step + 1]).square().mean()

    outputs, _ = plain(cell, inputs, torch.zeros(2, 1), 200)
    expected = torch.stack([loss(step, output) for step, output in enumerate(outputs)]).sum()
    found = bptt(cell, inputs, torch.zeros(2, 1), loss, memory="1 MB").loss
    assert_close(gradients(found, [weight]), gradients(expected, [weight]), relative=1e-5)


def test_a_call_leaves_nothing_that_waits_for_the_collector_of_cycles() -> None:
    """The gradients of the outputs are as large as these."""
    cell, inputs = limited_gru(steps=40)
    gc.collect()
    gc.disable()
    try:
        left = []
        with LiveBytes() as live:
            for _ in range(3):
                outputs, _ = unroll(cell, inputs, torch.zeros(8, 64), memory="400 kB")
                outputs.square().mean().backward()
                cell.zero_grad()
                del outputs
                left.append(live.now)
    finally:
        gc.enable()
    assert left[2] == left[1] < 40 * 8 * 64 * 4


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_backward_pass_that_fails_leaves_nothing(error: type[BaseException], share: float) -> None:
    """Be it one of the first steps, which are tried, or of the call: nodes of a graph may wait then."""
    inner, readout = nn.GRUCell(16, 64), nn.Linear(64, 3)
    inputs, state, file = torch.randn(40, 8, 16), torch.zeros(8, 64), tempfile.TemporaryFile()  # noqa: SIM115
    fails_at = [0]

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Tensor) -> Tensor:
            del ctx
            return value.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            del ctx
            os.write(file.fileno(), b".")
            if os.fstat(file.fileno()).st_size == fails_at[0]:
                raise error
            return gradients[0]

    def cell(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        state = Watched.apply(inner(x, state))  # type: ignore[no-untyped-call]
        return state, readout(state)

    def train() -> None:
        unroll(cell, inputs, state, memory="1 MB", verify="always")[0].square().mean().backward()

    train()
    begins = os.fstat(file.fileno()).st_size
    train()
    runs = os.fstat(file.fileno()).st_size - begins
    fails_at[0] = begins + runs + max(3, int(share * (runs - 5)))
    for parameter in (*inner.parameters(), *readout.parameters()):
        parameter.grad = None
    gc.collect()
    with LiveBytes() as live:
        with pytest.raises(error):
            train()
        gc.collect()
        assert live.now == 0
    file.close()
