"""Law: a data set or a record that a cell or a loss holds costs a call little time and memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

from ckptplan import InputError
from ckptplan.torch import bptt
from tests.torch.support import gru, job, plan_of

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
