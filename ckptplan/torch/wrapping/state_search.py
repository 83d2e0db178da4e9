"""Finds the state of a module: what its steps change and later steps read.

The first steps of a real sequence run, so that neurons are active. Everything that they change is given other
values, one after the other, and a step runs again: what its output depends on, now or by way of something else
that steps change, is state. The rest are records and statistics. Then the steps run again from the state found,
from the beginning and from the middle, and must return what they returned before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from ckptplan.errors import InputError
from ckptplan.torch.ambient import Generators, RandomState
from ckptplan.torch.constants import can_be_held
from ckptplan.torch.inputs import Sequence, iterate_steps
from ckptplan.torch.surroundings.iterators import tap_iterators
from ckptplan.torch.surroundings.snapshot import Place, Snapshot, Surroundings
from ckptplan.torch.surroundings.walk import walk
from ckptplan.torch.trees import flatten
from ckptplan.torch.wrapping.influences import Influences
from ckptplan.torch.wrapping.slots import Slot, are_equal_values, copy_tensors, find_slots
from ckptplan.torch.wrapping.stateful_cell import ModuleStep, StatefulCell

#: The most steps that are tried.
_MOST_STEPS = 64
#: The next values of a counter with which a step is tried.
_MOST_AHEAD = 16


@dataclass(frozen=True, kw_only=True)
class FoundState:
    """What steps of a module change."""

    #: What later steps read.
    state: list[Slot]
    #: The rest: records, statistics, and what is written before it is read.
    others: list[Slot]


@dataclass(frozen=True, kw_only=True)
class StateSearch:
    """Finds the slots of a module.

    Arguments:
        step: takes a step of the module.
        inputs: the inputs of a sequence.
        steps: T.
        device: the device on which the module probably runs.
    """

    step: ModuleStep
    inputs: Sequence
    steps: int
    device: torch.device

    def run(self) -> FoundState:
        """Return what is found, and leave everything as it was. Raises InputError."""
        reached = walk({"net": self.step.net})
        generators = Generators(self.device, wanted=True, held=reached.generators)
        with ExitStack() as stack:
            stack.enter_context(generators.aside())
            holders = [*reached.holders, *stack.enter_context(tap_iterators(reached.holders))]
            trial = _Trial(search=self, surroundings=Surroundings(holders), generators=generators)
            stack.callback(trial.put_back)
            return trial.find_state()


class _Trial:
    """The first steps of a sequence."""

    def __init__(self, *, search: StateSearch, surroundings: Surroundings, generators: Generators) -> None:
        self._step, self._inputs = search.step, search.inputs
        self._last = search.steps - 1
        self._count = max(2, min(search.steps, _MOST_STEPS))
        self._surroundings, self._generators = surroundings, generators
        self._world = surroundings.take(copies=True)
        self._drawn = generators.state()
        self._outputs: list[Any] = []

    def put_back(self) -> None:
        """Leave the surroundings as they were."""
        self._surroundings.put_back(self._world)

    def find_state(self) -> FoundState:
        """Return what the steps change. Raises InputError."""
        places = self._sweep()
        end = self._surroundings.take(copies=True), self._generators.state()
        slots = [slot for slot in find_slots(self._surroundings, places) if can_be_held(slot.read())]
        read = self._find_read(slots, end)
        chosen = [slot for slot, one in zip(slots, read, strict=True) if one]
        if not chosen:
            raise _not_recurrent()
        if self._step.whole and self._last:
            self._refuse_mixed_steps()
        # Something may be read in later steps only: then all that changes is taken for state.
        for found in (chosen, slots):
            if self._repeats(found):
                return FoundState(state=found, others=[slot for slot in slots if slot not in found])
        raise _not_repeatable(slots)

    def _sweep(self) -> list[Place]:
        """Run the steps, keep their outputs, and return the places that they change."""
        surroundings, before = self._surroundings, self._world
        changed: dict[Place, None] = {}
        with torch.no_grad():
            for number in range(self._count):
                self._outputs.append(self._step(self._input(number)))
                # After 1, 2, 4, 8, ... steps: what changes back in the next step is seen, too.
                if (number + 1) & number == 0 or number == self._count - 1:
                    now = surroundings.take()
                    places = surroundings.list_changes(before, now)
                    changed |= dict.fromkeys(places)
                    if surroundings.find_more(places):
                        now = surroundings.take()
                    before = now
        return list(changed)

    def _find_read(self, slots: list[Slot], end: tuple[Snapshot, RandomState]) -> list[bool]:
        """Return of each slot whether the output depends on it, where neurons are active or at the start."""
        influences = self._influences(slots, self._count, *end)
        read = influences.find_read(Slot.disturb)
        for change in (Slot.disturb, *(_count_ahead(ahead) for ahead in range(1, _MOST_AHEAD + 1))):
            # Some are read together only, as a counter and the list that it counts; some every tenth step.
            left = [slot for slot, one in zip(slots, read, strict=True) if not one]
            if change is not Slot.disturb:
                left = [slot for slot in left if _is_counter(slot.read())]
            if left and influences.are_read(left, change, read):
                read = [one or slot in left for slot, one in zip(slots, read, strict=True)]
        self._restart(self._world, self._drawn)
        with torch.no_grad():
            self._step(self._input(0))
        first = {slot.identity: slot.read() for slot in slots}

        def put_first(slot: Slot) -> list[torch.Tensor]:
            slot.write(copy_tensors(first[slot.identity]))
            return []

        # A flag that the first step clears: the first step, run again, must find it set.
        early = self._influences(slots, 0, self._world, self._drawn).find_read(put_first)
        return [one or other for one, other in zip(read, early, strict=True)]

    def _influences(self, slots: list[Slot], number: int, world: Snapshot, drawn: RandomState) -> Influences:
        def take() -> Any:
            self._generators.restore(drawn)
            with torch.enable_grad():
                return self._step(self._input(number))

        return Influences(take, slots, self._surroundings, world)

    def _repeats(self, slots: list[Slot]) -> bool:
        """Return whether steps from explicit states return what the module did, also when they run again."""
        while True:
            written = sum(slot.written_in_place for slot in slots)
            found = self._repeats_once(slots)
            if sum(slot.written_in_place for slot in slots) == written:
                return found

    def _repeats_once(self, slots: list[Slot]) -> bool:
        self._restart(self._world, self._drawn)
        cell = StatefulCell(self._step, slots, tuple(slot.read() for slot in slots))
        half = self._count // 2
        with torch.no_grad():
            middle = self._run_explicit(cell, None, 0, half)
            if middle is None:
                return False
            drawn = self._generators.state()
            copies = copy_tensors(middle)
            if self._run_explicit(cell, middle, half, self._count) is None:
                return False
            self._generators.restore(drawn)
            return self._run_explicit(cell, copies, half, self._count) is not None

    def _run_explicit(self, cell: StatefulCell, state: Any, start: int, stop: int) -> Any:
        """Return the state after some steps, None if one returned something else than before."""
        for number in range(start, stop):
            versions = cell.list_versions(state)
            after, output = cell(state, self._input(number))
            cell.note_writes(state, versions)
            state = after
            if not are_equal_values(output, self._outputs[number]):
                return None
        return state

    def _refuse_mixed_steps(self) -> None:
        """Raise InputError if steps at once are not what single ones are."""
        self._restart(self._world, self._drawn)
        count = min(self._count, self._last + 1)
        leaves, nest = self._inputs.piece(0, count)
        with torch.no_grad():
            together = self._step.net(*nest.fill([leaf.detach() for leaf in leaves]), **self._step.constants)
        drawn = self._generators.moved_since(self._drawn)
        outputs, form = flatten(together)
        same = all(
            are_equal_values(form.fill([leaf[number] for leaf in outputs]), self._outputs[number])
            for number in range(count)
        )
        if not (same or drawn):
            raise InputError(
                "computes something over several time steps, as a mean over time or batch normalization in "
                "multi-step mode does, so that it cannot run step by step",
                field="net",
                accepted="the part of it that returns an output for each time step; batch normalization in "
                'single-step mode: functional.set_step_mode(layer, "s")',
            )

    def _restart(self, world: Snapshot, drawn: RandomState) -> None:
        self._surroundings.put_back(world)
        self._generators.restore(drawn)

    def _input(self, number: int) -> Any:
        number = min(number, self._last)
        leaves, nest = self._inputs.piece(number, number + 1)
        return next(iterate_steps(tuple(leaf.detach() for leaf in leaves), nest, 1))


def _is_counter(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not (value.is_floating_point() or value.dtype == torch.bool)
    return type(value) is int


def _count_ahead(ahead: int) -> Callable[[Slot], list[torch.Tensor]]:
    def count(slot: Slot) -> list[torch.Tensor]:
        slot.write(slot.read() + ahead)
        return []

    return count


def _not_recurrent() -> InputError:
    return InputError(
        "keeps nothing from one time step to the next: it is not recurrent, or it takes its state as an "
        "argument and returns it",
        field="net",
        accepted="a module that keeps its state, torch.nn.LSTM, GRU or RNN, or a network of Norse; for "
        "cell(state, x), ckptplan.torch.scan or unroll",
    )


def _not_repeatable(slots: list[Slot]) -> InputError:
    names = ", ".join(slot.name for slot in slots[:4])
    return InputError(
        f"returns something else when its steps run again from what they change ({names}): it keeps something "
        "that could not be found",
        field="net",
        accepted="a module that keeps its state in attributes, buffers or variables, as tensors, numbers, and "
        "containers of these",
    )
