"""Opens dataclass objects, so that the tensors in their fields are found and the objects rebuilt.

The class of the caller is not registered in PyTorch's pytree, which would be global; where the caller has
registered it, pytree opens it and this module never sees it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import torch
from torch.utils import _pytree


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
    serialized_type_name="ckptplan.torch.records.OpenRecord",
    flatten_with_keys_fn=_flatten_with_names,
)
