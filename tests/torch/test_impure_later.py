"""Law: a cell or a loss that is pure in one sequence and impure in the next is right or refused.

Each impure case is put behind a gate. While it is closed, steps are pure and use the same parameters.
"""

from __future__ import annotations

from array import array
from typing import Any

import pytest
import torch

from ckptplan import InputError
from ckptplan.torch import bptt
from tests.torch.impure.__main__ import FAMILIES
from tests.torch.impure.cases import CASES, STEPS, Case, Job
from tests.torch.impure.outcome import build, list_wanted, plan
from tests.torch.support import gradients

compiled = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


#: What acts on gradients alone and lies out of sight, behind a gate that does, too: docs/checks.md says so.
OUT_OF_SIGHT = ("late_sobol_gradient", "late_environment", "attribute_of_class")


class Gate:
    """Opens between two sequences, or, if it is a counter, in the twentieth step of the second.

    It is an attribute that is found (shown), or lies where the search does not look (hidden).
    """

    def __init__(self, kind: str) -> None:
        self.kind, self.flag, self.steps, self.hidden = kind, False, 0, array("q", [0])

    def is_open(self) -> bool:
        """Return whether it is open. Each step asks once, and so does each loss."""
        if self.kind == "counted":
            return self.steps > STEPS + 20
        return self.flag or self.hidden[0] > 0

    def count(self) -> None:
        """Count a step."""
        if self.kind == "counted":
            self.steps += 1

    def open(self) -> None:
        """Open it, unless it counts."""
        if self.kind == "shown":
            self.flag = True
        elif self.kind == "hidden":
            self.hidden[0] = 1


class Gated:
    """A job whose cell and loss are pure as long as a gate is closed."""

    def __init__(self, one: Job, gate: Gate) -> None:
        self.one, self.gate = one, gate

    def step(self, state: Any, x: torch.Tensor) -> Any:
        """Take a step."""
        self.gate.count()
        if self.gate.is_open():
            return self.one.cell(state, x)
        used = sum((one.sum() for one in self.one.parameters), torch.zeros(())) * 1e-3 + x.mean()

        def push(leaf: Any) -> Any:
            floats = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
            return (leaf * 0.9 + 0.01 * used).to(leaf.dtype) if floats else leaf

        after = torch.utils._pytree.tree_map(push, state)
        return after, after

    def loss(self, step: int, output: Any) -> torch.Tensor:
        """Return the loss of a step."""
        if self.gate.is_open():
            found: torch.Tensor = self.one.loss(step, output)
            return found
        leaves = torch.utils._pytree.tree_leaves(output)
        floats = [one for one in leaves if isinstance(one, torch.Tensor) and one.is_floating_point()]
        return sum((one.square().sum() for one in floats), torch.zeros(()))


def run_twice(case: Case, kind: str, strategy: str | None) -> list[torch.Tensor]:
    """Return the gradients of the second of two sequences."""
    one, gate = build(case), Gate(kind)
    gated, wanted = Gated(one, gate), list_wanted(one)
    try:
        found: list[torch.Tensor] = []
        for second in (False, True):
            if second:
                gate.open()
            found = gradients(sum_up(gated, None if strategy is None else plan(strategy)), wanted)
        return found
    finally:
        one.finish()


def sum_up(gated: Gated, plan: Any) -> torch.Tensor:
    """Return the loss of a sequence."""
    one = gated.one
    if plan is not None:
        return bptt(gated.step, one.inputs, one.state, gated.loss, plan=plan).loss
    state, terms = one.state, []
    for step in range(STEPS):
        state, output = gated.step(state, one.inputs[step])
        terms.append(gated.loss(step, output))
    return sum(terms, torch.zeros(()))


#: No two loops draw the same numbers, and no step runs again.
NEVER_THE_SAME = "system_random"
ALL = [
    *((name, "shown", "revolve") for name in CASES),
    *((name, "hidden", "standard") for name in CASES if name not in OUT_OF_SIGHT),
    *((name, "counted", "base") for name in CASES if name != NEVER_THE_SAME),
]


@compiled
@pytest.mark.parametrize(("name", "kind", "strategy"), ALL)
def test_it_is_right_or_refused(name: str, kind: str, strategy: str) -> None:
    theirs = run_twice(CASES[name], kind, None)
    try:
        ours = run_twice(CASES[name], kind, strategy)
    except InputError:
        return
    for one, other in zip(ours, theirs, strict=True):
        assert float((one - other).abs().max()) <= 1e-9 * max(float(other.abs().max()), 1e-30)


def test_all_families_are_there() -> None:
    assert {case.build.__module__ for case in CASES.values()} & {family.__name__ for family in FAMILIES}
