"""Laws of code around calls: compiled, it runs as it is written; transforms are refused; threads may train."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from ckptplan.errors import InputError
from ckptplan.torch import bptt, plan_for, scan, wrap
from tests.torch.support import assert_close, gru, job, plan_of

#: PyTorch's transforms and compiler use what PyTorch deprecates, and look at the gradient of each tensor.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor that is not a leaf"
)
STEPS = 12


def sums_of_scan(x: torch.Tensor, cell: Any) -> torch.Tensor:
    """Return a loss of the outputs of a scan."""
    outputs: torch.Tensor = scan(cell, x.new_zeros(3, 7), x, memory="100 kB")[1]
    return outputs.square().mean()


def sums_of_steps(x: torch.Tensor, cell: Any) -> torch.Tensor:
    """Return a loss that is made in the steps."""
    options: Any = {"memory": plan_for(cell, x, x.new_zeros(3, 7), square, memory="100 kB").goal.local_bytes}
    return bptt(cell, x, x.new_zeros(3, 7), square, **options).loss


def square(_: int, output: torch.Tensor) -> torch.Tensor:
    """Return a loss."""
    return output.square().mean()


def fused() -> Callable[..., torch.Tensor]:
    """Return a loss of a wrapped layer."""
    torch.manual_seed(0)
    net = wrap(torch.nn.LSTM(5, 7).double(), memory="100 kB")

    def run(x: torch.Tensor, _: Any) -> torch.Tensor:
        found: torch.Tensor = net(x)[0].square().mean()
        return found

    return run


@pytest.mark.parametrize("make", [lambda: sums_of_scan, lambda: sums_of_steps, fused])
def test_calls_in_compiled_code_run_as_they_are_written(make: Callable[[], Any]) -> None:
    run, (cell, _), (inputs, _) = make(), gru(), job(STEPS)
    frames: list[Any] = []

    def backend(graph: Any, examples: Any) -> Any:
        del examples
        frames.append(graph)
        return graph.forward

    def train(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = run(2 * x, cell)
        loss.backward()
        return loss.detach() + 1

    def measure(function: Any, x: torch.Tensor) -> list[torch.Tensor]:
        x = x.detach().clone().requires_grad_()
        return [function(x), x.grad]

    torch._dynamo.reset()
    compiled = torch.compile(train, backend=backend)
    for x in (inputs, inputs, inputs[:-2]):
        assert_close(measure(compiled, x), measure(train, x), relative=1e-9)
    # What is around calls and the backward pass, for one length and for any: a call would be a hundred graphs.
    assert len(frames) <= 8


def test_the_compiler_is_not_imported_with_the_package() -> None:
    code = "import sys, ckptplan.torch; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("run", [sums_of_scan, sums_of_steps, fused()])
@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: torch.func.grad(f)(x),
        torch.func.vjp,
        lambda f, x: torch.func.jvp(f, (x,), (x,)),
        lambda f, x: torch.func.vmap(f)(x[None]),
    ],
)
def test_transforms_around_a_call_are_refused_by_name(transform: Any, run: Any) -> None:
    (cell, _), (inputs, _) = gru(), job(STEPS)
    with pytest.raises(InputError, match=r"transform of torch\.func"):
        transform(lambda x: run(x, cell), inputs.detach())


def test_a_batch_without_gradients_is_no_transform_of_the_steps() -> None:
    layer, (inputs, _) = torch.nn.Linear(12, 7).double(), job(STEPS)

    def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = torch.tanh(layer(torch.cat([state, x], -1)))
        return state, state

    batch = torch.stack([inputs.detach(), 2 * inputs.detach()])
    with torch.no_grad():
        together = torch.func.vmap(lambda x: sums_of_scan(x, cell))(batch)
        assert_close([together], [torch.stack([sums_of_scan(x, cell) for x in batch])], relative=1e-9)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("later", [False, True])
def test_a_call_within_a_checkpointed_function_has_the_gradients_of_steps(reentrant: bool, later: bool) -> None:
    """In the first call, which tries its steps, and in others; ``later`` operations have the call run again."""
    (cell, parameters), (inputs, _) = gru(), job(STEPS)

    def run(x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = scan(cell, x.new_zeros(3, 7), torch.tanh(x), memory="100 kB")[1]
        return torch.exp(outputs) if later else outputs

    def measure(function: Any) -> list[torch.Tensor]:
        for one in (inputs, *parameters):
            one.grad = None
        function(inputs).square().mean().backward()
        return [one.grad for one in (inputs, *parameters) if one.grad is not None]

    for _ in range(3):
        ours = measure(partial(checkpoint, run, use_reentrant=reentrant))
        assert_close(ours, measure(run), relative=1e-9)


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
