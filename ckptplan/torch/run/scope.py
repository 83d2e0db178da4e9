"""The scope of a call: the objects that it can reach, and the places that are parts of its state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.lazy import LazyModuleMixin

from ckptplan.torch.run.call import Call
from ckptplan.torch.run.steps import StepTraits
from ckptplan.torch.state.digests import digest
from ckptplan.torch.state.lifted import StatePart
from ckptplan.torch.state.nests import has_memory
from ckptplan.torch.state.places import AttributeHolder, Place, has_graph
from ckptplan.torch.state.reach import (
    GENERATORS,
    MAX_SNAPSHOT_BYTES,
    Reach,
    Snapshot,
    is_generator,
    walk,
)

#: Values of these types distinguish calls, if their container has at most this many elements.
_CONSTANT_TYPES = frozenset({int, float, bool, str, type(None)})
_MAX_CONSTANTS = 64


@dataclass(kw_only=True)
class Scope:
    """The objects that a call can reach, their content at its beginning, and the parts of its state."""

    reach: Reach
    #: The content when the call began.
    start: Snapshot
    #: The parts of the state that are in places.
    lifted: list[StatePart] = field(default_factory=list)
    traits: StepTraits = field(default_factory=StepTraits)

    @classmethod
    def of(cls, call: Call) -> Scope:
        """Return the scope of a call before any trial. Lazy modules create their parameters first."""
        reach = walk(call.roots, generators=call.replay_randomness)
        if reach.has_lazy:
            _create_parameters(call, reach)
            reach = walk(call.roots, generators=call.replay_randomness)
        return cls(reach=reach, start=reach.take_snapshot())

    def begin(self, copied_bytes: int = MAX_SNAPSHOT_BYTES) -> None:
        """Copy tensors that steps may write in place, so that all changes from here on can be undone."""
        self.start = self.reach.take_snapshot(all_digests=True, copied_bytes=copied_bytes)

    @property
    def lifted_places(self) -> dict[Any, StatePart]:
        """The parts of the state by their places."""
        return {part.place: part for part in self.lifted}

    @property
    def keeps_state(self) -> bool:
        """Whether steps keep anything but random generators."""
        return any(not is_generator(part.place) for part in self.lifted)

    @property
    def copies_state(self) -> bool:
        """Whether steps write into the state in place, so that each recording begins with a copy."""
        return self.traits.writes_passed or any(part.is_written for part in self.lifted)

    def list_constant_places(self) -> list[Place]:
        """Return the places that hold tensors with a graph from before the call, without lifted ones."""
        lifted = self.lifted_places
        return [place for place in self.reach.list_graph_places() if place not in lifted]

    def drop_copies(self) -> int:
        """Drop the copies of tensors that steps replace by others; return the bytes of the other copies.

        Copies of parameters do not count. Steps write no replaced tensor in place, so it needs no copy.
        """
        replaced = {part.place for part in self.lifted if not (part.is_content or part.is_written)}
        reach, copies = self.reach, self.start.copies
        for number in list(copies):
            places = reach.places.get(id(reach.tensors[number]))
            if places and replaced.issuperset(places):
                del copies[number]
        counted = (number for number in copies if not isinstance(reach.tensors[number], torch.nn.Parameter))
        return sum(copies[number].nbytes for number in counted)

    def list_generators(self) -> list[Place]:
        """Return the places of the random generators of PyTorch."""
        return [Place(holder) for holder in self.reach.holders if isinstance(holder.owner, torch.Generator)]

    def list_parameters(self, call: Call) -> list[Tensor]:
        """Return the tensors whose gradients are wanted, each once, without constants."""
        hidden = [leaf for reference in self.traits.hidden_leaves if (leaf := reference()) is not None]
        # A named tensor with a graph that is in a place is a constant, or a part of the state.
        named = [
            tensor for tensor in call.parameters if tensor.is_leaf or not self.reach.places.get(id(tensor))
        ]
        candidates = (*self.reach.list_parameters(), *named, *hidden)
        return list({id(tensor): tensor for tensor in candidates if tensor.requires_grad}.values())

    def recall(self, earlier: StepTraits) -> None:
        """Lift the places that an earlier call of the same kind lifted, and take over its traits."""
        self.traits = earlier
        places: list[Place] = []
        for holder, content in zip(self.reach.holders, self.start.contents, strict=True):
            keys = content if isinstance(content, dict) and not holder.is_whole else (None,)
            is_whole = holder.is_whole
            places += [Place(holder, key) for key in keys if (holder.describe(key), is_whole) in earlier.lifted]
        contents = map(self.reach.get_content, range(len(self.reach.tensors)))
        places += [place for place in contents if place.label in earlier.lifted]
        # Attributes that the first step of a new module makes do not exist yet.
        names = {name for name, is_whole in earlier.lifted if not is_whole}
        keys = {name: name.rpartition(".")[2] for name in names - {place.name for place in places}}
        for holder in self.reach.holders:
            if isinstance(holder, AttributeHolder):
                places += [Place(holder, key) for name, key in keys.items() if holder.describe(key) == name]
        self.lifted = [StatePart(place, *earlier.lifted[place.label]) for place in dict.fromkeys(places)]

    def lift(self, places: Sequence[Place], *, carries: bool = True) -> None:
        """Make places parts of the state."""
        lifted = self.lifted_places
        self.lifted += [StatePart(place, carries=carries) for place in places if place not in lifted]

    def lift_written(self, places: Sequence[Place]) -> None:
        """Lift places into whose tensors steps write in place with a graph: each chunk gets new tensors."""
        lifted = self.lifted_places
        self.lifted += [StatePart(place, is_written=True) for place in places if place not in lifted]

    def lift_tensors(self, contents: Iterable[StatePart]) -> None:
        """Lift the places of tensors whose numbers carry gradients, and no longer the numbers alone."""
        for part in contents:
            self.lifted.remove(part)
            assert isinstance(part.place, Place)  # noqa: S101 - contents are in places
            self.lift_written(self.reach.places.get(id(part.place.holder.owner), []))

    def set_traits(self, **traits: Any) -> None:
        """Set observed traits of the steps."""
        self.traits = replace(self.traits, **traits)

    def export_traits(self) -> StepTraits:
        """Return the observed traits, for later calls of the same kind."""
        lifted = {
            part.place.label: (part.is_written, part.carries, part.inherits, part.is_read)
            for part in self.lifted
            if isinstance(part.place, Place)
        }
        return replace(self.traits, temporary_leaves=None, lifted=lifted)

    def describe_constants(self, labels: Iterable[tuple[str, bool]]) -> int:
        """Return a hash of the plain values that the call can reach, without places that have these labels."""
        reach, start, lifted = self.reach, self.start, {name for name, _ in labels}
        values: list[Any] = [
            (tuple(tensor.shape), tensor.requires_grad, has_graph(tensor)) for tensor in reach.tensors
        ]
        values += map(type, reach.modules)
        for number, tensor in enumerate(reach.tensors):
            # Tensors that require a gradient are left out, since an optimizer changes them.
            if tensor.numel() == 1 and has_memory(tensor) and not tensor.requires_grad:
                places = (reach.get_content(number), *reach.places.get(id(tensor), ()))
                if not any(place.name in lifted for place in places):
                    values.append(start.digests.get(number) or digest(tensor))
        for holder, content in zip(reach.holders, start.contents, strict=True):
            if holder.is_whole and holder.describe(None) in lifted:
                continue
            pairs = (
                content.items()
                if isinstance(content, dict)
                else enumerate(content)
                if isinstance(content, list)
                else ()
            )
            if len(content) <= _MAX_CONSTANTS if isinstance(content, dict | list) else False:
                values += [
                    (key, value)
                    for key, value in pairs
                    if value.__class__ in _CONSTANT_TYPES
                    and (holder.is_whole or holder.describe(key) not in lifted)
                ]
        return hash(tuple(values))


def _create_parameters(call: Call, reach: Reach) -> None:
    """Take a step in which lazy modules create their parameters.

    The parameters and the advanced random generators stay. All other changes of the step are undone.
    """
    modules, before = reach.modules, [holder.read() for holder in reach.holders]
    lazy = [module for module in modules if isinstance(module, LazyModuleMixin)]
    lazy_owners = {id(part) for module in lazy for part in (vars(module), *vars(module).values())}
    modes = [module.training for module in modules]
    try:
        for module in modules:
            # Running statistics stay as they are.
            module.training = False
        with torch.no_grad():
            call.cell(call.state, call.inputs.get_step(0))
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        for holder, content in zip(reach.holders, before, strict=True):
            is_kept = id(holder.owner) in lazy_owners or isinstance(holder.owner, GENERATORS)
            if not is_kept and holder.list_changes(content, holder.read()):
                holder.write(content)
