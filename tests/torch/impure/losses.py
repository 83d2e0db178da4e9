"""Losses that remember, draw or change something."""

# ruff: noqa: S311

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import torch

from tests.torch.impure.cases import Cell, add_case, call, case
from tests.torch.impure.modules import Records
from tests.torch.tables import Call

LOSSES = "losses"


class Memory:
    """What a loss remembers."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []
        self.weight: float = 1.0

    def previous(self, _: int, output: torch.Tensor) -> Any:
        self.seen.append(output.detach())
        return (output - (self.seen[-2] if len(self.seen) > 1 else 0)).square().sum()

    def late(self, _: int, output: torch.Tensor) -> Any:
        self.seen.append(output.detach())
        return output.square().sum() * (1 + 0.1 * max(len(self.seen) - 4, 0))

    def reference(self, _: int, output: torch.Tensor) -> Any:
        if not self.seen:
            self.seen.append(output.detach().clone())
        return (output - self.seen[0]).square().sum()

    def curriculum(self, _: int, output: torch.Tensor) -> Any:
        self.weight *= 0.95
        return self.weight * output.square().sum()

    def record(self, _: int, output: torch.Tensor) -> Any:
        self.seen.append(output.detach())
        return output.square().sum()


_REMEMBERING = {
    "loss_of_differences": ("the difference to the previous output", "previous"),
    "loss_with_late_weight": ("a weight that begins to move in the fifth call", "late"),
    "loss_with_reference": ("the difference to the first output", "reference"),
    "loss_with_curriculum": ("a weight that decays with each call", "curriculum"),
    "loss_that_records": ("outputs collected for a report", "record"),
}
for _name, (_what, _method) in _REMEMBERING.items():
    add_case(_name, LOSSES, _what, lambda method=_method: call(Cell(), loss=getattr(Memory(), method)))  # type: ignore[misc]


def _drop(_: int, output: torch.Tensor) -> Any:
    return torch.nn.functional.dropout(output).square().sum()


_LOSSES: dict[str, tuple[str, Callable[[int, Any], Any]]] = {
    "loss_that_draws": ("random.random()", lambda _, one: one.square().sum() * random.random()),
    "loss_with_dropout": ("dropout", _drop),
    "loss_by_grad_mode": (
        "another weight where no graph is recorded",
        lambda _, one: one.square().sum() * (1.0 if torch.is_grad_enabled() else 0.5),
    ),
    "loss_in_place": ("an output changed in place", lambda _, one: one.mul_(2.0).square().sum()),
}
for _name, (_what, _loss) in _LOSSES.items():
    add_case(_name, LOSSES, _what, lambda loss=_loss: call(Cell(), loss=loss))  # type: ignore[misc]


@case(LOSSES, "targets taken from an iterator")
def loss_with_iterator() -> Call:
    targets = iter(torch.arange(1000).double())
    return call(Cell(), loss=lambda _, one: (one - next(targets)).square().sum())


@case(LOSSES, "weights taken from itertools.cycle")
def loss_with_cycle() -> Call:
    weights = itertools.cycle([1.0, 1.0, 1.0, 1.0, 2.0])
    return call(Cell(), loss=lambda _, one: one.square().sum() * next(weights))


@case(LOSSES, "a total kept in a variable of the enclosing function")
def loss_with_total() -> Call:
    total = 0.0

    def loss(_: int, output: torch.Tensor) -> Any:
        nonlocal total
        term = output.square().sum()
        total += float(term.detach())
        return term

    return call(Cell(), loss=loss)


@case(LOSSES, "the activity that the cell left on itself, with its graph")
def loss_of_activity() -> Call:
    cell = Records.side_list()
    return call(cell, loss=lambda _, one: one.sum() + cell.kept[-1].abs().sum())


@case(LOSSES, "the activity of the step before, which the cell left on itself")
def loss_of_earlier_activity() -> Call:
    cell = Records.side_list()
    return call(cell, loss=lambda _, one: one.sum() + cell.kept[max(0, len(cell.kept) - 2)].abs().sum())


@case(LOSSES, "a part of the loss added to a list, with its graph")
def loss_in_list() -> Call:
    parts: list[torch.Tensor] = []

    def loss(_: int, output: torch.Tensor) -> Any:
        parts.append(output.abs().sum())
        return output.square().sum() + parts[-1]

    return call(Cell(), loss=loss)
