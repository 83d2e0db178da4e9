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
from tests.torch.support import assert_close, forget_measurements, gradients, job, plan_of
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


def test_a_second_call_runs_only_the_steps_of_the_plan() -> None:
    net = Net()
    assert assert_right(net) > OWN
    assert assert_right(net) == OWN
    assert assert_right(net) == OWN


def test_functions_that_a_training_loop_defines_anew_are_recognised() -> None:
    net = Net()
    for step in range(3):
        target = torch.full((3, 7), float(step)).double()

        def measure(_: int, output: torch.Tensor, target: torch.Tensor = target) -> torch.Tensor:
            return (output - target).square().sum()

        ran = assert_right(
            net,
            cell=lambda state, x: net(state, x),  # noqa: PLW0108
            loss=lambda step, output: measure(step, output),  # noqa: PLW0108
        )
        assert ran > OWN if step == 0 else ran == OWN


def test_a_variable_that_an_enclosing_function_has_given_no_value_yet_is_recognised() -> None:
    """As ``pool`` where a network is built without one; with a value, it is another call."""
    net, value = Net(), 1.0

    def make(pooled: bool) -> Callable[[Any, Any], Any]:
        if pooled:
            pool = value

        def cell(state: Any, x: Any) -> Any:
            after, output = net(state, x)
            return after, output * pool if pooled else output

        return cell

    for pooled in (False, True):
        ran = [assert_right(net, cell=make(pooled)) for _ in range(2)]
        assert ran[0] > OWN == ran[1]


@pytest.mark.parametrize("make", [TorchCell, partial], ids=["an adapter", "a partial function"])
def test_wrappers_made_anew_are_recognised(make: Callable[[Any], Any]) -> None:
    calls, torch_cell = array("q", [0]), torch.nn.RNNCell(5, 7).double()
    torch_cell.register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    inputs, state = job(STEPS)
    for call in range(3):
        cell = make(torch_cell) if make is TorchCell else partial(_step, torch_cell)
        bptt(cell, inputs, state, squares, plan=PLAN).loss.backward()
        ran = count_of(calls)
        assert ran > OWN if call == 0 else ran == OWN


def _step(module: Any, state: torch.Tensor, x: torch.Tensor) -> Any:
    after = module(x, state)
    return after, after


def test_recurrent_layers_of_pytorch_within_a_step_are_recognised() -> None:
    """They hold weak references to their weights."""
    layers = torch.nn.GRU(5, 7, num_layers=2).double()
    net = Net()

    def cell(state: Any, x: torch.Tensor) -> Any:
        after, output = net(state, x)
        return after, output + layers(x[None])[0].mean()

    assert assert_right(net, cell=cell) > OWN
    assert assert_right(net, cell=cell) == OWN


def test_training_steps_in_between_change_nothing() -> None:
    net = Net()
    optimizer = torch.optim.Adam([*net.parameters(), *net.list], lr=1e-2)
    for call in range(4):
        ran = assert_right(net)
        assert ran > OWN if call == 0 else ran == OWN
        inputs, state = job(STEPS)
        bptt(net, inputs, state, squares, plan=PLAN).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_running_statistics_and_counters_of_steps_change_nothing() -> None:
    """Each sequence goes on where the one before ended."""
    norm, calls = torch.nn.BatchNorm1d(7).double(), array("q", [0])
    net = Net()
    inputs, state = job(STEPS)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        calls[0] += 1
        after = norm(net.gru(x, state))
        return after, after

    for call in range(4):
        bptt(cell, inputs, state, squares, plan=PLAN).loss.backward()
        assert norm.num_batches_tracked == STEPS * (call + 1)
        ran = count_of(calls)
        assert ran > OWN if call == 0 else ran == OWN


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
    cell, (inputs, state) = Turning(phase), job(STEPS)
    for call in range(4):
        bptt(cell, inputs, state, squares, plan=PLAN).loss.backward()
        assert count_of(cell.calls) == OWN or call < 2
        assert cell.phase == 0


def test_calls_of_unroll_are_recognised() -> None:
    net = Net()
    inputs, state = job(STEPS)
    for call in range(3):
        unroll(net, inputs, state, plan=PLAN)[0].sum().backward()
        ran = count_of(net.calls)
        assert ran > OWN if call == 0 else ran == OWN


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


def _swap(net: Net) -> None:
    net.gru = torch.nn.GRUCell(5, 7).double()


def _add_module(net: Net) -> None:
    net.added = torch.nn.Linear(7, 7).double()


def _add_weight(net: Net) -> None:
    net.weight = torch.ones(7).double().requires_grad_()


def _replace_weight(net: Net) -> None:
    net.list[0] = torch.nn.Parameter(torch.full((7,), 0.5).double())


def _freeze(net: Net) -> None:
    net.gru.weight_hh.requires_grad_(False)


def _scale_flags(net: Net) -> None:
    net.flags.mul_(0.5)


def _add_hook(net: Net) -> None:
    net.gru.register_forward_hook(lambda _, __, output: output * 0.5)


def _override(net: Net) -> None:
    net.gru.forward = MethodType(  # type: ignore[method-assign]
        lambda self, x, h: torch.nn.GRUCell.forward(self, x, h) * 0.5, net.gru
    )


def _patch_global(net: Net) -> None:
    del net
    globals()["SCALE"] = 0.25


CHANGES: dict[str, Callable[[Net], object]] = {
    "a text": lambda net: setattr(net, "mode", "norm"),
    "a number": lambda net: setattr(net, "scale", 0.5),
    "a list in a dict": lambda net: net.sizes["depth"].append(3),
    "a module swapped": _swap,
    "a module added": _add_module,
    "a parameter added": _add_weight,
    "a parameter replaced": _replace_weight,
    "a parameter frozen": _freeze,
    "a buffer changed in place": _scale_flags,
    "a hook": _add_hook,
    "a method": _override,
    "a global": _patch_global,
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
        inputs, state = job(STEPS)
        net.zero_grad()
        bptt(net, inputs, state, squares, plan=PLAN).loss.backward()
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
            bptt(net, inputs, start, squares, plan=PLAN).loss.backward()
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

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        after, output = net(state, x)
        return after * store[0], output * store[0]

    inputs, state = job(STEPS)
    for call in range(4):
        if call == 2:
            store[0] = torch.full((7,), 0.5).double().requires_grad_()
        wanted = [store[0], *net.gru.parameters()]
        ours = take_gradients(cell, inputs, state, squares, wanted, planned=True)
        theirs = take_gradients(cell, inputs, state, squares, wanted, planned=False)
        assert_close(ours, theirs, relative=1e-9)


@pytest.mark.parametrize("most", [1, None])
@pytest.mark.parametrize("spoil", ["evict", "clear", "clear and fill", "fill with a graph"])
def test_a_cache_that_others_changed_gives_no_wrong_gradient(spoil: str, most: int | None) -> None:
    """Else the first step would fill it without a graph, and the weight would get no gradient."""
    net, weight = Net(), torch.full((7,), 0.5).double().requires_grad_()
    scale: Any = functools.lru_cache(maxsize=most)(lambda key: weight * key)
    inputs, state = job(STEPS)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        after, output = net(state, x)
        return after * scale(2), output

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
    inputs, state = job(STEPS)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        after, output = net(state, x)
        return after * size(key[0]), output

    size(2)
    for call in range(4):
        key[0] = 2 + call // 2
        wanted: list[torch.Tensor] = list(net.gru.parameters())
        ours = take_gradients(cell, inputs, state, squares, wanted, planned=True)
        theirs = take_gradients(cell, inputs, state, squares, wanted, planned=False)
        assert_close(ours, theirs, relative=1e-9)


def test_a_large_record_that_begins_later_is_refused_once() -> None:
    """The sequence cannot begin again without a copy; the same call in another process may."""
    net, switch = Net(), array("q", [0])
    record = torch.zeros(20_000).double()
    inputs, state = job(STEPS)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        if switch[0]:
            record[0] = switch[0]
        return net(state, x)

    for switch[0] in (0, 0, 1, 1, 1):
        if switch[0] and not record[0]:
            with pytest.raises(InputError, match="a later step writes into record, of which there is no copy"):
                bptt(cell, inputs, state, squares, plan=PLAN)
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
def test_what_is_named_as_a_cache_is_none(kind: type) -> None:
    net, change = Net(), kind()
    inputs, state = job(STEPS)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        return net(state, change(x))

    for _ in range(2):
        bptt(cell, inputs, state, squares, plan=PLAN).loss.backward()


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
    calls, (inputs, state) = Net(), job(STEPS)
    for number in range(run_call._MAX_CONSTANT_SETS + 3):
        calls.scale = float(number)
        bptt(calls, inputs, state, squares, plan=PLAN)
    assert max(len(sets) for _, sets in run_call._known.values()) == run_call._MAX_CONSTANT_SETS


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
        result = bptt(cell, inputs, torch.zeros(8, 48), lambda _, one: one.square().mean(), memory=200_000)
        left = [one.clone() for one in norm.buffers()]
        result.loss.backward()
        assert all(map(torch.equal, norm.buffers(), left))
