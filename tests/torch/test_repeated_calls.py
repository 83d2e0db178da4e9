"""Law: a call that finds everything as an earlier one left it runs the plan's steps, and no others.

Whatever changes between calls, gradients are those of plain BPTT. Steps are counted in an ``array.array``, into
which the search for places does not look.
"""

from __future__ import annotations

import functools
import gc
import weakref
from array import array
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

import pytest
import torch

from ckptplan import InputError
from ckptplan.torch import bptt, run_call, unroll
from ckptplan.torch.adapters import TorchCell
from tests.torch.limit_tables import mean_square
from tests.torch.support import assert_close, forget_measurements, gradients, job, plain, plan_of
from tests.torch.tables import STEPS, squares

PLAN = plan_of(STEPS, "standard", states=16)
#: How often steps run under the plan.
OWN = STEPS + PLAN.predicted.recomputed_steps
SCALE = 1.0


@pytest.fixture(autouse=True)
def forget() -> None:
    forget_measurements()


def count_of(calls: array[int]) -> int:
    """Return the number of steps since it was asked before."""
    found, calls[0] = calls[0], 0
    return found


class Net(torch.nn.Module):
    """A cell with attributes of many kinds, which decide what a step does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.calls = array("q", [0])
        self.gru = torch.nn.GRUCell(5, 7)
        self.added: torch.nn.Module | None = None
        self.mode, self.scale, self.sizes = "plain", 1.0, {"depth": [1, 2]}
        self.weight: torch.Tensor | None = None
        self.list = [torch.nn.Parameter(torch.ones(7).double())]
        self.norm = torch.nn.BatchNorm1d(7, track_running_stats=False)
        self.generator: torch.Generator | None = None
        self.flags: torch.Tensor
        self.register_buffer("flags", torch.tensor([1.0, 1.0]))
        self.double()

    def forward(self, state: Any, x: torch.Tensor) -> Any:
        self.calls[0] += 1
        hidden = state[0] if isinstance(state, tuple) else state
        after = self.gru(x, hidden.to(x.dtype)) * self.list[0] * self.scale * SCALE * self.flags[0]
        if self.added is not None:
            after = self.added(after)
        if self.weight is not None:
            after = after * self.weight
        if self.mode == "norm":
            after = self.norm(after)
        if self.generator is not None:
            after = after + torch.randn(7, generator=self.generator, dtype=after.dtype)
        if self.training:
            after = after.tanh()
        after = after * len(self.sizes["depth"]) / 2
        return ((after, state[1] + after) if isinstance(state, tuple) else after), after


def run_plan(cell: Any) -> None:
    inputs, state = job(STEPS)
    bptt(cell, inputs, state, squares, plan=PLAN).loss.backward()


def change_results(net: Net, change: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a cell that returns something else than a network: of its state and its output."""
    return lambda state, x: change(*net(state, x))


def take_gradients(
    cell: Any, inputs: Any, state: Any, loss: Any, wanted: list[torch.Tensor], *, planned: bool, **options: Any
) -> list[torch.Tensor]:
    """Return the gradients of a planned sequence, or of a plain loop."""
    torch.manual_seed(1)
    if planned:
        return gradients(bptt(cell, inputs, state, loss, plan=PLAN, **options).loss, wanted)
    terms = []
    for step in range(STEPS):
        state, output = cell(state, inputs[step])
        terms.append(loss(step, output))
    return gradients(torch.stack(terms).sum(), wanted)


def compare(cell: Any, wanted: list[torch.Tensor]) -> None:
    """Compare the gradients of a planned sequence and of a plain loop."""
    inputs, state = job(STEPS)
    ours, theirs = (
        take_gradients(cell, inputs, state, squares, wanted, planned=planned) for planned in (True, False)
    )
    assert_close(ours, theirs, relative=1e-9)


def assert_right(net: Net, *, cell: Any = None, loss: Any = squares, state: Any = None, **options: Any) -> int:
    """Assert that gradients are those of a plain loop; return how many steps ran under the plan."""
    inputs, start = job(STEPS)
    state = start if state is None else state
    cell = net if cell is None else cell
    lone = [net.weight] if isinstance(net.weight, torch.Tensor) else []
    wanted = [inputs, *(one for one in (*net.parameters(), *net.list, *lone) if one.requires_grad)]
    generator = torch.Generator() if net.generator is None else net.generator
    drawn = generator.get_state()
    count_of(net.calls)
    ours = take_gradients(cell, inputs, state, loss, wanted, planned=True, **options)
    ran = count_of(net.calls)
    generator.set_state(drawn)
    theirs = take_gradients(cell, inputs, state, loss, wanted, planned=False)
    assert_close(ours, theirs, relative=1e-9)
    return ran


# What is recognised


#: A function that takes the number of a call, trains, and returns how many steps ran.
Training = Callable[[int], int]


def repeat(net: Net) -> Training:
    return lambda _: assert_right(net)


def define_functions(net: Net) -> Training:
    """Define the cell and the loss in each call, as a training loop does."""

    def train(number: int) -> int:
        target = torch.full((3, 7), float(number)).double()

        def measure(_: int, output: torch.Tensor, target: torch.Tensor = target) -> torch.Tensor:
            return (output - target).square().sum()

        return assert_right(
            net,
            cell=lambda state, x: net(state, x),  # noqa: PLW0108
            loss=lambda step, output: measure(step, output),  # noqa: PLW0108
        )

    return train


def leave_a_variable_unset(net: Net, *, pooled: bool = False) -> Training:
    """Name a variable of an enclosing function that may have no value, as ``pool`` of a network without one."""
    value = 1.0

    def make() -> Callable[[Any, Any], Any]:
        if pooled:
            pool = value

        def cell(state: Any, x: Any) -> Any:
            after, output = net(state, x)
            return after, output * pool if pooled else output

        return cell

    return lambda _: assert_right(net, cell=make())


def _step(module: Any, state: torch.Tensor, x: torch.Tensor) -> Any:
    after = module(x, state)
    return after, after


def make_wrappers(make: Callable[[Any], Any], _: Net) -> Training:
    """Make an adapter or a partial function in each call."""
    calls, torch_cell = array("q", [0]), torch.nn.RNNCell(5, 7).double()
    torch_cell.register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))

    def train(_: int) -> int:
        run_plan(make(torch_cell))
        return count_of(calls)

    return train


def use_recurrent_layers(net: Net) -> Training:
    """Run layers that hold weak references to their weights."""
    layers = torch.nn.GRU(5, 7, num_layers=2).double()
    first = job(STEPS)[0][:1].detach()
    cell = change_results(net, lambda state, output: (state, output + layers(first)[0].mean()))
    return lambda _: assert_right(net, cell=cell)


def optimize(net: Net) -> Training:
    """Change weights after each call."""
    optimizer = torch.optim.Adam([*net.parameters(), *net.list], lr=1e-2)

    def train(_: int) -> int:
        ran = assert_right(net)
        run_plan(net)
        optimizer.step()
        optimizer.zero_grad()
        return ran

    return train


def run_statistics(net: Net) -> Training:
    """Go on with running statistics and a counter of steps where the sequence before ended."""
    norm, calls = torch.nn.BatchNorm1d(7).double(), array("q", [0])

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        calls[0] += 1
        after = norm(net.gru(x, state))
        return after, after

    def train(number: int) -> int:
        run_plan(cell)
        assert norm.num_batches_tracked == STEPS * (number + 1)
        return count_of(calls)

    return train


def return_outputs(net: Net) -> Training:
    inputs, state = job(STEPS)

    def train(_: int) -> int:
        unroll(net, inputs, state, plan=PLAN)[0].sum().backward()
        return count_of(net.calls)

    return train


RECOGNISED: dict[str, Callable[[Net], Training]] = {
    "the same call": repeat,
    "functions that are defined again": define_functions,
    "a variable without a value": leave_a_variable_unset,
    "a variable with a value": partial(leave_a_variable_unset, pooled=True),
    "an adapter that is made again": partial(make_wrappers, TorchCell),
    "a partial function that is made again": partial(make_wrappers, lambda module: partial(_step, module)),
    "recurrent layers of PyTorch": use_recurrent_layers,
    "training steps in between": optimize,
    "running statistics": run_statistics,
    "unroll": return_outputs,
}


@pytest.mark.parametrize("name", RECOGNISED)
def test_later_calls_of_a_kind_run_only_the_steps_of_the_plan(name: str) -> None:
    train = RECOGNISED[name](Net())
    assert train(0) > OWN
    assert [train(number) for number in (1, 2, 3)] == [OWN] * 3


def test_a_variable_that_gets_a_value_makes_another_call() -> None:
    net = Net()
    for pooled in (False, True):
        train = leave_a_variable_unset(net, pooled=pooled)
        assert train(0) > OWN == train(1)


class Turning(torch.nn.Module):
    """A cell that keeps its last state, and counts in a circle: a sequence leaves the count as it found it."""

    def __init__(self, phase: Any) -> None:
        super().__init__()
        self.calls, self.phase = array("q", [0]), phase
        self.gru = torch.nn.GRUCell(5, 7).double()
        self.last: torch.Tensor | None = None

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        self.calls[0] += 1
        self.phase = (self.phase + 1) % STEPS
        self.last = self.gru(x, state)
        return self.last, self.last


@pytest.mark.parametrize("phase", [0, torch.tensor(0)], ids=["number", "tensor"])
def test_what_a_sequence_leaves_costs_one_more_trial_at_most(phase: Any) -> None:
    """The second call finds a last state where the first one found none."""
    cell = Turning(phase)
    for call in range(4):
        run_plan(cell)
        assert count_of(cell.calls) == OWN or call < 2
        assert cell.phase == 0


def test_calls_without_gradients_run_each_step_once() -> None:
    """As a loop does; so a call with gradients finds out everything by itself."""
    net = Net()
    inputs, state = job(STEPS)
    for _ in range(2):
        with torch.no_grad():
            bptt(net, inputs, state, squares, plan=PLAN)
        assert count_of(net.calls) == STEPS
    assert assert_right(net) > OWN


# What is seen


def _override(net: Net) -> None:
    net.gru.forward = MethodType(  # type: ignore[method-assign]
        lambda self, x, h: torch.nn.GRUCell.forward(self, x, h) * 0.5, net.gru
    )


CHANGES: dict[str, Callable[[Net], object]] = {
    "a text": lambda net: setattr(net, "mode", "norm"),
    "a number": lambda net: setattr(net, "scale", 0.5),
    "a list in a dict": lambda net: net.sizes["depth"].append(3),
    "a module swapped": lambda net: setattr(net, "gru", torch.nn.GRUCell(5, 7).double()),
    "a module added": lambda net: setattr(net, "added", torch.nn.Linear(7, 7).double()),
    "a parameter added": lambda net: setattr(net, "weight", torch.ones(7).double().requires_grad_()),
    "a parameter replaced": lambda net: net.list.__setitem__(0, torch.nn.Parameter(net.list[0] / 2)),
    "a parameter frozen": lambda net: net.gru.weight_hh.requires_grad_(False),
    "a buffer changed in place": lambda net: net.flags.mul_(0.5),
    "a hook": lambda net: net.gru.register_forward_hook(lambda _, __, output: output * 0.5),
    "a method": _override,
    "a global": lambda _: globals().update(SCALE=0.25),
    "eval": torch.nn.Module.eval,
    "a generator": lambda net: setattr(net, "generator", torch.Generator().manual_seed(3)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_gradients_are_right_after_a_change_between_calls(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SCALE", 1.0)
    net = Net()
    assert_right(net)
    assert_right(net)
    CHANGES[change](net)
    assert_right(net)
    assert assert_right(net) == OWN


def test_a_parameter_that_is_thawed_gets_its_gradient() -> None:
    net = Net()
    net.gru.requires_grad_(False)
    for thawed in (False, False, True, True, False):
        net.gru.requires_grad_(thawed)
        assert_right(net)
        net.zero_grad()
        run_plan(net)
        assert (net.gru.weight_ih.grad is not None) == thawed


def test_a_closure_with_other_contents_is_another_one() -> None:
    net, weights = Net(), [torch.full((7,), 0.5 + one).double().requires_grad_() for one in range(3)]

    def make(weight: Any, power: int) -> Any:
        return lambda _, output: (output * weight).pow(power).sum()

    for weight in weights:
        # Another tensor in the same place.
        net.weight = weight
        assert_right(net, loss=make(weight, 2))
    net.weight = None
    assert_right(net, loss=make(2.0, 2))
    for power in (2, 4):
        ran = assert_right(net, loss=make(2.0, power))
        assert ran == OWN if power == 2 else ran > OWN


def test_other_modes_types_and_states_are_other_calls() -> None:
    net = Net()
    inputs, start = job(STEPS)
    zeros = torch.zeros_like(start)
    assert_right(net)
    assert assert_right(net, state=(zeros, zeros)) > OWN
    assert assert_right(net, state=zeros) > OWN  # it requires no gradient
    assert assert_right(net, verify=False) > OWN
    assert assert_right(net, replay_randomness=False) > OWN
    for enabled in (True, False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            run_plan(net)
            ran = count_of(net.calls)
    assert ran == OWN
    assert assert_right(net) == OWN
    net.float()
    bptt(net, inputs.float().detach(), zeros.float(), squares, plan=PLAN).loss.backward()
    assert count_of(net.calls) > OWN
    net.double()
    assert assert_right(net) == OWN


# What a call finds out later


def test_a_parameter_that_appears_where_nothing_looks_gets_its_gradient() -> None:
    net = Net()
    # A container this long is not searched.
    store: dict[int, Any] = dict.fromkeys(range(600))
    store[0] = torch.ones(7).double().requires_grad_()
    cell = change_results(net, lambda state, output: (state * store[0], output * store[0]))
    for call in range(4):
        if call == 2:
            store[0] = torch.full((7,), 0.5).double().requires_grad_()
        compare(cell, [store[0], *net.gru.parameters()])


@pytest.mark.parametrize("most", [1, None])
@pytest.mark.parametrize("spoil", ["evict", "clear", "clear and fill", "fill with a graph"])
def test_a_cache_that_others_changed_gives_no_wrong_gradient(spoil: str, most: int | None) -> None:
    """Else the first step would fill it without a graph, and the weight would get no gradient."""
    net, weight = Net(), torch.full((7,), 0.5).double().requires_grad_()
    scale: Any = functools.lru_cache(maxsize=most)(lambda key: weight * key)
    inputs, state = job(STEPS)
    cell = change_results(net, lambda state, output: (state * scale(2), output))

    def train(planned: bool) -> list[torch.Tensor]:
        return take_gradients(cell, inputs, state, squares, [weight, net.gru.weight_hh], planned=planned)

    with torch.no_grad():
        scale(2)
    for _ in range(2):
        assert_close(train(planned=True), train(planned=False), relative=1e-9)
    found = []
    for planned in (True, False):
        with torch.set_grad_enabled(spoil == "fill with a graph"):
            if spoil != "evict":
                scale.cache_clear()
            if spoil != "clear":
                scale(2 if spoil == "fill with a graph" else 3)
        if planned and not ((spoil == "evict" and most is None) or spoil == "fill with a graph"):
            with pytest.raises(InputError, match="fills scale, a cache of results"):
                train(planned=True)
            return
        try:
            found.append(train(planned))
        except RuntimeError as error:
            # The graph in the cache is the caller's: PyTorch goes through it once.
            assert planned and "a second time" in str(error)  # noqa: PT017, PT018
            return
    assert_close(*found, relative=1e-9)


def test_a_cache_of_numbers_may_be_filled_in_any_call() -> None:
    """Whoever asks first, they are the same."""
    net, key = Net(), array("q", [2])
    size = functools.lru_cache(maxsize=1)(float)
    cell = change_results(net, lambda state, output: (state * size(key[0]), output))
    size(2)
    for call in range(4):
        key[0] = 2 + call // 2
        compare(cell, list(net.gru.parameters()))


def test_a_large_record_that_begins_later_is_refused_once() -> None:
    """The sequence cannot begin again without a copy; the same call in another process may."""
    net, switch = Net(), array("q", [0])
    record = torch.zeros(20_000).double()

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        if switch[0]:
            record[0] = switch[0]
        return net(state, x)

    for switch[0] in (0, 0, 1, 1, 1):
        if switch[0] and not record[0]:
            with pytest.raises(InputError, match="a later step writes into record, of which there is no copy"):
                run_plan(cell)
        else:
            assert_right(net, cell=cell)


class WithStatistics:
    """A function with statistics of its own, which are no ``functools.lru_cache``."""

    __slots__ = ("cache_info",)

    def __init__(self) -> None:
        self.cache_info = {"hits": 0}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x


class WithReport:
    def cache_info(self, key: str) -> str:
        return key

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize("kind", [WithStatistics, WithReport])
def test_an_object_with_cache_info_is_no_cache(kind: type) -> None:
    net, change = Net(), kind()
    for _ in range(2):
        assert_right(net, cell=lambda state, x: net(state, change(x)))


@pytest.mark.parametrize("reads", [False, True], ids=["a record", "hidden state"])
def test_what_steps_begin_to_keep_later_is_right(reads: bool) -> None:
    """Nothing shows that it will begin, so the sequence begins again, and counts each step once."""
    net, switch = Net(), array("q", [0])
    kept: dict[str, Any] = {"sum": torch.zeros(3, 7).double(), "steps": []}

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        after, output = net(state, x)
        if switch[0]:
            kept["steps"].append(1)
            kept["sum"] = kept["sum"] + output
            output = output * kept["sum"] if reads else output
        return after, output

    assert_right(net, cell=cell)
    assert assert_right(net, cell=cell) == OWN
    switch[0], inputs = 1, job(STEPS)[0]
    found = []
    for planned in (True, False):
        kept.update(sum=torch.zeros(3, 7).double(), steps=[])
        wanted = [inputs, *net.gru.parameters()]
        found.append(take_gradients(cell, inputs, job(STEPS)[1], squares, wanted, planned=planned))
        assert len(kept["steps"]) == STEPS
    assert_close(*found, relative=1e-9)


# What is kept


def test_nothing_is_kept_alive_and_the_number_of_kinds_is_bounded() -> None:
    net = Net()
    assert_right(net)
    references = [weakref.ref(one) for one in (net, net.gru, net.gru.weight_hh, type("Made", (Net,), {}))]
    del net
    gc.collect()
    assert [reference() for reference in references] == [None] * 4
    calls = Net()
    for number in range(run_call._MAX_CONSTANT_SETS + 3):
        calls.scale = float(number)
        run_plan(calls)
    assert max(len(sets) for _, sets in run_call._traits_by_kind.values()) == run_call._MAX_CONSTANT_SETS


def test_a_new_object_where_a_dead_one_was_is_not_taken_for_it() -> None:
    """Python gives new functions and classes the addresses of old ones."""
    net = Net()
    for power in range(2, 12):
        space: dict[str, Any] = {}
        exec(f"def measure(step, output): return output.pow({power % 3 + 2}).sum()", space)  # noqa: S102
        assert_right(net, loss=space["measure"])
        del space
        gc.collect()


def test_statistics_that_a_sequence_leaves_as_it_found_them_stay_so() -> None:
    """With the same inputs and weights, running means come back to what they were, and no step leaves them."""
    torch.manual_seed(0)
    module, norm, inputs = torch.nn.GRUCell(48, 48), torch.nn.BatchNorm1d(48), torch.randn(200, 8, 48)

    def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = norm(module(x, state))
        return state, state

    for _ in range(4):
        result = bptt(cell, inputs, torch.zeros(8, 48), mean_square, memory=200_000)
        left = [one.clone() for one in norm.buffers()]
        result.loss.backward()
        assert all(map(torch.equal, norm.buffers(), left))


class MarkingNet(torch.nn.Module):
    """Makes an attribute in its first step, which changes after the steps that are tried."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(5, 7).double(), torch.nn.BatchNorm1d(5).double()

    def forward(self, state: Any, x: torch.Tensor) -> Any:
        hidden, step = state
        hidden = torch.tanh(self.linear(self.norm(x)) + 0.5 * hidden * (1 - getattr(self, "mark", 0)))
        self.mark = torch.tensor(0.5 if step >= 8 else 0.0)
        return (hidden, step + 1), hidden


def test_a_second_network_makes_its_attributes_within_another_limit() -> None:
    """The attribute is a part of the state, though it does not exist yet; statistics are not copied again."""
    inputs = torch.randn(60, 4, 5, dtype=torch.float64)
    for memory in ("20 kB", "60 kB", "1 MB"):
        net, twin = MarkingNet(), MarkingNet()
        twin.load_state_dict(net.state_dict())
        state = torch.zeros(4, 7, dtype=torch.float64), 0
        result = bptt(net, inputs, state, squares, memory=memory)
        theirs = torch.stack(plain(twin, inputs, state, 60)[0]).square().sum()
        ours = gradients(result.loss, list(net.parameters()))
        assert_close(ours, gradients(theirs, list(twin.parameters())), relative=1e-10)
        assert_close(list(net.buffers()), list(twin.buffers()), relative=1e-10)
