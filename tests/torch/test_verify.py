"""Law: steps that run again do what they did the first time, or the run is refused by name.

What these cells keep, they keep in an ``array``: the trial of the first steps looks into lists, dicts,
attributes and variables, and would refuse it there.
"""

from __future__ import annotations

import gc
import math
import weakref
from array import array
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import ckptplan
from ckptplan import InputError
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Tier
from ckptplan.torch import LIF, bptt, unroll
from ckptplan.torch.digests import (
    find_rounding,
    is_close,
    measure_norm,
    project,
    project_finite,
    project_steps,
)
from ckptplan.torch.executor import Executor
from ckptplan.torch.verify import Verifier
from tests.torch.support import assert_close, gradients, gru, job, plain, plan_of

STEPS = 24
#: Calls of the trial and the rehearsal, at least.
TRIED = 45
RERUN = ["standard", "double", "revolve", "optimal"]
rerunning = pytest.mark.parametrize("strategy", RERUN)


def plan(strategy: str = "standard", steps: int = STEPS) -> Any:
    return plan_of(steps, strategy, states=1000 if strategy == "base" else 16 if steps == STEPS else 40)


def squares(_: int, output: Any) -> Any:
    return output.square().sum()


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def call_later(call: Callable[[], Any], tried: array[int]) -> Any:
    """Call twice, and return what the second call does: a cell drifts from there on, where no trial is made."""
    tried[0] = 10**9
    call()
    tried[0] = 0
    return call()


class Drifting:
    """A cell whose state drifts with its calls, from the third one on: the trial sees nothing."""

    def __init__(self, leaf: int = 1, share: float = 1e-3, dtype: torch.dtype = torch.float64) -> None:
        self.inner, self.parameters = gru(dtype=dtype)
        self.leaf, self.share, self.calls, self.tried = leaf, share, array("q", [0]), array("q", [TRIED])

    def __call__(self, state: Any, x: torch.Tensor) -> Any:
        self.calls[0] += 1
        both = [self.inner(one, x)[0] for one in state["h"]]
        if self.calls[0] > self.tried[0]:
            both[self.leaf] = both[self.leaf] * (1 + self.share * self.calls[0])
        return {"h": Pair(*both)}, both[0]


def twice(state: torch.Tensor) -> Any:
    return {"h": Pair(state, state.detach().clone())}


# States


@rerunning
def test_a_state_that_differs_is_refused_by_its_step_and_leaf(strategy: str) -> None:
    inputs, state = job(STEPS)
    cell = Drifting()
    result = call_later(lambda: bptt(cell, inputs, twice(state), squares, plan=plan(strategy)), cell.tried)
    with pytest.raises(
        InputError,
        match=r"cell: the state after step \d+ \(leaf state\['h'\]\.second\) differs by [\d.e-]+ of its size",
    ):
        result.loss.backward()


def test_the_error_names_the_usual_causes_and_ways_out() -> None:
    inputs, state = job(STEPS)
    cell = Drifting()
    result = call_later(lambda: bptt(cell, inputs, twice(state), squares, plan=plan()), cell.tried)
    with pytest.raises(InputError) as error:
        result.loss.backward()
    for part in ("attribute", "list", "generator", "is_grad_enabled", "verify=False"):
        assert part in str(error.value)


def test_a_tuple_names_its_leaf_by_its_index_and_a_tensor_by_none() -> None:
    inputs, state = job(STEPS)
    inner, _ = gru()
    calls, tried = array("q", [0]), array("q", [0])

    def drift(new: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return new * (1 + 1e-3 * max(calls[0] - tried[0], 0))

    def both(state: Any, x: torch.Tensor) -> Any:
        state = (drift(inner(state[0], x)[0]), state[1])
        return state, state[0]

    def one(state: Any, x: torch.Tensor) -> Any:
        state = drift(inner(state, x)[0])
        return state, state

    for cell, begin, name in ((both, (state, 2), r"state\[0\]"), (one, state, "state")):
        calls[0] = 0
        result = call_later(partial(bptt, cell, inputs, begin, squares, plan=plan()), tried)
        with pytest.raises(InputError, match=rf"\(leaf {name}\)"):
            result.loss.backward()


def test_a_number_in_the_state_that_differs_is_refused() -> None:
    inputs, state = job(STEPS)
    inner, _ = gru()
    calls = array("q", [0])

    def cell(state: Any, x: torch.Tensor) -> Any:
        calls[0] += 1
        new = inner(state[0], x)[0]
        return (new, max(calls[0], TRIED)), new

    result = bptt(cell, inputs, (state, TRIED), squares, plan=plan())
    with pytest.raises(InputError, match="values that are not tensors"):
        result.loss.backward()


@rerunning
def test_numbers_and_strings_in_the_state_equal_themselves(strategy: str) -> None:
    inputs, state = job(STEPS)
    inner, _ = gru()

    def cell(state: Any, x: torch.Tensor) -> Any:
        new = inner(state[0], x)[0]
        return (new, state[1] + 1, "name", None, 0.1 * state[1]), new

    bptt(cell, inputs, (state, 0, "name", None, 0.0), squares, plan=plan(strategy)).loss.backward()


@pytest.mark.parametrize(
    ("one", "again"),
    [
        (float("nan"), float("nan")),
        (1.0, 1.0 + 1e-9),
        (object(), object()),
        (np.ones(2), np.ones(2)),
        ("a", "a"),
    ],
)
def test_nan_floats_but_for_rounding_and_objects_without_a_value_equal_themselves(one: Any, again: Any) -> None:
    verifier = Verifier(dtypes=[torch.float32])
    verifier.reach(1, (torch.ones(2), one), again_later=True)
    verifier.reach(1, (torch.ones(2), again), again_later=False)


@pytest.mark.parametrize(
    ("one", "again"),
    [(float("nan"), 1.0), (1.0, 1.1), (1, 2), ("a", "b"), (np.ones(2), np.zeros(2)), (1, None)],
)
def test_values_in_the_state_that_differ_are_seen(one: Any, again: Any) -> None:
    verifier = Verifier(dtypes=[torch.float32])
    verifier.reach(1, (torch.ones(2), one), again_later=True)
    with pytest.raises(InputError, match="values that are not tensors"):
        verifier.reach(1, (torch.ones(2), again), again_later=False)


@rerunning
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_difference_of_rounding_is_accepted(strategy: str, dtype: torch.dtype) -> None:
    inputs, state = job(STEPS, dtype=dtype)
    # Some hundred calls add up to what is accepted.
    cell = Drifting(share=torch.finfo(dtype).eps / 4, dtype=dtype)
    # Counted calls would make it grow.
    cell.calls[0] = TRIED
    bptt(cell, inputs, twice(state), squares, plan=plan(strategy)).loss.backward()


def test_nothing_is_compared_if_nobody_wants_it() -> None:
    """Without replayed randomness, steps that run again rightly differ."""
    inputs, state = job(STEPS)
    choices: list[dict[str, Any]] = [{"verify": False}, {"replay_randomness": False}]
    for choice in choices:
        one, other = Drifting(), Drifting()
        how = partial(bptt, one, inputs, twice(state), squares, plan=plan(), **choice)
        call_later(how, one.tried).loss.backward()
        outputs, _ = call_later(
            partial(unroll, other, inputs, twice(state), plan=plan(), **choice), other.tried
        )
        outputs.sum().backward()


def test_a_last_state_that_is_reached_twice_is_compared() -> None:
    """Also where a schedule advances to the end before it records."""
    schedule = ckptplan.Schedule(
        steps=STEPS,
        actions=[
            Save(0, Tier.LOCAL), Advance(0, STEPS), Load(0, Tier.LOCAL), Record(0, STEPS), Backward(0, STEPS),
            Free(0, Tier.LOCAL),
        ],
    )  # fmt: skip
    inputs, state = job(STEPS)
    cell, parameters = gru()
    for begin in range(2):
        with pytest.raises(InputError, match=rf"the state after step {STEPS - 1} "):
            bptt(Drifting(begin), inputs, twice(state), final_loss=lambda one: one["h"][1].sum(), plan=schedule)
    ours = bptt(cell, inputs, state, squares, final_loss=lambda one: one.sum(), plan=schedule).loss
    outputs, last = plain(cell, inputs, state, STEPS)
    theirs = torch.stack(outputs).square().sum() + last.sum()
    assert_close(gradients(ours, parameters), gradients(theirs, parameters), relative=1e-12)


def test_a_refused_run_leaves_the_generators_alone() -> None:
    inputs, state = job(STEPS)
    schedule = ckptplan.Schedule(
        steps=STEPS,
        actions=[
            Save(0, Tier.LOCAL), Advance(0, STEPS), Load(0, Tier.LOCAL), Record(0, STEPS), Backward(0, STEPS),
            Free(0, Tier.LOCAL),
        ],
    )  # fmt: skip
    inner = Drifting()

    def cell(state: Any, x: torch.Tensor) -> Any:
        return inner(state, torch.nn.functional.dropout(x))

    before = torch.get_rng_state()
    with pytest.raises(InputError, match="the state after step"):
        bptt(cell, inputs, twice(state), squares, plan=schedule)
    assert torch.equal(before, torch.get_rng_state())


# Losses and outputs


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
@pytest.mark.parametrize("chunks", [False, True])
@pytest.mark.parametrize("kind", ["loss", "chunk_loss"])
def test_a_loss_that_remembers_is_refused_by_its_steps(strategy: str, chunks: bool, kind: str) -> None:
    torch.manual_seed(0)
    cell: Any = LIF(5, 7, dtype=torch.float64, threshold=0.3) if chunks else gru()[0]
    inputs, state = job(STEPS)
    # It begins to remember in its second sequence.
    calls, remembers = array("q", [0]), array("q", [0])

    def loss(_: int, output: torch.Tensor) -> Any:
        calls[0] += remembers[0]
        return output.square().sum() * (1 + calls[0])

    terms: dict[str, Any] = {kind: loss}
    bptt(cell, inputs, state, plan=plan(strategy), **terms).loss.backward()
    remembers[0] = 1
    result = bptt(cell, inputs, state, plan=plan(strategy), **terms)
    with pytest.raises(
        InputError, match=r"loss: the loss of steps? \d+.* differs by .* when it is computed again"
    ):
        result.loss.backward()


@rerunning
def test_a_loss_of_nothing_but_rounding_is_accepted(strategy: str) -> None:
    """The mean of what a LayerNorm returns is zero: its rounding is that of its elements."""
    inner, _ = gru(dtype=torch.float32)
    rounding: list[float] = []

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = inner(state, x)[0]
        # Kernels with and without gradients may round otherwise.
        state = state + 1e-7 * state.flip(-1) * torch.is_grad_enabled()
        return state, torch.nn.functional.layer_norm(state, (7,))

    def loss(_: int, output: torch.Tensor) -> torch.Tensor:
        value = output.mean()
        rounding.append(value.item())
        return value

    inputs, state = job(STEPS, dtype=torch.float32)
    bptt(cell, inputs, state, loss, plan=plan(strategy)).loss.backward()
    assert 0 < max(abs(one) for one in rounding) < 1e-6


@pytest.mark.parametrize("strategy", ["standard", "revolve"])
def test_a_loss_of_nan_or_of_infinities_equals_itself(strategy: str) -> None:
    inputs, state = job(STEPS)
    for value in (float("nan"), float("inf")):

        def loss(step: int, output: Any, value: float = value) -> Any:
            return output.sum() * (value if step < 7 else 1.0)

        def chunk_loss(start: int, outputs: Any) -> Any:
            return sum(loss(start + step, one) for step, one in enumerate(outputs))

        bptt(gru()[0], inputs, state, loss, plan=plan(strategy)).loss.backward()
        bptt(gru()[0], inputs, state, chunk_loss=chunk_loss, plan=plan(strategy)).loss.backward()


def test_a_chunk_loss_that_depends_on_the_cut_is_refused_if_it_is_cut_otherwise() -> None:
    schedule = ckptplan.Schedule(
        steps=STEPS,
        actions=[
            Save(0, Tier.LOCAL), Advance(0, 16), Record(16, STEPS), Backward(16, STEPS),
            Load(0, Tier.LOCAL), Advance(0, 10), Record(10, 16), Backward(10, 16),
            Load(0, Tier.LOCAL), Free(0, Tier.LOCAL), Record(0, 10), Backward(0, 10),
        ],
    )  # fmt: skip
    inputs, state = job(STEPS)
    bptt(gru()[0], inputs, state, chunk_loss=squares, plan=schedule).loss.backward()
    with pytest.raises(InputError, match="a chunk_loss depends on how the sequence is cut"):
        bptt(gru()[0], inputs, state, chunk_loss=lambda _, one: one.square().mean(), plan=schedule)


@rerunning
@pytest.mark.parametrize("integers", [False, True])
def test_outputs_that_differ_where_states_do_not_are_refused(strategy: str, integers: bool) -> None:
    inner, _ = gru()
    calls, tried = array("q", [0]), array("q", [0])

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        calls[0] += 1
        state, _ = inner(state, x)
        count = 1 + max(calls[0] - tried[0], 0)
        return state, ((state, (state * 0).long() + count) if integers else state * count)

    inputs, state = job(STEPS)
    outputs, _ = call_later(partial(unroll, cell, inputs, state, plan=plan(strategy)), tried)
    with pytest.raises(InputError, match=r"cell: the output of steps? \d+.* differs by"):
        (outputs[0] if integers else outputs).sum().backward()


@rerunning
@pytest.mark.parametrize("chunks", [False, True])
def test_pure_outputs_pass_and_belong_to_the_caller(strategy: str, chunks: bool) -> None:
    """What was returned may be changed in place."""
    inputs, state = job(STEPS, dtype=torch.float32)
    cell: Any = LIF(5, 7, threshold=0.3) if chunks else gru(dtype=torch.float32)[0]
    outputs, _ = unroll(cell, inputs, state, plan=plan(strategy))
    loss = outputs.sum()
    with torch.no_grad():
        outputs.mul_(2)
    loss.backward()


def test_pure_outputs_of_several_types_pass() -> None:
    inner, _ = gru()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state, _ = inner(state, x)
        infinite = torch.where(state > 0, state, -torch.inf)
        return state, (state, state > 0, state.argmax(-1), infinite, 3)

    inputs, state = job(STEPS)
    outputs, _ = unroll(cell, inputs, state, plan=plan("revolve"))
    outputs[0].sum().backward()


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


# Comparisons that wait, as on a GPU


class Waiting:
    """Two sweeps over states of some numbers, with comparisons that wait."""

    def __init__(self, states: int = 100) -> None:
        self.verifier = Verifier(waits=True)
        self.states = [torch.full((3,), float(number)) for number in range(states)]
        for number, state in enumerate(self.states):
            self.verifier.reach(number, (state, number), again_later=True)

    def repeat(self, *, change: int | None = None) -> None:
        for number, state in enumerate(self.states):
            again = state + 1 if number == change else state
            self.verifier.reach(number, (again, number), again_later=False)
        self.verifier.settle()


def test_comparisons_that_wait_find_the_state_that_differs() -> None:
    Waiting().repeat()
    for number in (3, 99):
        with pytest.raises(InputError, match=rf"the state after step {number - 1} \(leaf state\[0\]\)"):
            Waiting().repeat(change=number)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_numbers_of_steps_find_the_step_that_differs(dtype: torch.dtype, waits: bool) -> None:
    """Or its run, if comparisons wait. Given one by one, or several at a time; large integers, too."""
    for change, run in ((None, ""), (70, "64 to 99"), (5, "0 to 63")):
        verifier = Verifier(waits=waits)
        terms = (torch.arange(100) * (2**58 if dtype == torch.int64 else 7)).to(dtype)
        terms[1] = torch.nan if dtype.is_floating_point else 0
        numbers = verifier._make_numbers((terms,), lambda a, b, _: InputError(f"steps {a} to {b - 1}"))
        for start, stop in ((0, 64), (64, 100)):
            numbers.keep(start, stop, terms[start:stop])
            numbers.end_action()

        again = terms.clone()
        if change is not None:
            again[change] += 1
        place = run if waits or change is None else f"{change} to {change}"
        with pytest.raises(InputError, match=f"steps {place}") if place else nullcontext():
            for start, stop in ((80, 100), (64, 80), (0, 64)):
                for step in range(start, stop):
                    numbers.check(step, step + 1, again[step])
                numbers.end_action()
            verifier.settle()


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.1])
def test_a_term_of_a_long_run_is_compared_with_its_own_rounding(share: float, waits: bool) -> None:
    """In bf16, where rounding of a sum of 256 terms may be larger than any one of them."""
    verifier = Verifier(dtypes=[torch.bfloat16], waits=waits)
    numbers = verifier.make_loss_numbers(torch.tensor(1.0), ())
    terms = torch.rand(512) + 0.5
    for start in (0, 256):
        numbers.keep(start, start + 256, terms[start : start + 256])
        numbers.end_action()
    terms[100] *= 1 + share

    def repeat() -> None:
        for start in (256, 0):
            numbers.check(start, start + 256, terms[start : start + 256])
            numbers.end_action()
        verifier.settle()

    with pytest.raises(InputError, match="steps 0 to 255" if waits else "step 100"):
        repeat()


def test_the_scale_is_that_of_the_step_in_doubt() -> None:
    """Terms that are small differences of large numbers move much by rounding; others in the run do not."""
    numbers = Verifier().make_loss_numbers(torch.tensor(1.0), ())
    for wanted, place in ((10, nullcontext()), (11, pytest.raises(InputError, match="step 10"))):
        numbers.keep(0, 64, torch.ones(64))
        numbers.end_action()
        with place:
            for step in range(64):
                term = torch.tensor(1.5 if step == 10 else 1.0)
                size = 1e6 if step == wanted else 0.0
                numbers.check(step, step + 1, term, scale=lambda size=size: size)  # type: ignore[misc]
            numbers.end_action()


def test_sums_of_runs_that_wait_are_compared() -> None:
    for change in (0.0, 1.0):
        verifier = Verifier(waits=True)
        sums = verifier.make_loss_numbers(torch.tensor(1.0), ())
        for start in (0, 16):
            sums.keep(start, start + 16, torch.tensor(16.0))
            sums.end_action()
        for start in (24, 16, 4, 0):
            stop = {24: 32, 16: 24, 4: 16, 0: 4}[start]
            sums.check(start, stop, torch.tensor(float(stop - start) + change * (start == 4)))
            sums.end_action()
        if change:
            with pytest.raises(InputError, match="steps 0 to 15"):
                verifier.settle()
        else:
            verifier.settle()


# Digests


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("waits", [False, True])
def test_nan_and_infinities_equal_themselves_and_hide_nothing(value: float, waits: bool) -> None:
    one = torch.tensor([1.0, 2.0, value])
    others = [torch.tensor(others) for others in ([1.0, 2.1, value], [1.0, 2.0, 3.0], [1.0, value, 2.0])]
    for other, differs in ((one.clone(), False), *((other, True) for other in others)):
        verifier = Verifier(waits=waits)
        verifier.reach(1, one, again_later=True)
        if not differs:
            verifier.reach(1, other, again_later=False)
            verifier.settle()
            continue
        with pytest.raises(InputError):
            _reach_and_settle(verifier, other)


def _reach_and_settle(verifier: Verifier, state: torch.Tensor) -> None:
    verifier.reach(1, state, again_later=False)
    verifier.settle()


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("size", [1000, 50_000])
def test_integers_are_compared_exactly_and_in_order(dtype: torch.dtype, size: int) -> None:
    one = torch.randint(2, (size,), generator=torch.Generator().manual_seed(0)).to(dtype)
    changed, moved = one.clone(), one.roll(1)
    changed[-1] = 1 - one[-1].long()
    for other in (changed, moved):
        verifier = Verifier(dtypes=[torch.bfloat16])
        verifier.reach(1, one, again_later=True)
        with pytest.raises(InputError):
            verifier.reach(1, other, again_later=False)
    large = torch.tensor([2**62])
    assert project(large) != project(large + 1)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.float8_e5m2]
)
@pytest.mark.parametrize("size", [4096, 50_000])
def test_one_element_that_differs_and_a_permutation_are_seen(dtype: torch.dtype, size: int) -> None:
    one = torch.rand(size, generator=torch.Generator().manual_seed(1)).to(dtype)
    changed = one.clone()
    changed[7] = 200
    # Of 8 bits, much is taken for rounding.
    moved = changed if dtype == torch.float8_e5m2 else one.flip(0)
    for other in (changed, moved, one.clone()):
        verifier = Verifier()
        verifier.reach(1, one, again_later=True)
        if other is changed or other is moved:
            with pytest.raises(InputError):
                verifier.reach(1, other, again_later=False)
        else:
            verifier.reach(1, other, again_later=False)


@pytest.mark.parametrize("size", [(8, 16), (200, 300)])
def test_rounding_of_each_element_moves_the_number_by_no_more_than_is_accepted(size: tuple[int, int]) -> None:
    """Whether errors are of either sign or all of one: weights of either sign let neither add up."""
    generator = torch.Generator().manual_seed(2)
    for _ in range(50):
        one = torch.rand(size, generator=generator)
        for error in (torch.rand(size, generator=generator), torch.rand(size, generator=generator) - 0.5):
            other = one * (1 + 1e-6 * error)
            before, after = (float(project_finite(tensor)) for tensor in (one, other))
            assert is_close(before, after, find_rounding([torch.float32]) * float(one.norm()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-30, 1e-15, 1.0, 1e25])
def test_a_norm_is_right_whether_its_squares_are_in_the_range_of_the_type_or_not(
    size: float, dtype: torch.dtype
) -> None:
    made = torch.randn(5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float(measure_norm((size * made).to(dtype))) == pytest.approx(size * float(made.norm()), rel=1e-4)
    assert float(measure_norm(torch.tensor([math.inf, math.nan, 1.0], dtype=dtype))) < 3


@pytest.mark.parametrize("shape", [(3, 5), (), (130, 140), (0,)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool, torch.bfloat16])
def test_projections_of_steps_are_those_of_each(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    stacked = (torch.rand(70, *shape, generator=torch.Generator().manual_seed(3)) * 9).to(dtype)
    together = project_steps(stacked)
    for one, number in zip(stacked, together, strict=True):
        again = project(one)
        assert again is not None
        assert abs(float(number) - float(again)) <= 1e-5 * float(one.double().norm())


def test_sparse_tensors_are_not_compared() -> None:
    sparse = torch.eye(3).to_sparse()
    verifier = Verifier()
    verifier.reach(1, sparse, again_later=True)
    verifier.reach(1, sparse * 2, again_later=False)


# What is kept


def test_digests_are_few_and_keep_no_tensor() -> None:
    """As many as there are states that are reached again; none is left at the end."""
    inner, _ = gru()
    born: list[weakref.ref[torch.Tensor]] = []
    counts: list[tuple[Action, int]] = []

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state, _ = inner(state, x)
        born.append(weakref.ref(state))
        return state, state

    def observe(action: Action, executor: Executor) -> None:
        assert executor.verifier is not None
        counts.append((action, len(executor.verifier._states)))
        if isinstance(action, Advance):
            gc.collect()
            alive = {id(one()) for one in born if one() is not None}
            assert len(alive) <= 1

    inputs, state = job(STEPS)
    bptt(cell, inputs, state, lambda _, one: one[0, 0], plan=plan(), observer=observe).loss.backward()
    ends = {action.stop for action, _ in counts if isinstance(action, Advance)}
    assert max(count for _, count in counts) == len(ends)
    assert counts[-1][1] == 0


def test_nothing_is_kept_of_a_plan_that_runs_nothing_again() -> None:
    inputs, state = job(STEPS)
    counts = []

    def observe(_: Action, executor: Executor) -> None:
        assert executor.verifier is not None
        counts.append(len(executor.verifier._states))

    outputs, _ = unroll(gru()[0], inputs, state, plan=plan("base"), observer=observe)
    outputs.sum().backward()
    assert counts
    assert not any(counts)


def test_an_output_whose_elements_cancel_is_compared_with_its_size() -> None:
    """Its projection is small by chance; rounding is that of the elements."""
    direction = project_steps(torch.eye(8)[:, None, :])
    signs = torch.tensor([1.0, -1.0] * 4) / direction.flatten()
    net = torch.nn.Linear(8, 8)

    def cell(state: Any, x: Any) -> Any:
        state = torch.tanh(net(x) + state)
        # Not the same twice: what rounding may do to large numbers.
        wobble = 1e-7 * torch.rand(8) if torch.is_grad_enabled() else torch.zeros(8)
        return state, 1e3 * signs * (1 + wobble) + 0 * state

    unroll(cell, torch.randn(60, 1, 8), torch.zeros(1, 8), plan=plan_of(60, "standard", states=40))[
        0
    ].sum().backward()


class Remembering(torch.nn.Module):
    """Reads what the step before left, from the third step on: no trial sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(5, 5)
        self.last = torch.zeros(())
        self.count = 0

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        self.count += 1
        state = torch.tanh(self.layer(x) + state)
        if float(x[0, 0]) > 0:
            state = state + 0.5 * self.last
            self.last = state.detach().mean()
        return state, state


def test_hidden_state_is_refused_whether_repeated_steps_are_compared_or_not() -> None:
    inputs = torch.randn(STEPS, 3, 5)
    inputs[:2, 0, 0], inputs[2:, 0, 0] = -1.0, 1.0
    for verify in (True, False):
        with pytest.raises(InputError, match=r"cell\.last changes in a step, and later"):
            bptt(
                Remembering(), inputs, torch.zeros(3, 5), lambda _, h: h.square().mean(),
                plan=plan(), verify=verify,
            )  # fmt: skip


class Noisy(torch.nn.Module):
    """Returns something else each time from the third step on, as atomic additions do, and counts its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(5, 5)
        self.calls, self.count = array("q", [0]), 0

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        self.calls[0] += 1
        self.count += 1
        noise = 1e-3 * (-1) ** self.calls[0] if float(x[0, 0]) > 0 else 0.0
        state = torch.tanh(self.layer(x) + state) * (1 + noise)
        return state, state


def test_noise_is_forgiven_where_repeated_steps_are_not_compared() -> None:
    inputs, state = torch.randn(STEPS, 3, 5), torch.zeros(3, 5)
    inputs[:2, 0, 0], inputs[2:, 0, 0] = -1.0, 1.0
    bptt(Noisy(), inputs, state, lambda _, h: h.square().mean(), plan=plan(), verify=False).loss.backward()
    with pytest.raises(InputError):
        bptt(Noisy(), inputs, state, lambda _, h: h.square().mean(), plan=plan()).loss.backward()


@pytest.mark.parametrize("strategy", ["base", *RERUN])
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("what", ["value", "gradient", "constant", "integer"])
def test_first_steps_that_give_something_else_again_are_refused_under_any_plan(
    strategy: str, verify: bool, what: str
) -> None:
    """What could not be found and put back, the trial itself has moved: no loop would find it there."""
    inner, _ = gru()
    calls = array("q", [0])

    def cell(state: Any, x: torch.Tensor) -> Any:
        calls[0] += 1
        hidden, _ = inner(state[0], x)
        if what == "value":
            hidden = hidden * (1 + 0.1 * calls[0])
        if what == "gradient":
            hidden = hidden - (1 - 1 / calls[0]) * (hidden - hidden.detach())
        constant = calls[0] if what == "constant" else 1
        return (hidden, torch.tensor(calls[0] if what == "integer" else 1), constant), hidden

    inputs, state = job(STEPS)
    begin = state, torch.tensor(0), 0
    with pytest.raises(InputError, match=r"when its (first )?steps (ran|run) again"):
        bptt(cell, inputs, begin, squares, plan=plan(strategy), verify=verify)


def test_a_rehearsal_in_each_call_finds_what_one_in_the_first_call_cannot() -> None:
    """A cell that begins to scale gradients between two calls, by something that no search finds."""
    inner, _ = gru()
    scales = array("d", [0.0])

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        # Where a recorded run begins, the state is a leaf.
        given = state - scales[0] * (state - state.detach()) if state.is_leaf else state
        state, output = inner(given, x)
        return state, output

    inputs, state = job(STEPS)
    bptt(cell, inputs, state, squares, plan=plan()).loss.backward()
    scales[0] = 0.5
    bptt(cell, inputs, state, squares, plan=plan()).loss.backward()
    with pytest.raises(InputError, match="where a recorded run of steps begins"):
        bptt(cell, inputs, state, squares, plan=plan(), verify="always")


def test_a_gradient_that_is_no_number_under_a_plan_alone_is_refused() -> None:
    """NaN is equal to itself, and to no number."""
    inner, _ = gru()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        if state.is_leaf and bool(state.any()):
            # A plain loop begins with zeros. The slope of a root at zero is infinite.
            state = state + (state - state.detach()).square().sum().sqrt()
        return inner(state, x)

    inputs, state = job(STEPS)
    with pytest.raises(InputError, match="where a recorded run of steps begins"):
        bptt(cell, inputs, torch.zeros_like(state), squares, plan=plan())


def test_what_verify_may_be_is_said() -> None:
    inputs, state = job(STEPS)
    with pytest.raises(InputError, match=r"verify: is 'allways'.*True, False or 'always'"):
        bptt(gru()[0], inputs, state, squares, plan=plan(), verify="allways")  # type: ignore[arg-type]
