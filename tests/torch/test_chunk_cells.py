"""A cell that runs chunks has the gradients of its own steps, or is refused: which gradient differs is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn.modules.module import register_module_full_backward_hook

from ckptplan import InputError
from ckptplan.torch import LIF, ChunkCell, bptt, plan_for, run_call, unroll
from ckptplan.torch.chunk_cell import ChunkGradients
from ckptplan.torch.lif import LIFBefore, LIFOutputs
from ckptplan.torch.spikes import Spikes
from tests.torch.support import assert_close, gradients, job, plain, plan_of

STEPS = 24
every_strategy = pytest.mark.parametrize("strategy", ["base", "standard", "revolve"])


def plan(strategy: str = "revolve") -> Any:
    return plan_of(STEPS, strategy, states=100 if strategy == "base" else 12, alpha=1)


def squares(_: int, output: torch.Tensor) -> torch.Tensor:
    return output.square().sum()


def make(kind: type[LIF] = LIF, *, inputs: int = 5) -> LIF:
    """Neurons that fire now and then."""
    torch.manual_seed(0)
    return kind(inputs, 7, dtype=torch.float64, threshold=0.3)


def run(cell: Any, **more: Any) -> None:
    inputs, state = job(STEPS)
    bptt(cell, inputs, state, squares, plan=plan(), **more).loss.backward()


def assert_like_plain(cell: Any, inputs: Any, state: Any, wanted: list[Any], strategy: str) -> None:
    outputs, _ = plain(cell, inputs, state, STEPS)
    theirs = gradients(torch.stack([squares(0, one) for one in outputs]).sum(), wanted)
    result = bptt(cell, inputs, state, squares, plan=plan(strategy))
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-12)


@pytest.mark.parametrize("kind", ["steps", "chunks", "outputs"])
@pytest.mark.parametrize("spiking", [False, True])
@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("how", ["base", "standard", "double", "revolve", "optimal", "memory"])
def test_gradients_are_those_of_steps(how: str, recurrent: bool, spiking: bool, kind: str) -> None:
    """Of weights, of another module in the loss, of inputs and of the initial state."""
    torch.manual_seed(0)
    cell = LIF(5, 7, threshold=0.3, dtype=torch.float64, recurrent=recurrent, spiking_inputs=spiking)
    head, steps = torch.nn.Linear(7, 2).double(), 70
    inputs, state = torch.randn(steps, 3, 5).double(), torch.randn(3, 7).double().requires_grad_()
    inputs = (inputs > 1).double() if spiking else inputs
    inputs.requires_grad_()
    wanted = [state, inputs, *cell.parameters(), *head.parameters()]
    weights = torch.arange(1, steps + 1).double()

    def weigh(start: int, outputs: torch.Tensor) -> torch.Tensor:
        read: torch.Tensor = head(outputs)
        return (weights[start : start + len(outputs)] * read.square().sum((1, 2))).sum()

    outputs, final = plain(cell, inputs, state, steps)
    expected = weigh(0, torch.stack(outputs)) + final.square().sum()
    options: dict[str, Any] = {"memory": "310 kB"}
    if how != "memory":
        options = {"plan": plan_of(steps, how, states=100 if how == "base" else 16, alpha=1)}
    if kind == "outputs":
        stacked, last = unroll(cell, inputs, state, **options)
        assert torch.equal(stacked.detach(), torch.stack(outputs).detach())
        found = weigh(0, stacked) + last.square().sum()
    else:
        losses = {
            "steps": {"loss": lambda step, output: weigh(step, output[None])},
            "chunks": {"chunk_loss": weigh},
        }
        options |= {**losses[kind], "final_loss": lambda end: end.square().sum()}
        found = bptt(cell, inputs, state, **options).loss
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    assert_close(gradients(found, wanted), gradients(expected, wanted), relative=1e-11)


def test_a_plan_counts_the_outputs_that_are_saved() -> None:
    cell, inputs = LIF(16, 64, threshold=0.1), torch.randn(100, 64, 16)
    plan = plan_for(cell, inputs, cell.initial_state(64), lambda _, output: output.mean(), memory="2 MB")
    # Spikes take at most one bit for each neuron of each sample.
    assert 64 <= plan.workload.cache_bytes <= 2 * 64 * 64 // 8 + 64


# One tensor in several roles


@every_strategy
@pytest.mark.parametrize("frozen", [False, True])
def test_a_weight_in_two_roles_has_the_gradients_of_both(strategy: str, frozen: bool) -> None:
    cell = make(inputs=7)
    cell.recurrent_weight = cell.weight
    cell.weight.requires_grad = not frozen
    torch.manual_seed(1)
    inputs, state = torch.randn(STEPS, 3, 7).double().requires_grad_(), torch.randn(3, 7).double()
    wanted = [inputs, cell.bias, *([] if frozen else [cell.weight])]
    assert_like_plain(cell, inputs, state, wanted, strategy)


@every_strategy
@pytest.mark.parametrize("role", ["state", "inputs", "both"])
def test_a_parameter_may_be_the_initial_state_or_an_input_too(strategy: str, role: str) -> None:
    cell = make(inputs=7)
    inputs = torch.randn(STEPS, 7, 7).double()
    state = torch.randn(7, 7).double()
    if role != "inputs":
        state = cell.weight
    if role != "state":
        inputs = cell.weight.expand(STEPS, 7, 7)
    assert_like_plain(cell, inputs, state, list(cell.parameters()), strategy)


@every_strategy
def test_parameters_may_share_memory_and_a_bias_may_be_missing(strategy: str) -> None:
    cell = make(inputs=7)
    both = torch.randn(14, 7).double() / 3
    cell.weight, cell.recurrent_weight = torch.nn.Parameter(both[:7]), torch.nn.Parameter(both[4:11])
    cell.register_parameter("bias", None)
    inputs, state = torch.randn(STEPS, 3, 7).double(), torch.zeros(3, 7).double()
    assert_like_plain(cell, inputs, state, list(cell.parameters()), strategy)


# A backward pass that is not the one of forward


class OtherSurrogate(LIF):
    def _write_slopes(self, states: torch.Tensor) -> None:
        states.sub_(self.threshold).abs_().mul_(-self.slope).exp_()


class OtherForward(LIF):
    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        after, _ = super().forward(state, x)
        return after, torch.sigmoid(after - self.threshold) * 0 + (after > self.threshold)


class ForgottenState(LIF):
    def reverse(self, *given: Any, **more: Any) -> ChunkGradients:
        return replace(super().reverse(*given, **more), state=None)


class ForgottenFollowing(LIF):
    def reverse(self, *given: Any, **more: Any) -> ChunkGradients:
        return super().reverse(*given, **{**more, "state_gradients": None})


class ForgottenInputs(LIF):
    def reverse(self, *given: Any, **more: Any) -> ChunkGradients:
        return replace(super().reverse(*given, **more), inputs=None)


class OffByOne(LIF):
    def reverse(self, state: Any, states: Any, inputs: Any, outputs: LIFOutputs, **more: Any) -> ChunkGradients:
        found = super().reverse(state, states, inputs, outputs, **more)
        spikes = outputs.spikes.dense(states.dtype)
        late = self._rows(states).t() @ self._rows(spikes)
        return replace(found, parameters=(*found.parameters[:2], late))


class MissingParameter(LIF):
    def reverse(self, *given: Any, **more: Any) -> ChunkGradients:
        found = super().reverse(*given, **more)
        return replace(found, parameters=(found.parameters[0], None, found.parameters[2]))


class TooFew(LIF):
    def reverse(self, *given: Any, **more: Any) -> ChunkGradients:
        found = super().reverse(*given, **more)
        return replace(found, parameters=found.parameters[:2])


class OtherOrder(LIF):
    def reverse(self, *given: Any, **more: Any) -> ChunkGradients:
        found = super().reverse(*given, **more)
        return replace(found, parameters=found.parameters[::-1])


class NoGradients(LIF):
    def reverse(self, *given: Any, **more: Any) -> Any:
        return super().reverse(*given, **more).parameters


class Unregistered(LIF):
    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.gain = torch.ones(7, dtype=torch.float64, requires_grad=True)

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        after, spikes = super().forward(state, x)
        return after * self.gain, spikes


class ForgetsSpikes(LIF):
    def last(self, outputs: LIFOutputs) -> LIFBefore:
        found = super().last(outputs)
        return found._replace(fired=torch.zeros_like(found.fired))


OTHER = "reverse is not the backward pass of its forward: the gradient of"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (OtherSurrogate, f"OtherSurrogate.{OTHER} cell.weight differs"),
        (OtherForward, f"OtherForward.{OTHER} cell.weight differs"),
        (ForgottenState, f"ForgottenState.{OTHER} cell.weight differs"),
        (ForgottenFollowing, f"ForgottenFollowing.{OTHER} cell.weight differs"),
        (ForgottenInputs, f"ForgottenInputs.{OTHER} tensor 0 of the inputs is missing"),
        (OffByOne, f"OffByOne.{OTHER} cell.recurrent_weight differs"),
        (MissingParameter, f"MissingParameter.{OTHER} cell.bias is missing"),
        (TooFew, r"TooFew.reverse returned 2 gradients of the parameters \(weight, bias, recurrent_weight\)"),
        (OtherOrder, r"OtherOrder.reverse returned a gradient of shape \(7, 7\) for \(7, 5\)"),
        (NoGradients, "NoGradients.reverse returned tuple"),
        (Unregistered, f"Unregistered.{OTHER} cell.gain is missing"),
        (ForgetsSpikes, f"ForgetsSpikes.{OTHER} cell.weight differs"),
    ],
)
@pytest.mark.parametrize("verify", [True, False])
def test_a_wrong_backward_pass_is_refused_by_name(kind: type[LIF], message: str, verify: bool) -> None:
    """In the rehearsal, before the sequence runs."""
    cell = make(kind)
    inputs, state = job(STEPS)
    with pytest.raises(InputError, match=message):
        bptt(cell, inputs, state, squares, plan=plan(), verify=verify)


class SteepInputs(LIF):
    """The gradient of a weight is a little too large."""

    def reverse(self, *given: Any, **more: Any) -> ChunkGradients:
        found = super().reverse(*given, **more)
        weight, *others = found.parameters
        assert weight is not None
        return replace(found, parameters=(weight * 1.01, *others))


#: The first steps are compared no more precisely than the least precise type in which they may compute.
STEEP_INPUTS = pytest.param(
    SteepInputs, marks=pytest.mark.xfail(reason="rounding may cause as much", strict=True)
)


class SteepBias(LIF):
    def reverse(self, *given: Any, **more: Any) -> ChunkGradients:
        found = super().reverse(*given, **more)
        weight, bias, recurrent = found.parameters
        assert bias is not None
        return replace(found, parameters=(weight, bias * 1.5, recurrent))


def _cast(cell: LIF, inputs: torch.Tensor, state: torch.Tensor) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        readout = torch.ones(7, 2, requires_grad=True)
        bptt(cell, inputs, state, lambda _, one: (one @ readout).square().sum().float(), plan=plan())


@pytest.mark.parametrize("kind", [LIF, STEEP_INPUTS])
def test_a_cell_that_is_not_cast_is_compared_in_its_own_precision(kind: type[LIF]) -> None:
    """Under autocast, where a readout is cast; the cell is not."""
    torch.manual_seed(0)
    cell = kind(5, 7, threshold=0.3)
    inputs, state = torch.randn(STEPS, 3, 5), torch.zeros(3, 7)
    if kind is LIF:
        _cast(cell, inputs, state)
        return
    with pytest.raises(InputError, match=f"SteepInputs.{OTHER} cell.weight differs by"):
        _cast(cell, inputs, state)


@pytest.mark.parametrize("kind", [LIF, STEEP_INPUTS])
def test_inputs_that_a_cell_widens_make_it_no_less_precise(kind: type[LIF]) -> None:
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

    torch.manual_seed(0)
    cell = Widening(5, 7, threshold=0.3)
    inputs, state = torch.randn(STEPS, 3, 5).bfloat16().requires_grad_(), torch.zeros(3, 7)
    if kind is LIF:
        bptt(cell, inputs, state, squares, plan=plan()).loss.backward()
        return
    with pytest.raises(InputError, match=f"{OTHER} cell.weight differs by"):
        bptt(cell, inputs, state, squares, plan=plan())


@pytest.mark.parametrize(("kind", "message"), [(MissingParameter, "is missing"), (SteepBias, "differs by")])
@pytest.mark.parametrize(("dtype", "scale"), [(torch.float64, 1e5), (torch.float32, 1e3)])
def test_a_gradient_that_is_much_smaller_than_others_is_compared_too(
    kind: type[LIF], message: str, dtype: torch.dtype, scale: float
) -> None:
    torch.manual_seed(0)
    cell = kind(5, 7, dtype=dtype, threshold=0.3)
    inputs, state = job(STEPS, dtype=dtype)
    with torch.no_grad():
        cell.weight.div_(scale)
    with pytest.raises(InputError, match=f"{OTHER} cell.bias {message}"):
        bptt(cell, inputs.detach() * scale, state.detach(), squares, plan=plan())


class SilentBefore(LIF):
    """None stands for the first step of a sequence alone, before which no neuron has fired."""

    def run(self, state: Any, inputs: Any, before: Any) -> Any:
        silent = torch.zeros_like(state, dtype=torch.bool)
        none = LIFBefore(silent, Spikes.pack(silent.unsqueeze(0)))
        return super().run(state, inputs, none if before is None else before)


@every_strategy
def test_steps_in_the_middle_know_which_neurons_fired_before(strategy: str) -> None:
    cell = make(SilentBefore)
    inputs, state = job(STEPS)[0], torch.zeros(3, 7).double()
    assert_like_plain(cell, inputs, state, list(cell.parameters()), strategy)


@pytest.mark.parametrize("kind", [OffByOne, ForgetsSpikes])
def test_so_it_is_where_neurons_are_silent_at_first(kind: type[LIF]) -> None:
    """A gradient of a weight that nothing uses yet is zero, whatever it is computed from."""
    cell = kind(5, 7, dtype=torch.float64)
    with torch.no_grad():
        cell.bias.fill_(0.2)
    inputs, state = torch.zeros(STEPS, 3, 5).double(), cell.initial_state(3)
    inputs[7:] = torch.randn(STEPS - 7, 3, 5)
    with pytest.raises(InputError, match=f"{kind.__name__}"):
        bptt(cell, inputs, state, squares, plan=plan())


def test_what_is_not_trained_is_not_compared() -> None:
    """A frozen parameter, and a call without gradients."""
    cell = make(MissingParameter)
    inputs, state = job(STEPS)
    with torch.no_grad():
        unroll(cell, inputs, state, plan=plan())
    cell.bias.requires_grad = False
    run(cell)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rounding_is_no_difference(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    cell = LIF(20, 64, threshold=0.3, dtype=dtype)
    inputs = torch.randn(STEPS, 8, 20, dtype=dtype)
    result = bptt(cell, inputs, cell.initial_state(8), lambda _, one: one.float().sum(), plan=plan())
    result.loss.backward()


class Watched(LIF):
    calls = 0

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        self.calls += 1
        torch.rand(1)
        return super().forward(state, x)


def test_the_comparison_is_made_once_a_kind_of_call_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the cell nor in the state of random generators."""
    tried: list[object] = []
    real = run_call.__dict__["try_steps"]

    def count(call: Any, *args: Any, **options: Any) -> Any:
        tried.append(call.cell)
        return real(call, *args, **options)

    monkeypatch.setattr(run_call, "try_steps", count)
    cell = make(Watched)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    for _ in range(3):
        run(cell)
        cell.zero_grad()
    assert tried == [cell]
    assert torch.equal(before, torch.get_rng_state())
    assert cell.calls == 0


# Nested states


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


def test_chunks_draw_what_steps_draw() -> None:
    inputs, state = job(STEPS)[0], (torch.zeros(3).long(), torch.randn(3, 5).double())
    bptt(NoisyLater(), inputs, state, squares, plan=plan()).loss.backward()


@every_strategy
def test_a_state_may_hold_what_has_no_gradient(strategy: str) -> None:
    cell = Averages()
    inputs, _ = job(STEPS)
    average = torch.randn(3, 5).double().requires_grad_()
    wanted = [inputs, average, cell.rate]
    assert_like_plain(cell, inputs, (torch.zeros(3).long(), average), wanted, strategy)


@pytest.mark.parametrize("wrong", ["short", "tensor"])
def test_gradients_nest_as_the_state_does(wrong: str) -> None:
    inputs, _ = job(STEPS)
    state = torch.zeros(3).long(), torch.zeros(3, 5).double()
    with pytest.raises(InputError, match=r"Averages.reverse returned 1 gradients of the state, which are 2"):
        bptt(Averages(wrong=wrong), inputs, state, squares, plan=plan())


# Hooks


def _on_backward(cell: LIF) -> Any:
    return cell.register_full_backward_hook(lambda *_: None)


def _before_backward(cell: LIF) -> Any:
    return cell.register_full_backward_pre_hook(lambda *_: None)


def _of_all(_: LIF) -> Any:
    return register_module_full_backward_hook(lambda *_: None)


@pytest.mark.parametrize("register", [_on_backward, _before_backward, _of_all])
def test_hooks_on_the_backward_pass_are_refused(register: Callable[[LIF], Any]) -> None:
    """Also by a call that would else be the same as one before; without them, and step by step, it runs."""
    cell = make()
    run(cell)
    handle = register(cell)
    try:
        with pytest.raises(InputError, match=r"LIF has a hook on its backward pass.*which does not call it"):
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
