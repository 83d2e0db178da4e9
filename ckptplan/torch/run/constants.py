"""Constants of a sequence: tensors that were computed with a graph before it, and that steps use."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from ckptplan.torch.run.gradients import is_freed
from ckptplan.torch.state.nests import Nest, fill, flatten, read_version
from ckptplan.torch.state.places import Place, has_graph


class Constants:
    """Replaces constants by leaves in their places while steps run.

    Each chunk would otherwise backpropagate into the graph outside, which can be done only once. The leaves get
    their gradients like parameters, and the autograd function of the sequence passes these to the originals. A
    tensor that is in several places has one leaf. Constants may have been computed from each other.

    Arguments:
        places: the places that hold constants.
    """

    def __init__(self, places: Iterable[Place] = ()) -> None:
        self.originals: list[Tensor] = []
        self.leaves: list[Tensor] = []
        self._values: list[tuple[Place, Nest, list[Tensor], list[Tensor]]] = []
        self._computed: list[tuple[Place, Tensor, int]] = []
        leaf_of: dict[int, Tensor] = {}
        for place in places:
            tensors, nest = flatten(place.get())
            for tensor in tensors:
                if has_graph(tensor) and id(tensor) not in leaf_of:
                    leaf = leaf_of[id(tensor)] = tensor.detach().requires_grad_()
                    self.originals.append(tensor)
                    self.leaves.append(leaf)
            leaves = [leaf_of.get(id(tensor), tensor) for tensor in tensors]
            self._values.append((place, nest, tensors, leaves))

    def list_targets(self) -> list[Tensor]:
        """Return the tensors that get the gradients: the originals, detached if their graph was freed.

        Autograd would go through a freed graph even if no step uses the constant.
        """
        return [constant.detach() if is_freed(constant) else constant for constant in self.originals]

    def insert(self) -> None:
        """Put the leaves into the places."""
        for place, nest, _, leaves in self._values:
            place.set(fill(nest, leaves, fresh=False))

    def insert_computed(self, *, copies: bool = False) -> None:
        """Put views or copies of the leaves into the places, so that steps find computed tensors there."""
        compute = Tensor.clone if copies else _view
        for place, nest, tensors, leaves in self._values:
            pairs = zip(leaves, tensors, strict=True)
            computed = [leaf if leaf is tensor else compute(leaf) for leaf, tensor in pairs]
            self._computed += [(place, tensor, read_version(tensor)) for tensor in computed]
            place.set(fill(nest, computed, fresh=False))

    def list_written(self) -> list[Place]:
        """Return the places whose computed tensors were written in place since they were inserted."""
        return [place for place, tensor, version in self._computed if read_version(tensor) != version]

    def remove(self) -> None:
        """Put the originals back into places that still hold their leaves."""
        for place, nest, tensors, leaves in self._values:
            if _holds(place.get(), nest, leaves):
                place.set(fill(nest, tensors, fresh=False))

    def list_unchanged(self) -> set[Place]:
        """Return the places that hold their originals or leaves: no step put anything else there."""
        return {
            place
            for place, nest, tensors, leaves in self._values
            if _holds(place.get(), nest, leaves) or _holds(place.get(), nest, tensors)
        }


def _view(leaf: Tensor) -> Tensor:
    return leaf.view_as(leaf)


def _holds(value: Any, nest: Nest, leaves: Sequence[Tensor]) -> bool:
    current, current_nest = flatten(value)
    is_same = len(current) == len(leaves) and all(map(operator.is_, current, leaves))
    return is_same and current_nest.describe() == nest.describe()
