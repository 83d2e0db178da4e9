"""Laws of what is compiled, when it is compiled again, and of what runs as it is written, with the reason.

Here PyTorch's compiler takes the code apart as always, and the graph then runs without being made into machine
code, which would take seconds a test.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ckptplan.errors import InputError
from ckptplan.torch import Compile, CompileFallback, bptt, scan, unroll, wrap
from ckptplan.torch.adapters import TorchCell
from tests.torch.limit_tables import mean_square
from tests.torch.support import assert_close, forget_measurements, job, plan_of
from tests.torch.zoo import import_quietly

#: PyTorch's compiler uses what PyTorch deprecates, and looks at the gradient of each state.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor that is not a leaf"
)
STEPS, PIECE = 14, 4
_COMPILE = "ckptplan.torch.pieces.compiler.compile_fx"


class Compiler:
    """Counts graphs; ``before`` is called with each of them."""

    def __init__(self) -> None:
        self.graphs = 0
        self.before: Callable[[], None] | None = None

    def __call__(self, graph: Any, examples: Any, **options: Any) -> Any:
        del examples, options
        self.graphs += 1
        if self.before is not None:
            self.before()
        return graph.forward


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """Return what takes the place of the part that makes machine code."""
    forget_measurements()
    torch._dynamo.reset()
    made = Compiler()
    monkeypatch.setattr(_COMPILE, made)
    return made


class Cell(torch.nn.Module):
    """A recurrent cell; ``change`` is what tests do with its state."""

    def __init__(self, change: Any = None, **attributes: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.recurrent = torch.nn.Linear(5, 7), torch.nn.Linear(7, 7)
        self.scale, self.change = 1.0, change
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = self.finish(torch.tanh(self.inner(x) + self.recurrent(state)) * self.scale)
        return state, state

    def finish(self, state: torch.Tensor) -> torch.Tensor:
        """Return the state as it is passed on."""
        return state if self.change is None else self.change(self, state)


def train(
    cell: Any,
    loss: Any = mean_square,
    *,
    steps: int = STEPS,
    batch: int = 3,
    compile: Any = PIECE,  # noqa: A002 - the argument's name
    state: Any = ...,
    **options: Any,
) -> tuple[Any, list[torch.Tensor]]:
    """Return the result of a sequence, and the gradients of all that requires one."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(steps, batch, 5, generator=generator, requires_grad=True)
    state = torch.randn(batch, 7, generator=generator) if state is ... else state
    plan = options.pop("plan", None) or plan_of(steps, "standard", states=steps)
    torch.manual_seed(5)
    result = bptt(cell, inputs, state, loss, plan=plan, compile=compile, **options)
    given = [state] if isinstance(state, torch.Tensor) else []
    wanted = [inputs, *(one for one in (*given, *cell.parameters()) if one.requires_grad)]
    return result, list(torch.autograd.grad(result.loss, wanted))


def assert_as_written(cell: Any, *args: Any, **options: Any) -> Any:
    """Compare a compiled sequence with the steps as they are written; return its result."""
    _, theirs = train(cell, *args, **{**options, "compile": None})
    result, ours = train(cell, *args, **options)
    assert_close(ours, theirs, relative=1e-5)
    return result


def test_one_graph_advances_and_one_records_whatever_the_length(compiler: Compiler) -> None:
    cell = Cell()
    for steps in (STEPS, STEPS + 7, STEPS, 3 * STEPS):
        assert assert_as_written(cell, steps=steps).piece == PIECE
    assert compiler.graphs == 2


def test_a_last_batch_that_is_smaller_is_not_compiled_but_one_that_stays_is(compiler: Compiler) -> None:
    cell = Cell()
    train(cell)
    pieces = [assert_as_written(cell, batch=2).piece for _ in range(4)]
    assert pieces == [None, None, PIECE, PIECE]
    assert compiler.graphs == 4


def test_losses_and_functions_that_a_loop_makes_anew_are_not_compiled_anew(compiler: Compiler) -> None:
    cell = Cell()
    for number in range(3):
        target = torch.full((3, 7), float(number))
        loss = lambda _, output: (output - target).square().mean()  # noqa: B023, E731 - as in a loop
        assert assert_as_written(cell, loss).piece == PIECE
    assert compiler.graphs == 2


def test_unroll_and_scan_return_the_outputs_of_steps_as_written(compiler: Compiler) -> None:
    cell, inputs, state = Cell(), torch.randn(STEPS, 3, 5), torch.zeros(3, 7)
    theirs, end = unroll(cell, inputs, state, plan=plan_of(STEPS))
    ours, final = unroll(cell, inputs, state, plan=plan_of(STEPS), compile=PIECE)
    last, again = scan(cell, state, inputs, plan=plan_of(STEPS), compile=PIECE)
    assert compiler.graphs == 2
    for one, other in ((ours, theirs), (again, theirs), (final, end), (last, end)):
        assert torch.allclose(one, other, atol=1e-6)
    wanted = list(cell.parameters())
    assert_close(
        torch.autograd.grad(ours.square().sum(), wanted),
        torch.autograd.grad(theirs.square().sum(), wanted),
        relative=1e-5,
    )


def zip_with_itself(_: Any, state: torch.Tensor, pairs: Any = zip) -> torch.Tensor:
    """Refer to a class of iterators."""
    del pairs
    return state


#: Cells, losses and states that are compiled into two graphs.
COMPILED: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "a loss of chunks": (Cell, {"loss": None, "chunk_loss": lambda _, outputs: outputs.square().sum() * 0.5}),
    "a loss of the end": (Cell, {"loss": None, "final_loss": lambda state: state.square().sum()}),
    "two losses": (Cell, {"final_loss": lambda state: state.sum()}),
    "a loss of the number of a step": (Cell, {"loss": lambda step, one: one.square().mean() * 0.9**step}),
    "no state": (lambda: TorchCell(torch.nn.LSTMCell(5, 7)), {"state": None}),
    "a tensor twice in a state": (
        lambda: TorchCell(torch.nn.LSTMCell(5, 7)),
        {"state": (torch.zeros(3, 7),) * 2},
    ),
    "a transposed state": (Cell, {"state": torch.zeros(7, 3).t()}),
    "a class of iterators": (lambda: Cell(zip_with_itself), {}),
}


@pytest.mark.parametrize("case", COMPILED)
def test_compiled_steps_have_the_gradients_of_steps_as_written(compiler: Compiler, case: str) -> None:
    make, options = COMPILED[case]
    assert assert_as_written(make(), **options).piece == PIECE
    assert compiler.graphs == 2


def test_a_loss_that_branches_on_the_step_runs_as_written_beside_compiled_steps(compiler: Compiler) -> None:
    def loss(step: int, output: torch.Tensor) -> torch.Tensor:
        return output.sum() if bool(output.sum() > step) else output.square().mean()

    with pytest.warns(
        CompileFallback, match="the losses run uncompiled: shapes or branches depend on numbers in tensors"
    ):
        assert assert_as_written(Cell(), loss).piece == PIECE
    assert compiler.graphs >= 2


def test_hooks_and_methods_that_are_changed_later_are_heeded(compiler: Compiler) -> None:
    cell = Cell()
    train(cell)
    cell.inner.register_forward_hook(lambda *call: call[-1] * 0.5)
    assert_as_written(cell)
    cell.finish = lambda state: state * 0.25  # type: ignore[method-assign]
    assert_as_written(cell)
    before = compiler.graphs
    cell.scale = 3.0
    assert assert_as_written(cell).piece == PIECE
    assert compiler.graphs > before > 2


def remember(cell: Any, state: torch.Tensor) -> torch.Tensor:
    """Keep a mean of states in an attribute."""
    cell.memory = 0.5 * cell.memory + state
    return torch.tanh(state + cell.memory)


def test_state_in_attributes_is_compiled(compiler: Compiler) -> None:
    for strategy in ("base", "standard"):
        theirs, ours = (
            train(
                Cell(remember, memory=torch.zeros(3, 7)),
                plan=plan_of(STEPS, strategy, states=4 * STEPS),
                compile=asked,
            )
            for asked in (None, PIECE)
        )
        assert ours[0].piece == PIECE
        assert_close(ours[1], theirs[1], relative=1e-5)
    assert compiler.graphs == 2


@pytest.mark.parametrize("memory", ["300 kB", "4 kB"])
def test_a_plan_for_a_limit_of_memory_is_made_of_pieces_or_of_steps(compiler: Compiler, memory: str) -> None:
    cell, inputs, state = Cell(), torch.randn(64, 3, 5), torch.zeros(3, 7)
    loss = bptt(cell, inputs, state, mean_square, memory=memory).loss
    result = bptt(cell, inputs, state, mean_square, memory=memory, compile=PIECE)
    assert result.plan.steps == (64 // PIECE if result.piece else 64)
    pieces = f" in {64 // PIECE} pieces of {PIECE}" if result.piece else ""
    assert f": call within a limit of memory, T = 64{pieces}\n" in str(result.plan)
    wanted = list(cell.parameters())
    assert_close(torch.autograd.grad(result.loss, wanted), torch.autograd.grad(loss, wanted), relative=1e-5)
    assert compiler.graphs == 2


def break_graph(_: Any, state: torch.Tensor) -> torch.Tensor:
    """Do what no graph can."""
    torch._dynamo.graph_break()
    return state


def branch(_: Any, state: torch.Tensor) -> torch.Tensor:
    """Look at the numbers."""
    return state * 2 if state.sum() > 0 else state


class Numbering(Cell):
    """A cell that counts steps in its state."""

    def forward(self, state: Any, x: torch.Tensor) -> Any:
        new, output = super().forward(state[0], x)
        return (new, state[1] + 1), output


class Scripted(torch.nn.Module):
    """A cell whose step torch.jit has compiled: what it reads cannot be looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.script(torch.nn.RNNCell(5, 7))

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = self.inner(x, state)
        return state, state


#: Cells that are not compiled, a first state, and the reason.
AS_WRITTEN: list[tuple[Callable[[], Any], Any, str]] = [
    (lambda: Cell(break_graph), torch.zeros(3, 7), r"graph break at test_compiling.py:\d+ \(break_graph\)"),
    (
        lambda: Cell(branch),
        torch.zeros(3, 7),
        r"depend on numbers in tensors at test_compiling.py:\d+ \(branch\)",
    ),
    (Numbering, (torch.zeros(3, 7), 0), "the state holds numbers outside of tensors"),
    (Scripted, torch.zeros(3, 7), "torch.jit"),
]


@pytest.mark.parametrize(("make", "state", "why"), AS_WRITTEN)
def test_what_cannot_be_compiled_runs_as_written_and_the_reason_is_told_once(
    compiler: Compiler, make: Callable[[], Any], state: Any, why: str
) -> None:
    cell = make()
    with pytest.warns(CompileFallback, match=why) as caught:
        assert train(cell, state=state)[0].piece is None
    (told,) = [warning for warning in caught if issubclass(warning.category, CompileFallback)]
    assert told.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileFallback)
        assert assert_as_written(cell, state=state).piece is None
    assert compiler.graphs == 0


def test_a_machine_without_a_compiler_runs_steps_as_written(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.compile_fx import compile_fx

    monkeypatch.setattr(_COMPILE, compile_fx)
    without = torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",), "fx_graph_cache": False})
    with without, pytest.warns(CompileFallback, match=r"no C\+\+ compiler on this machine.*install g\+\+"):
        assert assert_as_written(Cell()).piece is None
    assert compiler.graphs == 0


def test_an_interrupted_compilation_leaves_nothing_behind(compiler: Compiler) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    cell, compiler.before = Cell(), interrupt
    with pytest.raises(KeyboardInterrupt):
        train(cell)
    compiler.before = None
    assert assert_as_written(cell).piece == PIECE


def test_hooks_of_parameters_fire_once_for_the_whole_gradient(compiler: Compiler) -> None:
    cell = Cell()
    calls: list[torch.Tensor] = []
    cell.inner.weight.register_hook(calls.append)
    result, gradients = train(cell)
    assert result.piece == PIECE
    (whole,) = calls
    assert torch.equal(whole, gradients[1])
    assert compiler.graphs == 2


def normalize(cell: Any, state: torch.Tensor) -> torch.Tensor:
    normal: torch.Tensor = cell.norm(state)
    return normal


def test_batch_normalization_counts_each_step_once(compiler: Compiler) -> None:
    found = []
    for asked in (None, PIECE):
        norm = torch.nn.BatchNorm1d(7)
        gradients = train(Cell(normalize, norm=norm), compile=asked)[1]
        found.append((gradients, [buffer.double() for buffer in norm.buffers()]))
    theirs, ours = found
    assert_close(ours[0], theirs[0], relative=1e-4)
    assert_close(ours[1], theirs[1], relative=1e-5)
    assert compiler.graphs == 2


def shift(cell: Any, state: torch.Tensor) -> torch.Tensor:
    shifted: torch.Tensor = state - cell.offset - cell.count
    return shifted


def test_numbers_of_buffers_that_change_from_call_to_call_are_not_compiled_anew(compiler: Compiler) -> None:
    """As running statistics and counters do; graphs read them when they run."""
    cell: Any = Cell(shift, offset=torch.nn.Buffer(torch.zeros(7)), count=torch.nn.Buffer(torch.zeros(1)))
    # PyTorch's compiler gives buffers an attribute the first time.
    for _ in range(2):
        train(cell)
    usual = compiler.graphs
    for _ in range(3):
        cell.offset.add_(0.1)
        cell.count.add_(0.1)
        assert assert_as_written(cell).piece == PIECE
    assert compiler.graphs == usual


def test_autocast_is_that_of_the_call(compiler: Compiler) -> None:
    cell = Cell()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        theirs = train(cell, compile=None)[1]
        result, ours = train(cell)
    assert result.piece == PIECE
    assert_close(ours, theirs, relative=2e-2)
    assert compiler.graphs == 2


def test_a_wrapped_cell_is_compiled_or_runs_as_written(compiler: Compiler) -> None:
    inputs, found = torch.randn(STEPS, 3, 5), []
    for kind in (torch.nn.GRUCell(5, 7), torch.nn.LSTM(5, 7)):
        for asked in (None, PIECE):
            outputs, _ = wrap(kind, memory="1 MB", compile=asked)(inputs)
            found.append(torch.autograd.grad(outputs.square().sum(), list(kind.parameters())))
    assert_close(found[1], found[0], relative=1e-5)
    assert_close(found[3], found[2], relative=1e-5)
    assert compiler.graphs == 2


def test_a_network_of_snntorch_that_keeps_its_state_is_compiled(compiler: Compiler) -> None:
    snntorch, utils = import_quietly("snntorch"), import_quietly("snntorch.utils")
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(5, 7),
        snntorch.Leaky(beta=0.9, init_hidden=True),
        torch.nn.Linear(7, 7),
        snntorch.Synaptic(alpha=0.8, beta=0.9, init_hidden=True),
    )
    inputs, found = 3 * torch.rand(STEPS, 3, 5), []
    for asked in (None, PIECE):
        outputs = wrap(net, memory="1 MB", reset=utils.reset, compile=asked)(inputs)
        found.append(torch.autograd.grad(outputs.square().sum(), list(net.parameters())))
    assert any(bool(one.any()) for one in found[0])
    assert_close(found[1], found[0], relative=1e-5)
    assert compiler.graphs == 2


@pytest.mark.parametrize("value", [0, -1, 2.5, "16"])
def test_other_values_of_compile_are_refused_by_name(value: Any) -> None:
    with pytest.raises(InputError, match=r"compile: is .* .accepted: True, False, the steps of a piece"):
        train(Cell(), compile=value)


def test_other_modes_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"compile\.mode: is 'fast' .accepted: default, reduce-overhead"):
        Compile(mode="fast")


def test_cuda_graphs_need_a_gpu() -> None:
    with pytest.warns(CompileFallback, match="CUDA graphs need an NVIDIA GPU, and tensors are on cpu"):
        train(Cell(), compile=Compile(steps=4, mode="cudagraphs"))


def test_a_cell_that_the_user_compiled_is_not_compiled_again_in_each_call() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, examples: Any) -> Any:
        del examples
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    cell = torch.compile(Cell().double(), backend=backend)
    inputs, state = job(STEPS)

    def count_graphs() -> int:
        bptt(cell, inputs, state, mean_square, plan=plan_of(STEPS)).loss.backward()
        return len(graphs)

    assert count_graphs() > 0
    usual = count_graphs()
    assert [count_graphs(), count_graphs()] == [usual, usual]
