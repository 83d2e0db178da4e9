"""Law: a call that finds everything as an earlier one left it runs the plan's steps, and no others.

Any change is seen, and gradients are those of plain BPTT.

Steps are counted in an ``array.array``, into which the search for surroundings does not look.
"""

from __future__ import annotations

import functools
import gc
import weakref
from array import array
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from types import MethodType
from typing import Any

import numpy
import pytest
import torch

from ckptplan import InputError
from ckptplan.torch import LIF, bptt, recognise, unroll
from ckptplan.torch.adapters import TorchCell
from tests.torch.impure.cases import STEPS, squares
from tests.torch.support import assert_close, gradients, job, plan_of

PLAN = plan_of(STEPS, "standard", states=16)
#: How often steps run under the plan.
OWN = STEPS + PLAN.predicted.recomputed_steps
SCALE = 1.0


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


@pytest.mark.parametrize(
    "constant",
    [object(), Decimal("0.5"), numpy.dtype("float32"), ..., torch.strided],
    ids=["object", "decimal", "dtype", "ellipsis", "layout"],
)
def test_constants_that_no_weak_reference_can_name_are_recognised(constant: Any) -> None:
    """As the mark of a missing argument, which a module of a library holds."""
    net = Net()

    def cell(state: Any, x: torch.Tensor) -> Any:
        assert constant is not None
        return net(state, x)

    assert assert_right(net, cell=cell) > OWN
    assert assert_right(net, cell=cell) == OWN


def test_recurrent_layers_of_pytorch_within_a_step_are_recognised() -> None:
    """They hold weak references to their weights."""
    layers = torch.nn.GRU(5, 7, num_layers=2).double()
    net = Net()

    def cell(state: Any, x: torch.Tensor) -> Any:
        after, output = net(state, x)
        return after, output + layers(x[None])[0].mean()

    assert assert_right(net, cell=cell) > OWN
    assert assert_right(net, cell=cell) == OWN


def test_a_constant_in_place_of_another_is_seen() -> None:
    net = Net()
    marks = [object(), object()]

    def cell(state: Any, x: torch.Tensor) -> Any:
        after, output = net(state, x)
        return after, output * (2 if marks[0] is marks[1] else 1)

    assert assert_right(net, cell=cell) > OWN
    marks[0] = marks[1]
    assert assert_right(net, cell=cell) > OWN


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
    """Each sequence is checked, and goes on where the one before ended."""
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
        assert ran > OWN + 20 if call == 0 else ran < OWN + 30
    # All is as it was before the first call, and recognised as that.
    norm.reset_running_stats()
    bptt(cell, inputs, state, squares, plan=PLAN).loss.backward()
    assert count_of(calls) < OWN + 30


class Keeping(torch.nn.Module):
    """A cell that keeps its last state, as neurons of many libraries do, and perhaps a count."""

    def __init__(self, *, counts: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.calls = array("q", [0])
        self.gru = torch.nn.GRUCell(5, 7).double()
        self.last: torch.Tensor | None = None
        self.steps = 0 if counts else None

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        self.calls[0] += 1
        self.last = self.gru(x, state)
        if self.steps is not None:
            self.steps += 1
        return self.last, self.last


@pytest.mark.parametrize("counts", [False, True], ids=["a state alone", "a count, too"])
def test_what_a_sequence_leaves_is_looked_at_once_more_only_if_it_may_be_new(
    counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sequence that left what it found is taken to do so again; the next call looks anyway."""
    cell, (inputs, state) = Keeping(counts=counts), job(STEPS)
    walked: list[Any] = []
    walk = recognise.Situation.walk_again

    def see(*arguments: Any) -> Any:
        walked.append(arguments)
        return walk(*arguments)

    monkeypatch.setattr(recognise.Situation, "walk_again", see)
    looked, steps = [], []
    for _ in range(5):
        bptt(cell, inputs, state, squares, plan=PLAN).loss.backward()
        looked.append(len(walked))
        steps.append(count_of(cell.calls))
        walked.clear()
    assert steps[-2:] == [OWN, OWN]
    assert looked == ([1, 1, 1, 1, 1] if counts else [1, 1, 0, 0, 0])


class Turning(Keeping):
    """A cell that counts in a circle, in a number or a tensor: a sequence leaves it as it has found it."""

    def __init__(self, phase: Any) -> None:
        super().__init__(counts=False)
        self.phase = phase

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        """Run a step, and count it."""
        self.phase = (self.phase + 1) % STEPS
        return super().forward(state, x)


@pytest.mark.parametrize("phase", [0, torch.tensor(0)], ids=["number", "tensor"])
def test_a_phase_that_ends_where_it_began_costs_no_trial(phase: Any) -> None:
    """Steps that run again find it as it was, as no other change between the passes is."""
    cell, (inputs, state) = Turning(phase), job(STEPS)
    for call in range(4):
        bptt(cell, inputs, state, squares, plan=PLAN).loss.backward()
        ran = count_of(cell.calls)
        assert ran == OWN or call == 0
        assert cell.phase == 0


def test_unroll_and_chunks_are_recognised() -> None:
    net = Net()
    inputs, state = job(STEPS)
    for call in range(3):
        unroll(net, inputs, state, plan=PLAN)[0].sum().backward()
        ran = count_of(net.calls)
        assert ran > OWN if call == 0 else ran == OWN
    lif = LIF(5, 7)
    known = len(recognise._kept)
    for _ in range(3):
        bptt(lif, inputs.float().detach(), lif.initial_state(3), squares, plan=PLAN).loss.backward()
        assert len(recognise._kept) == min(known + 1, recognise._MOST)


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


#: Another object in the same place, with which steps do the same.
SAME = ("a module swapped", "a parameter replaced")


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_calls_is_seen(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SCALE", 1.0)
    net = Net()
    assert_right(net)
    assert_right(net)
    CHANGES[change](net)
    ran = assert_right(net)
    assert ran == OWN if change in SAME else ran > OWN
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


def make_scaled() -> tuple[torch.Tensor, Any, Any]:
    """Return a weight, a cache of twice the weight, and a cell that asks it."""
    net, weight = Net(), torch.full((7,), 0.5).double().requires_grad_()
    scale = functools.lru_cache(lambda: weight * 2)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        after, output = net(state, x)
        return after * scale(), output

    return weight, scale, cell


def test_a_cache_that_was_emptied_is_filled_in_a_trial() -> None:
    """Else the first step would fill it without a graph, and the weight would get no gradient."""
    weight, scale, cell = make_scaled()
    inputs, state = job(STEPS)
    with torch.no_grad():
        scale()
    bptt(cell, inputs, state, squares, plan=PLAN).loss.backward()
    assert weight.grad is None
    scale.cache_clear()
    with pytest.raises(InputError, match="computed outside"):
        bptt(cell, inputs, state, squares, plan=PLAN)


def _evict(scale: Any) -> None:
    scale(3)


def _empty_and_fill(scale: Any) -> None:
    scale.cache_clear()
    scale(3)


@pytest.mark.parametrize("most", [1, None])
@pytest.mark.parametrize("spoil", [_evict, _empty_and_fill])
def test_a_cache_that_was_filled_with_another_key_gives_no_other_gradient(
    spoil: Callable[[Any], None], most: int | None
) -> None:
    """Else the first step would fill it without a graph; if it still has the key, all is as before."""
    net, weight = Net(), torch.full((7,), 0.5).double().requires_grad_()
    scale = functools.lru_cache(maxsize=most)(lambda key: weight * key)
    inputs, state = job(STEPS)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        after, output = net(state, x)
        return after * scale(2), output

    with torch.no_grad():
        scale(2)
    for _ in range(2):
        bptt(cell, inputs, state, squares, plan=PLAN).loss.backward()
    assert weight.grad is None
    with torch.no_grad():
        spoil(scale)
    if most is None and spoil is _evict:
        bptt(cell, inputs, state, squares, plan=PLAN).loss.backward()
        return
    with pytest.raises(InputError, match=r"computed outside|a step fills scale without"):
        bptt(cell, inputs, state, squares, plan=PLAN)


def test_a_cache_that_was_filled_anew_with_a_graph_is_refused() -> None:
    """The graph is the caller's: steps that run again would go through it more than once."""
    _, scale, cell = make_scaled()
    inputs, state = job(STEPS)
    with torch.no_grad():
        scale()
    bptt(cell, inputs, state, squares, plan=PLAN).loss.backward()
    scale.cache_clear()
    scale()
    with pytest.raises(InputError, match="computed outside"):
        bptt(cell, inputs, state, squares, plan=PLAN)


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


def test_a_cache_that_steps_fill_costs_a_trial_whenever_others_filled_it() -> None:
    net = Net()
    size = functools.lru_cache(maxsize=None)(float)
    inputs, state = job(STEPS)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        after, output = net(state, x)
        return after * size(1), output

    counts = []
    for call in range(5):
        if call == 3:
            size(2)
        bptt(cell, inputs, state, squares, plan=PLAN).loss.backward()
        counts.append(count_of(net.calls))
    assert [count > OWN for count in counts] == [True, False, False, True, False]


def test_a_large_record_that_begins_later_costs_a_trial_in_the_next_call() -> None:
    """It cannot be put back, so there is none in the call where it begins."""
    net, switch = Net(), array("q", [0])
    record = torch.zeros(20_000).double()
    inputs, state = job(STEPS)

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        if switch[0]:
            record[0] = switch[0]
        return net(state, x)

    counts = []
    for call in range(5):
        switch[0] = call // 2
        bptt(cell, inputs, state, squares, plan=PLAN).loss.backward()
        counts.append(count_of(net.calls))
    assert [count > OWN for count in counts] == [True, False, False, True, False]


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


def test_a_record_that_begins_later_is_right() -> None:
    """Nothing shows that it will begin, so the sequence runs again after a trial, and counts each step once."""
    net, switch = Net(), array("q", [0])
    seen: list[int] = []

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        if switch[0]:
            seen.append(1)
        return net(state, x)

    assert_right(net, cell=cell)
    assert assert_right(net, cell=cell) == OWN
    switch[0] = 1
    inputs, state = job(STEPS)
    result = bptt(cell, inputs, state, squares, plan=PLAN)
    result.loss.backward()
    assert len(seen) == STEPS


def test_hidden_state_that_begins_later_is_refused_by_name() -> None:
    net, switch = Net(), array("q", [0])
    trace = {"sum": torch.zeros(3, 7).double()}

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        after, output = net(state, x)
        if switch[0]:
            trace["sum"] = trace["sum"] + output.detach()
            output = output * trace["sum"]
        return after, output

    assert_right(net, cell=cell)
    assert assert_right(net, cell=cell) == OWN
    switch[0] = 1
    inputs, state = job(STEPS)
    with pytest.raises(InputError, match=r"trace\['sum'\] changes in a step"):
        bptt(cell, inputs, state, squares, plan=PLAN)
    assert torch.equal(trace["sum"], torch.zeros(3, 7).double())


# What is kept


def test_nothing_is_kept_alive_and_the_number_of_entries_is_bounded() -> None:
    net = Net()
    assert_right(net)
    weights = [weakref.ref(one) for one in (net, net.gru, net.gru.weight_hh, type("Made", (Net,), {}))]
    del net
    gc.collect()
    assert [one() for one in weights] == [None] * 4
    calls = Net()
    inputs, state = job(STEPS)
    for number in range(recognise._MOST + 3):
        calls.scale = float(number)
        bptt(calls, inputs, state, squares, plan=PLAN)
    assert len(recognise._kept) == recognise._MOST


def test_a_new_object_where_a_dead_one_was_is_not_taken_for_it() -> None:
    """Python gives new functions and classes the addresses of old ones."""
    net = Net()
    for power in range(2, 12):
        space: dict[str, Any] = {}
        exec(f"def measure(step, output): return output.pow({power % 3 + 2}).sum()", space)  # noqa: S102
        ran = assert_right(net, loss=space["measure"])
        assert ran > OWN
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
