"""A cell that runs chunks has the gradients of its own steps, or is refused: which gradient differs is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.modules.module import register_module_forward_hook, register_module_full_backward_hook

from ckptplan import Infeasible, InputError
from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.actions import Action
from ckptplan.strategies.registry import all_strategies
from ckptplan.torch import LIF, ChunkCell, bptt, plan_for, run_call, unroll
from ckptplan.torch.chunk_cell import ChunkGradients
from ckptplan.torch.run.caches import CacheLog
from ckptplan.torch.run.executor import Executor
from ckptplan.torch.spikes import Spikes
from ckptplan.torch.spiking import SpikesBefore, SpikingOutputs
from tests.torch.limit_tables import (
    STRATEGIES,
    assert_plain_gradients,
    count_calls,
    mean_square,
    plan_steps,
    sum_squares,
)
from tests.torch.support import assert_close, gradients, job, plain, plan_of

STEPS = 24
PLAN = plan_steps(STEPS, "revolve", alpha=1)


def make(kind: type[LIF] = LIF, *, inputs: int = 5, **options: Any) -> Any:
    """Return neurons that fire now and then."""
    torch.manual_seed(0)
    return kind(inputs, 7, **{"dtype": torch.float64, "threshold": 0.3, **options})


def make_biased(**options: Any) -> Any:
    """Return neurons with a bias that is not zero."""
    cell = make(**options)
    with torch.no_grad():
        cell.bias.uniform_(0, 0.1)
    return cell


def run(cell: Any, **options: Any) -> None:
    inputs, state = job(STEPS)
    bptt(cell, inputs, state, sum_squares, plan=PLAN, **options).loss.backward()


# Gradients of steps


@pytest.mark.parametrize("losses", ["steps", "chunks", "outputs"])
@pytest.mark.parametrize("how", [*all_strategies(), "memory"])
@given(
    steps=st.integers(1, 70),
    states=st.integers(3, 60),
    seed=st.integers(0, 99),
    recurrent=st.booleans(),
    spiking=st.booleans(),
)
@settings(max_examples=6)
def test_outputs_and_gradients_equal_those_of_plain_steps(
    how: str, losses: str, steps: int, states: int, seed: int, recurrent: bool, spiking: bool
) -> None:
    """Of weights, of another module in the loss, of inputs and of the initial state; in fp64."""
    options: dict[str, Any] = {"memory": "310 kB"}
    if how != "memory":
        try:
            options = {"plan": plan_of(steps, how, states=states, alpha=1)}
        except Infeasible:
            return
    cell = make_biased(recurrent=recurrent, spiking_inputs=spiking)
    head = torch.nn.Linear(7, 2).double()
    inputs, state = job(steps, seed=seed)
    if spiking:
        inputs = (inputs.detach() > 1).double().requires_grad_()
    wanted = [state, inputs, *cell.parameters(), *head.parameters()]

    def weigh(start: int, outputs: torch.Tensor) -> torch.Tensor:
        weights = torch.arange(start + 1, start + 1 + len(outputs), dtype=outputs.dtype)
        read: torch.Tensor = head(outputs)
        return (weights * read.square().sum((1, 2))).sum()

    outputs, final = plain(cell, inputs, state, steps)
    expected = weigh(0, torch.stack(outputs)) + final.square().sum()
    if losses == "outputs":
        stacked, last = unroll(cell, inputs, state, **options)
        assert torch.equal(stacked, torch.stack(outputs))
        assert_close([last.detach()], [final.detach()], relative=1e-12)
        found = weigh(0, stacked) + last.square().sum()
    else:
        given_losses: dict[str, Any] = {"chunk_loss": weigh}
        if losses == "steps":
            given_losses = {"loss": lambda step, output: weigh(step, output[None])}
        options |= {**given_losses, "final_loss": lambda end: end.square().sum()}
        found = bptt(cell, inputs, state, **options).loss
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    relative = 1e-11 if how == "memory" else 1e-12
    assert_close(gradients(found, wanted), gradients(expected, wanted), relative=relative)


def test_replayed_membranes_near_the_threshold_keep_their_spikes() -> None:
    """Replayed membranes differ by rounding; spikes are the saved ones, never decided again."""
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


class SilentBefore(LIF):
    """None stands for the first step of a sequence alone, before which no neuron has fired."""

    def run(self, state: Any, inputs: Any, before: Any) -> Any:
        silent = torch.zeros_like(state, dtype=torch.bool)
        none = SpikesBefore(silent, Spikes.pack(silent.unsqueeze(0)))
        return super().run(state, inputs, none if before is None else before)


class Counted:
    """Outputs of ``Averages`` as they are."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    @property
    def bytes(self) -> int:
        return self.values.nbytes

    def part(self, start: int, stop: int) -> Counted:
        return Counted(self.values[start:stop])

    def moved(self, keep: Callable[[torch.Tensor], torch.Tensor]) -> Counted:
        return Counted(keep(self.values))


class Averages(ChunkCell):
    """Running averages with a rate for each place; the state counts steps, too."""

    def __init__(self, *, wrong: str = "") -> None:
        super().__init__()
        self.rate = torch.nn.Parameter(torch.linspace(0.1, 0.9, 5).double())
        self.wrong = wrong

    def forward(self, state: Any, x: torch.Tensor) -> Any:
        count, average = state
        average = average + self.rate * (x - average)
        return (count + 1, average), average

    def run(self, state: Any, inputs: torch.Tensor, before: Any) -> Any:
        del before
        reached = [state]
        for x in inputs:
            reached.append(self.forward(reached[-1], x)[0])
        counts, averages = (torch.stack(parts) for parts in zip(*reached[1:], strict=True))
        return (counts, averages), Counted(averages.clone())

    def replay(self, state: Any, inputs: torch.Tensor, outputs: Counted) -> Any:
        del outputs
        return self.run(state, inputs, None)[0]

    def last(self, outputs: Any) -> None:
        del outputs

    def dense(self, outputs: Counted) -> torch.Tensor:
        return outputs.values

    def reverse(
        self,
        state: Any,
        states: Any,
        inputs: torch.Tensor,
        outputs: Any,
        *,
        output_gradients: Any,
        state_gradients: Any,
        wants_inputs: bool,
    ) -> ChunkGradients:
        del outputs
        averages = [state[1], *states[1]]
        count, carried = state_gradients
        assert count is None
        carried = torch.zeros_like(state[1]) if carried is None else carried
        rate = torch.zeros_like(self.rate)
        given: list[torch.Tensor] = []
        for step, (before, _) in reversed(list(enumerate(pairwise(averages)))):
            if output_gradients is not None:
                carried = carried + output_gradients[step]
            rate += (carried * (inputs[step] - before)).sum(0)
            given.insert(0, carried * self.rate)
            carried = carried * (1 - self.rate)
        nested = {"": (None, carried), "short": (carried,), "tensor": carried}[self.wrong]
        return ChunkGradients(
            state=nested, inputs=torch.stack(given) if wants_inputs else None, parameters=(rate,)
        )


class NoisyLater(Averages):
    """Draws random numbers in all steps but the first."""

    def forward(self, state: Any, x: torch.Tensor) -> Any:
        (count, average), _ = super().forward(state, x)
        if count.min() > 1:
            average = average + torch.rand_like(average)
        return (count, average), average


@dataclass(frozen=True)
class Case:
    """A call whose gradients are compared; ``given`` stands for its inputs, if it gets them otherwise."""

    cell: Any
    inputs: torch.Tensor
    state: Any
    wanted: list[torch.Tensor]
    given: Any = None


def share_weight(*, frozen: bool) -> Case:
    """Return a cell whose weight is its recurrent weight, too."""
    cell = make(inputs=7)
    cell.recurrent_weight = cell.weight
    cell.weight.requires_grad = not frozen
    torch.manual_seed(1)
    inputs, state = torch.randn(STEPS, 3, 7).double().requires_grad_(), torch.randn(3, 7).double()
    return Case(cell, inputs, state, [inputs, cell.bias, *([] if frozen else [cell.weight])])


def use_weight(role: str) -> Case:
    """Return a call whose initial state or inputs are a parameter."""
    cell = make(inputs=7)
    inputs, state = torch.randn(STEPS, 7, 7).double(), torch.randn(7, 7).double()
    if role != "inputs":
        state = cell.weight
    if role != "state":
        inputs = cell.weight.expand(STEPS, 7, 7)
    return Case(cell, inputs, state, list(cell.parameters()))


def share_memory() -> Case:
    """Return a cell whose parameters overlap in memory, without a bias."""
    cell = make(inputs=7)
    both = torch.randn(14, 7).double() / 3
    cell.weight, cell.recurrent_weight = torch.nn.Parameter(both[:7]), torch.nn.Parameter(both[4:11])
    cell.register_parameter("bias", None)
    inputs, state = torch.randn(STEPS, 3, 7).double(), torch.zeros(3, 7).double()
    return Case(cell, inputs, state, list(cell.parameters()))


def use_batch(*batch: int) -> Case:
    cell = make_biased()
    inputs = torch.randn(STEPS, *batch, 5, dtype=torch.float64, requires_grad=True)
    return Case(cell, inputs, cell.initial_state(*batch), [inputs, *cell.parameters()])


def freeze_and_make_inputs() -> Case:
    cell = make_biased()
    cell.weight.requires_grad = False
    inputs, state = job(STEPS)
    data = inputs.detach()
    wanted = [state, cell.bias, cell.recurrent_weight]
    return Case(cell, data, state, wanted, given=lambda start, stop: data[start:stop])


def know_spikes_before() -> Case:
    cell = make(SilentBefore)
    return Case(cell, job(STEPS)[0], torch.zeros(3, 7).double(), list(cell.parameters()))


def count_in_state() -> Case:
    """Return a cell whose state holds integers, which have no gradient."""
    cell, inputs = Averages(), job(STEPS)[0]
    average = torch.randn(3, 5).double().requires_grad_()
    return Case(cell, inputs, (torch.zeros(3).long(), average), [inputs, average, cell.rate])


CASES: dict[str, Callable[[], Case]] = {
    "a weight in two roles": partial(share_weight, frozen=False),
    "a frozen weight in two roles": partial(share_weight, frozen=True),
    **{f"a weight as {role}": partial(use_weight, role) for role in ("state", "inputs", "both")},
    "parameters that share memory": share_memory,
    "no batch": use_batch,
    "a batch": partial(use_batch, 3),
    "two axes of a batch": partial(use_batch, 2, 2),
    "a frozen weight, inputs that are made": freeze_and_make_inputs,
    "spikes before a step in the middle": know_spikes_before,
    "a state with a counter": count_in_state,
}


@pytest.mark.parametrize("strategy", [*STRATEGIES, "double"])
@pytest.mark.parametrize("case", CASES)
def test_a_chunk_has_the_gradients_of_its_steps(case: str, strategy: str) -> None:
    made = CASES[case]()
    assert_plain_gradients(
        made.cell, made.inputs, made.state, made.wanted, given=made.given, steps=STEPS, relative=1e-12,
        plan=plan_steps(STEPS, strategy, alpha=1),
    )  # fmt: skip


def test_chunks_draw_the_random_numbers_of_steps() -> None:
    inputs, state = job(STEPS)[0], (torch.zeros(3).long(), torch.randn(3, 5).double())
    bptt(NoisyLater(), inputs, state, sum_squares, plan=PLAN).loss.backward()


@pytest.mark.parametrize("kind", ["LIF", "counting"])
def test_weights_may_change_between_sequences_and_subclasses_keep_their_counts(kind: str) -> None:
    """What weights determine is computed once a sequence, never kept longer."""

    class Counting(LIF):
        runs = 0

        def run(self, *given: Any) -> Any:
            self.runs += 1
            return super().run(*given)

    cell = make(Counting if kind == "counting" else LIF)
    for _ in range(2):
        inputs, state = job(20)
        weights = list(cell.parameters())
        assert_plain_gradients(
            cell, inputs, state, weights, loss=mean_square, steps=20, relative=1e-9, plan=plan_of(20)
        )
        for weight in weights:
            weight.data.mul_(1.5)
    assert kind == "LIF" or cell.runs


def test_under_autocast_chunks_run_in_full_precision() -> None:
    """The loss is cast as it would be; the neurons are not."""
    cell = make_biased(dtype=torch.float32)
    head = torch.nn.Linear(7, 2)
    inputs, state = job(30, dtype=torch.float32)
    wanted = [state, *cell.parameters(), *head.parameters()]

    def measure(_: int, output: torch.Tensor) -> torch.Tensor:
        read: torch.Tensor = head(output)
        return read.float().square().sum()

    outputs, _ = plain(cell, inputs, state, 30)
    with torch.autocast("cpu"):
        expected = torch.stack([measure(0, output) for output in outputs]).sum()
        result = bptt(cell, inputs, state, measure, plan=plan_of(30, states=10, alpha=1))
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert_close(gradients(result.loss, wanted), gradients(expected, wanted), relative=2e-2)


# Saved spikes


def test_a_plan_counts_the_outputs_that_are_saved() -> None:
    cell, inputs = LIF(16, 64, threshold=0.1), torch.randn(100, 64, 16)
    plan = plan_for(cell, inputs, cell.initial_state(64), lambda _, output: output.mean(), memory="2 MB")
    # Spikes take at most one bit for each neuron of each sample.
    assert 64 <= plan.workload.cache_bytes <= 2 * 64 * 64 // 8 + 64


def test_without_gradients_no_spikes_are_kept() -> None:
    """No public number tells, as spikes take little memory beside the outputs."""
    cell = make_biased()
    inputs, state = job(64)
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(CacheLog, "add", lambda *_: pytest.fail("spikes are kept"))
        stacked, _ = unroll(cell, inputs, state, plan=plan_of(64, states=10, alpha=1))
    assert torch.equal(stacked, torch.stack(plain(cell, inputs, state, 64)[0]))


@pytest.mark.parametrize("chunk", [1, 2, 5, 30])
def test_saved_spikes_are_counted_and_let_go(chunk: int) -> None:
    """Once, however steps are cut, and fewer in reverse."""
    cell = make_biased()
    inputs, state = job(64)
    sizes: list[int] = []

    def observe(_: Action, executor: Executor) -> None:
        sizes.append(executor.steps.saved_bytes)

    plan = make_schedule("standard", steps=64, chunk_size=chunk)
    result = bptt(cell, inputs, state, lambda _, output: output.sum(), plan=plan, observer=observe)
    whole = max(sizes)
    # A byte for the 7 bits of each of 3 rows.
    assert whole == 64 * 3
    gradients(result.loss, list(cell.parameters()))
    assert sizes[-1] == 0
    falling = sizes[sizes.index(whole) :]
    assert falling == sorted(falling, reverse=True)


# A backward pass that is not the one of forward


class OtherSurrogate(LIF):
    def _find_slopes(self, state: dict[str, torch.Tensor], *, overwrites: bool) -> torch.Tensor:
        membranes = state["membrane"] if overwrites else state["membrane"].clone()
        return membranes.sub_(self.threshold).abs_().mul_(-self.slope).exp_()


class OtherForward(LIF):
    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        after, _ = super().forward(state, x)
        return after, torch.sigmoid(after - self.threshold) * 0 + (after > self.threshold)


class ForgottenFollowing(LIF):
    def reverse(self, *given: Any, **more: Any) -> ChunkGradients:
        return super().reverse(*given, **{**more, "state_gradients": None})


class OffByOne(LIF):
    def reverse(
        self, state: Any, states: Any, inputs: Any, outputs: SpikingOutputs, **more: Any
    ) -> ChunkGradients:
        found = super().reverse(state, states, inputs, outputs, **more)
        spikes = outputs.spikes.dense(states.dtype)
        late = self._rows(states).t() @ self._rows(spikes)
        return replace(found, parameters=(*found.parameters[:2], late))


class Unregistered(LIF):
    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.gain = torch.ones(7, dtype=torch.float64, requires_grad=True)

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        after, spikes = super().forward(state, x)
        return after * self.gain, spikes


class ForgetsSpikes(LIF):
    def last(self, outputs: SpikingOutputs) -> SpikesBefore:
        found = super().last(outputs)
        return found._replace(fired=torch.zeros_like(found.fired))


def change_gradients(name: str, change: Callable[[Any], Any]) -> type[LIF]:
    """Return a kind of neurons whose ``reverse`` returns changed gradients."""

    def reverse(self: LIF, *given: Any, **more: Any) -> Any:
        return change(LIF.reverse(self, *given, **more))

    return type(name, (LIF,), {"reverse": reverse})


def change_parameters(name: str, change: Callable[[Any, Any, Any], Any]) -> type[LIF]:
    """Return a kind of neurons with other gradients of the weight, the bias and the recurrent weight."""
    return change_gradients(name, lambda found: replace(found, parameters=change(*found.parameters)))


MissingParameter = change_parameters("MissingParameter", lambda weight, _, recurrent: (weight, None, recurrent))
SteepInputs = change_parameters("SteepInputs", lambda weight, *others: (weight * 1.01, *others))
SteepBias = change_parameters("SteepBias", lambda weight, bias, recurrent: (weight, bias * 1.5, recurrent))
NoState = change_gradients("NoState", lambda found: replace(found, state=None))
NoInputs = change_gradients("NoInputs", lambda found: replace(found, inputs=None))
TooFew = change_parameters("TooFew", lambda weight, bias, _: (weight, bias))
OtherOrder = change_parameters("OtherOrder", lambda *parameters: parameters[::-1])
AsTuple = change_gradients("AsTuple", lambda found: found.parameters)
OTHER = "reverse is not the backward pass of its forward: the gradient of"
WRONG: list[tuple[type[LIF], str]] = [
    (OtherSurrogate, f"{OTHER} cell.weight differs"),
    (OtherForward, f"{OTHER} cell.weight differs"),
    (NoState, f"{OTHER} cell.weight differs"),
    (ForgottenFollowing, f"{OTHER} cell.weight differs"),
    (NoInputs, f"{OTHER} tensor 0 of the inputs is missing"),
    (OffByOne, f"{OTHER} cell.recurrent_weight differs"),
    (MissingParameter, f"{OTHER} cell.bias is missing"),
    (TooFew, r"reverse returned 2 gradients of the parameters \(weight, bias, recurrent_weight\)"),
    (OtherOrder, r"reverse returned a gradient of shape \(7, 7\) for \(7, 5\)"),
    (AsTuple, "reverse returned tuple"),
    (Unregistered, f"{OTHER} cell.gain is missing"),
    (ForgetsSpikes, f"{OTHER} cell.weight differs"),
]


@pytest.mark.parametrize(("kind", "message"), WRONG)
@pytest.mark.parametrize("verify", [True, False])
def test_a_wrong_backward_pass_is_refused_by_name(kind: type[LIF], message: str, verify: bool) -> None:
    """In the rehearsal, before the sequence runs."""
    cell = make(kind)
    inputs, state = job(STEPS)
    with pytest.raises(InputError, match=f"{kind.__name__}.{message}"):
        bptt(cell, inputs, state, sum_squares, plan=PLAN, verify=verify)


@pytest.mark.parametrize("kind", [OffByOne, ForgetsSpikes])
def test_a_wrong_backward_pass_is_refused_if_neurons_are_silent_at_first(kind: type[LIF]) -> None:
    """A gradient of a weight that nothing uses yet is zero, whatever it is computed from."""
    cell = kind(5, 7, dtype=torch.float64)
    with torch.no_grad():
        cell.bias.fill_(0.2)
    inputs, state = torch.zeros(STEPS, 3, 5).double(), cell.initial_state(3)
    inputs[7:] = torch.randn(STEPS - 7, 3, 5)
    with pytest.raises(InputError, match=f"{kind.__name__}"):
        bptt(cell, inputs, state, sum_squares, plan=PLAN)


@pytest.mark.parametrize(("kind", "message"), [(MissingParameter, "is missing"), (SteepBias, "differs by")])
@pytest.mark.parametrize(("dtype", "scale"), [(torch.float64, 1e5), (torch.float32, 1e3)])
def test_a_gradient_that_is_much_smaller_than_others_is_compared_too(
    kind: type[LIF], message: str, dtype: torch.dtype, scale: float
) -> None:
    cell = make(kind, dtype=dtype)
    inputs, state = job(STEPS, dtype=dtype)
    with torch.no_grad():
        cell.weight.div_(scale)
    with pytest.raises(InputError, match=f"{OTHER} cell.bias {message}"):
        bptt(cell, inputs.detach() * scale, state.detach(), sum_squares, plan=PLAN)


def read_out_in_bfloat16(kind: type[LIF]) -> None:
    cell, inputs = make(kind, dtype=torch.float32), torch.randn(STEPS, 3, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        readout = torch.ones(7, 2, requires_grad=True)

        def loss(_: int, output: torch.Tensor) -> torch.Tensor:
            return (output @ readout).square().sum().float()

        bptt(cell, inputs, torch.zeros(3, 7), loss, plan=PLAN).loss.backward()


def widen_inputs(kind: type[LIF]) -> None:
    class Widening(kind):  # type: ignore[misc, valid-type]
        def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
            return super().forward(state, x.float())

        def run(self, state: Any, inputs: torch.Tensor, before: Any) -> Any:
            return super().run(state, inputs.float(), before)

        def replay(self, state: Any, inputs: torch.Tensor, outputs: Any) -> Any:
            return super().replay(state, inputs.float(), outputs)

        def reverse(self, state: Any, states: Any, inputs: torch.Tensor, outputs: Any, **more: Any) -> Any:
            found = super().reverse(state, states, inputs.float(), outputs, **more)
            return replace(found, inputs=None if found.inputs is None else found.inputs.bfloat16())

    cell, inputs = make(Widening, dtype=torch.float32), torch.randn(STEPS, 3, 5).bfloat16().requires_grad_()
    bptt(cell, inputs, torch.zeros(3, 7), sum_squares, plan=PLAN).loss.backward()


@pytest.mark.parametrize("call", [read_out_in_bfloat16, widen_inputs])
def test_a_cell_that_is_not_cast_is_right_among_tensors_of_less_precision(call: Any) -> None:
    """Under autocast, where a readout is cast and the cell is not; and if the cell widens its inputs."""
    call(LIF)


@pytest.mark.xfail(
    reason="the first steps are compared in the least precise type, which rounds as much", strict=True
)
@pytest.mark.parametrize("call", [read_out_in_bfloat16, widen_inputs])
def test_a_cell_that_is_not_cast_is_compared_in_its_own_precision(call: Any) -> None:
    with pytest.raises(InputError, match=f"{OTHER} cell.weight differs by"):
        call(SteepInputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rounding_is_no_difference(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    cell = LIF(20, 64, threshold=0.3, dtype=dtype)
    inputs = torch.randn(STEPS, 8, 20, dtype=dtype)
    result = bptt(cell, inputs, cell.initial_state(8), lambda _, output: output.float().sum(), plan=PLAN)
    result.loss.backward()


def test_gradients_of_what_is_not_trained_are_not_compared() -> None:
    """Those of a frozen parameter, and of a call without gradients."""
    cell = make(MissingParameter)
    inputs, state = job(STEPS)
    with torch.no_grad():
        unroll(cell, inputs, state, plan=PLAN)
    cell.bias.requires_grad = False
    run(cell)


@pytest.mark.parametrize("wrong", ["short", "tensor"])
def test_gradients_nest_as_the_state_does(wrong: str) -> None:
    inputs, _ = job(STEPS)
    state = torch.zeros(3).long(), torch.zeros(3, 5).double()
    with pytest.raises(InputError, match=r"Averages.reverse returned 1 gradients of the state, which are 2"):
        bptt(Averages(wrong=wrong), inputs, state, sum_squares, plan=PLAN)


class Watched(LIF):
    calls = 0

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        self.calls += 1
        torch.rand(1)
        return super().forward(state, x)


def test_the_comparison_is_made_once_a_kind_of_call_and_leaves_nothing() -> None:
    """Neither in the cell nor in the state of random generators."""
    cell = make(Watched)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with count_calls(run_call, "try_steps") as trials:
        for _ in range(3):
            run(cell)
            cell.zero_grad()
    assert len(trials) == 1
    assert torch.equal(before, torch.get_rng_state())
    assert cell.calls == 0


# Hooks


def ignore_call(*_: Any) -> None:
    """Do nothing, as a hook."""


@pytest.mark.parametrize(
    ("direction", "register"),
    [
        ("backward", lambda cell: cell.register_full_backward_hook(ignore_call)),
        ("backward", lambda cell: cell.register_full_backward_pre_hook(ignore_call)),
        ("backward", lambda _: register_module_full_backward_hook(ignore_call)),
        ("forward", lambda cell: cell.register_forward_hook(ignore_call)),
        ("forward", lambda cell: cell.register_forward_pre_hook(ignore_call)),
        ("forward", lambda _: register_module_forward_hook(ignore_call)),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_hooks_that_no_chunk_calls_are_refused(direction: str, register: Callable[[LIF], Any]) -> None:
    """Also by a call that would else be the same as one before; without them, and step by step, it runs."""
    cell = make()
    run(cell)
    handle = register(cell)
    try:
        with pytest.raises(InputError, match=rf"LIF has a hook on its {direction} pass.*which does not call"):
            run(cell)
        run(lambda state, x: cell(state, x))  # noqa: PLW0108 - no ChunkCell
    finally:
        handle.remove()
    run(cell)


def test_hooks_on_parameters_are_called_once() -> None:
    cell = make()
    seen: list[torch.Tensor] = []
    cell.weight.register_hook(seen.append)
    run(cell)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"inputs": 0}, "inputs: is 0"), ({"neurons": 0}, "neurons: "), ({"decay": 1.5}, "decay")],
)
def test_settings_that_are_not_accepted_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LIF(**{"inputs": 3, "neurons": 4, **wrong})
