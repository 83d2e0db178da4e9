"""The state of the steps: what they pass on to each other, and every place that they change.

Places that steps change are *lifted* into the state. The state is read as one nest, saved as one checkpoint and
loaded as one. What steps pass on is loaded into new containers, since it belongs to the steps. What is in
places is loaded into the containers that are there, since others may refer to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_iter

from ckptplan.torch.state.nests import (
    Nest,
    NestMemo,
    compact,
    count_bytes,
    fill,
    flatten,
    is_differentiable,
    list_leaves,
    open_nest,
    read_versions,
)
from ckptplan.torch.state.places import Place


class PassedState:
    """What steps pass on to each other: the place of an argument, not one in memory."""

    name = "the state"
    is_content = False

    def __init__(self, value: Any) -> None:
        self.value = value

    def get(self) -> Any:
        """Return the value."""
        return self.value

    def set(self, value: Any) -> None:
        """Set the value."""
        self.value = value


@dataclass(eq=False)
class StatePart:
    """A part of the state: what steps pass on, or what is in one place.

    Arguments:
        place: where the part is.
        is_written: whether steps write into its tensors in place, so that checkpoints need copies.
        carries: whether its tensors carry gradients from step to step.
        inherits: whether steps use what was in the place before the call, with its graph.
        is_read: whether steps read its tensors before they write them. If not, checkpoints need none of them.
    """

    place: Place | PassedState
    is_written: bool = False
    carries: bool = True
    inherits: bool = False
    is_read: bool = True

    def __post_init__(self) -> None:
        if self.is_content:
            self.is_written, self.carries = True, False

    @property
    def name(self) -> str:
        """How a user would write the place."""
        return self.place.name

    @property
    def is_content(self) -> bool:
        """Whether it is the numbers of a tensor, into which a checkpoint is copied."""
        return self.place.is_content

    @property
    def is_passed(self) -> bool:
        """Whether steps pass it on."""
        return isinstance(self.place, PassedState)

    def is_carried(self, leaf: Tensor) -> bool:
        """Return whether one of its tensors may carry a gradient."""
        return self.carries and is_differentiable(leaf)


@dataclass(eq=False)
class Checkpoint:
    """The state at one moment: its tensors, the part that each belongs to, the parts, and their nests."""

    leaves: list[Tensor]
    owners: list[StatePart]
    parts: list[StatePart]
    nests: list[Nest]
    #: The versions of saved tensors, by which a later write into one of them is noticed.
    versions: list[int] = field(default_factory=list)
    #: Of parts that steps do not read: their nests, and placeholders for their tensors.
    unread: list[tuple[Nest, list[Tensor]]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """The bytes of its tensors, each object once."""
        return count_bytes(self.leaves)

    def find_overwritten(self) -> list[StatePart]:
        """Return the parts into which something was written since they were saved."""
        triples = zip(self.owners, self.versions, read_versions(self.leaves), strict=True)
        return [part for part, before, after in triples if before != after]

    def pair(self) -> Iterator[tuple[Tensor, StatePart]]:
        """Return the tensors, each with its part."""
        return zip(self.leaves, self.owners, strict=True)


class LiftedState:
    """The state of a run.

    Arguments:
        passed: what steps pass on.
        lifted: the parts in places.
        is_written: whether steps write into the tensors that they are passed.
        refuse_reading: called with a part that checkpoints leave out, because no step was observed to read it,
            when a step reads it after all; None to put all parts into checkpoints.
    """

    def __init__(
        self,
        passed: PassedState,
        lifted: Sequence[StatePart],
        *,
        is_written: bool = False,
        refuse_reading: Callable[[StatePart], object] | None = None,
    ) -> None:
        self.passed, self._refuse_reading = passed, refuse_reading
        self._unread = [part for part in lifted if not part.is_read and refuse_reading is not None]
        self._saved = [
            StatePart(passed, is_written=is_written),
            *(part for part in lifted if part not in self._unread),
        ]
        # What steps left in the end may carry a gradient, though no step reads it.
        self.parts = [*self._saved, *(part for part in self._unread if part.carries)]
        self._copies = any(part.is_written for part in self.parts)

    def read(self) -> Checkpoint:
        """Return the present state, by reference."""
        return self._read(self.parts)

    def _read(self, parts: list[StatePart]) -> Checkpoint:
        leaves, nest = flatten(self.passed.value)
        owners, nests, memo = [parts[0]] * len(leaves), [nest], NestMemo()
        for part in parts[1:]:
            count = len(leaves)
            nests.append(open_nest(part.place.get(), leaves, memo))
            owners += [part] * (len(leaves) - count)
        return Checkpoint(leaves, owners, parts, nests)

    @property
    def saved_bytes(self) -> int:
        """The bytes of a checkpoint of the present state."""
        return self._read(self._saved).bytes

    def save(self) -> Checkpoint:
        """Return the present state as a checkpoint, which no later step changes."""
        checkpoint = self._read(self._saved)
        copies: dict[int, Tensor] = {}
        for number, (leaf, part) in enumerate(checkpoint.pair()):
            if id(leaf) not in copies:
                copies[id(leaf)] = leaf.detach().clone() if part.is_written else compact(leaf.detach())
            checkpoint.leaves[number] = copies[id(leaf)]
        checkpoint.versions = read_versions(checkpoint.leaves)
        checkpoint.nests[0].release(set())
        checkpoint.unread = [make_placeholders(part, self._refuse_reading) for part in self._unread]
        return checkpoint

    def hide_unread(self, checkpoint: Checkpoint) -> None:
        """Hide the tensors that a checkpoint leaves out from the steps after it, which may read them after all.

        Tensors in lists and dicts stay, since users keep these containers.
        """
        for part, (nest, placeholders) in zip(self._unread, checkpoint.unread, strict=True):
            if isinstance(part.place.get(), Tensor | tuple):
                part.place.set(fill(nest, placeholders))

    def list_hidden(self) -> list[StatePart]:
        """Return the parts that steps were observed to read, if any, and those whose tensors are hidden."""
        return [
            part
            for part in self._unread
            if part.is_read or any(isinstance(leaf, Placeholder) for leaf in list_leaves(part.place.get()))
        ]

    def load(self, checkpoint: Checkpoint) -> None:
        """Let the state be that of a checkpoint, which stays valid."""
        for part, (nest, placeholders) in zip(self._unread, checkpoint.unread, strict=True):
            part.place.set(fill(nest, placeholders, fresh=False))
        leaves = checkpoint.leaves
        if self._copies:
            pairs = checkpoint.pair()
            copies = {id(leaf): leaf.clone() for leaf, part in pairs if part.is_written and not part.is_content}
            leaves = [copies.get(id(leaf), leaf) for leaf in leaves]
        self.write(checkpoint, leaves)

    def write(self, checkpoint: Checkpoint, leaves: Sequence[Tensor]) -> None:
        """Let the state have the nests of a checkpoint, and these tensors."""
        remaining, filled = iter(leaves), dict[int, Any]()
        self.passed.value = checkpoint.nests[0].fill(remaining, {}, True)
        for part, nest in zip(checkpoint.parts[1:], checkpoint.nests[1:], strict=True):
            part.place.set(nest.fill(remaining, filled, False))

    def detach(self) -> None:
        """Drop the graphs of the present state."""
        state = self.read()
        if any(leaf.grad_fn is not None for leaf in state.leaves):
            self.write(state, detach_computed(state.leaves))


class LiftedContent:
    """The content of the lifted places outside of replays, which is put aside while steps run again.

    Arguments:
        lifted: the parts in places.
    """

    def __init__(self, lifted: Sequence[StatePart]) -> None:
        self._state = LiftedState(PassedState(None), lifted)
        self._content = self._state.read()
        pairs = self._content.pair()
        self._leaves = [leaf.detach().clone() if part.is_content else leaf for leaf, part in pairs]

    def restore(self) -> None:
        """Put the content back."""
        self._state.write(self._content, self._leaves)


def detach_computed(leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors without their graphs; those without a graph stay the same objects.

    A tensor that is there twice is one tensor again.
    """
    detached = {id(leaf): leaf.detach() for leaf in leaves if leaf.grad_fn is not None}
    return [detached.get(id(leaf), leaf) for leaf in leaves]


class Placeholder(Tensor):
    """A tensor whose numbers are unknown, in a place that no step was observed to read. It takes no memory.

    If a function of PyTorch uses it, ``refuse`` is called with its part. Compiled functions, such as those of
    TorchScript, show only in the dispatcher.
    """

    part: StatePart
    refuse: Callable[[StatePart], object]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse the use of each placeholder among the arguments."""
        for value in tree_iter((args, kwargs or {})):
            if isinstance(value, Placeholder):
                value.refuse(value.part)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuse the use of each placeholder among the arguments."""
        with no_dispatch():
            return cls.__torch_function__(func, types, args, kwargs)


def make_placeholders(part: StatePart, refuse: Any) -> tuple[Nest, list[Tensor]]:
    """Return the nest of a part, and a placeholder for each of its tensors."""
    leaves, nest = flatten(part.place.get())
    made: list[Tensor] = []
    # Lists of records have many tensors of one shape, for which one placeholder stands.
    placeholders: dict[Any, Tensor] = {}
    for leaf in leaves:
        if isinstance(leaf, Placeholder):
            made.append(leaf)
            continue
        kind = leaf.shape, leaf.dtype, leaf.device
        if kind not in placeholders:
            empty = torch.zeros((), dtype=leaf.dtype, device=leaf.device)
            placeholder = placeholders[kind] = empty.expand(leaf.shape).as_subclass(Placeholder)
            vars(placeholder).update(part=part, refuse=refuse)
        made.append(placeholders[kind])
    return nest, made
