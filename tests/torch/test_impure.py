"""Law: a cell or a loss that keeps something outside its state is right or refused, under every plan."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ckptplan import InputError
from ckptplan.torch import bptt, unroll
from tests.torch.impure.__main__ import BEGIN, END, PAGE, WITHOUT_REFERENCE, shorten
from tests.torch.impure.cases import CASES, Cell, call, run
from tests.torch.impure.modules import Records
from tests.torch.support import gru, job, plain
from tests.torch.tables import STEPS, STRATEGIES, Call, Row, plan, squares

#: What an error says about a cell or a loss that gives something else when its steps run again.
OTHER_STATE, OTHER_LOSS = "differs when its steps run again", "when the step runs again"
#: The cases that only base executes, with words of the message that other plans give.
REFUSED = {
    "hooked_grad_fn": "hooks the grad_fn of a state",
    "parameter_swapped": "use a tensor with requires_grad that neither the cell nor its first steps reached",
    "cached_weight": "fills weight, a cache of results",
    "chunk_gradient_of_the_cut": "the gradient of cell.inner.weight_ih differs",
    "chunk_loss_of_the_cut": "the sum of the losses is",
    "counting_iterator": OTHER_STATE,
    "generator_function": OTHER_STATE,
    "iterator_in_list": OTHER_STATE,
    "iterator_in_tuple": OTHER_STATE,
    "iterator_of_pairs": OTHER_STATE,
    "list_iterator": OTHER_STATE,
    "loss_with_cycle": OTHER_LOSS,
    "loss_with_iterator": OTHER_LOSS,
    WITHOUT_REFERENCE: OTHER_STATE,
}
# PyTorch's compiler looks at the gradient of each state that it is called with.
compiled = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
SECTION = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


@pytest.fixture(autouse=True)
def keep_default_dtype() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


@compiled
@pytest.mark.parametrize("name", CASES)
def test_it_is_right_or_refused_under_each_strategy(name: str) -> None:
    for strategy, outcome in run(CASES[name], STRATEGIES).items():
        if name not in REFUSED:
            assert outcome.kind == "right", (strategy, outcome.message)
        elif strategy != "base":
            assert outcome.kind == "refused", strategy
            assert REFUSED[name] in outcome.message
            assert read_outcome(name) == f"refused: {shorten(outcome.message)}"
        elif name != WITHOUT_REFERENCE:
            assert outcome.kind == "right"


def test_the_page_counts_all_cases_and_names_the_refused_ones() -> None:
    families = {case.family for case in CASES.values()}
    assert SECTION.startswith(
        f"{len(CASES)} cases of {len(families)} families, {len(REFUSED)} of them refused:\n"
    )
    assert set(re.findall(r"`(\w+)` \(", SECTION)) == set(REFUSED)


def read_outcome(name: str) -> str:
    """Return the outcome of a refused case on the page."""
    line = next(line for line in SECTION.splitlines() if f"`{name}` (" in line)
    return f"refused: {line.removeprefix('- ').partition(': `')[0]}"


def test_a_refusal_leaves_modules_and_generators_as_they_were() -> None:
    weights = itertools.cycle([0.0, 1.0, 2.0])
    (inputs, state), cell, drawn = job(STEPS), Records.appended_only(), torch.get_rng_state()

    def loss(_: int, output: torch.Tensor) -> torch.Tensor:
        return output.square().sum() * next(weights) * torch.rand(())

    with pytest.raises(InputError, match=OTHER_LOSS):
        bptt(cell, inputs, state, loss, plan=plan("standard"))
    assert (cell.calls, cell.kept) == (0, [])
    assert torch.equal(torch.get_rng_state(), drawn)


# What steps write and never read


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_records_have_an_entry_for_each_step_before_and_after_the_backward_pass(strategy: str) -> None:
    for cell in (Records.appended_only(), Records.logged()):
        inputs, state = job(STEPS)
        result = bptt(cell, inputs, state, squares, plan=plan(strategy))
        record = cell.kept if isinstance(cell.kept, list) else cell.kept["sums"]
        assert len(record) == cell.calls == STEPS
        seen = list(record)
        result.loss.backward()
        assert record == seen
        assert cell.calls == STEPS


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_lists_and_counts_that_steps_make_are_written_once(strategy: str) -> None:
    inner, _ = gru()
    log: defaultdict[int, list[float]] = defaultdict(list)
    kept: dict[str, Any] = {}

    def cell(state: torch.Tensor, x: torch.Tensor) -> Any:
        kept.setdefault("count", torch.zeros(())).add_(1)
        return inner(state, x)

    def loss(step: int, output: torch.Tensor) -> torch.Tensor:
        log[step].append(float(output.detach().sum()))
        return output.square().sum()

    bptt(cell, *job(STEPS), loss, plan=plan(strategy)).loss.backward()
    assert [len(log[step]) for step in range(STEPS)] == [1] * STEPS
    assert int(kept["count"]) == STEPS


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", [Records.last_state, Records.side_list])
def test_what_steps_leave_behind_has_the_gradients_of_a_plain_loop(kind: type[Cell], strategy: str) -> None:
    """The last state, or all states in a list, of which a loss is made after the sequence."""

    def make() -> Call:
        cell = kind()

        def measure() -> torch.Tensor:
            left = cell.kept if kind is Records.last_state else torch.stack(cell.kept)
            return torch.as_tensor(left).square().sum()

        return call(cell, later_loss=measure)

    Row(make, strategy).check()


class Lazy(Cell):
    """A cell with layers that their first step makes."""

    def begin(self) -> None:
        self.kept = []
        self.linear, self.norm = torch.nn.LazyLinear(7).double(), torch.nn.LazyBatchNorm1d().double()

    def after(self, state: torch.Tensor) -> Any:
        self.kept.append(float(state.detach().sum()))
        return self.norm(self.linear(state))


@pytest.mark.parametrize("memory", ["20 kB", "50 MB"])
def test_the_numbers_that_a_lazy_module_draws_stay_drawn(memory: str) -> None:
    def train(run: Callable[..., object], **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        inner, layer = torch.nn.GRUCell(6, 8), torch.nn.LazyLinear(6)

        def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            state = inner(layer(x).relu(), state)
            return state, state

        run(cell, torch.randn(STEPS, 4, 5), torch.zeros(4, 8), **options)
        return layer.weight, torch.rand(3)

    pairs = zip(train(unroll, memory=memory), train(plain, steps=STEPS), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_a_lazy_module_counts_no_step_more_than_a_plain_loop() -> None:
    (inputs, state), cell = job(STEPS), Lazy()
    bptt(cell, inputs, state, squares, plan=plan("revolve")).loss.backward()
    assert cell.norm.num_batches_tracked == STEPS
    assert len(cell.kept) == cell.calls == STEPS
    assert cell.linear.weight.shape == (7, 7)
    assert cell.linear.weight.grad is not None
