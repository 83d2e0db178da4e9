"""What steps can reach is looked at without changing it, and without cost that grows with a training."""

from __future__ import annotations

import argparse
import collections
import enum
import functools
import io
import sys
import tracemalloc
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ckptplan import InputError
from ckptplan.torch import bptt
from ckptplan.torch.digests import project
from ckptplan.torch.pages import Pages
from ckptplan.torch.surroundings.holders import TensorHolder
from ckptplan.torch.surroundings.signature import hash_numbers
from ckptplan.torch.surroundings.snapshot import Place, list_counts
from ckptplan.torch.trees import are_equal_constants
from ckptplan.torch.trial import are_equal
from tests.torch.support import plan_of

STEPS = 6


def loss(_: int, output: Any) -> torch.Tensor:
    return torch.as_tensor(output).abs().square().sum()


def train(cell: Callable[[Any, Any], Any], inputs: Any = None, *, strategy: str = "revolve") -> torch.Tensor:
    inputs = torch.linspace(-1, 1, 3 * STEPS).view(STEPS, 3) if inputs is None else inputs
    result = bptt(cell, inputs, torch.zeros(3), loss, plan=plan_of(STEPS, strategy, states=6))
    result.loss.backward()
    return result.loss


class Mode(enum.Enum):
    REST, FIRED = 1, 2


def test_a_large_array_is_not_copied() -> None:
    """A data set that makes the inputs is a global or a variable, too."""
    data = np.zeros((STEPS, 2**20))
    weight = torch.ones(3, requires_grad=True)

    def cell(state: Any, x: Any) -> Any:
        state = 0.9 * state + weight * x
        return state, state

    tracemalloc.start()
    train(cell, lambda start, stop: torch.from_numpy(data[start:stop, :3]).float())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < data.nbytes / 4


class Stream:
    """An iterator with attributes of its own."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> float:
        self.position += 1
        return float(self.position)


class Streaming(torch.nn.Module):
    def __init__(self, *, reset: bool) -> None:
        super().__init__()
        self.weight, self.stream, self.reset = torch.nn.Parameter(torch.ones(3)), Stream(), reset

    def forward(self, state: Any, x: Any) -> Any:
        assert isinstance(self.stream, Stream)
        if self.reset:
            self.stream.position = 0
        state = 0.9 * state + self.weight * x * next(self.stream)
        return state, state


def test_an_iterator_of_an_own_class_stays_what_it_is() -> None:
    train(Streaming(reset=True))
    cell = Streaming(reset=False)
    with pytest.raises(InputError, match=r"cell\.stream\.position changes in a step"):
        train(cell)
    assert isinstance(cell.stream, Stream)
    assert cell.stream.position == 0


def test_a_log_file_stays_a_file(tmp_path: Path) -> None:
    weight = torch.ones(3, requires_grad=True)
    with (tmp_path / "log.txt").open("w") as log:

        def cell(state: Any, x: Any) -> Any:
            assert isinstance(log, io.IOBase)
            log.write("step")
            state = 0.9 * state + weight * x
            return state, state

        train(cell)


COUNTING = """
count = 0.0
def step(state, x):
    global count
    count += 1.0
    return 0.9 * state + x * count
"""


def test_state_in_another_module_is_refused_by_name() -> None:
    """A function that is called as ``helpers.step`` is searched, and so is ``helpers.count``."""
    helpers: Any = types.ModuleType("helpers_of_tests")
    exec(COUNTING, vars(helpers))  # noqa: S102 - a module that nothing else imports
    weight = torch.ones(3, requires_grad=True)

    def cell(state: Any, x: Any) -> Any:
        state = helpers.step(state, weight * x)
        return state, state

    with pytest.raises(InputError, match="count changes in a step"):
        train(cell)
    assert helpers.count == 0.0


def test_state_in_a_module_that_a_step_imports_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    helpers: Any = types.ModuleType("helpers_of_tests")
    exec(COUNTING, vars(helpers))  # noqa: S102 - a module that nothing else imports
    monkeypatch.setitem(sys.modules, "helpers_of_tests", helpers)
    weight = torch.ones(3, requires_grad=True)

    def cell(state: Any, x: Any) -> Any:
        import helpers_of_tests  # type: ignore[import-not-found]

        state = helpers_of_tests.step(state, weight * x)
        return state, state

    def other(state: Any, x: Any) -> Any:
        from helpers_of_tests import step

        state = step(state, weight * x)
        return state, state

    for one in (cell, other):
        with pytest.raises(InputError, match="count changes in a step"):
            train(one)
        assert helpers.count == 0.0


steps_taken = 0.0


def test_a_global_variable_that_is_reached_through_its_module_is_refused_by_name() -> None:
    weight = torch.ones(3, requires_grad=True)

    def cell(state: Any, x: Any) -> Any:
        here: Any = sys.modules[__name__]
        here.steps_taken += 1.0
        state = 0.9 * state + weight * x * here.steps_taken
        return state, state

    with pytest.raises(InputError, match="steps_taken changes in a step"):
        train(cell)


def count_in(module: Any) -> float:
    module.steps_taken += 1.0
    return float(module.steps_taken)


def test_a_global_variable_of_a_module_that_a_step_is_given_is_refused_by_name() -> None:
    """No code of the step names it as a global variable."""
    weight, here = torch.ones(3, requires_grad=True), (sys.modules[__name__],)

    def cell(state: Any, x: Any) -> Any:
        state = 0.9 * state + weight * x * count_in(here[0])
        return state, state

    with pytest.raises(InputError, match="steps_taken changes in a step"):
        train(cell)


def test_a_tensor_whose_memory_was_taken_away_is_passed_over() -> None:
    for shape in ((10,), (300, 400)):
        gone = torch.ones(shape).t() if len(shape) > 1 else torch.ones(shape)
        weight = torch.ones(3, requires_grad=True)

        def cell(state: Any, x: Any, gone: torch.Tensor = gone, weight: torch.Tensor = weight) -> Any:
            assert gone.dim()
            state = 0.9 * state + weight * x
            return state, state

        gone.untyped_storage().resize_(0)
        train(cell)
        assert weight.grad is not None


@pytest.mark.parametrize("make", [types.SimpleNamespace, argparse.Namespace, collections.UserDict])
def test_state_in_plain_objects_of_the_standard_library_is_refused_by_name(make: Callable[..., Any]) -> None:
    """Also if it changes results only after the first steps."""
    weight, kept = torch.ones(3, requires_grad=True), make(count=0.0)

    def cell(state: Any, x: Any) -> Any:
        if isinstance(kept, collections.UserDict):
            kept["count"] += 1.0
        else:
            kept.count += 1.0
        count = kept["count"] if isinstance(kept, collections.UserDict) else kept.count
        state = 0.9 * state + weight * x * (1 + (count > 4))
        return state, state

    with pytest.raises(InputError, match=r"kept.*count.* changes in a step"):
        train(cell)


def test_a_cell_that_keeps_text_is_not_called_a_loss() -> None:
    class Phases(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.phase = torch.nn.Parameter(torch.ones(3)), "rest"

        def forward(self, state: Any, x: Any) -> Any:
            gain = 2.0 if self.phase == "active" else 1.0
            self.phase = "active" if state.abs().sum() > 1 else "rest"
            state = 0.9 * state + self.weight * x * gain
            return state, state

    with pytest.raises(InputError, match=r"cell\.phase changes in a step") as refusal:
        train(Phases())
    assert refusal.value.field in ("cell", "cell or loss")


@pytest.mark.parametrize("make", [lambda: float("nan"), lambda: functools.partial(abs, -1)])
def test_constants_that_are_made_anew_in_each_step_are_equal(make: Callable[[], Any]) -> None:
    """NaN is not equal to itself, and each partial is an object of its own."""
    weight = torch.ones(3, requires_grad=True)

    def cell(state: Any, x: Any) -> Any:
        hidden = 0.9 * state[0] + weight * x
        return (hidden, make()), hidden

    inputs = torch.linspace(-1, 1, 3 * STEPS).view(STEPS, 3)
    result = bptt(cell, inputs, (torch.zeros(3), make()), loss, plan=plan_of(STEPS, "revolve"))
    result.loss.backward()
    assert weight.grad is not None


def test_constants_that_are_other_objects_differ() -> None:
    assert not are_equal_constants((Mode.REST,), (Mode.FIRED,), 1e-5)
    assert not are_equal_constants((torch.float32,), (torch.float64,), 1e-5)
    assert not are_equal_constants((lambda: 1,), (lambda: 2,), 1e-5)


def test_imaginary_parts_are_compared() -> None:
    one, other = torch.tensor([1 + 1j]), torch.tensor([1 + 5j])
    assert are_equal((one,), (one.clone(),))
    assert not are_equal((one,), (other,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int8, torch.bool])
def test_numbers_are_told_from_others_in_any_place(dtype: torch.dtype) -> None:
    numbers = torch.zeros(3, 20_000).to(dtype)
    before = hash_numbers(numbers)
    assert before == hash_numbers(numbers.clone())
    assert before != hash_numbers(numbers.view(20_000, 3))
    numbers[2, 19_999] = 1
    assert before != hash_numbers(numbers)


def test_a_tensor_that_grew_is_set_back_to_its_shape_and_numbers() -> None:
    """What is small enough to be counted by may become larger, and then small again."""
    kept = torch.arange(3.0)
    place = Place(TensorHolder("kept", kept, small=True), None)
    (source,) = list_counts([place], with_graph=())
    before = source.state()
    kept.resize_(20)
    large = source.state()
    source.restore(before)
    assert kept.tolist() == [0.0, 1.0, 2.0]
    source.restore(large)
    assert kept.tolist() == [0.0, 1.0, 2.0]


def test_digests_do_not_depend_on_the_default_device() -> None:
    state = torch.arange(3.0)
    usual = project(state)
    with torch.device("meta"):
        found = project(state)
    assert usual is not None
    assert found is not None
    assert torch.equal(found, usual)


def test_what_steps_reach_can_be_resized_as_before() -> None:
    """NumPy forbids it for what it has seen, and FSDP resizes what it gathers."""
    scale, module = [torch.ones(3)], torch.nn.BatchNorm1d(3)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = state * scale[0] + module(x.view(-1, 3).expand(2, 3) * torch.ones(2, 1).cumsum(0))[0]
        return state, state

    train(cell, torch.ones(STEPS, 3, requires_grad=True))
    for tensor in (scale[0], *module.buffers(), *(one.data for one in module.parameters())):
        tensor.untyped_storage().resize_(0)


class _Spike(torch.autograd.Function):
    """Fires, and gives gradients by slopes that nothing else sees."""

    @staticmethod
    def forward(ctx: Any, potential: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(potential)
        ctx.slopes = slopes.clone()
        return (potential > 0).to(potential)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (potential,) = ctx.saved_tensors
        return gradient / (1 + ctx.slopes * potential.abs()) ** 2, None


class _Firing(torch.nn.Module):
    """A layer with a slope for each neuron."""

    def __init__(self, *, neurons: int, changes_at: int | None, slopes: torch.Tensor | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(16, neurons)
        self.neurons, self.changes_at, self.slopes = neurons, changes_at, slopes

    def forward(self, state: Any, x: torch.Tensor) -> Any:
        potential, step = state
        if self.slopes is None:
            self.slopes = torch.full((self.neurons,), 2.0)
        if int(step) == self.changes_at:
            self.slopes.fill_(25.0)
        potential = 0.9 * potential + self.linear(x)
        spikes = _Spike.apply(potential - 1, self.slopes)  # type: ignore[no-untyped-call]
        return (potential - spikes.detach(), step + 1), spikes


def test_what_changes_late_and_only_gradients_see_is_refused_where_memory_has_no_room_for_a_copy() -> None:
    neurons = 10_000
    net = _Firing(neurons=neurons, changes_at=20, slopes=torch.full((neurons,), 2.0))
    state = torch.zeros(1, neurons), torch.zeros((), dtype=torch.long)
    with pytest.raises(InputError, match=r"slopes changes in a step"):
        bptt(net, torch.randn(200, 1, 16), state, loss, memory="5 MB").loss.backward()
    assert net.slopes is not None
    assert torch.equal(net.slopes, torch.full((neurons,), 2.0))


def test_a_cache_of_the_first_step_that_others_replace_before_the_backward_pass_is_refused() -> None:
    net = _Firing(neurons=64, changes_at=None, slopes=None)
    state = torch.zeros(8, 64), torch.zeros((), dtype=torch.long)
    inputs = torch.randn(200, 8, 16)
    for _ in range(2):
        bptt(net, inputs, state, loss, memory="200 kB").loss.backward()
    for _ in range(2):
        found = bptt(net, inputs, state, loss, memory="200 kB")
        net.slopes = torch.full((64,), 25.0)
        with pytest.raises(InputError, match=r"slopes changed between the forward and the backward pass"):
            found.loss.backward()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ([torch.tensor([1e5]), torch.tensor([1.0])], [torch.tensor([1e5]), torch.tensor([-1.0])]),
        ([torch.ones(10**5)], [torch.ones(10**5).index_fill(0, torch.tensor(7), 2.0)]),
        ([torch.tensor([-torch.inf, 1, 2])], [torch.tensor([-torch.inf, 2, 4])]),
        ([torch.tensor([torch.nan, 1, 2])], [torch.tensor([torch.nan, 2, 4])]),
    ],
    ids=["beside a large one", "one element of many", "beside an infinity", "beside NaN"],
)
def test_no_other_number_hides_a_difference(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert not are_equal(ours, theirs)
    assert are_equal(ours, [one.clone() for one in ours])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64, torch.bool])
def test_a_hash_tells_numbers_of_every_type(dtype: torch.dtype) -> None:
    numbers = torch.tensor([0.0, 1.0, 1.0]).to(dtype)
    other = numbers * (1j if dtype.is_complex else 0)
    assert hash_numbers(numbers) == hash_numbers(numbers.clone()) != hash_numbers(other.to(dtype))
    assert hash_numbers(numbers.expand(2, 3)) == hash_numbers(torch.stack([numbers, numbers]))


def test_pages_in_files_are_few() -> None:
    """Each is an open file, of which a process may have about a thousand."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    pages = Pages(in_file=True)
    kept = [pages.keep(torch.full((2**16,), float(number))) for number in range(64)]
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 8
    assert [one[0].item() for one in kept] == list(range(64))
