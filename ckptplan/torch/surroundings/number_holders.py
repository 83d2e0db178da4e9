"""Holders of numbers: tensors, their gradients, and arrays of numpy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ckptplan.torch.surroundings.disturb import disturb, disturb_numbers
from ckptplan.torch.surroundings.holders import Content, Holder, Key

#: Arrays up to this size are copied whenever they are looked at; the numbers that are looked at in larger ones.
_MOST_ARRAY_BYTES, _SAMPLE = 2**20, 2**14


@dataclass(frozen=True)
class _Numbers:
    """What is remembered of a tensor: its version, and a copy of its numbers if it is small enough."""

    version: int
    copy: torch.Tensor | None

    def without_copy(self) -> _Numbers:
        """Return the version alone."""
        return _Numbers(self.version, None)


class TensorHolder(Holder):
    """The numbers of a tensor. ``small`` ones are copied whenever they are read."""

    def __init__(self, name: str, thing: torch.Tensor, *, small: bool) -> None:
        super().__init__(name, thing)
        self.small = small

    def read(self, *, copies: bool) -> Content:
        version = 0 if self.thing.is_inference() else self.thing._version
        return _Numbers(version, self.thing.detach().clone() if self.small or copies else None)

    def is_as(self, content: Content) -> bool:
        """Return whether nothing has changed since a content was read."""
        version = 0 if self.thing.is_inference() else self.thing._version
        # Some kernels, and ``tensor.data``, write without counting it as a change.
        return version == content.version and (content.copy is None or equal_numbers(self.thing, content.copy))

    def list_changes(self, before: Content, after: Content) -> Iterator[Key]:
        if before is after:
            return
        copied = before.copy is not None and after.copy is not None
        if before.version != after.version or (copied and not equal_numbers(before.copy, after.copy)):
            yield None

    def write(self, content: Content) -> None:
        if content.copy is None or self.thing.is_inference():
            return
        if not equal_numbers(self.thing.detach(), content.copy):
            # Not counted as a change: a graph that was recorded before may need the tensor as it is again.
            with torch.no_grad():
                self.thing.data.copy_(content.copy)

    def disturb(self, content: Content, key: Key, leaves: list[torch.Tensor]) -> Content:
        del key, leaves
        return _Numbers(content.version, disturb_numbers(self.thing))


def equal_numbers(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether tensors hold the same numbers; NaN equals itself."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if torch.equal(one, other):
        return True
    if not (one.is_floating_point() or one.is_complex()):
        return False
    both = torch.isnan(one) & torch.isnan(other)
    return bool(torch.equal(one[~both], other[~both]) and torch.equal(torch.isnan(one), torch.isnan(other)))


class GradientHolder(Holder):
    """The gradient of a parameter, which no step may write: it is counted again when steps run again."""

    thing: torch.nn.Parameter

    def read(self, *, copies: bool) -> Content:
        del copies
        gradient = self.thing.grad
        return gradient, None if gradient is None else gradient._version

    def list_changes(self, before: Content, after: Content) -> Iterator[Key]:
        if before[0] is not after[0] or before[1] != after[1]:
            yield None

    def write(self, content: Content) -> None:
        if self.thing.grad is not content[0]:
            self.thing.grad = content[0]

    def disturb(self, content: Content, key: Key, leaves: list[torch.Tensor]) -> Content:
        del key, leaves
        return content


class ArrayHolder(Holder):
    """The numbers of an array of numpy; of a large one, as a data set, a sample is looked at."""

    @property
    def small(self) -> bool:
        """Whether all numbers are remembered, and can be put back."""
        return bool(self.thing.nbytes <= _MOST_ARRAY_BYTES)

    def read(self, *, copies: bool) -> Content:
        del copies
        if self.small:
            return self.thing.copy()
        return self.thing.flat[:: -(-self.thing.size // _SAMPLE)]

    def list_changes(self, before: Content, after: Content) -> Iterator[Key]:
        if before.tobytes() != after.tobytes():
            yield None

    def write(self, content: Content) -> None:
        if self.small and self.thing.tobytes() != content.tobytes():
            self.thing[...] = content

    def disturb(self, content: Content, key: Key, leaves: list[torch.Tensor]) -> Content:
        del key
        return disturb(content, leaves)
