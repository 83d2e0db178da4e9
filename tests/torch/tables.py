"""Tables of calls: each call has the gradients of a plain loop, or is refused by name, in each way to call."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from ckptplan import InputError
from ckptplan.torch import bptt, scan, unroll
from tests.torch.support import assert_close, gradients, job, plan_of

#: Steps of a sequence.
STEPS = 24
STRATEGIES = ("base", "standard", "double", "revolve", "optimal")


def squares(_: int, output: torch.Tensor) -> Any:
    """Return the loss of a step."""
    return output.square().sum()


@cache
def plan(strategy: str, steps: int = STEPS) -> Any:
    """Return a plan with room for all tapes under base, and for few of them else."""
    return plan_of(steps, strategy, states=4 * steps + 4 if strategy == "base" else max(16, steps // 2))


def seed_all(seed: int) -> None:
    """Seed the default generators of Python, NumPy and PyTorch."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global generator
    torch.manual_seed(seed)


@dataclass(kw_only=True)
class Call:
    """A cell with all that a call needs. A call runs once; a row has a function that makes it."""

    cell: Any
    inputs: Any = field(default_factory=lambda: job(STEPS)[0])
    state: Any = field(default_factory=lambda: job(STEPS)[1])
    loss: Any = squares
    #: In place of ``loss``: the loss of runs of steps, of which a plain loop takes all at once.
    chunk_loss: Any = None
    final_loss: Any = None
    #: Added to the loss after the sequence, from what steps left outside their state.
    later_loss: Callable[[], torch.Tensor] | None = None
    #: Tensors whose gradients are compared, besides the state, the inputs and the parameters of a module.
    parameters: Sequence[torch.Tensor] = ()
    #: Other arguments of ``bptt`` or ``unroll``.
    options: dict[str, Any] = field(default_factory=dict)
    #: Returns a context in which the forward pass runs, as autocast.
    context: Callable[[], AbstractContextManager[object]] = nullcontext
    #: Called between the forward and the backward pass, and when the gradients are there.
    between: Callable[[], object] = int
    finish: Callable[[], object] = int
    #: The accepted difference of gradients, as a share of the largest entry.
    relative: float = 1e-12
    steps: int = STEPS

    def list_parameters(self) -> list[torch.Tensor]:
        """Return the named tensors, and the parameters of the cell if it is a module."""
        owned = self.cell.parameters() if isinstance(self.cell, torch.nn.Module) else ()
        return [*self.parameters, *owned]

    def list_leaves(self) -> list[torch.Tensor]:
        """Return the tensors whose gradients are compared if they require one."""
        leaves = (*tree_leaves((self.state, self.inputs)), *self.list_parameters())
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def build(make: Callable[[], Call]) -> Call:
    """Return a call that is made and run with the same random numbers each time."""
    seed_all(1)
    call = make()
    seed_all(2)
    return call


def differentiate(call: Call, way: str | None) -> list[torch.Tensor]:
    """Return the gradients of a call, or of its plain loop if there is no way."""
    leaves = call.list_leaves()
    try:
        with call.context():
            total = _sum_loop(call) if way is None else _sum_planned(call, way)
        total = total if call.later_loss is None else total + call.later_loss()
        call.between()
        # What was frozen meanwhile can have no gradient, and what was thawed has none of this loss.
        return gradients(total, [leaf for leaf in leaves if leaf.requires_grad])
    finally:
        call.finish()


@dataclass(frozen=True)
class Row:
    """A function that makes a call, and a way to call."""

    make: Callable[[], Call]
    #: A strategy, or "memory", for ``bptt``; "unroll" with a plan, or "scan" within a limit.
    way: str
    #: What a refusal says; None where the call is right.
    message: str | None = None
    error: type[Exception] = InputError

    def check(self) -> None:
        """Compare the gradients of the call with those of its plain loop, or expect the refusal."""
        if self.message is not None:
            call = build(self.make)
            with pytest.raises(self.error, match=self.message):
                differentiate(call, self.way)
            return
        theirs = differentiate(build(self.make), None)
        assert any(bool(gradient.any()) for gradient in theirs), "there is nothing to compare"
        call = build(self.make)
        assert_close(differentiate(call, self.way), theirs, relative=call.relative)


class Table(list[Any]):
    """Rows for ``pytest.mark.parametrize("row", table)``."""

    def add(
        self,
        name: str,
        make: Callable[[], Call],
        message: str | None = None,
        *,
        ways: Iterable[str] = ("revolve",),
        error: type[Exception] = InputError,
    ) -> None:
        """Add a row for each way. ``message`` is what a refusal says, None where the call is right."""
        self += [pytest.param(Row(make, way, message, error), id=f"{name}-{way}") for way in ways]

    def row(
        self,
        message: str | None = None,
        *,
        ways: Iterable[str] = ("revolve",),
        error: type[Exception] = InputError,
    ) -> Callable[[Callable[[], Call]], Callable[[], Call]]:
        """Add the rows of a function that makes a call; its name is that of the row."""

        def register(make: Callable[[], Call]) -> Callable[[], Call]:
            self.add(getattr(make, "__name__", ""), make, message, ways=ways, error=error)
            return make

        return register


def _take(nest: Any, step: int) -> Any:
    """Return a step of a nest of sequences, or of a function that makes them."""
    if callable(nest):
        return _take(nest(step, step + 1), 0)
    return tree_map(lambda leaf: leaf[step] if isinstance(leaf, torch.Tensor) else leaf, nest)


def _sum_loop(call: Call) -> torch.Tensor:
    state, outputs, terms = call.state, [], []
    for step in range(call.steps):
        state, output = call.cell(state, _take(call.inputs, step))
        outputs.append(output)
        if call.chunk_loss is None and call.loss is not None:
            terms.append(call.loss(step, output))
    if call.chunk_loss is not None:
        terms.append(call.chunk_loss(0, torch.stack(outputs)))
    if call.final_loss is not None:
        terms.append(call.final_loss(state))
    return sum(terms, torch.zeros(()))


def _sum_planned(call: Call, way: str) -> torch.Tensor:
    chosen = "double" if way == "unroll" else way
    within = {"memory": "10 MB"} if way in {"memory", "scan"} else {"plan": plan(chosen, call.steps)}
    options = {**within, **call.options}
    if way not in {"unroll", "scan"}:
        losses = {"loss": call.loss} if call.chunk_loss is None else {"chunk_loss": call.chunk_loss}
        losses["final_loss"] = call.final_loss
        return bptt(call.cell, call.inputs, call.state, **losses, **options).loss
    if way == "unroll":
        outputs, state = unroll(call.cell, call.inputs, call.state, **options)
    else:
        state, outputs = scan(call.cell, call.state, call.inputs, **options)
    terms = [call.loss(step, _take(outputs, step)) for step in range(call.steps)]
    if call.final_loss is not None:
        terms.append(call.final_loss(state))
    return sum(terms, torch.zeros(()))
