"""Flattens nested structures of tensors (tuples, named tuples, dicts, dataclass objects), and rebuilds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree

from ckptplan.errors import InputError
from ckptplan.torch.records import is_record, open_records

Leaves: TypeAlias = tuple[torch.Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class Structure:
    """How leaves nest, and the values between them that are not tensors (None, numbers)."""

    spec: Any
    plain: tuple[Any, ...]
    is_tensor: tuple[bool, ...]
    #: Whether it is a single tensor, a frequent case that is handled faster.
    single: bool = False

    def fill(self, leaves: Sequence[torch.Tensor]) -> Any:
        """Return the structure with these tensors in their places."""
        if self.single:
            return leaves[0]
        tensors, plain = iter(leaves), iter(self.plain)
        return _pytree.tree_unflatten([next(tensors if one else plain) for one in self.is_tensor], self.spec)

    def pick(self, tree: Any) -> list[Any]:
        """Return what a tree that nests in the same way has in the places of the tensors, None included.

        None in place of the tree stands for None in all places. Raises ValueError if it nests otherwise.
        """
        if self.single:
            return [tree]
        if tree is None:
            return [None] * sum(self.is_tensor)
        values = _pytree.tree_leaves(open_records(tree))
        return [value for value, one in zip(values, self.is_tensor, strict=True) if one]


_SINGLE = Structure(spec=_pytree.tree_flatten(torch.empty(0))[1], plain=(), is_tensor=(True,), single=True)


def flatten(tree: Any) -> tuple[Leaves, Structure]:
    """Return the tensors of a structure and how they nest."""
    if isinstance(tree, torch.Tensor):
        return (tree,), _SINGLE
    values, spec = _pytree.tree_flatten(tree)
    is_tensor = tuple([isinstance(value, torch.Tensor) for value in values])
    if all(is_tensor):
        return tuple(values), Structure(spec=spec, plain=(), is_tensor=is_tensor)
    plain = tuple([value for value in values if not isinstance(value, torch.Tensor)])
    if any(is_record(value) for value in plain):
        return flatten(open_records(tree))
    structure = Structure(spec=spec, plain=plain, is_tensor=is_tensor)
    return tuple([value for value in values if isinstance(value, torch.Tensor)]), structure


def is_differentiable(tensor: torch.Tensor) -> bool:
    """Return whether gradients can flow through a tensor; integers and booleans have none."""
    return tensor.is_floating_point() or tensor.is_complex()


def byte_size(leaves: Sequence[torch.Tensor]) -> int:
    """Return the total bytes of the elements."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves)


def compact(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor if it is a view that would keep a larger storage alive, else itself."""
    size = tensor.numel() * tensor.element_size()
    return tensor.clone() if tensor.untyped_storage().nbytes() > size else tensor


def name_layout(tensor: torch.Tensor) -> str | None:
    """Return what kind of tensor it is, if its elements do not lie in order: sparse, nested, ..."""
    if tensor.is_nested:
        return "nested"
    if tensor.layout is torch.strided:
        return None
    return str(tensor.layout).removeprefix("torch.")


def refuse_inference_tensors(leaves: Sequence[torch.Tensor], *, field: str) -> None:
    """Raise InputError for tensors made in inference mode, which cannot be checkpoints under autograd."""
    if any(leaf.is_inference() for leaf in leaves):
        raise InputError(
            "was made in torch.inference_mode() and cannot be a checkpoint",
            field=field,
            accepted="tensors made under torch.no_grad()",
        )
