"""Law: steps that run again do what they did the first time, or the run is refused with the step.

What these cells keep, they keep in an ``array``, into which the search for places does not look.
"""

from __future__ import annotations

import gc
import weakref
from array import array
from dataclasses import replace
from typing import Any

import pytest
import torch

import ckptplan
from ckptplan import InputError
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier
from ckptplan.torch import LIF, bptt, unroll
from ckptplan.torch.state.digests import digest, find_rounding, project_rows
from tests.torch.impure.cases import CASES
from tests.torch.support import assert_close, forget_measurements, gradients, gru, job, plain, plan_of
from tests.torch.tables import STEPS, Row, squares

RERUN = ["standard", "double", "revolve", "optimal"]
rerunning = pytest.mark.parametrize("strategy", RERUN)
#: Actions that reach the last state twice.
ALL_TWICE = ckptplan.Schedule(
    steps=STEPS,
    actions=[
        Save(0, Tier.LOCAL), Advance(0, STEPS), Load(0, Tier.LOCAL), Record(0, STEPS), Backward(0, STEPS),
        Free(0, Tier.LOCAL),
    ],
)  # fmt: skip


@pytest.fixture(autouse=True)
def forget() -> None:
    forget_measurements()


def plan(strategy: str = "standard", steps: int = STEPS) -> Any:
    return plan_of(steps, strategy, states=1000 if strategy == "base" else 16 if steps == STEPS else 40)


class Drifting:
    """A cell, with a loss, that drifts with its calls as soon as ``begin`` is called.

    Arguments:
        what: what drifts.
        share: the share by which it drifts from call to call.
    """

    def __init__(self, what: str, share: float = 1e-3, dtype: torch.dtype = torch.float64) -> None:
        self.inner, self.parameters = gru(dtype=dtype)
        self.what, self.share, self.calls, self.begins = what, share, array("q", [0]), array("q", [0])

    def begin(self) -> None:
        """Drift from now on."""
        self.begins[0] = 1

    def scale(self, what: str) -> float:
        """Return a factor that drifts if it is that of what drifts."""
        return 1 + self.share * self.calls[0] * self.begins[0] * (self.what == what)

    def count(self, what: str) -> int:
        """Return a number that drifts if it is that of what drifts."""
        return self.calls[0] * self.begins[0] * (self.what == what)

    def __call__(self, state: Any, x: torch.Tensor) -> Any:
        self.calls[0] += 1
        pair, *_ = state
        first, second = (self.inner(one, x)[0] for one in pair)
        pair = {"first": first, "second": second * self.scale("state")}.values()
        integer = torch.tensor(self.count("integer"))
        return (list(pair), integer, self.count("number")), {
            "float": first * self.scale("output"),
            "integer": (second > 0).long() + self.count("integer output"),
        }

    def loss(self, _: int, output: Any) -> Any:
        """Return the loss of a step, or of a run of steps."""
        self.calls[0] += 1
        return output["float"].square().sum() * self.scale("loss")


#: What may drift, with words of the message.
DRIFTS = {
    "state": r"cell: the state after step \d+ differs .*by about [\d.e-]+ of its norm",
    "integer": r"cell: the state after step \d+ differs",
    "number": r"cell: the state after step \d+ differs .*its values that are no tensors",
    "output": r"the loss or the output of step \d+ differs by [\d.e-]+ when the step runs again",
    "integer output": r"the loss or the output of step \d+ differs by [\d.e-]+ when the step runs again",
    "loss": r"the loss or the output of step \d+ differs by [\d.e-]+ when the step runs again",
    "chunk_loss": r"the sum of the losses is .* when they are computed again",
}


@rerunning
@pytest.mark.parametrize("what", DRIFTS)
def test_what_drifts_from_a_later_call_on_is_refused_with_its_step(what: str, strategy: str) -> None:
    """A later call has no trial."""
    (inputs, state), cell = job(STEPS), Drifting(what.removeprefix("chunk_"))
    start = [state, state.detach().clone()], torch.tensor(0), 0

    def run() -> torch.Tensor:
        if not what.endswith("loss"):
            outputs, _ = unroll(cell, inputs, start, plan=plan(strategy))
            return torch.as_tensor(outputs["float"].sum())
        losses: dict[str, Any] = {what: cell.loss}
        return bptt(cell, inputs, start, plan=plan(strategy), **losses).loss

    run().backward()
    cell.begin()
    total = run()
    with pytest.raises(InputError, match=DRIFTS[what]) as raised:
        total.backward()
    for words in ("attribute", "clock", "gradients are enabled", "verify=False"):
        assert words in str(raised.value)


@pytest.mark.parametrize("strategy", RERUN)
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("what", ["state", "gradient"])
def test_what_drifts_from_the_start_is_refused_by_the_trial(strategy: str, verify: bool, what: str) -> None:
    inner, _ = gru()
    calls = array("q", [0])

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        calls[0] += 1
        state, _ = inner(state, x)
        state = state * (1 + 0.1 * calls[0] * (what == "state"))
        return state - (what == "gradient") * (1 - 1 / calls[0]) * (state - state.detach()), state

    inputs, state = job(STEPS)
    if not verify:
        # Nothing is compared.
        bptt(cell, inputs, state, squares, plan=plan(strategy), verify=False).loss.backward()
        return
    with pytest.raises(InputError, match=r"give something else when they run again|differs when its steps run"):
        bptt(cell, inputs, state, squares, plan=plan(strategy))


def test_a_trial_in_each_call_finds_what_one_in_the_first_call_cannot() -> None:
    """A cell that begins to scale gradients between two calls, by something that no search finds."""
    (inputs, state), (inner, _) = job(STEPS), gru()
    calls, begins = array("q", [0]), array("d", [0.0])

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        calls[0] += 1
        return inner(state - begins[0] * (calls[0] % 2) * (state - state.detach()), x)

    for begins[0] in (0.0, 0.5):
        bptt(cell, inputs, state, squares, plan=plan()).loss.backward()
    with pytest.raises(InputError, match="the first steps give something else when they run again"):
        bptt(cell, inputs, state, squares, plan=plan(), verify="always")


@pytest.mark.parametrize("choice", [{"verify": False}, {"replay_randomness": False}])
@pytest.mark.parametrize("what", DRIFTS)
def test_nothing_is_compared_if_nobody_wants_it(choice: dict[str, Any], what: str) -> None:
    """Without replayed randomness, steps that run again rightly differ."""
    (inputs, state), cell = job(STEPS), Drifting(what)
    cell.begin()
    start = [state, state.detach().clone()], torch.tensor(0), 0
    bptt(cell, inputs, start, cell.loss, plan=plan(), **choice).loss.backward()
    unroll(cell, inputs, start, plan=plan(), **choice)[0]["float"].sum().backward()


def test_a_last_state_that_is_reached_twice_is_compared() -> None:
    """Where a schedule advances to the end before it records; a refusal leaves the generators alone."""
    (inputs, state), (cell, parameters) = job(STEPS), gru()
    drifting = Drifting("state")
    start = [state, state.detach().clone()], torch.tensor(0), 0

    def run() -> torch.Tensor:
        dropped = lambda given, x: drifting(given, torch.nn.functional.dropout(x))  # noqa: E731
        return bptt(dropped, inputs, start, final_loss=lambda one: one[0][1].sum(), plan=ALL_TWICE).loss

    run().backward()
    drifting.begin()
    before = torch.get_rng_state()
    with pytest.raises(InputError, match=rf"the state after step {STEPS - 1} differs"):
        run().backward()
    assert torch.equal(before, torch.get_rng_state())
    ours = bptt(cell, inputs, state, squares, final_loss=torch.sum, plan=ALL_TWICE).loss
    outputs, last = plain(cell, inputs, state, STEPS)
    theirs = torch.stack(outputs).square().sum() + last.sum()
    assert_close(gradients(ours, parameters), gradients(theirs, parameters), relative=1e-12)


@pytest.mark.parametrize("name", ["late", "delayed_spikes", "short_term_plasticity", "states_in_dict"])
def test_hidden_state_that_begins_late_is_right_without_comparisons(name: str) -> None:
    Row(lambda: replace(CASES[name].build(), options={"verify": False}), "revolve").check()


# What passes


@pytest.mark.parametrize("strategy", ["base", *RERUN])
@pytest.mark.parametrize("kind", ["loss", "chunk_loss"])
@pytest.mark.parametrize("chunks", [False, True])
@pytest.mark.parametrize("steps", [24, 101])
def test_a_pure_loss_passes_however_it_is_cut(kind: str, strategy: str, chunks: bool, steps: int) -> None:
    torch.manual_seed(0)
    cell: Any = LIF(5, 7, threshold=0.3) if chunks else gru(dtype=torch.float32)[0]
    inputs, state = job(steps, dtype=torch.float32)
    loss: dict[str, Any] = {kind: squares}
    bptt(cell, inputs, state, plan=plan(strategy, steps), **loss).loss.backward()


@rerunning
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_difference_of_rounding_passes(strategy: str, dtype: torch.dtype) -> None:
    inputs, state = job(STEPS, dtype=dtype)
    # Some hundred calls add up to what is accepted.
    cell = Drifting("state", share=torch.finfo(dtype).eps / 4, dtype=dtype)
    cell.begin()
    start = [state, state.detach().clone()], torch.tensor(0), 0
    bptt(cell, inputs, start, cell.loss, plan=plan(strategy)).loss.backward()


@rerunning
def test_a_loss_of_nothing_but_rounding_passes(strategy: str) -> None:
    """The mean of what a LayerNorm returns is zero: its rounding is that of its elements."""
    inner, _ = gru(dtype=torch.float32)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = inner(state, x)[0]
        # Kernels with and without gradients may round otherwise.
        state = state + 1e-7 * state.flip(-1) * torch.is_grad_enabled()
        return state, torch.nn.functional.layer_norm(state, (7,))

    inputs, state = job(STEPS, dtype=torch.float32)
    result = bptt(cell, inputs, state, lambda _, output: output.mean(), plan=plan(strategy))
    result.loss.backward()
    assert abs(result.loss.item()) < 1e-4


@pytest.mark.parametrize("strategy", ["standard", "revolve"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_of_nan_or_of_infinities_equals_itself(strategy: str, value: float) -> None:
    inputs, state = job(STEPS)

    def loss(step: int, output: Any) -> Any:
        return output.sum() * (value if step < 7 else 1.0)

    def chunk_loss(start: int, outputs: Any) -> Any:
        return sum(loss(start + step, one) for step, one in enumerate(outputs))

    bptt(gru()[0], inputs, state, loss, plan=plan(strategy)).loss.backward()
    bptt(gru()[0], inputs, state, chunk_loss=chunk_loss, plan=plan(strategy)).loss.backward()


@rerunning
@pytest.mark.parametrize("chunks", [False, True])
def test_outputs_pass_and_belong_to_the_caller(strategy: str, chunks: bool) -> None:
    """What was returned may be changed in place. Outputs may be of several types, and infinite."""
    inputs, state = job(STEPS, dtype=torch.float32)
    inner, _ = gru(dtype=torch.float32)

    def typed(state: torch.Tensor, x: torch.Tensor) -> Any:
        state, _ = inner(state, x)
        infinite = torch.where(state > 0, state, -torch.inf)
        return state, (state, state > 0, state.argmax(-1), infinite, 3)

    cell: Any = LIF(5, 7, threshold=0.3) if chunks else typed
    outputs, _ = unroll(cell, inputs, state, plan=plan(strategy))
    first = outputs if chunks else outputs[0]
    loss = first.sum()
    with torch.no_grad():
        first.mul_(2)
    loss.backward()


@rerunning
def test_a_cell_in_half_precision_under_autocast_passes(strategy: str) -> None:
    module = torch.nn.Linear(12, 7)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = torch.tanh(module(torch.cat([x, state], dim=1)))
        return state, state

    inputs, state = job(STEPS, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        bptt(cell, inputs, state, squares, plan=plan(strategy)).loss.backward()
        outputs, _ = unroll(cell, inputs, state, plan=plan(strategy))
        outputs.sum().backward()


def test_an_output_whose_elements_cancel_is_compared_with_its_size() -> None:
    """Its projection is small by chance; rounding is that of the elements."""
    direction = project_rows(torch.eye(8)).float()
    signs = torch.tensor([1.0, -1.0] * 4) / direction
    net = torch.nn.Linear(8, 8)

    def cell(state: Any, x: Any) -> Any:
        state = torch.tanh(net(x) + state)
        # Not the same twice: what rounding may do to large numbers.
        wobble = 1e-7 * torch.rand(8) if torch.is_grad_enabled() else torch.zeros(8)
        return state, 1e3 * signs * (1 + wobble) + 0 * state

    cancelling = plan_of(60, "standard", states=40)
    options: dict[str, Any] = {"plan": cancelling, "replay_randomness": True}
    unroll(cell, torch.randn(60, 1, 8), torch.zeros(1, 8), **options)[0].sum().backward()


# Values


NAN, INFINITY = float("nan"), float("inf")


def compare(first: Any, again: Any, dtype: torch.dtype = torch.float32) -> None:
    """Run steps that pass on a value, and another one when they run again. The call before passes the first.

    Raises InputError if the two are told apart.
    """
    (inputs, hidden), (inner, _) = job(STEPS, dtype=dtype), gru(dtype=dtype)
    calls = array("q", [0, 0])

    def cell(state: Any, x: torch.Tensor) -> Any:
        calls[0] += 1
        hidden, _ = inner(state[0], x)
        return (hidden, again if calls[0] > calls[1] else first), hidden

    for calls[1] in (10_000, STEPS):
        calls[0] = 0
        bptt(cell, inputs, (hidden, first), squares, plan=ALL_TWICE).loss.backward()


@pytest.mark.parametrize(
    "values",
    [
        *[(NAN, NAN), (1.0, 1.0 + 1e-9), (object(), object()), ("a", "a")],
        *[(torch.tensor([1.0, 2.0, value]),) * 2 for value in (NAN, INFINITY, -INFINITY)],
    ],
)
def test_values_that_equal_each_other_but_for_rounding_pass(values: Any) -> None:
    compare(values[0], values[1].clone() if isinstance(values[1], torch.Tensor) else values[1])


@pytest.mark.parametrize("values", [(NAN, 1.0), (1.0, 1.1), (1, 2), ("a", "b"), (1, None)])
def test_plain_values_that_differ_are_seen(values: Any) -> None:
    with pytest.raises(InputError, match="values that are no tensors"):
        compare(*values)


@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize("other", [[1.0, 2.1, None], [1.0, 2.0, 3.0], [1.0, None, 2.0]])
def test_nan_and_infinities_hide_nothing(value: float, other: list[float | None]) -> None:
    with pytest.raises(InputError, match="the state after step"):
        compare(
            torch.tensor([1.0, 2.0, value]),
            torch.tensor([value if number is None else number for number in other]),
        )


EXACT = (torch.int64, torch.uint8, torch.bool)
ROUNDED = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [*((dtype, 4096) for dtype in (*EXACT, *ROUNDED)), (torch.int64, 50_000), (torch.float32, 50_000)],
)
@pytest.mark.parametrize("change", ["one element", "a permutation"])
def test_one_element_that_differs_and_a_permutation_are_seen(
    dtype: torch.dtype, size: int, change: str
) -> None:
    """Of integers in the least precise steps, too."""
    generator = torch.Generator().manual_seed(4)
    numbers = torch.rand(size, generator=generator) if dtype in ROUNDED else torch.arange(size) % 3 % 2
    changed = numbers.roll(1) if change == "a permutation" else numbers.clone()
    if change == "one element":
        changed[7] = 200 if dtype in ROUNDED else 1 - numbers[7]
    with pytest.raises(InputError, match="the state after step"):
        compare(numbers.to(dtype), changed.to(dtype), torch.bfloat16 if dtype in EXACT else torch.float32)


@pytest.mark.parametrize("size", [(8, 16), (200, 300)])
def test_rounding_of_each_element_moves_a_digest_by_no_more_than_is_accepted(size: tuple[int, int]) -> None:
    """Whether errors are of either sign or all of one: weights of either sign let neither add up.

    A call shows whether two tensors are told apart, and not by how much they may differ.
    """
    generator = torch.Generator().manual_seed(2)
    for _ in range(50):
        tensor = torch.rand(size, generator=generator)
        for error in (torch.rand(size, generator=generator), torch.rand(size, generator=generator) - 0.5):
            (before, norm), (after, _) = digest(tensor), digest(tensor * (1 + 1e-6 * error))
            assert abs(before - after) <= find_rounding([torch.float32]) * norm


@pytest.mark.parametrize("strategy", ["base", "standard"])
def test_what_is_compared_keeps_no_tensor(strategy: str) -> None:
    inner, _ = gru()
    born: list[weakref.ref[torch.Tensor]] = []

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state, _ = inner(state, x)
        born.append(weakref.ref(state))
        return state, state

    def observe(action: Action, _: object) -> None:
        if isinstance(action, Advance):
            gc.collect()
            assert len({id(reference()) for reference in born if reference() is not None}) <= 1

    inputs, state = job(STEPS)
    bptt(cell, inputs, state, lambda _, one: one[0, 0], plan=plan(strategy), observer=observe).loss.backward()
