"""Losses that remember, draw or change something."""

# ruff: noqa: S311

from __future__ import annotations

import itertools
import random
from typing import Any

import torch

from tests.torch.impure.cases import Job, case
from tests.torch.impure.modules import Cell, SideList

LOSSES = "losses"


class Memory:
    """What a loss remembers."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []
        self.mean: float = 0.0
        self.weight: float = 1.0

    def previous(self, _: int, output: torch.Tensor) -> Any:
        self.seen.append(output.detach())
        return (output - (self.seen[-2] if len(self.seen) > 1 else 0)).square().sum()

    def running(self, _: int, output: torch.Tensor) -> Any:
        term = output.square().sum()
        self.mean = 0.9 * self.mean + 0.1 * float(term.detach())
        return term / (0.1 + self.mean)

    def counting(self, _: int, output: torch.Tensor) -> Any:
        self.seen.append(output.detach())
        return output.square().sum() / len(self.seen)

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


def _remembering(name: str) -> Job:
    return Job(cell=Cell(), loss=getattr(Memory(), name))


@case(LOSSES, "the difference to the previous output")
def loss_of_differences() -> Job:
    return _remembering("previous")


@case(LOSSES, "divided by its running mean")
def loss_with_baseline() -> Job:
    return _remembering("running")


@case(LOSSES, "divided by the number of calls")
def loss_by_count() -> Job:
    return _remembering("counting")


@case(LOSSES, "a weight that begins to move in the fifth call")
def loss_with_late_weight() -> Job:
    return _remembering("late")


@case(LOSSES, "the difference to the first output")
def loss_with_reference() -> Job:
    return _remembering("reference")


@case(LOSSES, "a weight that decays with each call")
def loss_with_curriculum() -> Job:
    return _remembering("curriculum")


@case(LOSSES, "outputs collected for a report")
def loss_that_records() -> Job:
    return _remembering("record")


@case(LOSSES, "random.random()")
def loss_that_draws() -> Job:
    return Job(cell=Cell(), loss=lambda _, one: one.square().sum() * random.random())


@case(LOSSES, "dropout")
def loss_with_dropout() -> Job:
    return Job(cell=Cell(), loss=lambda _, one: torch.nn.functional.dropout(one).square().sum())


@case(LOSSES, "another weight where no graph is recorded")
def loss_by_grad_mode() -> Job:
    return Job(cell=Cell(), loss=lambda _, one: one.square().sum() * (1.0 if torch.is_grad_enabled() else 0.5))


@case(LOSSES, "targets taken from an iterator")
def loss_with_iterator() -> Job:
    targets = iter(torch.arange(1000).double())
    return Job(cell=Cell(), loss=lambda _, one: (one - next(targets)).square().sum())


@case(LOSSES, "weights taken from itertools.cycle")
def loss_with_cycle() -> Job:
    weights = itertools.cycle([1.0, 1.0, 1.0, 1.0, 2.0])
    return Job(cell=Cell(), loss=lambda _, one: one.square().sum() * next(weights))


@case(LOSSES, "an output changed in place")
def loss_in_place() -> Job:
    return Job(cell=Cell(), loss=lambda _, one: one.mul_(2.0).square().sum())


@case(LOSSES, "a total kept in a variable of the enclosing function")
def loss_with_total() -> Job:
    total = 0.0

    def loss(_: int, output: torch.Tensor) -> Any:
        nonlocal total
        term = output.square().sum()
        total += float(term.detach())
        return term

    return Job(cell=Cell(), loss=loss)


@case(LOSSES, "the activity that the cell left on itself, with its graph")
def loss_of_activity() -> Job:
    cell = SideList()
    return Job(cell=cell, loss=lambda _, one: one.sum() + cell.kept[-1].abs().sum())


@case(LOSSES, "the activity of the step before, which the cell left on itself")
def loss_of_earlier_activity() -> Job:
    cell = SideList()
    return Job(cell=cell, loss=lambda _, one: one.sum() + cell.kept[max(0, len(cell.kept) - 2)].abs().sum())


@case(LOSSES, "a part of the loss added to a list, with its graph")
def loss_in_list() -> Job:
    parts: list[torch.Tensor] = []

    def loss(_: int, output: torch.Tensor) -> Any:
        parts.append(output.abs().sum())
        return output.square().sum() + parts[-1]

    return Job(cell=Cell(), loss=loss)
