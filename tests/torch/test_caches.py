"""Cells with a cache under plans that keep the caches of some steps: every choice gives plain gradients."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptplan
from ckptplan import CkptplanError, HardwareProfile, InputError, Plan, Schedule, Workload
from ckptplan.model.goal import CacheName
from ckptplan.planning.playback import schedule_of
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier, Transfer
from ckptplan.strategies.registry import all_strategies
from ckptplan.torch import bptt, plan_for, unroll
from ckptplan.torch.device.meters import LiveBytes
from ckptplan.torch.lif import LIF
from ckptplan.torch.run.executor import Executor
from tests.torch.support import assert_close, gradients, plain

STATE = 3 * 7 * 8


def lif(kind: type[LIF] = LIF, *, seed: int = 0, **more: Any) -> LIF:
    """A cell of 7 neurons and 5 inputs that fires now and then."""
    torch.manual_seed(seed)
    cell = kind(5, 7, dtype=torch.float64, threshold=0.3, **more)
    with torch.no_grad():
        cell.bias.uniform_(0, 0.1)
    return cell


def make_inputs(steps: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(steps, 3, 5, dtype=torch.float64, generator=generator).requires_grad_()
    return inputs, torch.randn(3, 7, dtype=torch.float64, generator=generator).requires_grad_()


def loss(step: int, output: torch.Tensor) -> torch.Tensor:
    """A loss in which every spike of every step has a weight of its own."""
    weights = torch.arange(1, 1 + output.numel(), dtype=output.dtype).view(output.shape)
    return (step % 7 + 1) * (weights * output).sum().square() * 1e-4


def make_plan(
    steps: int, *, strategy: str, cache: str | None, states: int, cache_bytes: int, replay: float
) -> Plan | None:
    """Return a plan within a number of states, None if none fits or the strategy has no such choice."""
    workload = Workload(
        name="spikes",
        steps=steps,
        units=1,
        state_bytes=STATE,
        tape_bytes=STATE,
        resident_bytes_per_step=0,
        cache_bytes=cache_bytes,
        forward_seconds=1.0,
        recompute_seconds=replay,
        record_overhead_seconds=0.0,
        backward_seconds=1.0,
    )
    profile = HardwareProfile(
        name="tiers",
        local_bytes=states * STATE,
        remote_bytes=10**9,
        write_bytes_per_second=1e3,
        read_bytes_per_second=1e3,
    )
    try:
        return ckptplan.optimize(workload, profile, strategies=[strategy], cache=cache)
    except CkptplanError:
        return None


@pytest.mark.parametrize("cache", get_args(CacheName))
@pytest.mark.parametrize("strategy", all_strategies())
@given(
    steps=st.integers(2, 120),
    states=st.integers(4, 40),
    cache_bytes=st.sampled_from([10, STATE // 4, STATE]),
    replay=st.sampled_from([0.1, 0.5, 0.9]),
    seed=st.integers(0, 99),
    recurrent=st.booleans(),
)
@settings(max_examples=2)
def test_gradients_equal_those_of_plain_bptt(
    strategy: str,
    cache: str,
    steps: int,
    states: int,
    cache_bytes: int,
    replay: float,
    seed: int,
    recurrent: bool,
) -> None:
    plan = make_plan(
        steps, strategy=strategy, cache=cache, states=states, cache_bytes=cache_bytes, replay=replay
    )
    if plan is None:
        return
    cell = lif(seed=seed, recurrent=recurrent)
    inputs, state = make_inputs(steps, seed)
    wanted = [state, inputs, *cell.parameters()]
    outputs, final = plain(cell, inputs, state, steps)
    total = sum((loss(step, one) for step, one in enumerate(outputs)), final.square().sum())
    expected = gradients(total, wanted)
    # A schedule, as the sizes of the plan are not those of the cell.
    schedule = schedule_of(plan)
    result = bptt(cell, inputs, state, loss, plan=schedule, final_loss=lambda end: end.square().sum())
    assert_close(gradients(result.loss, wanted), expected, relative=1e-12)
    stacked, _ = unroll(cell, inputs, state, plan=schedule)
    assert torch.equal(stacked, torch.stack(outputs))


class Watched(LIF):
    """A cell that notes the states of each run in full, in a queue, which no replay empties."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.runs: SimpleQueue[tuple[bytes, bytes]] = SimpleQueue()
        self.replays: SimpleQueue[int] = SimpleQueue()

    def run(self, state: torch.Tensor, inputs: torch.Tensor, before: Any) -> Any:
        states, outputs = super().run(state, inputs, before)
        self.runs.put((inputs.numpy().tobytes(), states.numpy().tobytes()))
        return states, outputs

    def replay(self, state: torch.Tensor, inputs: torch.Tensor, outputs: Any) -> Any:
        self.replays.put(len(inputs))
        return super().replay(state, inputs, outputs)


def empty(queue: SimpleQueue[Any]) -> list[Any]:
    return [queue.get() for _ in range(queue.qsize())]


_LOCAL = Tier.LOCAL
#: Without caches in the first sweep; from a checkpoint within a part; with caches of a part that runs again.
WAYS: dict[str, list[Action]] = {
    "none": [
        Save(0, _LOCAL), Advance(0, 150, 0), Save(150, _LOCAL), Advance(150, 180, 0), Record(180, 200),
        Backward(180, 200), Load(150, _LOCAL), Free(150, _LOCAL), Record(150, 180), Backward(150, 180),
        Load(0, _LOCAL), Advance(0, 70, 0), Record(70, 150), Backward(70, 150), Load(0, _LOCAL),
        Free(0, _LOCAL), Record(0, 70), Backward(0, 70),
    ],
    "segment": [
        Save(0, _LOCAL), Advance(0, 180, 40), Record(180, 200), Backward(180, 200), Load(0, _LOCAL),
        Advance(0, 70, 70), Save(70, _LOCAL), Advance(70, 130), Record(130, 180), Backward(130, 180),
        Load(70, _LOCAL), Free(70, _LOCAL), Record(70, 130), Backward(70, 130), Load(0, _LOCAL),
        Advance(0, 30), Record(30, 70), Backward(30, 70), Load(0, _LOCAL), Free(0, _LOCAL), Record(0, 30),
        Backward(0, 30),
    ],
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_steps_that_run_in_full_again_reach_the_same_bits(way: str) -> None:
    """They run in the parts of the first sweep, so that no membrane rounds across the threshold."""
    cell: Any = lif(Watched)
    inputs, state = make_inputs(200)
    schedule = Schedule(steps=200, actions=tuple(WAYS[way]))
    for _ in range(2):
        # The first call also tries the first steps.
        empty(cell.runs)
        empty(cell.replays)
        result = bptt(cell, inputs.detach(), state, loss, plan=schedule)
        first = dict(empty(cell.runs))
        gradients(result.loss, [state, *cell.parameters()])
    again = empty(cell.runs)
    assert again
    assert all(first[came] == reached for came, reached in again)
    assert bool(empty(cell.replays)) == (way == "segment")


class NeedsBefore(LIF):
    """A cell that does not say that its state tells all."""

    runs_from_state = False


def test_a_cell_that_needs_the_step_before_keeps_all_caches() -> None:
    cell, (inputs, state) = lif(NeedsBefore), make_inputs(200)
    message = "plan: keeps the caches of some steps only, and NeedsBefore keeps those of all"
    with pytest.raises(InputError, match=message):
        bptt(cell, inputs, state, loss, plan=Schedule(steps=200, actions=tuple(WAYS["none"])))
    moves: list[Action] = [
        *(Save(0, _LOCAL), Advance(0, 150), Transfer((), _LOCAL, Tier.REMOTE, (0, 100)), Record(150, 200)),
        *(Backward(150, 200), Load(0, _LOCAL), Advance(0, 100), Record(100, 150), Backward(100, 150)),
        *(Load(0, _LOCAL), Free(0, _LOCAL), Record(0, 100), Backward(0, 100)),
        Transfer((), Tier.REMOTE, _LOCAL, (0, 100)),
    ]
    with pytest.raises(InputError, match=message):
        bptt(cell, inputs, state, loss, plan=Schedule(steps=200, actions=moves))
    plan = plan_for(cell, inputs, state, loss, memory="40 kB")
    assert plan.cache == "all"
    assert plan.workload.cache_bytes > 0


def test_a_limit_holds_for_sequences_whose_spikes_alone_would_pass_it() -> None:
    """All calls stay within the limit; without the decision on caches nothing would fit."""
    torch.manual_seed(0)
    cell, steps, limit = LIF(8, 32, threshold=0.4), 1000, 50_000
    inputs, state = torch.randn(steps, 4, 8), cell.initial_state(4)
    results = []
    for _ in range(3):
        with LiveBytes() as live:
            result = bptt(cell, inputs, state, lambda _, output: output.square().mean(), memory=limit)
            results.append(gradients(result.loss, list(cell.parameters())))
        assert live.peak <= 1.03 * limit
    assert isinstance(result.plan, Plan)
    assert result.plan.cache != "all"
    assert steps * result.plan.workload.cache_bytes + 2 * 4 * 32 * 4 * steps > limit
    outputs, _ = plain(cell, inputs, state, steps)
    expected = gradients(sum(output.square().mean() for output in outputs), list(cell.parameters()))
    for found in results:
        assert_close(found, expected, relative=1e-4)


@pytest.mark.parametrize("is_planned", [False, True])
def test_neurons_that_fire_more_often_later_keep_the_limit(is_planned: bool) -> None:
    """Calls begin again with another plan; a plan that is made before counts the caches of all steps."""
    torch.manual_seed(0)
    cell = LIF(8, 64, threshold=1.0)
    inputs, state = torch.randn(2000, 16, 8), cell.initial_state(16)
    inputs[:200] *= 0.1
    inputs[200:] *= 4

    def mean(_: int, output: torch.Tensor) -> torch.Tensor:
        return output.mean()

    options: dict[str, Any] = {"memory": 1_000_000}
    if is_planned:
        options = {"plan": plan_for(cell, inputs, state, mean, **options)}
    for _ in range(3):
        with LiveBytes() as live:
            result = bptt(cell, inputs, state, mean, **options)
            gradients(result.loss, list(cell.parameters()))
        assert live.peak <= 1_030_000


def test_what_is_kept_is_what_the_plan_says() -> None:
    """The caches at the turn are those of the last steps."""
    cell, (inputs, state) = lif(), make_inputs(200)
    seen: list[int] = []

    def observe(_: Action, run: Executor) -> None:
        steps: Any = run.steps
        seen.append(steps.cached_steps)

    schedule = Schedule(steps=200, actions=tuple(WAYS["segment"]))
    result = bptt(cell, inputs, state, loss, plan=schedule, observer=observe)
    assert seen == [0, 40, 60]
    gradients(result.loss, list(cell.parameters()))
    assert seen[-1] == 0


@pytest.mark.parametrize("in_files", [False, True])
def test_offloaded_caches_are_local_for_one_segment_at_a_time(in_files: bool, tmp_path: Path) -> None:
    """Those of other segments are in host memory or in files, and no tensor keeps their memory alive."""
    cell, (inputs, state) = lif(), make_inputs(400)
    plan = make_plan(400, strategy="remote", cache="offloaded", states=40, cache_bytes=40, replay=0.1)
    assert plan is not None
    seen: list[int] = []
    held: list[int] = []

    def observe(_: Action, run: Executor) -> None:
        steps: Any = run.steps
        seen.append(steps.cached_steps)
        held.append(steps.saved_bytes)

    wanted = [state, *cell.parameters()]
    outputs, _ = plain(cell, inputs, state, 400)
    expected = gradients(torch.stack([loss(step, one) for step, one in enumerate(outputs)]).sum(), wanted)
    result = bptt(
        cell, inputs, state, loss, plan=schedule_of(plan), observer=observe,
        remote_dir=tmp_path if in_files else None,
    )  # fmt: skip
    assert_close(gradients(result.loss, wanted), expected, relative=1e-12)
    segment = plan.parameters["chunk_size"]
    assert segment < 100
    assert max(seen) == segment
    assert seen[-1] == held[-1] == 0
    assert not list(tmp_path.iterdir())
