"""Values in a state that are not tensors: which of them a checkpoint can hold, and whether two are equal."""

from __future__ import annotations

import datetime
import enum
import functools
import numbers
import pathlib
import types
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch.utils import _pytree

from ckptplan.errors import InputError
from ckptplan.torch.digests import is_close
from ckptplan.torch.trees import name_layout, open_records

#: Types of values that are the same whenever a checkpoint is read.
_IMMUTABLE = (
    torch.Tensor, numbers.Number, numpy.generic, str, bytes, type(None), type(Ellipsis), type(NotImplemented),
    enum.Enum, type, range, slice, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
    pathlib.PurePath, datetime.date, datetime.timedelta,
    types.FunctionType, types.BuiltinFunctionType,
)  # fmt: skip
#: What classes have whose objects have no value to compare.
_NO_COMPARISON: object = object.__eq__


def refuse_other_leaves(tree: Any, *, field: str) -> None:
    """Raise InputError for a leaf of a state that may change, or whose tensors are not found.

    ``field`` is ``"state"`` for the initial state, and ``"cell"`` for what a cell returned.
    """
    opened = open_records(tree)
    for leaf in _pytree.tree_leaves(opened):
        found = _find_other(leaf)
        if found is not None:
            verb, place = "returns" if field == "cell" else "has", _find_place(opened, leaf) + found[0]
            raise InputError(
                f"{verb} {_name_kind(found[1])} as {place}, whose values a checkpoint cannot hold",
                field=field,
                accepted=_suggest(found[1]),
            )


def can_be_held(tree: Any) -> bool:
    """Return whether a checkpoint can hold a value as part of a state."""
    return all(_find_other(leaf) is None for leaf in _pytree.tree_leaves(open_records(tree)))


def _find_place(tree: Any, leaf: object) -> str:
    """Return where a leaf is, as ``state[1].v``; only ``state`` in containers that do not name their parts."""
    try:
        paths = _pytree.tree_leaves_with_path(tree)
    except ValueError:
        return "a part of the state"
    return "state" + next(_pytree.keystr(path) for path, one in paths if one is leaf)


def _suggest(leaf: object) -> str:
    """Return what a value of this type could be instead."""
    if isinstance(leaf, torch.Tensor):
        return "dense tensors, padded if they are of unequal length; constants may lie outside of the state"
    if isinstance(leaf, numpy.ndarray):
        return "a tensor, as torch.from_numpy returns it"
    if isinstance(leaf, set):
        return "a tuple or dict"
    if isinstance(leaf, list | dict):
        return "a tuple within a partial; what changes, in the state beside it"
    return (
        "tensors, numbers, text and None, in tuples, named tuples, lists, dicts and dataclass objects; other "
        "classes by torch.utils._pytree.register_pytree_node"
    )


def _name_kind(leaf: object) -> str:
    kind = name_layout(leaf) if isinstance(leaf, torch.Tensor) else None
    return type(leaf).__name__ if kind is None else f"a {kind} tensor"


def _find_other(leaf: object, name: str = "") -> tuple[str, object] | None:
    """Return what a checkpoint cannot hold in a value, and where in it; None if it can hold all of it."""
    if isinstance(leaf, torch.Tensor):
        return None if name_layout(leaf) is None else (name, leaf)
    parts: list[tuple[str, object]]
    if isinstance(leaf, frozenset | tuple) and not isinstance(leaf, torch.Size):
        parts = [(name, one) for one in leaf]
    elif isinstance(leaf, functools.partial):
        parts = [(f"{name}.func", leaf.func)]
        parts += [(f"{name}.args[{number}]", one) for number, one in enumerate(leaf.args)]
        parts += [(f"{name}.keywords[{key!r}]", one) for key, one in leaf.keywords.items()]
    else:
        return None if isinstance(leaf, _IMMUTABLE) else (name, leaf)
    return next((found for place, one in parts if (found := _find_other(one, place)) is not None), None)


def are_equal_constants(ones: Sequence[Any], others: Sequence[Any], rounding: float) -> bool:
    """Return whether the values in a state that are not tensors are equal, floats except for rounding."""
    return len(ones) == len(others) and all(
        _is_equal_constant(one, other, rounding) for one, other in zip(ones, others, strict=True)
    )


def _is_equal_constant(one: Any, other: Any, rounding: float) -> bool:  # noqa: PLR0911 - a case for each kind
    if one is other:
        return True
    if isinstance(one, float) and isinstance(other, float):
        return is_close(one, other, rounding * max(abs(one), abs(other)))
    if isinstance(one, functools.partial) and isinstance(other, functools.partial):
        parts, others = ((p.func, *p.args, *p.keywords.items()) for p in (one, other))
        return are_equal_constants(parts, others, rounding)
    if isinstance(one, types.FunctionType) and isinstance(other, types.FunctionType):
        return one.__code__ is other.__code__
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    # Of an immutable one, as a member of an Enum or a class, another object is another value.
    if type(one).__eq__ is _NO_COMPARISON and not isinstance(one, _IMMUTABLE):
        return type(one) is type(other)
    return bool(numpy.all(one == other))
