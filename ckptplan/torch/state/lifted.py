"""The state of the steps: the value that they pass on to each other, and every place that they change.

Places that steps change are *lifted* into the state, which is read, saved and loaded as a whole. Loading puts
the passed value into new containers, since it belongs to the steps. It fills the existing containers of places,
since other objects may refer to these containers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_iter

from ckptplan.torch.state.nests import (
    LEAF,
    Nest,
    NestMemo,
    compact,
    count_bytes,
    fill,
    flatten,
    get_storage,
    is_differentiable,
    list_leaves,
    open_nest,
    read_versions,
)
from ckptplan.torch.state.places import Place


class PassedState:
    """The value that steps pass on to each other, with the interface of a ``Place``."""

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
    """A part of the state: the value that steps pass on, or the value of one place.

    Arguments:
        place: where the part is.
        is_written: whether steps write into its tensors in place, so that checkpoints need copies.
        carries: whether its tensors carry gradients from step to step.
        inherits: whether steps use the value from before the call, with its graph.
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
        """The name of the place, as a user would write it."""
        return self.place.name

    @property
    def is_content(self) -> bool:
        """Whether the part is the numbers of a tensor, into which loading copies a checkpoint."""
        return self.place.is_content

    @property
    def is_passed(self) -> bool:
        """Whether steps pass the part on."""
        return isinstance(self.place, PassedState)

    def open(self, leaves: list[Tensor], memo: NestMemo) -> Nest:
        """Append the tensors of the part to ``leaves``, and return its nest."""
        if self.is_content:
            leaves.append(self.place.get())
            return LEAF
        return open_nest(self.place.get(), leaves, memo)

    def is_carried(self, leaf: Tensor) -> bool:
        """Return whether ``leaf``, a tensor of the part, may carry a gradient."""
        return self.carries and is_differentiable(leaf)


@dataclass(eq=False)
class Checkpoint:
    """The state at one moment: its tensors, the part of each tensor, the parts, and their nests."""

    leaves: list[Tensor]
    owners: list[StatePart]
    parts: list[StatePart]
    nests: list[Nest]
    #: The versions of saved tensors, by which a later write into one of them is noticed.
    versions: list[int] = field(default_factory=list)
    #: The nests of parts that steps do not read, with placeholders for their tensors.
    unread: list[tuple[Nest, list[Tensor]]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """The bytes of its tensors, each object once."""
        return count_bytes(self.leaves)

    def find_overwritten(self) -> list[StatePart]:
        """Return the parts whose saved tensors were written in place since."""
        triples = zip(self.owners, self.versions, read_versions(self.leaves), strict=True)
        return [part for part, before, after in triples if before != after]

    def pair(self) -> Iterator[tuple[Tensor, StatePart]]:
        """Return the tensors, each with its part."""
        return zip(self.leaves, self.owners, strict=True)


class LiftedState:
    """The state of a run.

    Arguments:
        passed: the value that steps pass on.
        lifted: the parts in places.
        is_written: whether steps write into the tensors that they are passed.
        refuse_reading: called with a part when a step reads it although checkpoints leave it out, because no
            step was observed to read it. None to put all parts into checkpoints.
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
        # An unread part of the final state may carry a gradient.
        self.parts = [*self._saved, *(part for part in self._unread if part.carries)]
        self._copies = any(part.is_written for part in self.parts)

    def read(self) -> Checkpoint:
        """Return the current state, by reference."""
        return self._read(self.parts)

    def _read(self, parts: list[StatePart]) -> Checkpoint:
        leaves, nest = flatten(self.passed.value)
        owners, nests, memo = [parts[0]] * len(leaves), [nest], NestMemo()
        for part in parts[1:]:
            count = len(leaves)
            nests.append(part.open(leaves, memo))
            owners += [part] * (len(leaves) - count)
        return Checkpoint(leaves, owners, parts, nests)

    @property
    def saved_bytes(self) -> int:
        """The bytes of a checkpoint of the current state."""
        return self._read(self._saved).bytes

    def count_shifted(self, checkpoints: Iterable[Checkpoint]) -> int:
        """Return the bytes of tensors that checkpoints hold as other parts of the state, as in delay lines."""
        parts = {get_storage(leaf): n for checkpoint in checkpoints for n, leaf in enumerate(checkpoint.leaves)}
        leaves = enumerate(self._read(self._saved).leaves)
        return count_bytes(leaf for n, leaf in leaves if parts.get(get_storage(leaf), n) != n)

    def save(self) -> Checkpoint:
        """Return the current state as a checkpoint, which no later step changes."""
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
        """Put placeholders for the tensors that a checkpoint leaves out, which detect a step that reads them.

        Tensors in lists and dicts stay, since code of the user may hold these containers.
        """
        for part, (nest, placeholders) in zip(self._unread, checkpoint.unread, strict=True):
            if isinstance(part.place.get(), Tensor | tuple):
                part.place.set(fill(nest, placeholders))

    def list_hidden(self) -> list[StatePart]:
        """Return the parts left out of checkpoints that a step read, or that hold placeholders."""
        return [
            part
            for part in self._unread
            if part.is_read or any(isinstance(leaf, Placeholder) for leaf in list_leaves(part.place.get()))
        ]

    def load(self, checkpoint: Checkpoint) -> None:
        """Load the state of a checkpoint, which stays valid."""
        for part, (nest, placeholders) in zip(self._unread, checkpoint.unread, strict=True):
            part.place.set(fill(nest, placeholders, fresh=False))
        leaves = checkpoint.leaves
        if self._copies:
            pairs = checkpoint.pair()
            copies = {id(leaf): leaf.clone() for leaf, part in pairs if part.is_written and not part.is_content}
            leaves = [copies.get(id(leaf), leaf) for leaf in leaves]
        self.write(checkpoint, leaves)

    def write(self, checkpoint: Checkpoint, leaves: Sequence[Tensor]) -> None:
        """Write tensors into the state, in the nests of a checkpoint."""
        remaining, filled = iter(leaves), dict[int, Any]()
        self.passed.value = checkpoint.nests[0].fill(remaining, {}, True)
        for part, nest in zip(checkpoint.parts[1:], checkpoint.nests[1:], strict=True):
            part.place.set(nest.fill(remaining, filled, False))

    def detach(self) -> None:
        """Drop the graphs of the current state."""
        state = self.read()
        if any(leaf.grad_fn is not None for leaf in state.leaves):
            self.write(state, detach_computed(state.leaves))


class LiftedContent:
    """The caller's content of the lifted places, which is kept here while steps run again.

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
    """Return tensors without their graphs. Tensors that have no graph stay the same objects.

    A tensor that occurs twice is one tensor again.
    """
    detached = {id(leaf): leaf.detach() for leaf in leaves if leaf.grad_fn is not None}
    return [detached.get(id(leaf), leaf) for leaf in leaves]


class Placeholder(Tensor):
    """A tensor whose numbers are unknown, in a place that no step was observed to read. It takes no memory.

    If a function of PyTorch uses it, ``refuse`` is called with its part. Only the dispatcher sees compiled
    functions, such as those of TorchScript.
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
    substitutes: list[Tensor] = []
    # One placeholder stands for all tensors of one shape, of which lists of records have many.
    placeholders: dict[Any, Tensor] = {}
    for leaf in leaves:
        if isinstance(leaf, Placeholder):
            substitutes.append(leaf)
            continue
        kind = leaf.shape, leaf.dtype, leaf.device
        if kind not in placeholders:
            empty = torch.zeros((), dtype=leaf.dtype, device=leaf.device)
            placeholder = placeholders[kind] = empty.expand(leaf.shape).as_subclass(Placeholder)
            vars(placeholder).update(part=part, refuse=refuse)
        substitutes.append(placeholders[kind])
    return nest, substitutes
