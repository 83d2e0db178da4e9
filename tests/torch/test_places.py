"""Law: a place that steps change is a part of the state, wherever it is, and looking at places costs little."""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import io
import sys
import tracemalloc
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

import ckptplan
from ckptplan import InputError
from ckptplan.schedule.actions import Backward, Record
from ckptplan.torch import bptt
from ckptplan.torch.device.meters import LiveBytes
from tests.torch.limit_tables import STRATEGIES, mean_square, plan_steps
from tests.torch.support import assert_close, forget_measurements, gradients, gru, job, plain, plan_of

STEPS = 16
PLANS = {name: plan_steps(STEPS, name) for name in STRATEGIES}


@pytest.fixture(autouse=True)
def forget() -> None:
    forget_measurements()


def squares(_: int, output: Any) -> torch.Tensor:
    return torch.as_tensor(output).abs().square().sum()


def number_steps() -> torch.Tensor:
    """Return inputs that say which step it is."""
    return torch.arange(STEPS, dtype=torch.float64).view(STEPS, 1, 1).expand(STEPS, 3, 4)


def run_again(cell: Any, inputs: Any, state: Any, loss: Any = squares) -> None:
    """Train once under a plan that runs steps again."""
    bptt(cell, inputs, state, loss, plan=PLANS["revolve"]).loss.backward()


def compare(make: Callable[[], Any], strategy: str, wanted: Any = None) -> None:
    """Compare two calls under a plan with plain loops; all of them begin with what ``make`` returns."""
    found = []
    for planned in (True, True, False):
        torch.manual_seed(0)
        cell = make()
        start = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
        parameters = list(cell.parameters()) if isinstance(cell, torch.nn.Module) else []
        if planned:
            total = bptt(cell, number_steps(), start, squares, plan=PLANS[strategy]).loss
        else:
            outputs, _ = plain(cell, number_steps(), start, STEPS)
            total = sum((squares(0, output) for output in outputs), torch.zeros(()))
        found.append(gradients(total, [start, *parameters, *(wanted or [])]))
    assert_close(found[0], found[2], relative=1e-9)
    assert_close(found[1], found[2], relative=1e-9)


# What a cell keeps


class Holder(torch.nn.Module):
    """A cell that keeps a tensor with its graph, from a late step on, and reads it there and later."""

    def __init__(self, begin: int) -> None:
        super().__init__()
        self.layer, self.begin = torch.nn.Linear(4, 4).double(), begin
        self.membrane: Any = None
        self.cache: dict[str, Any] = {}
        self.trace: list[Any] = []
        self.last: torch.Tensor
        self.register_buffer("last", torch.zeros(3, 4).double())

    def keep(self, value: Any) -> None:
        self.membrane = value

    def kept(self) -> Any:
        return self.membrane

    def make(self, state: Any, x: Any) -> Any:
        """Return what is kept; it depends on the input and the weights."""
        return self.layer(0.1 * x + state.detach()).tanh()

    def forward(self, state: Any, x: Any) -> tuple[Any, Any]:
        if x[0, 0] >= self.begin:
            self.keep(self.make(state, x))
        held = self.kept()
        state = torch.tanh(self.layer(0.1 * x) + state)
        if held is not None:
            state = state + 0.1 * held.square()
        return state, state


class OfState(Holder):
    """What is kept depends on the state, so that its graph begins where another chunk does."""

    def make(self, state: Any, x: Any) -> Any:
        return state.tanh() + 0.1 * x


class InBuffer(Holder):
    def keep(self, value: Any) -> None:
        self.last = value

    def kept(self) -> Any:
        return self.last


class InCache(Holder):
    def make(self, state: Any, x: Any) -> Any:  # noqa: ARG002 - it overrides
        return self.layer.weight.exp().sum(0)

    def keep(self, value: Any) -> None:
        self.cache["weight"] = value

    def kept(self) -> Any:
        return self.cache.get("weight")


class InList(Holder):
    def keep(self, value: Any) -> None:
        self.trace.append({"spikes": value})

    def kept(self) -> Any:
        return self.trace[-1]["spikes"] if self.trace else None


class Outer(torch.nn.Module):
    """A network that calls the holder."""

    def __init__(self, begin: int) -> None:
        super().__init__()
        self.inner = Holder(begin)

    def forward(self, state: Any, x: Any) -> tuple[Any, Any]:
        state, output = self.inner(state, x)
        return state, output


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("begin", [0, 7, STEPS - 1])
@pytest.mark.parametrize("make", [Holder, OfState, InBuffer, InCache, InList, Outer])
def test_tensors_that_steps_keep_with_graphs_carry_gradients(make: Any, begin: int, strategy: str) -> None:
    compare(lambda: make(begin), strategy)


def mix(state: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    return state + 0.1 * last


READERS: dict[str, Callable[[], Callable[[Any, Any], Any]]] = {
    "no step": lambda: lambda state, _: state,
    "a step": lambda: mix,
    "TorchScript": lambda: torch.jit.script(mix),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*is deprecated")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("begin", [0, 9])
@pytest.mark.parametrize("reader", READERS)
def test_what_each_step_leaves_is_right_whoever_reads_it(reader: str, begin: int, strategy: str) -> None:
    """Checkpoints have what no step reads first in none of them; each call finds what the last one left."""

    def train(planned: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layer, read = torch.nn.Linear(4, 4).double(), READERS[reader]()
        holder = types.SimpleNamespace(last=torch.zeros(3, 4).double(), pair=())

        def cell(state: Any, x: Any) -> Any:
            state = torch.tanh(layer(0.1 * x) + state)
            if x[0, 0] >= begin:
                for last in (holder.last, *holder.pair):
                    state = read(state, last)
            holder.last, holder.pair = state, (state.sin(), state.cos())
            return state, state

        found, start = [], torch.zeros(3, 4, dtype=torch.float64)
        for _ in range(3):
            if planned:
                total = bptt(cell, number_steps(), start, squares, plan=PLANS[strategy]).loss
            else:
                total = torch.stack(
                    [squares(0, one) for one in plain(cell, number_steps(), start, STEPS)[0]]
                ).sum()
            found += gradients(total, list(layer.parameters()))
            if reader != "no step":
                holder.last, holder.pair = holder.last.detach(), ()
        return found

    assert_close(train(planned=True), train(planned=False), relative=1e-9)


def test_a_module_without_numbers_may_stand_for_others() -> None:
    """As torch.func.functional_call needs it for an ensemble."""
    parameters = {name: torch.rand(2, *shape).double() for name, shape in (("weight", (4, 4)), ("bias", (4,)))}
    wanted, empty = [one.requires_grad_() for one in parameters.values()], torch.nn.Linear(4, 4, device="meta")

    def cell(state: Any, x: Any) -> Any:
        outputs = torch.vmap(lambda own: torch.func.functional_call(empty, own, (state,)))(parameters)
        state = outputs.mean(0).tanh() + 0.1 * x
        return state, state

    for strategy in STRATEGIES:
        compare(lambda: cell, strategy, wanted)


def make_counter(kept: Any, count: Callable[[Any], float]) -> Any:
    """Return a cell whose steps read a number that each of them changes."""
    weight = torch.full((4,), 0.5, dtype=torch.float64, requires_grad=True)

    def cell(state: Any, x: Any) -> Any:
        number = count(kept)
        state = 0.9 * state + weight * (0.1 * x) * (1 + (number > 4)) + 0.01 * number
        return state, state.tanh()

    return cell


def count_attribute(kept: Any) -> float:
    kept.count += 1.0
    return float(kept.count)


def count_item(kept: Any) -> float:
    kept["count"] += 1.0
    return float(kept["count"])


def count_global(kept: Any) -> float:
    kept.count_globally()
    return float(kept.count)


def count_by_name(_: Any) -> float:
    here: Any = sys.modules[__name__]
    here.steps_taken += 1.0
    return float(here.steps_taken)


def count_by_import(_: Any) -> float:
    import helpers_of_tests  # type: ignore[import-not-found]

    helpers_of_tests.count_globally()
    return float(helpers_of_tests.count)


def count_grown(kept: torch.Tensor) -> float:
    with torch.no_grad():
        kept.resize_(len(kept) + 1).fill_(len(kept))
    return float(kept.sum())


class Stream:
    """An iterator with attributes of its own."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> float:
        self.position += 1
        return float(self.position)


class Phases:
    """Text, as a phase of an automaton."""

    phase = "rest"

    def advance(self) -> float:
        self.phase = {"rest": "rise", "rise": "fall", "fall": "rest"}[self.phase]
        return float(self.phase == "rise")


class Property:
    """A property whose setter changes a global."""

    count = property(lambda _: 0.0, lambda _, __: count_by_name(None))  # type: ignore[arg-type]

    def advance(self) -> float:
        self.count = 1.0
        return steps_taken


kept_alive: list[Any] = []


def make_referred() -> Any:
    kept_alive[:] = [argparse.Namespace(count=0.0)]
    return [weakref.ref(kept_alive[0])]


def make_module() -> Any:
    """Return a module with a global variable that its function changes."""
    module: Any = types.ModuleType("helpers_of_tests")
    code = "count = 0.0\ndef count_globally():\n    global count\n    count += 1.0"
    exec(code, vars(module))  # noqa: S102 - a module that nothing else imports
    return module


steps_taken = 0.0
COUNTERS: dict[str, tuple[Callable[[], Any], Callable[[Any], float]]] = {
    "a namespace": (lambda: types.SimpleNamespace(count=0.0), count_attribute),
    "parsed arguments": (lambda: argparse.Namespace(count=0.0), count_attribute),
    "a dict in disguise": (lambda: collections.UserDict(count=0.0), count_item),
    "a default dict": (lambda: collections.defaultdict(float), count_item),
    "a global of another module": (make_module, count_global),
    "a global of a module that a step imports": (lambda: None, count_by_import),
    "a module that a step is given": (lambda: [sys.modules[__name__]], lambda held: count_by_name(held[0])),
    "an iterator": (Stream, next),
    "text": (Phases, Phases.advance),
    "a tensor that grows": (lambda: torch.zeros(1), count_grown),
    "an object with a weak reference to it": (make_referred, lambda held: count_attribute(held[0]())),
    "what a property sets": (Property, Property.advance),
}


@pytest.fixture
def helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "helpers_of_tests", make_module())
    monkeypatch.setitem(globals(), "steps_taken", 0.0)


@pytest.mark.usefixtures("helpers")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", COUNTERS)
def test_what_steps_change_is_saved_and_put_back(kind: str, strategy: str) -> None:
    make, count = COUNTERS[kind]

    def begin() -> Any:
        sys.modules["helpers_of_tests"] = make_module()
        globals()["steps_taken"] = 0.0
        return make_counter(make(), count)

    compare(begin, strategy)


@pytest.mark.parametrize("make", [lambda: float("nan"), lambda: functools.partial(abs, -1)])
def test_constants_that_are_made_again_in_each_step_are_equal(make: Callable[[], Any]) -> None:
    """NaN is not equal to itself, and each partial is an object of its own."""
    weight = torch.ones(3, requires_grad=True)

    def cell(state: Any, x: Any) -> Any:
        hidden = 0.9 * state[0] + weight * x
        return (hidden, make()), hidden

    run_again(cell, torch.rand(STEPS, 3), (torch.zeros(3), make()))
    assert weight.grad is not None


def test_a_log_file_stays_a_file(tmp_path: Path) -> None:
    weight = torch.ones(3, requires_grad=True)
    with (tmp_path / "log.txt").open("w") as log:

        def cell(state: Any, x: Any) -> Any:
            assert isinstance(log, io.IOBase)
            log.write("step")
            state = 0.9 * state + weight * x
            return state, state

        run_again(cell, torch.rand(STEPS, 3), torch.zeros(3))


def test_what_steps_reach_can_be_resized_as_before() -> None:
    """NumPy forbids it for what it has seen, and FSDP resizes what it gathers."""
    scale, module, gone = [torch.ones(3)], torch.nn.BatchNorm1d(3), torch.ones(300, 40).t()
    gone.untyped_storage().resize_(0)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        assert gone.dim()
        state = state * scale[0] + module(x.view(-1, 3).expand(2, 3) * torch.ones(2, 1).cumsum(0))[0]
        return state, state

    run_again(cell, torch.ones(STEPS, 3, requires_grad=True), torch.zeros(3))
    for tensor in (scale[0], *module.buffers(), *(one.data for one in module.parameters())):
        tensor.untyped_storage().resize_(0)


class Symmetric(torch.nn.Module):
    def forward(self, weight: Any) -> Any:
        return (weight.triu() + weight.triu(1).T).exp()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("cached", [False, True])
def test_weights_that_parametrize_caches_carry_gradients(cached: bool, strategy: str) -> None:
    def make() -> Any:
        net = Holder(STEPS)
        parametrize.register_parametrization(net.layer, "weight", Symmetric())
        return net

    with parametrize.cached() if cached else contextlib.nullcontext():
        compare(make, strategy)


# What is refused


def test_a_tensor_that_a_step_changes_in_place_fails_as_in_a_plain_loop() -> None:
    scale = torch.ones(4)

    def cell(state: Any, x: Any) -> tuple[Any, Any]:
        state = torch.tanh(state * scale + x)
        if x[0, 0] == 2:
            scale.mul_(1)
        return state, state

    schedule = ckptplan.Schedule(steps=4, actions=[Record(0, 4), Backward(0, 4)])
    start = torch.zeros(3, 4, requires_grad=True)
    with pytest.raises((InputError, RuntimeError), match="modified by an inplace operation"):
        bptt(cell, number_steps()[:4].float(), start, squares, plan=schedule).loss.backward()


def test_other_errors_of_a_late_step_stay_what_they_are() -> None:
    def cell(state: Any, x: Any) -> tuple[Any, Any]:
        if x[0, 0] == STEPS - 1:
            raise RuntimeError("out of paper")
        return state + x, state

    start = torch.zeros(3, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="out of paper"):
        run_again(cell, number_steps().float(), start)


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("way", [{"plan": PLANS["standard"]}, {"memory": "1 GB"}])
def test_reentrant_checkpoints_are_refused_by_name(way: dict[str, Any]) -> None:
    module = torch.nn.GRUCell(4, 4)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        state = checkpoint(module, x, state, use_reentrant=True)
        return state, state

    start = torch.zeros(3, 4, requires_grad=True)
    with pytest.raises((InputError, RuntimeError), match="use_reentrant=False"):
        gradients(bptt(cell, torch.randn(STEPS, 3, 4), start, squares, **way).loss, [start])


# What it costs


@pytest.mark.parametrize("held", ["by the inputs", "by the loss"])
def test_a_large_array_is_not_copied(held: str) -> None:
    """A data set is a global or a variable, too."""
    data, (cell, _) = numpy.zeros((STEPS, 2**18)), gru()
    inputs, state = job(STEPS)

    def make(start: int, stop: int) -> torch.Tensor:
        return torch.from_numpy(data[start:stop, :15].reshape(-1, 3, 5))

    def loss(step: int, output: torch.Tensor) -> torch.Tensor:
        return (output - float(data[step, 0])).square().mean()

    tracemalloc.start()
    run_again(cell, *((make, state) if held == "by the inputs" else (inputs, state, loss)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < data.nbytes / 4


GRU = torch.nn.GRUCell(4, 64)


def run_gru(loss: Any, *, after: Callable[..., Any] = torch.clone, **options: Any) -> int:
    """Return the most live bytes of a first call; the cell returns what comes ``after`` a GRU."""
    forget_measurements()

    def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[Any, Any]:
        state = after(GRU(x, state))
        return state, state

    options = options or {"memory": 400_000}
    with LiveBytes() as live:
        bptt(cell, torch.ones(50, 16, 4), torch.zeros(16, 64), loss, **options).loss.backward()
    GRU.zero_grad()
    return int(live.peak)


in_memory = pytest.mark.xfail(strict=True, reason="a first call copies small tensors into memory that counts")


@pytest.mark.parametrize(
    "held",
    [
        "one tensor",
        pytest.param("a list", marks=in_memory),
        pytest.param("a list, with a record of values", marks=in_memory),
    ],
)
def test_targets_that_a_loss_closes_over_take_nothing_of_a_limit(held: str) -> None:
    """Neither in one tensor nor in many small ones, which a loss that only reads leaves as they are."""
    given, values = torch.randn(50, 200, 64), dict[int, float]()
    targets = given if held == "one tensor" else [*given.clone().unbind(0)]

    def loss(step: int, output: torch.Tensor) -> torch.Tensor:
        value = (output - targets[step][:16]).square().mean()
        if held.endswith("values"):
            values[step] = value.item()
        return value

    # What a process keeps for its later calls is none of a call's.
    run_gru(mean_square)
    assert run_gru(loss) <= 400_000
    assert len(values) == 50 * held.endswith("values")


@in_memory
def test_many_small_tensors_of_a_list_take_nothing_of_a_limit() -> None:
    """Eight times the limit, which the cell only reads; a first call may pass a limit by a little."""
    tables = [torch.randn(2048) for _ in range(400)]
    run_gru(mean_square)
    assert run_gru(mean_square, after=lambda state: state * tables[3][:64]) <= 1.02 * 400_000


@pytest.mark.parametrize("how", ["counted", "by numpy", "one large record"])
def test_what_a_loss_writes_is_written_once(how: str) -> None:
    """Also through NumPy, which counts no version."""
    whole = torch.zeros(50, 16, 64)
    records = [whole[step] if how == "one large record" else torch.zeros(16, 64) for step in range(50)]

    def loss(step: int, output: torch.Tensor) -> torch.Tensor:
        if how == "one large record":
            whole[step] += output.detach()
        elif how == "counted":
            records[step].add_(output.detach())
        else:
            records[step].numpy()[:] += output.detach().numpy()
        return output.square().mean()

    if how == "one large record":
        options: Any = {"plan": plan_of(50, "standard", states=20)}
    else:
        options = {"memory": 2_000_000}
    run_gru(loss, **options)
    state = torch.zeros(16, 64)
    with torch.no_grad():
        for record in records:
            state = GRU(torch.ones(16, 4), state)
            torch.testing.assert_close(record, state)
