"""Makes the state that a module keeps explicit: ``cell(state, x) -> (state, output)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ckptplan.errors import InputError
from ckptplan.torch.cell_calls import SlotCell
from ckptplan.torch.surroundings.number_holders import equal_numbers
from ckptplan.torch.trees import flatten
from ckptplan.torch.wrapping.slots import Slot, copy_tensors


class ModuleStep:
    """Calls a module for one time step.

    Arguments:
        net: the module.
        constants: keyword arguments that are the same in each step.
    """

    def __init__(self, net: torch.nn.Module, constants: Mapping[str, Any]) -> None:
        self.net, self.constants = net, dict(constants)

    def __call__(self, x: tuple[Any, ...]) -> Any:
        return self.net(*x, **self.constants)


class LateGraph(InputError):  # noqa: N818 - what it is, not what it says
    """A step computes a part of the state with a gradient, where all earlier ones did without."""


def _refuse_late_graphs(slots: Sequence[Slot]) -> None:
    # All, so that all are known in another attempt.
    late = [slot.name for slot in slots if slot.finds_graph()]
    if late:
        raise LateGraph(
            f"{', '.join(late)} has a gradient in some steps and had none in those that were tried, which is "
            "known only now",
            field="net",
            accepted="the same call again: it takes this into account",
        )


class StatefulCell(torch.nn.Module, SlotCell):
    """A module whose state is in slots, as a cell; between steps, the slots hold what they held before.

    The state is the tuple of their values; None stands for ``initial``.

    Arguments:
        step: takes a step of the module.
        slots: where it keeps its state.
        initial: what they hold before the first step.
        others: what else its steps change.
        checks_graphs: whether a graph is refused where no step left one before.
    """

    #: Made anew for each call, of what is listed below: no part of what tells a cell from others.
    __slots__ = ("_step",)

    def __init__(
        self,
        step: ModuleStep,
        slots: Sequence[Slot],
        initial: tuple[Any, ...],
        others: Sequence[Slot] = (),
        *,
        checks_graphs: bool = False,
    ) -> None:
        super().__init__()
        # As a child, so that its parameters and its surroundings are found; and what it is given.
        self.module, self.constants, self.initial = step.net, step.constants, initial
        self.checks_graphs = checks_graphs
        self._step, self._slots, self._others = step, tuple(slots), tuple(others)

    @property
    def places(self) -> frozenset[tuple[int, Any]]:
        """The identities of all slots: what they hold outside of steps may change at any time."""
        return frozenset(slot.identity for slot in (*self._slots, *self._others))

    def forward(self, state: Any, x: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
        """Take a step."""
        slots = self._slots
        outside = [slot.read() for slot in slots]
        try:
            given = self.initial if state is None else state
            for slot, value in zip(slots, given, strict=True):
                slot.load(value)
            output = self._step(x)
            if self.checks_graphs and torch.is_grad_enabled():
                _refuse_late_graphs(slots)
            return tuple([slot.read() for slot in slots]), output
        finally:
            for slot, value in zip(slots, outside, strict=True):
                slot.write(value)

    def copy_given(self, state: Any) -> tuple[Any, ...]:
        """Return copies of the values that a step is given, slot by slot."""
        copies: tuple[Any, ...] = copy_tensors(self.initial if state is None else tuple(state))
        return copies

    def note_writes(self, state: Any, copies: tuple[Any, ...]) -> None:
        """Mark the slots whose tensors a step has changed in place since they were copied.

        Not by counters of versions: batch normalization writes its running statistics without counting.
        """
        given = self.initial if state is None else state
        for slot, now, before in zip(self._slots, given, copies, strict=True):
            pairs = zip(flatten(now)[0], flatten(before)[0], strict=False)
            slot.written_in_place |= any(not equal_numbers(one, other) for one, other in pairs)
