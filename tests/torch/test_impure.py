"""Law: a cell or a loss that keeps something to itself is right or refused by name, under every plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ckptplan import InputError
from ckptplan.torch import bptt, measured_sizes, unroll
from tests.torch.impure.__main__ import FAMILIES, PAGE, read_outcome, shorten
from tests.torch.impure.cases import CASES, STEPS, squares
from tests.torch.impure.modules import AppendedOnly, CallCounter, LastState, Logged, SideList
from tests.torch.impure.outcome import STRATEGIES, plan, run
from tests.torch.impure.spiking import short_term_plasticity
from tests.torch.support import job, plain

# PyTorch's compiler looks at the gradient of each state that it is called with.
compiled = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@compiled
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", CASES)
def test_it_is_right_or_refused(name: str, strategy: str) -> None:
    outcome = run(CASES[name], strategy)
    assert outcome.kind != "different"
    if CASES[name].right:
        assert outcome.kind == "right", outcome.message
    # The page says the same; it is written by python -m tests.torch.impure.
    told = read_outcome(name, strategy)
    assert told.kind == outcome.kind
    if strategy == STRATEGIES[-1]:
        assert told.message == shorten(outcome.message)


def test_the_page_has_all_cases_and_no_others() -> None:
    rows = [line.split("`")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(CASES)
    assert len(rows) >= 60
    assert {build.build.__module__ for build in CASES.values()} <= {
        *(family.__name__ for family in FAMILIES),
        "tests.torch.impure.cases",
    }


# What a refusal leaves


def test_a_refusal_by_the_trial_names_the_attribute_and_leaves_it_as_it_was() -> None:
    inputs, state = job(STEPS)
    cell = CallCounter()
    with pytest.raises(InputError, match=r"cell: cell\.calls changes in a step, and later steps read it"):
        bptt(cell, inputs, state, squares, plan=plan("revolve"))
    assert cell.calls == 0


def test_a_refusal_after_the_sweep_leaves_modules_and_generators_as_they_were() -> None:
    """The resource first changes when a neuron fires, long after the trial."""
    one = short_term_plasticity()
    resource, drawn = one.cell.resource.clone(), torch.get_rng_state()
    with pytest.raises(InputError, match=r"cell\.resource changes in a step, and later steps"):
        bptt(one.cell, one.inputs, one.state, one.loss, plan=plan("standard"))
    assert torch.equal(one.cell.resource, resource)
    assert one.cell.calls == 0
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize("broken", ["generator", "iterator"])
def test_a_refusal_gives_back_what_was_taken_from_iterators(broken: str) -> None:
    weights = (float(one) for one in range(9)) if broken == "generator" else iter([0.0, 1.0, 2.0])
    inputs, state = job(STEPS)
    holder = {"weights": weights}

    def loss(_: int, output: torch.Tensor) -> torch.Tensor:
        return output.square().sum() * next(holder["weights"])

    with pytest.raises(InputError, match=r"takes values from holder\['weights'\], an iterator"):
        bptt(AppendedOnly(), inputs, state, loss, plan=plan("standard"))
    assert next(holder["weights"]) == 0.0


# What steps write and never read


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_records_have_an_entry_for_each_step_before_and_after_the_backward_pass(strategy: str) -> None:
    for cell in (AppendedOnly(), Logged()):
        inputs, state = job(STEPS)
        result = bptt(cell, inputs, state, squares, plan=plan(strategy))
        record = cell.kept if isinstance(cell, AppendedOnly) else cell.kept["sums"]
        assert len(record) == cell.calls == STEPS
        seen = list(record)
        result.loss.backward()
        assert record == seen
        assert cell.calls == STEPS


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_loss_of_what_steps_left_behind_is_refused_when_its_gradient_is_wanted(strategy: str) -> None:
    """In a plain loop, the last state and the list of all states have graphs."""
    cells: list[Any] = [LastState(), SideList()]
    for cell in cells:
        inputs, state = job(STEPS)
        result = bptt(cell, inputs, state, squares, plan=plan(strategy))
        left = cell.kept if isinstance(cell, LastState) else torch.stack(cell.kept)
        assert torch.equal(left.detach().reshape(-1, 3, 7)[-1], result.state)
        with pytest.raises(InputError, match=r"cell\.kept was left by the steps of a planned sequence"):
            (result.loss + left.square().sum()).backward()


def test_sizes_are_measured_without_a_trace() -> None:
    inputs, state = job(STEPS)

    class Net(AppendedOnly):
        def begin(self) -> None:
            super().begin()
            self.norm = torch.nn.BatchNorm1d(7).double()

        def after(self, state: torch.Tensor) -> Any:
            return super().after(self.norm(torch.nn.functional.dropout(state)))

    cell, drawn = Net(), torch.get_rng_state()
    measured_sizes(cell, inputs, state)
    assert cell.kept == []
    assert cell.calls == 0
    assert cell.norm.num_batches_tracked == 0
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize("memory", ["20 kB", "50 MB"])
def test_the_numbers_that_a_lazy_module_draws_stay_drawn(memory: str) -> None:
    def train(step: Callable[[Any, Any, Any], Any]) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        inner, layer = torch.nn.GRUCell(6, 8), torch.nn.LazyLinear(6)

        def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            state = inner(layer(x).relu(), state)
            return state, state

        step(cell, torch.randn(STEPS, 4, 5), torch.zeros(4, 8))
        return layer.weight, torch.rand(3)

    expected = train(lambda cell, inputs, state: plain(cell, inputs, state, STEPS))
    found = train(lambda cell, inputs, state: unroll(cell, inputs, state, memory=memory))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_a_lazy_module_counts_no_step_more_than_a_plain_loop() -> None:
    class Lazy(AppendedOnly):
        def begin(self) -> None:
            super().begin()
            self.linear, self.norm = torch.nn.LazyLinear(7).double(), torch.nn.LazyBatchNorm1d().double()

        def after(self, state: torch.Tensor) -> Any:
            return super().after(self.norm(self.linear(state)))

    inputs, state = job(STEPS)
    cell = Lazy()
    bptt(cell, inputs, state, squares, plan=plan("revolve")).loss.backward()
    assert cell.norm.num_batches_tracked == STEPS
    assert len(cell.kept) == cell.calls == STEPS
    assert cell.linear.weight.shape == (7, 7)
    assert cell.linear.weight.grad is not None
