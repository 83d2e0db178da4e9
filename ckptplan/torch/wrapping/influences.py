"""Finds which slots a module's output depends on, now or in later steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ckptplan.torch.surroundings.snapshot import Snapshot, Surroundings
from ckptplan.torch.trees import flatten
from ckptplan.torch.trial import Slopes, are_steeper, detach_state, measure_slopes
from ckptplan.torch.wrapping.slots import Slot, are_equal_values, copy_tensors, depends_on

#: Whether the output differs, and which slots hold something else after the step.
Effects: TypeAlias = tuple[bool, list[bool]]
#: Gives a slot another value, and returns the leaves of graphs on which this depends.
Change: TypeAlias = Callable[[Slot], list[torch.Tensor]]


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What a step returned and left in the slots, outside of its graph, and its gradients."""

    #: The output, and the value of each slot.
    values: list[Any]
    #: Which of the values are tensors with a graph, and which depend on what was changed.
    with_graph: list[bool]
    dependent: list[bool]
    slopes: Slopes | None


class Influences:
    """Runs one step again and again, each time with another value in one slot.

    Arguments:
        take: runs the step under autograd, and returns its output.
        slots: those that steps change.
        surroundings: what the module can reach.
        world: what it finds there.
    """

    def __init__(
        self, take: Callable[[], Any], slots: Sequence[Slot], surroundings: Surroundings, world: Snapshot
    ) -> None:
        self._take, self._slots = take, slots
        self._surroundings, self._world = surroundings, world
        self._usual = self._see(list)
        #: Those of a change that lets the step fail: it reads what was changed.
        self._all: Effects = (True, [True] * len(slots))

    def find_read(self, change: Change) -> list[bool]:
        """Return of each slot whether it matters to the output, be it by way of another slot."""
        effects = [self._find_effects_of_one(slot, change) for slot in self._slots]
        read = [output for output, _ in effects]
        while True:
            more = [
                mine or any(other and hit for other, hit in zip(read, hits, strict=True))
                for mine, (_, hits) in zip(read, effects, strict=True)
            ]
            if more == read:
                return read
            read = more

    def find_sums(self, change: Change) -> list[bool]:
        """Return of each slot whether it holds a tensor with a graph that goes on from what was there."""
        return [
            one and self._find_effects_of_one(slot, change)[1][number]
            for number, (slot, one) in enumerate(zip(self._slots, self._usual.with_graph[1:], strict=True))
        ]

    def are_read(self, slots: Sequence[Slot], change: Change, known: Sequence[bool]) -> bool:
        """Return whether some slots together matter to the output, or to the slots that are ``known`` to."""
        output, hits = self._find_effects(slots, change) or self._all
        return output or any(hit and one for hit, one in zip(hits, known, strict=True))

    def _find_effects_of_one(self, slot: Slot, change: Change) -> Effects:
        found = self._find_effects([slot], change)
        if found is None and not slot.without_graph:
            # Perhaps because it cannot work on a tensor with a graph there.
            slot.without_graph = True
            found = self._find_effects([slot], change)
            slot.without_graph = found is not None
        return found or self._all

    def _find_effects(self, slots: Sequence[Slot], change: Change) -> Effects | None:
        """Return what is different after a change; None if the step fails."""
        try:
            seen = self._see(lambda: [leaf for slot in slots for leaf in change(slot)])
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception:
            return None
        usual = self._usual
        steeper = (
            usual.slopes is not None and seen.slopes is not None and are_steeper(usual.slopes, seen.slopes)
        )
        output, *hits = (
            depends or not are_equal_values(before, value)
            for depends, before, value in zip(seen.dependent, usual.values, seen.values, strict=True)
        )
        # If only gradients tell, it is not known which results they belong to.
        return output or (steeper and not any(hits)), hits

    def _see(self, change: Callable[[], list[torch.Tensor]]) -> _Seen:
        self._surroundings.put_back(self._world)
        try:
            for slot in self._slots:
                # The step may write into it, which would leave a graph behind.
                slot.write(copy_tensors(slot.read()))
            changed = change()
            values = [self._take(), *(slot.read() for slot in self._slots)]
            tensors = [leaf for value in values for leaf in flatten(value)[0]]
            try:
                slopes = measure_slopes(tensors, ())
            except (torch.OutOfMemoryError, MemoryError):
                raise
            except RuntimeError:
                # Autograd has none; values tell.
                slopes = None
            # The graph is gone when the next step runs.
            return _Seen(
                values=[detach_state(value) for value in values],
                with_graph=[isinstance(one, torch.Tensor) and one.requires_grad for one in values],
                dependent=[depends_on(value, changed) for value in values],
                slopes=slopes,
            )
        finally:
            self._surroundings.put_back(self._world)
