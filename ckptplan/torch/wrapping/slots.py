"""Slots: the attributes and variables in which a module keeps its state, and the cell of this state."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from ckptplan.errors import InputError
from ckptplan.torch.cell_calls import SlotCell
from ckptplan.torch.graphs import find_graph_leaves
from ckptplan.torch.held_graphs import guard_tensor
from ckptplan.torch.surroundings.holders import (
    ABSENT,
    Holder,
    Key,
    MappingHolder,
    NamedValues,
    TensorHolder,
    equal_numbers,
)
from ckptplan.torch.surroundings.snapshot import Place, Surroundings
from ckptplan.torch.trees import are_equal_constants, flatten, is_differentiable
from ckptplan.torch.trial import are_equal

_ROUNDING = 1e-5
#: How far into nested containers an object is looked for.
_DEPTH = 4
_CONTAINERS = (list, tuple, dict, set, deque)


class Slot:
    """An attribute, an item or a variable whose value is a part of the state.

    Arguments:
        holder: the object that has it.
        key: its name there.
    """

    def __init__(self, holder: NamedValues, key: Key) -> None:
        self._holder, self._key = holder, key
        self._mapping = holder.thing if isinstance(holder, MappingHolder) else None
        #: As a user would write it.
        self.name = holder.name_of(key)
        #: Whether a step writes into the tensors that it finds here.
        self.written_in_place = False
        #: Whether a step cannot work on tensors with a graph here, as on running statistics.
        self.without_graph = False
        #: Which tensors here have a graph after a step of a plain loop, in their order; None if not known.
        self.graphs: tuple[bool, ...] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether no step has left a graph here, as far as is known: steps find numbers without one, too."""
        return self.without_graph or (self.graphs is not None and not any(self.graphs))

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
        if self._mapping is not None:
            return self._mapping.get(self._key, ABSENT)
        return self._holder.read().get(self._key, ABSENT)

    def write(self, value: Any) -> None:
        """Set the value."""
        if self._mapping is None:
            self._holder.write({**self._holder.read(), self._key: value})
        elif value is ABSENT:
            self._mapping.pop(self._key, None)
        else:
            self._mapping[self._key] = value

    def clear(self) -> None:
        """Set nothing, if there is anything."""
        if self.read() is not ABSENT:
            self.write(None)

    def load(self, value: Any) -> None:
        """Set a value that a checkpoint holds, which steps must not change."""
        if self.is_plain:
            value = _pytree.tree_map(_detach, value)
        if self.written_in_place:
            value = copy_tensors(value)
        elif not isinstance(value, torch.Tensor):
            # Containers of its own: a step may change them.
            value = _pytree.tree_map(_keep, value)
        self.write(value)

    def note_graphs(self, value: Any) -> None:
        """Note which tensors of a value have a graph; those that had one keep it."""
        self.graphs = merge_flags(tuple(leaf.requires_grad for leaf in flatten(value)[0]), self.graphs)

    def leave(self, value: Any) -> None:
        """Set the value that a sequence returned, without a graph that a plain loop would not leave."""
        self.write(_pytree.tree_map(_detach, value) if self.is_plain else value)

    def leave_guarded(self, value: Any, roots: Sequence[torch.Tensor]) -> None:
        """Set a value whose graph is gone: it refuses a gradient, if a plain loop would leave one."""

        def guard(leaf: Any) -> Any:
            # A copy can be detached in place, as some libraries do.
            return guard_tensor(leaf, self.name, roots).clone() if isinstance(leaf, torch.Tensor) else leaf

        self.write(value if self.is_plain or not roots else _pytree.tree_map(guard, value))

    def finds_graph(self) -> bool:
        """Return whether a step left a graph where none had one; if so, this is known from now on."""
        if self.without_graph or not self.is_plain:
            return False
        value = self.read()
        if not any(leaf.requires_grad for leaf in flatten(value)[0]):
            return False
        self.note_graphs(value)
        return True

    def put(self, value: Any) -> list[torch.Tensor]:
        """Set a copy of a value, perhaps of another time; return the leaves of graphs on which it depends."""
        leaves: list[torch.Tensor] = []

        def renew(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            leaf = leaf.detach().clone()
            if self.without_graph or not is_differentiable(leaf):
                return leaf
            leaves.append(leaf.requires_grad_())
            # No leaf itself: a step may write into it.
            return leaf.clone()

        self.write(_pytree.tree_map(renew, value))
        return leaves


def merge_flags(new: tuple[bool, ...] | None, old: tuple[bool, ...] | None) -> tuple[bool, ...] | None:
    """Return which tensors have a graph in one of two cases; the first counts for another number of them."""
    if new is None or old is None or len(new) != len(old):
        return new
    return tuple(one or other for one, other in zip(new, old, strict=True))


def _keep(leaf: Any) -> Any:
    return leaf


def _detach(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


def _clone(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def copy_tensors(value: Any) -> Any:
    """Return a value with copies of its tensors, in containers of its own."""
    return _pytree.tree_map(_clone, value)


def are_equal_values(one: Any, other: Any) -> bool:
    """Return whether two values of a slot are equal, but for rounding."""
    (ones, nest), (others, other_nest) = flatten(one), flatten(other)
    return (
        nest.is_tensor == other_nest.is_tensor
        and are_equal(ones, others, rounding=_ROUNDING)
        and are_equal_constants(nest.plain, other_nest.plain, _ROUNDING)
    )


def depends_on(value: Any, leaves: Sequence[torch.Tensor]) -> bool:
    """Return whether a value has a graph that leads to some leaves."""
    made = {id(leaf) for leaf in leaves}
    return any(id(one) in made for one in find_graph_leaves(flatten(value)[0]))


def find_slots(surroundings: Surroundings, places: Iterable[Place]) -> list[Slot]:
    """Return the slots in which places are: attributes and variables, not items of containers in them.

    A container may be replaced by another one, e.g. when the network is reset; the attribute stays.
    """
    slots: dict[tuple[int, Key], Slot] = {}
    roots = [one for one in surroundings.holders if _is_root(one)]
    for place in places:
        holder = surroundings.holders[place.holder]
        if isinstance(holder.thing, torch.nn.Parameter):
            continue
        if _is_root(holder) and isinstance(holder, NamedValues):
            found = [Slot(holder, place.key)]
        else:
            found = [
                Slot(root, key)
                for root in roots
                if isinstance(root, NamedValues)
                for key, value in root.read().items()
                if _contains(value, holder.thing, _DEPTH)
            ]
        for slot in found:
            slots.setdefault(slot.identity, slot)
    return list(slots.values())


def list_parameters_among(surroundings: Surroundings, places: Iterable[Place]) -> list[str]:
    """Return the names of the parameters in which places are."""
    holders = [surroundings.holders[place.holder] for place in places]
    # Numbers written by way of .data, or another tensor put there; a gradient is not one of them.
    changed = [one for one in holders if isinstance(one.thing, torch.nn.Parameter)]
    return list(dict.fromkeys(one.name for one in changed if isinstance(one, TensorHolder)))


def _is_root(holder: Holder) -> bool:
    """Return whether a holder is an object with attributes, or a variable, and not a container."""
    if isinstance(holder, MappingHolder):
        return holder.attributes
    return isinstance(holder, NamedValues)


def _contains(value: Any, thing: Any, depth: int) -> bool:
    if value is thing:
        return True
    if depth == 0 or not isinstance(value, _CONTAINERS):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return any(_contains(part, thing, depth - 1) for part in parts)


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
