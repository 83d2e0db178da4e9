"""Law: a data set or a record that a cell or a loss holds costs a call little time and memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ckptplan import InputError
from ckptplan.torch import bptt
from ckptplan.torch.meters import LiveBytes
from tests.torch.support import gru, job, plan_of
from tests.torch.test_memory_limit import forget

STEPS = 12


def test_a_large_array_of_a_closure_is_not_copied() -> None:
    data = np.ones(2**22)
    cell, _ = gru()
    inputs, state = job(STEPS)

    def loss(t: int, output: torch.Tensor) -> torch.Tensor:
        return (output - float(data[t])).square().mean()

    tracemalloc.start()
    bptt(cell, inputs, state, loss, plan=plan_of(STEPS)).loss.backward()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < data.nbytes / 4


def test_a_large_array_that_steps_fill_is_refused_by_name() -> None:
    trace = np.zeros((2**19, 21))
    inner, _ = gru()
    inputs, state = job(STEPS)

    def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[Any, Any]:
        trace.__iadd__(1.0)
        found: tuple[Any, Any] = inner(state, x)
        return found

    with pytest.raises(InputError, match="trace in place, which is too large"):
        bptt(cell, inputs, state, lambda _, output: output.square().mean(), plan=plan_of(STEPS))


GRU = torch.nn.GRUCell(4, 64)


def run_gru(loss: Any, *, memory: int = 400_000, after: Callable[..., Any] = torch.clone) -> int:
    """The most live bytes of a step that has to be measured; the cell returns what comes ``after`` a GRU."""
    forget()

    def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[Any, Any]:
        state = after(GRU(x, state))
        return state, state

    with LiveBytes() as live:
        bptt(cell, torch.ones(50, 16, 4), torch.zeros(16, 64), loss, memory=memory).loss.backward()
    GRU.zero_grad()
    return int(live.peak)


@pytest.mark.parametrize("together", [True, False])
def test_targets_that_a_loss_closes_over_take_nothing_of_a_limit(together: bool) -> None:
    """Neither in one tensor nor in many small ones, which a loss that only reads leaves as they are."""
    given = torch.randn(50, 200, 64)
    targets = given if together else [*given.clone().unbind(0)]

    def loss(t: int, output: torch.Tensor) -> torch.Tensor:
        return (output - targets[t][:16]).square().mean()

    # What a process keeps for its later calls is none of a call's.
    run_gru(lambda _, output: output.square().mean())
    assert run_gru(loss) <= 400_000


def squares(_: int, output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def test_many_small_tensors_of_a_list_take_nothing_of_a_limit() -> None:
    """Eight times the limit, which the cell only reads; a first call may pass a limit by a little."""
    tables = [torch.randn(2048) for _ in range(400)]
    run_gru(squares)
    assert run_gru(squares, after=lambda state: state * tables[3][:64]) <= 1.02 * 400_000


def test_a_loss_that_notes_its_values_writes_no_targets() -> None:
    targets, values = [torch.randn(16, 64) for _ in range(50)], {}

    def loss(t: int, output: torch.Tensor) -> torch.Tensor:
        value = (output - targets[t]).square().mean()
        values[t] = float(value.detach())
        return value

    run_gru(squares)
    assert run_gru(loss) <= 400_000
    assert len(values) == 50


@pytest.mark.parametrize("counted", [True, False])
def test_what_a_helper_of_a_loss_writes_is_written_once(counted: bool) -> None:
    """Into tensors for which a limit has no room, also through NumPy, which counts no version."""
    records = [torch.zeros(16, 64) for _ in range(50)]

    def note(record: torch.Tensor, output: torch.Tensor) -> None:
        if counted:
            record.add_(output)
        else:
            record.numpy()[:] += output.numpy()

    def loss(t: int, output: torch.Tensor) -> torch.Tensor:
        note(records[t], output.detach())
        return output.square().mean()

    run_gru(loss)
    state = torch.zeros(16, 64)
    with torch.no_grad():
        for record in records:
            state = GRU(torch.ones(16, 4), state)
            torch.testing.assert_close(record, state)


def test_a_large_record_that_a_loss_writes_is_written_once() -> None:
    """It is put back after each step that ran aside."""
    record = torch.zeros(50, 16, 64)

    def loss(t: int, output: torch.Tensor) -> torch.Tensor:
        record[t] += output.detach()
        return output.square().mean()

    run_gru(loss, memory=2_000_000)
    state = torch.zeros(16, 64)
    with torch.no_grad():
        for t in range(50):
            state = GRU(torch.ones(16, 4), state)
            torch.testing.assert_close(record[t], state)
