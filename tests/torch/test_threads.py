"""Several threads may train networks of their own at the same time."""

from __future__ import annotations

import threading
from typing import Any

import torch

from ckptplan.torch import bptt
from tests.torch.support import assert_close, gru, job, plan_of

STEPS = 12


def test_modules_that_another_thread_calls_meanwhile_do_not_count_as_those_of_the_cell() -> None:
    other = torch.nn.Linear(2, 2)
    cell, parameters = gru()
    inputs, state = job(STEPS)

    def meddling(state: Any, x: torch.Tensor) -> tuple[Any, Any]:
        thread = threading.Thread(target=lambda: other(torch.ones(1, 2)))
        thread.start()
        thread.join()
        found: tuple[Any, Any] = cell(state, x)
        return found

    def train(step: Any) -> list[torch.Tensor]:
        for one in parameters:
            one.grad = None
        loss = bptt(step, inputs, state, lambda _, output: output.square().mean(), plan=plan_of(STEPS)).loss
        with torch.no_grad():
            # As the optimizer of the other thread does.
            other.weight.add_(1.0)
        loss.backward()
        return [one.grad for one in parameters if one.grad is not None]

    assert_close(train(meddling), train(cell), relative=1e-12)
    assert other.weight.grad is None


def test_a_number_that_another_thread_draws_meanwhile_is_not_the_loss_that_draws() -> None:
    cell, _ = gru()
    inputs, state = job(STEPS)
    thread = threading.Thread(target=lambda: torch.rand(3))

    def loss(_: int, output: torch.Tensor) -> torch.Tensor:
        if thread.ident is None:
            thread.start()
            thread.join()
        return output.square().mean()

    bptt(cell, inputs, state, loss, plan=plan_of(STEPS)).loss.backward()
    assert inputs.grad is not None
