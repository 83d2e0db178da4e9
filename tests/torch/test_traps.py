"""The traps of running steps again, each of which other tools fall into."""

from __future__ import annotations

import copy
import gc
import re
import subprocess
import sys
import weakref
from array import array
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ckptplan import InputError
from ckptplan.schedule.actions import Action, Advance, Backward, Record, Save
from ckptplan.storage.remote_folder import StateFiles
from ckptplan.torch import LIF, bptt, unroll
from ckptplan.torch.device.meters import LiveBytes
from ckptplan.torch.run.executor import Executor
from ckptplan.torch.run.gradients import walk_nodes
from ckptplan.torch.run.steps import Tape
from ckptplan.units import format_bytes
from tests.torch.support import assert_close, gradients, gru, job, plain, plan_of

STEPS = 24
PLAN = plan_of(STEPS, "double", states=8)
#: Checkpoints of the states 0, 6, 12 in local memory, chunks of six steps.
LOCAL_PLAN = plan_of(STEPS, "standard", states=16)


class State(NamedTuple):
    """Membrane and current of a spiking cell."""

    v: torch.Tensor
    i: torch.Tensor


class Made(TorchDispatchMode):
    """Counts the tensors that operations make, by bytes; views are not made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not any(one.alias_info for one in func._schema.returns):
            self.sizes[result.untyped_storage().nbytes()] += 1
        return result


def lif() -> tuple[Any, list[torch.Tensor]]:
    """A LIF cell of the size of ``gru()``, and its parameters."""
    torch.manual_seed(0)
    cell = LIF(5, 7, dtype=torch.float64, threshold=0.3)
    return cell, list(cell.parameters())


def squares(_: int, output: torch.Tensor) -> torch.Tensor:
    return output.square().sum()


def compared(cell: Any, inputs: Any, state: Any, wanted: Any, *, plan: Any = PLAN) -> None:
    """Gradients of a sum of squares equal plain BPTT's, by both entry points."""
    outputs, _ = plain(cell, inputs, state, plan.steps)
    theirs = gradients(sum((squares(0, one) for one in outputs), torch.zeros(())), wanted)
    result = bptt(cell, inputs, state, squares, plan=plan)
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-12)
    stacked, _ = unroll(cell, inputs, state, plan=plan)
    assert_close(gradients(stacked.square().sum(), wanted), theirs, relative=1e-12)


def test_a_module_that_takes_no_state_is_shown_how_cells_are_called() -> None:
    """1. Adapters and wrap take it."""
    inputs, _ = job(STEPS)
    with pytest.raises(TypeError) as raised:
        bptt(torch.nn.Linear(5, 7).double(), inputs, None, squares, plan=PLAN)
    assert "cell(state, x) with state None and x float64 (3, 5)" in raised.value.__notes__[0]
    assert "adapters" in raised.value.__notes__[0]


def test_a_named_tuple_of_states_is_one_state() -> None:
    """2. Taken for a plain tuple of arguments, it loses its gradients."""
    torch.manual_seed(0)
    weight = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)

    def cell(state: Any, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        i = 0.8 * state.i + x @ weight
        v = 0.9 * state.v + i
        return State(v, i), torch.sigmoid(v)

    inputs, first = job(STEPS)
    other = first.detach().clone().requires_grad_()
    compared(cell, inputs, State(first, other), [first, other, weight, inputs])


def test_gradients_flow_through_a_state_whose_first_value_has_none() -> None:
    """3. Zeros begin most sequences; integers in the state are left alone."""
    cell, parameters = gru()

    def counting(state: Any, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        h, count = state
        h, output = cell(h, x)
        return (h, count + 1), output

    inputs, _ = job(STEPS)
    zeros = torch.zeros(3, 7, dtype=torch.float64)
    compared(counting, inputs.detach(), (zeros, torch.tensor(0)), parameters)
    result = bptt(counting, inputs, (zeros, torch.tensor(0)), squares, plan=PLAN)
    assert result.state[1].item() == STEPS


def test_hooks_of_parameters_fire_once() -> None:
    """4. Once for the whole gradient, as in plain BPTT, not once for each chunk."""
    module = torch.nn.GRUCell(5, 7).double()
    fired: list[str] = []

    def doubled(gradient: torch.Tensor) -> torch.Tensor:
        fired.append("tensor")
        return 2 * gradient

    module.weight_hh.register_hook(doubled)
    module.weight_hh.register_post_accumulate_grad_hook(lambda _: fired.append("accumulated"))

    def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = module(x, state)
        return state, state

    inputs, state = job(STEPS)
    outputs, _ = plain(cell, inputs, state, STEPS)
    sum((squares(0, one) for one in outputs), torch.zeros(())).backward()
    theirs, plainly = module.weight_hh.grad, tuple(fired)
    module.zero_grad()
    fired.clear()
    bptt(cell, inputs, state, squares, plan=PLAN).loss.backward()
    assert tuple(fired) == plainly == ("tensor", "accumulated")
    assert theirs is not None
    assert module.weight_hh.grad is not None
    assert_close([module.weight_hh.grad], [theirs], relative=1e-12)


def test_shared_and_frozen_parameters() -> None:
    """4. A parameter that is used twice has one gradient, a frozen one has none."""
    one = torch.nn.Linear(5, 7, bias=False).double()
    two = torch.nn.Linear(7, 7).double()
    two.bias.requires_grad_(False)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.again = one, two, two

        def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            state = torch.tanh(self.one(x) + self.again(self.two(state)))
            return state, state

    inputs, state = job(STEPS)
    net = Net()
    compared(net, inputs, state, [state, inputs, one.weight, two.weight])
    bptt(net, inputs, state, squares, plan=PLAN).loss.backward()
    assert two.bias.grad is None


#: A parameter that no code names.
_UNNAMED: dict[str, Any] = {}


@pytest.mark.parametrize("hides", ["in a variable", "in an attribute", "out of sight"])
def test_parameters_that_later_steps_use_have_gradients_or_are_asked_for(hides: str) -> None:
    """4. Wherever they hide."""
    cell, parameters = gru()
    holder = torch.nn.Module()
    late = holder.late = _UNNAMED["late"] = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
    readers: dict[str, Callable[[], Any]] = {
        "in a variable": lambda: late,
        "in an attribute": lambda: holder.late,
        "out of sight": lambda: globals()["_UNNAMED"]["late"],
    }
    read = readers[hides]

    def loss(step: int, output: torch.Tensor) -> Any:
        return squares(step, output) * (read() if step > 3 else 1)

    inputs, state = job(STEPS)
    outputs, _ = plain(cell, inputs, state, STEPS)
    wanted = [late, *parameters]
    theirs = gradients(sum((loss(step, one) for step, one in enumerate(outputs)), torch.zeros(())), wanted)
    named = [late] if hides == "out of sight" else []
    if named:
        with pytest.raises(InputError, match=r"parameters: steps \d+ to \d+ use a tensor.*parameters="):
            bptt(cell, inputs, state, loss, plan=PLAN).loss.backward()
    result = bptt(cell, inputs, state, loss, plan=PLAN, parameters=named)
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-12)


@pytest.mark.parametrize("strategy", ["base", "double", "revolve"])
def test_running_statistics_count_each_step_once(strategy: str) -> None:
    """5. A step that is run again leaves them as they are."""

    class Normed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(5, 7).double()
            self.norm = torch.nn.BatchNorm1d(7).double()

        def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            state = torch.tanh(0.5 * state + self.norm(self.linear(x)))
            return state, state

    net = Normed()
    twin = copy.deepcopy(net)
    inputs, state = job(STEPS)
    plan = plan_of(STEPS, strategy, states=200 if strategy == "base" else 8)
    bptt(net, inputs, state, squares, plan=plan).loss.backward()
    plain(twin, inputs, state, STEPS)
    assert net.norm.num_batches_tracked == STEPS
    assert_close(list(net.buffers()), list(twin.buffers()), relative=1e-12)
    compared(net, inputs, state, [state, *net.parameters()])
    net.eval()
    compared(net, inputs, state, [state, *net.parameters()])


@pytest.mark.parametrize("strategy", ["standard", "double", "hierarchical", "revolve", "optimal"])
def test_randomness_is_drawn_again(strategy: str) -> None:
    """6. Dropout in a step that is run again drops the same; the ambient generator goes on as in plain BPTT."""
    cell, parameters = gru()

    def noisy(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state, _ = cell(state, x)
        state = torch.nn.functional.dropout(state, 0.3, training=True)
        return state, state + torch.rand_like(state)

    inputs, state = job(STEPS)
    plan = plan_of(STEPS, strategy, states=16)
    torch.manual_seed(7)
    outputs, _ = plain(noisy, inputs, state, STEPS)
    after = torch.rand(3)
    wanted = [state, inputs, *parameters]
    theirs = gradients(sum((squares(0, one) for one in outputs), torch.zeros(())), wanted)
    torch.manual_seed(7)
    result = bptt(noisy, inputs, state, squares, plan=plan)
    assert torch.equal(after, torch.rand(3))
    between = torch.get_rng_state()
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-12)
    assert torch.equal(between, torch.get_rng_state())


def test_autocast_of_the_forward_pass_is_entered_again() -> None:
    """7. The backward pass is most often outside: run again in full precision, it would differ."""
    module = torch.nn.Linear(12, 7)

    def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = torch.tanh(module(torch.cat([x, state], dim=1))).float()
        return state, state

    inputs, state = job(STEPS, dtype=torch.float32)
    wanted = [state, *module.parameters()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs, _ = plain(cell, inputs, state, STEPS)
        expected = sum((squares(0, one) for one in outputs), torch.zeros(()))
        result = bptt(cell, inputs, state, squares, plan=PLAN)
    theirs, ours = gradients(expected, wanted), gradients(result.loss, wanted)
    assert torch.equal(result.loss, expected)
    # Weight gradients are summed in another order, in bfloat16.
    assert torch.equal(ours[0], theirs[0])
    assert_close(ours, theirs, relative=2e-2)


def test_weights_are_cast_anew_by_each_action() -> None:
    """7. In older PyTorch a cast that was cached without a graph has no gradient where one is recorded."""
    module = torch.nn.Linear(12, 7)
    casts: list[int] = []

    def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = torch.tanh(module(torch.cat([x, state], dim=1))).float()
        return state, state

    def observe(action: Action, _: Executor) -> None:
        if isinstance(action, Advance | Record):
            casts.append(made.sizes[module.weight.nbytes // 2])
        made.sizes.clear()

    inputs, state = job(STEPS, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16), Made() as made:
        bptt(cell, inputs, state, squares, plan=LOCAL_PLAN, observer=observe).loss.backward()
    assert all(casts)


@pytest.mark.parametrize("remote", [True, False])
def test_a_first_state_that_was_changed_in_place_is_found_out(tmp_path: Path, remote: bool) -> None:
    """8. Between forward and backward; a checkpoint in a file has what it was. No files are left, either."""
    cell, parameters = gru()
    inputs, state = job(STEPS)
    theirs = gradients(bptt(cell, inputs, state, squares, plan=PLAN).loss, parameters)
    options: Any = {"plan": PLAN, "remote_dir": tmp_path} if remote else {"plan": LOCAL_PLAN}
    result = bptt(cell, inputs, state, squares, **options)
    with torch.no_grad():
        state += 1
    if remote:
        assert_close(gradients(result.loss, parameters), theirs, relative=1e-12)
    else:
        with pytest.raises(InputError, match="the state is written in place"):
            result.loss.backward()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("since", [0, 12])
def test_steps_may_change_their_state_in_place(since: int) -> None:
    """8. From the first step on, or from a later one."""
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)

    def resetting(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if x >= since:
            with torch.no_grad():
                state.mul_(0.5)
        state = 0.9 * state + weight * x
        return state, 2 * state

    _, state = job(STEPS)
    inputs = torch.arange(STEPS, dtype=torch.float64)
    outputs, _ = plain(resetting, inputs, state.detach().clone(), STEPS)
    theirs = gradients(torch.stack(outputs).square().sum(), [weight])
    for _ in range(2):
        result = bptt(resetting, inputs, state.detach().clone(), squares, plan=LOCAL_PLAN)
        assert_close(gradients(result.loss, [weight]), theirs, relative=1e-12)


def test_a_state_that_is_a_view_does_not_keep_its_storage() -> None:
    """9. Stored as it is, a slice would keep all of what it is a slice of: only the present state does."""
    cell, _ = gru()
    whole_bytes = 1000 * 3 * 7 * 8
    seen: list[int] = []

    def sliced(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        whole = cell(state, x)[0].repeat(1000, 1)
        return whole[:3], whole[:3]

    def observe(action: Action, _: Executor) -> None:
        if isinstance(action, Save):
            seen.append(live.now // whole_bytes)

    inputs, state = job(STEPS)
    with LiveBytes() as live:
        bptt(sliced, inputs, state, squares, plan=LOCAL_PLAN, observer=observe)
    assert seen == [0, 1, 1]


def test_inputs_have_one_gradient_of_their_own_size() -> None:
    """10. Indexed step by step, each step's gradient would be as large as all inputs of its chunk."""
    cell, _ = gru()
    inputs, state = job(STEPS)
    everything = plan_of(STEPS, "base", states=60)
    result = bptt(cell, inputs, state, squares, plan=everything)
    with Made() as made:
        result.loss.backward()
    # That of the only chunk, where those of all chunks are put together, and what autograd makes of that.
    assert made.sizes[inputs.nbytes] <= 3


@pytest.mark.parametrize("make", [gru, lif])
def test_what_was_reversed_is_freed_on_the_way(make: Callable[[], Any]) -> None:
    """11. One tape at a time; once its steps are reversed neither it nor its tensors are alive."""
    cell, _ = make()
    inputs, state = job(STEPS)
    recorded: list[weakref.ref[Any]] = []
    left: list[int] = []

    def tensors(tape: Tape) -> list[torch.Tensor]:
        states = [one for node in walk_nodes(tape.ends) for one in getattr(node, "states", None) or ()]
        return [*tape.ends, *tape.inputs, *tape.terms, *states]

    def observe(action: Action, executor: Executor) -> None:
        if isinstance(action, Record):
            [tape] = executor.tapes
            recorded.extend(weakref.ref(one) for one in (tape, *tensors(tape)))
        if isinstance(action, Backward):
            left.append(sum(one() is not None for one in recorded))

    bptt(cell, inputs, state, squares, plan=PLAN, observer=observe).loss.backward()
    assert len(recorded) >= 2 * len(left)
    assert left == [0] * (STEPS // PLAN.parameters.chunk_size)


def test_a_result_that_is_dropped_leaves_no_tensors() -> None:
    """11. Also where nobody ever asked for gradients."""
    cell, _ = gru()
    inputs, state = job(STEPS)
    with LiveBytes() as live:
        result = bptt(cell, inputs, state, squares, plan=LOCAL_PLAN)
        assert live.now > 0
        del result
        gc.collect()
    assert live.now == 0


def test_a_second_and_a_double_backward_are_refused() -> None:
    """13."""
    cell, parameters = gru()
    inputs, state = job(STEPS)
    result = bptt(cell, inputs, state, squares, plan=PLAN)
    result.loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="freed its checkpoints, whatever retain_graph says"):
        result.loss.backward()
    loss = bptt(cell, inputs, state, squares, plan=PLAN).loss
    with pytest.raises(RuntimeError, match="create_graph=True is not supported"):
        torch.autograd.grad(loss, parameters[:1], create_graph=True)


@pytest.mark.parametrize("field", ["state", "inputs"])
def test_tensors_of_inference_mode_are_what_they_are_in_a_plain_loop(field: str) -> None:
    """14. PyTorch says itself which of them it cannot save."""
    cell, parameters = gru()
    inputs, state = job(STEPS)
    given: dict[str, Any] = {"inputs": inputs, "state": state}
    with torch.inference_mode():
        given[field] = given[field].detach().clone()
    if field == "inputs":
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            bptt(cell, loss=squares, plan=PLAN, **given)
        return
    outputs, _ = plain(cell, inputs, state, STEPS)
    theirs = gradients(torch.stack(outputs).square().sum(), parameters)
    found = gradients(bptt(cell, loss=squares, plan=PLAN, **given).loss, parameters)
    assert_close(found, theirs, relative=1e-12)


def test_an_initial_state_of_nothing() -> None:
    """15. None, or an empty tensor that broadcasts, becomes a state in the first step."""
    module = torch.nn.GRUCell(5, 7).double()

    def cell(state: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = module(x, state)
        return state, state

    inputs, _ = job(STEPS)
    compared(cell, inputs, None, [inputs, *module.parameters()])

    def leaky(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        membrane = (0.9 * state if state.numel() else 0.0) + module.weight_ih[0] * x
        return membrane, membrane

    compared(leaky, inputs, torch.zeros(0, dtype=torch.float64), [inputs, module.weight_ih])


def test_outputs_that_nobody_needs_and_parts_without_gradient() -> None:
    """16. A loss on a single step, an output without a graph, an input nobody asks the gradient of."""
    cell, parameters = gru()
    inputs, state = job(STEPS)

    def loss(step: int, output: torch.Tensor) -> torch.Tensor:
        return squares(step, output) if step == STEPS - 1 else output.new_zeros(())

    outputs, _ = plain(cell, inputs, state, STEPS)
    wanted = [state, *parameters]
    theirs = gradients(squares(0, outputs[-1]), wanted)
    result = bptt(cell, inputs.detach(), state, loss, plan=PLAN)
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-12)
    stacked, _ = unroll(cell, inputs.detach(), state, plan=PLAN)
    assert_close(gradients(squares(0, stacked[-1]), wanted), theirs, relative=1e-12)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_cell_works() -> None:
    """16. It has a graph with gradients and one without, and both are used."""
    module = torch.nn.Linear(12, 7).double()

    def step(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = torch.tanh(module(torch.cat([x, state], dim=1)))
        return state, state

    inputs, state = job(STEPS)
    compiled = torch.compile(step, backend="aot_eager")
    compared(compiled, inputs, state, [state, inputs, *module.parameters()])


def test_without_gradients_nothing_is_stored() -> None:
    cell, _ = gru()
    inputs, state = job(STEPS)
    seen: list[object] = []
    with torch.no_grad():
        result = bptt(cell, inputs, state, squares, plan=PLAN, observer=lambda *_: seen.append(1))
        outputs, final = plain(cell, inputs, state, STEPS)
        stacked, last = unroll(cell, inputs, state, plan=PLAN)
    assert not seen
    assert not result.loss.requires_grad
    assert torch.equal(stacked, torch.stack(outputs))
    assert torch.equal(last, final)


def peak_without_gradients(cell: Any, steps: int, *, batch: int, width: int) -> int:
    """The most that is alive while a loss is taken under no_grad, in states; inputs are not counted."""
    inputs, state = torch.randn(steps, batch, 5), torch.zeros(batch, width)
    with torch.no_grad(), LiveBytes() as live:
        bptt(cell, inputs, state, squares, plan=plan_of(steps, "double", states=50))
    return int(live.peak // state.nbytes)


def test_without_gradients_a_few_states_are_alive() -> None:
    """For any number of steps: no step is tried."""
    cell = torch.nn.GRUCell(5, 64)

    def step(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = cell(x, state)
        return state, state

    few, many = (peak_without_gradients(step, steps, batch=32, width=64) for steps in (STEPS, 10 * STEPS))
    assert many <= few + 1 < 16


def test_without_gradients_spikes_are_not_saved() -> None:
    """A LIF cell runs pieces of a few steps, and lets the spikes of each go: they lie in a page or two.

    Kept, those of 1,024 steps would be five pages of 8 states each.
    """
    torch.manual_seed(0)
    cell = LIF(5, 512, threshold=0.1)
    few, many = (peak_without_gradients(cell, steps, batch=16, width=512) for steps in (128, 1024))
    assert many <= few + 8


class Failing:
    """A GRU that fails when it has run so many times after a sequence that worked."""

    def __init__(self, works: int) -> None:
        self.works, (self.cell, _) = works, gru()
        # No step is put back there.
        self.left = array("q", [10_000])

    def __call__(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        if not self.left[0]:
            raise ValueError("the cell has had enough")
        self.left[0] -= 1
        return self.cell(state, x)

    def begin(self) -> None:
        """Count from now on."""
        self.left[0] = self.works


@pytest.mark.parametrize("works", [STEPS - 2, STEPS + 3])
def test_an_exception_leaves_no_tensors(works: int) -> None:
    """In the first sweep and while steps are run again; if it is kept, its frames hold one state."""
    stored: list[weakref.ref[torch.UntypedStorage]] = []

    def observe(action: Action, executor: Executor) -> None:
        if isinstance(action, Save) and action.state:
            (leaf,) = executor.state.read().leaves
            stored.append(weakref.ref(leaf.untyped_storage()))

    inputs, state = job(STEPS)
    cell = Failing(works)
    bptt(cell, inputs, state, squares, plan=LOCAL_PLAN).loss.backward()
    cell.begin()
    with pytest.raises(ValueError, match="had enough") as kept:
        bptt(cell, inputs, state, squares, plan=LOCAL_PLAN, observer=observe).loss.backward()
    assert kept.traceback
    assert len(stored) == 2
    assert sum(one() is not None for one in stored) <= 1


@pytest.mark.parametrize(("works", "gradient"), [(STEPS - 2, True), (STEPS + 3, True), (STEPS - 2, False)])
def test_an_exception_leaves_no_files(tmp_path: Path, *, works: int, gradient: bool) -> None:
    """Nor do runs without gradients, which need none."""
    inputs, state = job(STEPS)
    cell = Failing(works)
    bptt(cell, inputs, state, squares, plan=PLAN).loss.backward()
    cell.begin()
    with pytest.raises(ValueError, match="had enough") as kept, torch.set_grad_enabled(gradient):
        bptt(cell, inputs, state, squares, plan=PLAN, remote_dir=tmp_path).loss.backward()
    assert kept.traceback
    assert not list(tmp_path.iterdir())


def test_remote_checkpoints_in_files(tmp_path: Path) -> None:
    cell, parameters = gru()
    inputs, state = job(STEPS)
    wanted = [state, *parameters]
    theirs = gradients(bptt(cell, inputs, state, squares, plan=PLAN).loss, wanted)
    result = bptt(cell, inputs, state, squares, plan=PLAN, remote_dir=tmp_path)
    assert len(list(tmp_path.rglob("*.state"))) == PLAN.predicted.remote_writes > 0
    assert all(
        torch.equal(one, other) for one, other in zip(gradients(result.loss, wanted), theirs, strict=True)
    )
    assert not list(tmp_path.iterdir())


def test_a_result_that_nobody_reverses_leaves_no_files(tmp_path: Path) -> None:
    cell, _ = gru()
    inputs, state = job(STEPS)
    result = bptt(cell, inputs, state, squares, plan=PLAN, remote_dir=tmp_path)
    assert list(tmp_path.iterdir())
    del result
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_a_remote_folder_that_cannot_be_written() -> None:
    cell, _ = gru()
    inputs, state = job(STEPS)
    with pytest.raises(InputError, match="remote_dir: /proc/nowhere cannot be made"):
        bptt(cell, inputs, state, squares, plan=PLAN, remote_dir="/proc/nowhere")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_full_disk_is_called_so_with_what_was_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, _ = gru()
    inputs, state = job(STEPS)

    def lead_nowhere(files: StateFiles, number: int) -> Path:
        path = files._folder.path / f"{number}.state"
        path.unlink(missing_ok=True)
        path.symlink_to("/dev/full")
        return path

    monkeypatch.setattr(StateFiles, "_path", lead_nowhere)
    size = re.escape(format_bytes(state.nbytes))
    full = rf"remote_dir: {tmp_path} cannot take a checkpoint of {size}: the disk is full .*are free"
    with pytest.raises(InputError, match=full):
        bptt(cell, inputs, state, squares, plan=PLAN, remote_dir=tmp_path)


def test_inputs_made_when_they_are_needed() -> None:
    """A callable is asked again for what is run again."""
    cell, parameters = gru()
    inputs, state = job(STEPS)
    asked: list[tuple[int, int]] = []

    def make(start: int, stop: int) -> torch.Tensor:
        asked.append((start, stop))
        return inputs[start:stop].detach()

    wanted = [state, *parameters]
    theirs = gradients(bptt(cell, inputs, state, squares, plan=PLAN).loss, wanted)
    assert_close(gradients(bptt(cell, make, state, squares, plan=PLAN).loss, wanted), theirs, relative=1e-12)
    # A record of what steps asked for is put back after steps that run again.
    assert asked == sorted(set(asked))
    assert {0, STEPS} <= {number for cut in asked for number in cut}


def test_nested_inputs_and_outputs() -> None:
    cell, parameters = gru()

    def nested(state: Any, x: Any) -> tuple[Any, Any]:
        state, output = cell(state, x["a"] + x["b"][0])
        return state, {"h": output, "n": (output.sum(),)}

    inputs, state = job(STEPS)
    other = torch.randn(STEPS, 3, 5, dtype=torch.float64, requires_grad=True)
    outputs, _ = plain(cell, inputs + other, state, STEPS)
    wanted = [state, inputs, other, *parameters]
    theirs = gradients(torch.stack(outputs).square().sum(), wanted)
    stacked, _ = unroll(nested, {"a": inputs, "b": (other,)}, state, plan=PLAN)
    assert stacked["n"][0].shape == (STEPS,)
    assert_close(gradients(stacked["h"].square().sum(), wanted), theirs, relative=1e-12)


@pytest.mark.parametrize("strategy", ["double", "revolve"])
@pytest.mark.parametrize("make", [gru, lif])
def test_a_loss_is_taken_twice_at_most(make: Callable[[], Any], strategy: str) -> None:
    """When a step first runs and where it is reversed; never where steps are only run again on the way."""
    cell, _ = make()
    # What a loss writes into lists and dicts is put back after steps that run again; an array is not looked at.
    taken = array("i", [0] * 2 * STEPS)

    def counted(step: int, output: torch.Tensor) -> torch.Tensor:
        taken[2 * step + torch.is_grad_enabled()] += 1
        return squares(step, output)

    inputs, state = job(STEPS)
    plan = plan_of(STEPS, strategy, states=8)
    # Revolve runs steps again on its way to others.
    assert (plan.predicted.recomputed_steps > STEPS) == (strategy == "revolve")
    bptt(cell, inputs, state, counted, plan=plan).loss.backward()
    taken[:] = array("i", [0] * 2 * STEPS)
    bptt(cell, inputs, state, counted, plan=plan).loss.backward()
    # The first step is tried before.
    steps = range(1, STEPS)
    assert all(1 == taken[2 * step + 1] >= taken[2 * step] for step in steps)


def test_scaling_clipping_and_accumulation_work_as_people_know_them() -> None:
    module = torch.nn.GRUCell(5, 7).double()

    def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = module(x, state)
        return state, state

    inputs, state = job(STEPS)
    (bptt(cell, inputs, state, squares, plan=PLAN).loss * 3).backward()
    bptt(cell, inputs, state, squares, plan=PLAN).loss.backward()
    outputs, _ = plain(cell, inputs, state, STEPS)
    theirs = gradients(4 * torch.stack(outputs).square().sum(), list(module.parameters()))
    assert_close([one.grad for one in module.parameters() if one.grad is not None], theirs, relative=1e-12)
    torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    assert sum(float(one.grad.square().sum()) for one in module.parameters() if one.grad is not None) <= 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"plan": plan_of(STEPS + 1)}, "inputs: has 24 steps, the plan has 25"),
        ({"plan": "plan.json"}, "plan: 'plan.json' is not a plan"),
        ({"cell": 3}, "cell: 3 cannot be called"),
        ({"cell": lambda state, _: state}, "cell: returned Tensor"),
        ({"cell": lambda state, x: (state, x, x)}, "cell: returned tuple of 3"),
        ({"inputs": None}, "inputs: 'NoneType' holds no tensor"),
        ({"inputs": torch.zeros(STEPS, 3, 7).numpy()}, "inputs: a NumPy array is no tensor"),
        ({"loss": None}, "loss: is missing"),
        ({"loss": lambda _, output: output}, r"loss: returned shape \(3, 7\)"),
        ({"chunk_loss": lambda *_: 0}, "chunk_loss: is given together with loss"),
    ],
)
def test_bad_input(change: dict[str, Any], message: str) -> None:
    cell, _ = gru()
    inputs, state = job(STEPS)
    given = {"cell": cell, "inputs": inputs, "state": state, "loss": squares, "plan": PLAN, **change}
    with pytest.raises(InputError, match=message):
        bptt(**given)


def test_without_torch_it_says_how_to_install_it() -> None:
    """In a process that has none, as after a plain install; the rest of ckptplan works."""
    blocked = "import sys; sys.modules['torch'] = None"
    code = f"{blocked}\nimport ckptplan, ckptplan.planning.optimize\nimport ckptplan.torch"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert (
        "MissingExtra: torch is not installed; in ckptplan's folder, run: pip install '.[torch]'" in done.stderr
    )
