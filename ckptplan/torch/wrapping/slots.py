"""Slots: the attributes and variables in which a module keeps its state, and the cell of this state."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ckptplan.errors import InputError
from ckptplan.torch.cell_calls import SlotCell
from ckptplan.torch.graphs import storage_of
from ckptplan.torch.held_graphs import guard_tensor
from ckptplan.torch.surroundings.holders import ABSENT, Holder, Key, MappingHolder, NamedValues, TensorHolder
from ckptplan.torch.surroundings.snapshot import Place, Surroundings
from ckptplan.torch.surroundings.walk import walk
from ckptplan.torch.trees import detach_state, flatten, holds_graph, map_tensors, read_versions

#: How far into nested containers an object is looked for.
_DEPTH = 4
#: How the surroundings name a cell, and what of it is the module.
_CELL, _OWN = "cell", "cell."


class Slot:
    """An attribute, an item or a variable whose value is a part of the state.

    Arguments:
        holder: the object that has it.
        key: its name there.
        is_written: whether steps are known to write into the tensors that they find here.
    """

    def __init__(self, holder: NamedValues, key: Key, *, is_written: bool = False) -> None:
        self._holder, self._key = holder, key
        #: As a user would write it.
        self.name = holder.name_of(key).removeprefix(_OWN)
        self.is_written = is_written
        #: Whether there has been a graph here, as far as is known: if not, steps find numbers without one, too.
        self.has_graph = False
        #: Whether each step left the container that it found, with other contents: others may refer to it.
        self.keeps_container = True

    @property
    def is_of_module(self) -> bool:
        """Whether it is an attribute of a module."""
        return isinstance(self._holder, MappingHolder) and self._holder.is_of_module

    @property
    def identity(self) -> tuple[int, Key]:
        """What tells it from other slots, as long as its holder is alive."""
        return id(self._holder.thing), self._key

    def read(self) -> Any:
        """Return the present value."""
        return self._holder.get(self._key)

    def write(self, value: Any) -> None:
        """Set the value."""
        self._holder.give(self._key, value)

    def clear(self) -> None:
        """Set nothing, if there is anything."""
        if self.read() is not ABSENT:
            self.write(None)

    def load(self, value: Any) -> int:
        """Set a value that a checkpoint holds, which steps must not change; return what ``learn`` takes."""
        if self.is_written:
            self.write(map_tensors(torch.Tensor.clone if self.has_graph else _copy, value))
            return 0
        if not self.has_graph:
            self.write(detach_state(value))
        else:
            # Containers of its own: a step may change them.
            self.write(value if isinstance(value, torch.Tensor) else map_tensors(lambda leaf: leaf, value))
        return _count_writes(value)

    def replace(self, value: Any) -> None:
        """Set a value between sequences, as contents of the container that is there, if steps keep that."""
        self.write(_fill(self.read(), value) if self.keeps_container else value)

    def learn(self, given: Any, writes: int) -> bool:
        """Note how a step used a value that was loaded; return whether that was not known."""
        known = self.is_written, self.has_graph
        self.is_written = self.is_written or _count_writes(given) != writes
        self.has_graph = self.has_graph or has_gradient(self.read())
        return known != (self.is_written, self.has_graph)

    def leave(self, value: Any) -> None:
        """Set the value that a sequence returned, without a graph that a plain loop would not leave."""
        self.replace(value if self.has_graph else detach_state(value))

    def leave_guarded(self, value: Any, roots: Sequence[torch.Tensor]) -> None:
        """Set a value whose graph is gone: it refuses a gradient, if a plain loop would leave one."""

        def guard(leaf: torch.Tensor) -> torch.Tensor:
            # A copy can be detached in place, as some libraries do.
            return guard_tensor(leaf, self.name, roots).clone()

        self.replace(map_tensors(guard, value) if self.has_graph and roots else value)


def _fill(old: Any, new: Any) -> Any:
    """Return a container with the contents of a new one of its kind, else the new value."""
    if type(old) is not type(new) or old is new or not isinstance(old, dict | list | deque):
        return new
    old.clear()
    old.update(new) if isinstance(old, dict) else old.extend(new)
    return old


def refuse_shared(slots: Sequence[Slot], values: Sequence[Any]) -> None:
    """Raise InputError if two slots hold the same container, or memory that steps write into.

    Each slot is loaded by itself: what a step writes into one would not show in the other.
    """
    owners: dict[Any, Slot] = {}
    for slot, value in zip(slots, values, strict=True):
        parts = [one for one in _list_parts(value, _DEPTH) if isinstance(one, list | dict | set | deque)]
        shared = {("container", id(one)) for one in parts}
        shared |= {("memory", storage_of(one)) for one in flatten(value)[0] if one.numel()}
        for kind, number in shared:
            other = owners.setdefault((kind, number), slot)
            if other is not slot and (kind == "container" or slot.is_written or other.is_written):
                raise InputError(
                    f"keeps a part of its state in {other.name} and {slot.name}, which are the same {kind}",
                    field="net",
                    accepted="a state that one attribute holds; the other may be a property that returns it",
                )


def has_gradient(value: Any) -> bool:
    """Return whether a tensor of a value requires a gradient."""
    return any(leaf.requires_grad for leaf in flatten(value)[0])


def _copy(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.detach().clone()


def _count_writes(value: Any) -> int:
    # No compiled graph counts them; what it computes was compared with the steps as they are written.
    return 0 if torch.compiler.is_compiling() else sum(read_versions(flatten(value)[0]))


def find_slots(surroundings: Surroundings, places: Iterable[Place]) -> list[Slot]:
    """Return the slots in which places are: attributes and variables, not items of containers in them.

    A container may be replaced by another one, e.g. when the network is reset; the attribute stays. Those of
    the cell do not count, which is made for one call.
    """
    slots: list[Slot] = []
    roots = _list_roots(surroundings.holders)
    for place in places:
        holder = place.holder
        if isinstance(holder.thing, torch.nn.Parameter):
            continue
        slots += [Slot(root, place.key) for root in roots if root is holder] or [
            # Numbers of a tensor changed in place, perhaps without a count, as in batch normalization.
            Slot(root, key, is_written=isinstance(holder, TensorHolder))
            for root in roots
            for key, value in root.read().items()
            if any(one is holder.thing for one in _list_parts(value, _DEPTH))
        ]
    return slots


def find_held_slots(net: torch.nn.Module) -> list[Slot]:
    """Return the slots that hold a graph at present: a state that is carried on."""
    roots = _list_roots(walk({"net": net}).holders)
    return [Slot(root, key) for root in roots for key, value in root.read().items() if holds_graph(value)]


def _list_roots(holders: Iterable[Holder]) -> list[NamedValues]:
    """Return the objects with attributes, and the variables, without containers and the cell itself."""
    named = [one for one in holders if isinstance(one, NamedValues) and one.name != _CELL]
    return [one for one in named if not isinstance(one, MappingHolder) or one.attributes]


def _list_parts(value: Any, depth: int) -> Iterator[Any]:
    yield value
    if depth and isinstance(value, list | tuple | dict | set | deque):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _list_parts(part, depth - 1)


class LateFinding(InputError):  # noqa: N818 - what it is, not what it says
    """A step uses a part of the state in another way than all earlier ones; it is known from now on."""


class StatefulCell(torch.nn.Module, SlotCell):
    """A module whose state is in slots, as a cell; between steps, the slots hold what they held before.

    The state is the tuple of their values; None stands for ``initial``. How steps use the values shows when
    they run: LateFinding asks for another attempt, since what ran before did not know it.

    Arguments:
        net: the module, which takes a step.
        constants: keyword arguments that it is called with in each step.
        slots: where it keeps its state.
        initial: what they hold before the first step.
    """

    def __init__(
        self,
        net: torch.nn.Module,
        constants: Mapping[str, Any],
        slots: Sequence[Slot],
        initial: tuple[Any, ...],
    ) -> None:
        super().__init__()
        # As a child, so that its parameters and its surroundings are found; and what it is given.
        self.net, self.constants, self.initial = net, dict(constants), initial
        self._slots = tuple(slots)

    @property
    def places(self) -> frozenset[tuple[int, Any]]:
        """The identities of all slots: what they hold outside of steps may change at any time."""
        return frozenset(slot.identity for slot in self._slots)

    def forward(self, state: Any, x: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
        """Take a step. Raises LateFinding, and InputError for outputs that later steps change in place."""
        slots = self._slots
        outside = [slot.read() for slot in slots]
        try:
            # What a module holds must stay as it is, also before it is known that steps write into it.
            given = map_tensors(torch.Tensor.clone, self.initial) if state is None else state
            writes = [slot.load(value) for slot, value in zip(slots, given, strict=True)]
            found = [slot.read() for slot in slots]
            output = self.net(*x, **self.constants)
            # All, so that all are known in another attempt.
            late = [
                slot.name
                for slot, value, before in zip(slots, given, writes, strict=True)
                if slot.learn(value, before)
            ]
            if late:
                raise LateFinding(
                    f"{', '.join(late)} has a gradient, or is written in place, in some steps and was not in "
                    "those that ran before, which is known only now",
                    field="net",
                    accepted="the same call again: it takes this into account",
                )
            after = tuple([slot.read() for slot in slots])
            if not torch.compiler.is_compiling():
                for slot, before, value in zip(slots, found, after, strict=True):
                    slot.keeps_container = slot.keeps_container and before is value
                refuse_shared(slots, after)
            self._refuse_changed_outputs(after, output)
            return after, output
        finally:
            for slot, value in zip(slots, outside, strict=True):
                slot.write(value)

    def _refuse_changed_outputs(self, after: tuple[Any, ...], output: Any) -> None:
        written = [value for slot, value in zip(self._slots, after, strict=True) if slot.is_written]
        if not written or torch.compiler.is_compiling():
            return
        storages = {storage_of(leaf) for leaf in flatten(written)[0]}
        if any(storage_of(leaf) in storages for leaf in flatten(output)[0]):
            raise InputError(
                "returns tensors that its later steps change in place, so that the outputs of all steps become "
                "the last one",
                field="net",
                accepted="a copy, as self.mem.clone(), or steps that make a new tensor, as "
                "self.mem = 0.9 * self.mem + x",
            )
