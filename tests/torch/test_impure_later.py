"""Law: a cell or a loss that is pure in one sequence and impure in the next is right or refused.

Each impure case is put behind a gate. While it is closed, steps are pure and use the same parameters.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from ckptplan import InputError
from tests.torch.impure.cases import CASES, Case
from tests.torch.support import assert_close, forget_measurements
from tests.torch.tables import STEPS, Call, build, differentiate
from tests.torch.test_impure import REFUSED

# PyTorch's compiler looks at the gradient of each state that it is called with.
compiled = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


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
    """A call whose cell and loss are pure as long as a gate is closed."""

    def __init__(self, call: Call, gate: Gate) -> None:
        self.call, self.gate, self.used = call, gate, call.list_parameters()

    def step(self, state: Any, x: torch.Tensor) -> Any:
        """Take a step."""
        self.gate.count()
        if self.gate.is_open():
            return self.call.cell(state, x)
        used = sum((one.sum() for one in self.used), torch.zeros(())) * 1e-3 + x.mean()

        def push(leaf: Any) -> Any:
            floats = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
            return (leaf * 0.9 + 0.01 * used).to(leaf.dtype) if floats else leaf

        after = tree_map(push, state)
        return after, after

    def loss(self, step: int, output: Any) -> torch.Tensor:
        """Return the loss of a step."""
        if self.gate.is_open():
            found: torch.Tensor = self.call.loss(step, output)
            return found
        floats = [
            one for one in tree_leaves(output) if isinstance(one, torch.Tensor) and one.is_floating_point()
        ]
        return sum((one.square().sum() for one in floats), torch.zeros(()))


def run_twice(case: Case, kind: str, strategy: str | None) -> list[torch.Tensor]:
    """Return the gradients of the second of two sequences."""
    made, gate = build(case.build), Gate(kind)
    gated = Gated(made, gate)
    call = replace(
        made, cell=gated.step, loss=gated.loss, chunk_loss=None, parameters=gated.used, between=int, finish=int
    )
    try:
        differentiate(call, strategy)
        gate.open()
        return differentiate(call, strategy)
    finally:
        made.finish()


#: The cases that are right in a first call alone, by words of the message. A first call copies the tensors
#: into which steps may write; later calls copy those into which steps were observed to write.
NO_COPY, OTHER_STATE = "of which there is no copy", "differs when its steps run again"
REFUSED_LATER = {
    NO_COPY: """ring_buffer parameter_scaled truncated_by_tensor_clock refractory own_statistics instance_norm
        batch_norm batch_norm_compiled batch_norm_cumulative batch_norm_in_loss batch_norm_late
        batch_norm_through_time data_dependent_scale spectral_norm spectral_norm_hook""",
    OTHER_STATE: "hebbian asks_for_requires_grad grad_mode",
    "when the step runs again": "loss_by_grad_mode",
    "a cache of results": "cached_gradient_noise cached_noise",
}
#: No two loops draw the same numbers, and no step runs again.
NEVER_THE_SAME = "system_random"
ALL = [
    *((name, "shown", "revolve") for name in CASES),
    *((name, "hidden", "standard") for name in CASES),
    *((name, "counted", "base") for name in CASES if name != NEVER_THE_SAME),
]


@compiled
@pytest.mark.parametrize(("name", "kind", "strategy"), ALL)
def test_it_is_right_or_refused(name: str, kind: str, strategy: str) -> None:
    forget_measurements()
    theirs = run_twice(CASES[name], kind, None)
    try:
        ours = run_twice(CASES[name], kind, strategy)
    except InputError as error:
        message = str(error)
        is_known = any(words in message and name in names.split() for words, names in REFUSED_LATER.items())
        assert is_known or (name in REFUSED and strategy != "base")
        return
    assert_close(ours, theirs, relative=1e-9)


@pytest.mark.parametrize("name", ["ring_buffer", "parameter_scaled", "truncated_by_tensor_clock"])
def test_a_call_with_a_new_network_knows_what_was_written_without_a_copy(name: str) -> None:
    forget_measurements()
    with pytest.raises(InputError, match=NO_COPY):
        run_twice(CASES[name], "hidden", "standard")
    ours, theirs = (run_twice(CASES[name], "hidden", strategy) for strategy in ("standard", None))
    assert_close(ours, theirs, relative=1e-9)
