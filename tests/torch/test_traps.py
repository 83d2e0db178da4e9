"""The traps of running steps again, each of which other tools fall into."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import weakref
from array import array
from collections import Counter
from collections.abc import Callable
from functools import partial
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
from tests.torch.impure.cases import CASES
from tests.torch.support import assert_close, gradients, gru, job, plain, plan_of
from tests.torch.tables import STEPS, STRATEGIES, Call, Row, Table, build, plan, squares

PLAN = plan_of(STEPS, "double", states=8)
#: Checkpoints of the states 0, 6, 12 in local memory, chunks of six steps.
LOCAL_PLAN = plan_of(STEPS, "standard", states=16)
#: Both entry points.
ENTRIES = ("double", "unroll")
TABLE = Table()


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


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("row", TABLE)
def test_a_call_has_the_gradients_of_a_plain_loop(row: Row) -> None:
    row.check()


def test_a_module_that_takes_no_state_is_shown_how_cells_are_called() -> None:
    """1. Adapters and wrap take it."""
    inputs, _ = job(STEPS)
    with pytest.raises(TypeError) as raised:
        bptt(torch.nn.Linear(5, 7).double(), inputs, None, squares, plan=PLAN)
    assert "cell(state, x) with state None and x float64 (3, 5)" in raised.value.__notes__[0]
    assert "adapters" in raised.value.__notes__[0]


@TABLE.row(ways=ENTRIES)
def a_named_tuple_of_states_is_one_state() -> Call:
    """2. Taken for a plain tuple of arguments, it loses its gradients."""
    weight = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)

    def cell(state: Any, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        i = 0.8 * state.i + x @ weight
        v = 0.9 * state.v + i
        return State(v, i), torch.sigmoid(v)

    return Call(cell=cell, state=State(job(STEPS)[1], job(STEPS)[1]), parameters=[weight])


def count_steps(begin: Any, weight: int = 0) -> Call:
    """Return a call whose state counts steps, and whose outputs may be weighted by the count."""
    inner, parameters = gru()

    def cell(state: Any, x: torch.Tensor) -> Any:
        hidden, output = inner(state[0], x)
        return (hidden, state[1] + 1), output * (1 + weight * state[1])

    return Call(cell=cell, state=(torch.zeros(3, 7, dtype=torch.float64), begin), parameters=parameters)


#: 3. Zeros begin most sequences, so that the first value of a state has no gradient; integers are left alone.
TABLE.add("a count that is a tensor", lambda: count_steps(torch.tensor(0)), ways=ENTRIES)
TABLE.add("a count that is a number", lambda: count_steps(0, weight=1), ways=STRATEGIES)


@pytest.mark.parametrize("begin", [0, torch.tensor(0)])
def test_the_final_state_is_that_after_all_steps(begin: Any) -> None:
    call = count_steps(begin)
    assert bptt(call.cell, call.inputs, call.state, squares, plan=PLAN).state[1] == STEPS


def test_hooks_of_parameters_fire_once() -> None:
    """4. Once for the whole gradient, as in plain BPTT, not once for each chunk."""
    cell, (_, weight, *_) = gru()
    fired: list[str] = []

    def doubled(gradient: torch.Tensor) -> torch.Tensor:
        fired.append("tensor")
        return 2 * gradient

    weight.register_hook(doubled)
    weight.register_post_accumulate_grad_hook(lambda _: fired.append("accumulated"))
    inputs, state = job(STEPS)
    found = []
    for planned in (True, False):
        if planned:
            bptt(cell, inputs, state, squares, plan=PLAN).loss.backward()
        else:
            torch.stack(plain(cell, inputs, state, STEPS)[0]).square().sum().backward()
        assert fired == ["tensor", "accumulated"]
        fired.clear()
        found.append([torch.as_tensor(weight.grad)])
        weight.grad = None
    assert_close(*found, relative=1e-12)


@TABLE.row(ways=ENTRIES)
def shared_and_frozen_parameters() -> Call:
    """4. A parameter that is used twice has one gradient, a frozen one has none."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = torch.nn.Linear(5, 7, bias=False).double(), torch.nn.Linear(7, 7).double()
            self.two.bias.requires_grad_(False)
            self.again = self.two

        def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            state = torch.tanh(self.one(x) + self.again(self.two(state)))
            return state, state

    return Call(cell=Net())


def test_a_frozen_parameter_gets_no_gradient() -> None:
    """4."""
    call = build(shared_and_frozen_parameters)
    bptt(call.cell, call.inputs, call.state, squares, plan=PLAN).loss.backward()
    assert call.cell.two.bias.grad is None


#: A parameter that no code names.
_UNNAMED: dict[str, Any] = {}


def use_in_steps(
    steps: range,
    make: Callable[[], tuple[Any, list[torch.Tensor]]] = gru,
    *,
    hides: str = "",
    named: bool = False,
) -> Call:
    """Return a call whose loss uses a parameter in some steps, wherever it hides."""
    cell, _ = make()
    holder = torch.nn.Module()
    late = holder.late = _UNNAMED["late"] = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
    readers: dict[str, Callable[[], Any]] = {
        "": lambda: late,
        "in an attribute": lambda: holder.late,
        "out of sight": lambda: globals()["_UNNAMED"]["late"],
    }
    read = readers[hides]
    return Call(
        cell=cell,
        loss=lambda step, output: squares(step, output) * (read() if step in steps else 1),
        parameters=[late],
        options={"parameters": [late] if named else []},
    )


#: 4. A parameter that only some steps use has its gradient, whichever chunk the steps are in.
for _make in (gru, lif):
    for _steps in (range(1, 3), range(10, 12), range(STEPS - 2, STEPS)):
        TABLE.add(f"steps {_steps} of {_make.__name__}", partial(use_in_steps, _steps, _make), ways=STRATEGIES)
_LATE = range(4, STEPS)
TABLE.add("in an attribute", partial(use_in_steps, _LATE, hides="in an attribute"))
TABLE.add("out of sight, named", partial(use_in_steps, _LATE, hides="out of sight", named=True))
TABLE.add(
    "out of sight",
    partial(use_in_steps, _LATE, hides="out of sight"),
    r"parameters: steps \d+ to \d+ use a tensor.*parameters=",
)
#: 5. Gradients of running statistics under all plans are among the impure cells.
TABLE.add("running statistics", CASES["batch_norm"].build, ways=["unroll"])
TABLE.add("running statistics in eval()", CASES["batch_norm_eval"].build, ways=["unroll"])


class Normed(torch.nn.Module):
    """BatchNorm that is reached as a module or by a method."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(5, 7).double(), torch.nn.BatchNorm1d(7).double()

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> Any:
        state = torch.tanh(0.5 * state + self.norm(self.linear(x)))
        return state, state


@pytest.mark.parametrize("strategy", ["base", "double", "revolve"])
@pytest.mark.parametrize("how", ["module", "method", "lambda", "loss"])
def test_running_statistics_count_each_step_once_wherever_they_are(how: str, strategy: str) -> None:
    """5. A step that is run again leaves them as they are."""

    def train(*, planned: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        (inputs, state), net, head = job(STEPS), Normed(), torch.nn.BatchNorm1d(7).double()
        behind = lambda state, x: net(state, x)  # noqa: E731, PLW0108 - modules are found behind it
        cells: dict[str, Any] = {"module": net, "method": net.forward, "lambda": behind, "loss": gru()[0]}
        loss: Any = (lambda _, output: head(output).sum()) if how == "loss" else squares
        if planned:
            bptt(cells[how], inputs, state, loss, plan=plan(strategy)).loss.backward()
        else:
            for step, output in enumerate(plain(cells[how], inputs, state, STEPS)[0]):
                loss(step, output)
        assert (head if how == "loss" else net.norm).num_batches_tracked == STEPS
        return [*net.norm.buffers(), *head.buffers()]

    assert_close(train(planned=True), train(planned=False), relative=1e-12)


def cast_cell() -> tuple[Any, torch.nn.Linear]:
    """A cell whose matrix product is cast under autocast, and its layer."""
    module = torch.nn.Linear(12, 7)

    def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = torch.tanh(module(torch.cat([x, state], dim=1))).float()
        return state, state

    return cell, module


def test_autocast_of_the_forward_pass_is_entered_again() -> None:
    """7. The backward pass is most often outside: run again in full precision, it would differ."""
    (cell, module), (inputs, state) = cast_cell(), job(STEPS, dtype=torch.float32)
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
    (cell, module), casts = cast_cell(), list[int]()

    def observe(action: Action, _: Executor) -> None:
        if isinstance(action, Advance | Record):
            casts.append(made.sizes[module.weight.nbytes // 2])
        made.sizes.clear()

    inputs, state = job(STEPS, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16), Made() as made:
        bptt(cell, inputs, state, squares, plan=LOCAL_PLAN, observer=observe).loss.backward()
    assert all(casts)


@TABLE.row("the state is written in place", ways=["standard"])
def a_first_state_is_changed_between_the_passes() -> Call:
    """8. A checkpoint in a file has what it was."""
    state = job(STEPS)[1].detach()
    return Call(cell=gru()[0], state=state, between=lambda: state.add_(1))


def reset_in_place(since: int) -> Call:
    """8. Return a call whose steps change their state in place, from the first step on, or from a later one."""
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)

    def resetting(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if x >= since:
            with torch.no_grad():
                state.mul_(0.5)
        state = 0.9 * state + weight * x
        return state, 2 * state

    inputs, state = torch.arange(STEPS, dtype=torch.float64), job(STEPS)[1].detach()
    return Call(cell=resetting, inputs=inputs, state=state, parameters=[weight])


for _since in (0, 12):
    # The second call has no trial.
    TABLE.add(f"in place since {_since}", partial(reset_in_place, _since), ways=["standard", "standard"])


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
    inputs, state = job(STEPS)
    result = bptt(gru()[0], inputs, state, squares, plan=plan_of(STEPS, "base", states=60))
    with Made() as made:
        result.loss.backward()
    # That of the only chunk, where those of all chunks are put together, and what autograd makes of that.
    assert made.sizes[inputs.nbytes] <= 3


@pytest.mark.parametrize("make", [gru, lif])
def test_what_was_reversed_is_freed_on_the_way(make: Callable[[], Any]) -> None:
    """11. One tape at a time; once its steps are reversed neither it nor its tensors are alive.

    No public function shows the tensors of a tape.
    """
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
    (cell, parameters), (inputs, state) = gru(), job(STEPS)
    given: dict[str, Any] = {"inputs": inputs, "state": state}
    with torch.inference_mode():
        given[field] = given[field].detach().clone()
    if field == "inputs":
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            bptt(cell, loss=squares, plan=PLAN, **given)
        return
    theirs = gradients(torch.stack(plain(cell, inputs, state, STEPS)[0]).square().sum(), parameters)
    found = gradients(bptt(cell, loss=squares, plan=PLAN, **given).loss, parameters)
    assert_close(found, theirs, relative=1e-12)


@TABLE.row(ways=ENTRIES)
def an_initial_state_of_none() -> Call:
    """15. It becomes a state in the first step."""
    cell, parameters = gru()
    return Call(cell=cell, state=None, parameters=parameters)


@TABLE.row(ways=ENTRIES)
def an_initial_state_that_is_empty() -> Call:
    """15. It broadcasts."""
    weight = torch.randn(5, dtype=torch.float64, requires_grad=True)

    def leaky(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        membrane = (0.9 * state if state.numel() else 0.0) + weight * x
        return membrane, membrane

    return Call(cell=leaky, state=torch.zeros(0, dtype=torch.float64), parameters=[weight])


@TABLE.row(ways=ENTRIES)
def outputs_that_nobody_needs_and_parts_without_gradient() -> Call:
    """16. A loss on a single step, an output without a graph, an input nobody asks the gradient of."""
    cell, parameters = gru()
    return Call(
        cell=cell,
        inputs=job(STEPS)[0].detach(),
        loss=lambda step, output: squares(step, output) if step == STEPS - 1 else output.new_zeros(()),
        parameters=parameters,
    )


@TABLE.row(ways=ENTRIES)
def a_compiled_cell() -> Call:
    """16. It has a graph with gradients and one without, and both are used."""
    module = torch.nn.Linear(12, 7).double()

    def step(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = torch.tanh(module(torch.cat([x, state], dim=1)))
        return state, state

    return Call(cell=torch.compile(step, backend="aot_eager"), parameters=list(module.parameters()))


@TABLE.row(ways=[*ENTRIES, "scan"])
def nested_inputs_and_outputs() -> Call:
    cell, parameters = gru()

    def nested(state: Any, x: Any) -> tuple[Any, Any]:
        state, output = cell(state, x["a"] + x["b"][0])
        return state, {"h": output, "n": (output.sum(),)}

    return Call(
        cell=nested,
        inputs={"a": job(STEPS)[0], "b": (job(STEPS, seed=2)[0],)},
        loss=lambda _, output: output["h"].square().sum() + output["n"][0],
        parameters=parameters,
    )


@TABLE.row(ways=ENTRIES)
def a_learned_initial_state_is_used_in_the_loss_too() -> Call:
    state = job(STEPS)[1]
    return Call(cell=gru()[0], state=state, loss=lambda _, output: (output - state).square().sum())


@TABLE.row()
def a_buffer_without_a_number_is_no_change() -> Call:
    net = Normed().eval()
    net.register_buffer("mark", torch.tensor(float("nan")))
    return Call(cell=net)


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


def test_inference_mode_evaluates() -> None:
    """Where nothing is stored, tensors of inference mode are as good as others."""
    with torch.inference_mode():
        inputs, state = torch.randn(STEPS, 3, 5).double(), torch.zeros(3, 7).double()
        result = bptt(gru()[0], inputs, state, squares, plan=PLAN)
    assert not result.loss.requires_grad


def peaks_without_gradients(cell: Any, steps: tuple[int, int], *, batch: int, width: int) -> list[int]:
    """The most that is alive while a loss is taken under no_grad, in states; inputs are not counted."""
    peaks = []
    for count in steps:
        inputs, state = torch.randn(count, batch, 5), torch.zeros(batch, width)
        with torch.no_grad(), LiveBytes() as live:
            bptt(cell, inputs, state, squares, plan=plan_of(count, "double", states=50))
        peaks.append(int(live.peak // state.nbytes))
    return peaks


def test_without_gradients_a_few_states_are_alive() -> None:
    """For any number of steps: no step is tried."""
    inner = torch.nn.GRUCell(5, 64)

    def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = inner(x, state)
        return state, state

    few, many = peaks_without_gradients(cell, (STEPS, 10 * STEPS), batch=32, width=64)
    assert many <= few + 1 < 16


def test_without_gradients_spikes_are_not_saved() -> None:
    """A LIF cell runs pieces of a few steps, and lets the spikes of each go: they lie in a page or two.

    Kept, those of 1,024 steps would be five pages of 8 states each.
    """
    torch.manual_seed(0)
    few, many = peaks_without_gradients(LIF(5, 512, threshold=0.1), (128, 1024), batch=16, width=512)
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


def fail(works: int, *, gradient: bool = True, **options: Any) -> None:
    """Run a sequence that works, and one that fails; if the exception is kept, its frames hold one state."""
    (inputs, state), cell = job(STEPS), Failing(works)
    bptt(cell, inputs, state, squares, plan=LOCAL_PLAN).loss.backward()
    cell.left[0] = works
    with pytest.raises(ValueError, match="had enough") as kept, torch.set_grad_enabled(gradient):
        bptt(cell, inputs, state, squares, **options).loss.backward()
    assert kept.traceback


@pytest.mark.parametrize("works", [STEPS - 2, STEPS + 3])
def test_an_exception_leaves_no_tensors(works: int) -> None:
    """In the first sweep and while steps are run again."""
    stored: list[weakref.ref[torch.UntypedStorage]] = []

    def observe(action: Action, executor: Executor) -> None:
        if isinstance(action, Save) and action.state:
            (leaf,) = executor.state.read().leaves
            stored.append(weakref.ref(leaf.untyped_storage()))

    fail(works, plan=LOCAL_PLAN, observer=observe)
    assert len(stored) == 2
    assert sum(one() is not None for one in stored) <= 1


@pytest.mark.parametrize(("works", "gradient"), [(STEPS - 2, True), (STEPS + 3, True), (STEPS - 2, False)])
def test_an_exception_leaves_no_files(tmp_path: Path, *, works: int, gradient: bool) -> None:
    """Nor do runs without gradients, which need none."""
    fail(works, gradient=gradient, plan=PLAN, remote_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_remote_checkpoints_in_files(tmp_path: Path) -> None:
    """8. They have the first state as it was."""
    cell, parameters = gru()
    inputs, state = job(STEPS)
    wanted = [state, *parameters]
    theirs = gradients(bptt(cell, inputs, state, squares, plan=PLAN).loss, wanted)
    result = bptt(cell, inputs, state, squares, plan=PLAN, remote_dir=tmp_path)
    assert len(list(tmp_path.rglob("*.state"))) == PLAN.predicted.remote_writes > 0
    with torch.no_grad():
        state += 1
    assert all(
        torch.equal(one, other) for one, other in zip(gradients(result.loss, wanted), theirs, strict=True)
    )
    assert not list(tmp_path.iterdir())


def test_a_result_that_nobody_reverses_leaves_no_files(tmp_path: Path) -> None:
    inputs, state = job(STEPS)
    result = bptt(gru()[0], inputs, state, squares, plan=PLAN, remote_dir=tmp_path)
    assert list(tmp_path.iterdir())
    del result
    gc.collect()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_full_disk_is_called_so_with_what_was_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        bptt(gru()[0], inputs, state, squares, plan=PLAN, remote_dir=tmp_path)


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


@pytest.mark.parametrize("strategy", ["double", "revolve"])
@pytest.mark.parametrize("make", [gru, lif])
def test_a_loss_is_taken_twice_at_most(make: Callable[[], Any], strategy: str) -> None:
    """When a step first runs and where it is reversed; never where steps are only run again on the way."""
    cell, _ = make()
    # What a loss writes into lists and dicts is put back after steps that run again; an array is not looked at.
    taken = array("i", [0] * 2 * STEPS)

    def counted(step: int, output: torch.Tensor) -> torch.Tensor:
        taken[2 * step + torch.is_grad_enabled()] += 1
        return torch.as_tensor(squares(step, output))

    inputs, state = job(STEPS)
    chosen = plan_of(STEPS, strategy, states=8)
    # Revolve runs steps again on its way to others.
    assert (chosen.predicted.recomputed_steps > STEPS) == (strategy == "revolve")
    for _ in range(2):
        taken[:] = array("i", [0] * 2 * STEPS)
        bptt(cell, inputs, state, counted, plan=chosen).loss.backward()
    # The first step is tried before.
    steps = range(1, STEPS)
    assert all(1 == taken[2 * step + 1] >= taken[2 * step] for step in steps)


def test_scaling_clipping_and_accumulation_work_as_people_know_them() -> None:
    cell, parameters = gru()
    inputs, state = job(STEPS)
    (bptt(cell, inputs, state, squares, plan=PLAN).loss * 3).backward()
    bptt(cell, inputs, state, squares, plan=PLAN).loss.backward()
    outputs, _ = plain(cell, inputs, state, STEPS)
    theirs = gradients(4 * torch.stack(outputs).square().sum(), parameters)
    assert_close([one.grad for one in parameters if one.grad is not None], theirs, relative=1e-12)
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    assert sum(float(one.grad.square().sum()) for one in parameters if one.grad is not None) <= 1.0


def test_without_torch_it_says_how_to_install_it() -> None:
    """In a process that has none, as after a plain install; the rest of ckptplan works."""
    blocked = "import sys; sys.modules['torch'] = None"
    code = f"{blocked}\nimport ckptplan, ckptplan.planning.optimize\nimport ckptplan.torch"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert (
        "MissingExtra: torch is not installed; in ckptplan's folder, run: pip install '.[torch]'" in done.stderr
    )
