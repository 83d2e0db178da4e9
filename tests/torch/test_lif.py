"""The LIF cell: whole chunks equal its own steps under autograd, whatever is replayed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptplan
from ckptplan import Infeasible
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.actions import Action
from ckptplan.strategies.registry import all_strategies
from ckptplan.torch import bptt, unroll
from ckptplan.torch.lif import LIF
from ckptplan.torch.run.caches import CacheLog
from ckptplan.torch.run.executor import Executor
from tests.torch.support import assert_close, gradients, plain, plan_of


def lif(seed: int = 0, *, dtype: torch.dtype = torch.float64, **more: Any) -> LIF:
    """A cell of 7 neurons and 5 inputs that fires now and then."""
    torch.manual_seed(seed)
    cell = LIF(5, 7, dtype=dtype, threshold=0.3, **more)
    with torch.no_grad():
        cell.bias.uniform_(0, 0.1)
    return cell


def job(steps: int, *, seed: int = 1, dtype: torch.dtype = torch.float64, spiking: bool = False) -> Any:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(steps, 3, 5, dtype=dtype, generator=generator)
    if spiking:
        inputs = (inputs > 1).to(dtype)
    state = torch.randn(3, 7, dtype=dtype, generator=generator)
    return inputs.requires_grad_(), state.requires_grad_()


@pytest.mark.parametrize("strategy", all_strategies())
@given(
    steps=st.integers(1, 70),
    states=st.integers(3, 60),
    seed=st.integers(0, 99),
    recurrent=st.booleans(),
    spiking=st.booleans(),
    chunked=st.booleans(),
)
@settings(max_examples=6)
def test_gradients_equal_those_of_plain_bptt(
    strategy: str, steps: int, states: int, seed: int, recurrent: bool, spiking: bool, chunked: bool
) -> None:
    """Of weights, of another module in the loss, of inputs and of the initial state; in fp64."""
    try:
        plan = plan_of(steps, strategy, states=states, alpha=1)
    except Infeasible:
        return
    cell = lif(seed, recurrent=recurrent, spiking_inputs=spiking)
    head = torch.nn.Linear(7, 2).double()
    inputs, state = job(steps, seed=seed, spiking=spiking)
    wanted = [state, inputs, *cell.parameters(), *head.parameters()]

    def loss(step: int, output: torch.Tensor) -> Any:
        return (step + 1) * head(output).square().sum()

    def chunk_loss(start: int, outputs: torch.Tensor) -> Any:
        weights = torch.arange(start + 1, start + 1 + len(outputs), dtype=outputs.dtype)
        return (weights * head(outputs).square().sum(dim=(1, 2))).sum()

    outputs, final = plain(cell, inputs, state, steps)
    expected = sum((loss(step, one) for step, one in enumerate(outputs)), final.square().sum())
    theirs = gradients(expected, wanted)
    given_loss: dict[str, Any] = {"chunk_loss": chunk_loss} if chunked else {"loss": loss}
    result = bptt(cell, inputs, state, plan=plan, final_loss=lambda end: end.square().sum(), **given_loss)
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-12)
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-12)
    stacked, last = unroll(cell, inputs, state, plan=plan)
    assert torch.equal(stacked, torch.stack(outputs))
    assert_close([last.detach()], [final.detach()], relative=1e-12)
    ours = sum((loss(step, one) for step, one in enumerate(stacked)), last.square().sum())
    assert_close(gradients(ours, wanted), theirs, relative=1e-12)


def test_a_membrane_near_the_threshold_keeps_its_spike() -> None:
    """Replayed membranes differ by rounding; spikes are the saved ones, never decided anew."""
    torch.manual_seed(0)
    cell = LIF(5, 50, dtype=torch.float32, threshold=0.3)
    inputs = torch.randn(200, 3, 5)
    state = cell.initial_state(3)
    outputs, _ = plain(cell, inputs, state, 200)
    wanted = list(cell.parameters())
    theirs = gradients(torch.stack(outputs).sum(), wanted)
    for strategy in ("standard", "nested", "optimal"):
        plan = plan_of(200, strategy, states=40, alpha=1)
        stacked, _ = unroll(cell, inputs, state, plan=plan)
        assert torch.equal(stacked, torch.stack(outputs))
        assert_close(gradients(stacked.sum(), wanted), theirs, relative=1e-5)


@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_any_batch(batch: tuple[int, ...]) -> None:
    cell = lif()
    inputs = torch.randn(30, *batch, 5, dtype=torch.float64, requires_grad=True)
    state = cell.initial_state(*batch)
    outputs, _ = plain(cell, inputs, state, 30)
    wanted = [inputs, *cell.parameters()]
    theirs = gradients(torch.stack(outputs).sum(), wanted)
    result = bptt(cell, inputs, state, lambda _, one: one.sum(), plan=plan_of(30, states=10, alpha=1))
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-12)


def test_frozen_weights_and_inputs_made_when_needed() -> None:
    cell = lif()
    cell.weight.requires_grad = False
    inputs, state = job(30)
    data = inputs.detach()
    outputs, _ = plain(cell, data, state, 30)
    wanted = [state, cell.bias, cell.recurrent_weight]
    theirs = gradients(torch.stack(outputs).sum(), wanted)
    result = bptt(
        cell,
        lambda start, stop: data[start:stop],
        state,
        lambda _, one: one.sum(),
        plan=plan_of(30, states=10, alpha=1),
    )
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-12)
    assert cell.weight.grad is None


def test_under_autocast_chunks_run_in_full_precision() -> None:
    """The loss is cast as it would be; the neurons are not."""
    cell = lif(dtype=torch.float32)
    head = torch.nn.Linear(7, 2)
    inputs, state = job(30, dtype=torch.float32)
    wanted = [state, *cell.parameters(), *head.parameters()]
    outputs, _ = plain(cell, inputs, state, 30)
    with torch.autocast("cpu"):
        expected = sum(head(one).float().square().sum() for one in outputs)
        result = bptt(
            cell,
            inputs,
            state,
            lambda _, one: head(one).float().square().sum(),
            plan=plan_of(30, states=10, alpha=1),
        )
    assert isinstance(expected, torch.Tensor)
    theirs = gradients(expected, wanted)
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert_close(gradients(result.loss, wanted), theirs, relative=2e-2)


def test_without_gradients_no_spikes_are_kept() -> None:
    cell = lif()
    inputs, state = job(64)
    seen: list[int] = []
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(CacheLog, "add", lambda *_: seen.append(1))
        stacked, _ = unroll(cell, inputs, state, plan=plan_of(64, states=10, alpha=1))
    assert not seen
    assert torch.equal(stacked, torch.stack(plain(cell, inputs, state, 64)[0]))


@pytest.mark.parametrize("chunk", [1, 2, 5, 30])
def test_saved_spikes_are_counted_and_let_go(chunk: int) -> None:
    """Once, however steps are cut, and fewer in reverse."""
    cell = lif()
    inputs, state = job(64)
    sizes: list[int] = []

    def observe(_: Action, executor: Executor) -> None:
        sizes.append(executor.steps.saved_bytes)

    result = bptt(
        cell,
        inputs,
        state,
        lambda _, one: one.sum(),
        plan=make_schedule("standard", steps=64, chunk_size=chunk),
        observer=observe,
    )
    whole = max(sizes)
    # A byte for the 7 bits of each of 3 rows.
    assert whole == 64 * 3
    gradients(result.loss, list(cell.parameters()))
    assert sizes[-1] == 0
    falling = sizes[sizes.index(whole) :]
    assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"inputs": 0}, "inputs: is 0"), ({"neurons": 0}, "neurons: "), ({"decay": 1.5}, "decay")],
)
def test_bad_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ckptplan.InputError, match=message):
        LIF(**{"inputs": 3, "neurons": 4, **wrong})


def test_weights_may_change_between_sequences_and_subclasses_keep_what_they_count() -> None:
    """What weights determine is computed once a sequence, never kept longer."""

    class Counting(LIF):
        runs = 0

        def run(self, *given: Any) -> Any:
            self.runs += 1
            return super().run(*given)

    torch.manual_seed(0)
    cells = [kind(5, 7, dtype=torch.float64, threshold=0.3) for kind in (LIF, Counting)]
    for cell in cells:
        for _ in range(2):
            inputs, state = job(20)
            weights = list(cell.parameters())
            outputs, _ = plain(cell, inputs, state, 20)
            wanted = gradients(sum(output.square().mean() for output in outputs), weights)
            result = bptt(cell, inputs, state, lambda _, output: output.square().mean(), plan=plan_of(20))
            assert_close(gradients(result.loss, weights), wanted, relative=1e-9)
            for weight in weights:
                weight.data.mul_(1.5)
    assert cells[1].runs
