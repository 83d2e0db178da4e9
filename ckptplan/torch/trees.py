"""Flattens nested structures of tensors (tuples, named tuples, dicts, dataclass objects), and rebuilds them.

Opens dataclass objects, so that the tensors in their fields are found and the objects rebuilt.

The class of the caller is not registered in PyTorch's pytree, which would be global; where the caller has
registered it, pytree opens it and this module never sees it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree

from ckptplan.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenRecord:
    """The values of an object's attributes, in pytree's place of the object."""

    kind: type
    names: tuple[str, ...]
    values: list[Any]

    def close(self) -> Any:
        """Return an object with these values, made without its constructor, which may compute others."""
        made: Any = object.__new__(self.kind)
        for name, value in zip(self.names, self.values, strict=True):
            object.__setattr__(made, name, value)
        return made


def is_record(value: object) -> bool:
    """Return whether a value is a dataclass object that consists of its attributes."""
    kind = type(value)
    # Classes with a constructor of their own kind (dict, tuple, ...) hold more than their attributes.
    return (
        hasattr(kind, "__dataclass_fields__")
        and kind.__new__ is object.__new__
        and not isinstance(value, torch.nn.Module)
    )


def open_records(tree: Any) -> Any:
    """Return a structure with its dataclass objects opened, also those within fields of others."""
    return _pytree.tree_map(lambda leaf: _open(leaf) if is_record(leaf) else leaf, tree)


def _open(record: Any) -> OpenRecord:
    names = _find_names(record)
    return OpenRecord(
        kind=type(record), names=names, values=[open_records(getattr(record, name)) for name in names]
    )


def _find_names(record: Any) -> tuple[str, ...]:
    """Return the names of all attributes that are set: the fields, then others, without cached properties."""
    kind, fields = type(record), [field.name for field in dataclasses.fields(record)]
    others = (name for name in sorted(getattr(record, "__dict__", ())) if name not in fields)
    kept = [name for name in others if not isinstance(getattr(kind, name, None), cached_property)]
    return tuple(name for name in (*fields, *kept) if hasattr(record, name))


def _flatten(record: OpenRecord) -> tuple[list[Any], tuple[type, tuple[str, ...]]]:
    return record.values, (record.kind, record.names)


def _unflatten(values: Iterable[Any], context: tuple[type, tuple[str, ...]]) -> Any:
    kind, names = context
    return OpenRecord(kind=kind, names=names, values=list(values)).close()


def _flatten_with_names(record: OpenRecord) -> tuple[list[Any], tuple[type, tuple[str, ...]]]:
    values, context = _flatten(record)
    named = [(_pytree.GetAttrKey(name), value) for name, value in zip(record.names, values, strict=True)]
    return named, context


_pytree.register_pytree_node(
    OpenRecord,
    _flatten,
    _unflatten,
    serialized_type_name="ckptplan.torch.trees.OpenRecord",
    flatten_with_keys_fn=_flatten_with_names,
)


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
