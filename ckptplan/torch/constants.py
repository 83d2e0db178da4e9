"""Refuses leaves of a state that a checkpoint cannot hold: neither tensors nor immutable constants."""

from __future__ import annotations

import datetime
import enum
import functools
import numbers
import pathlib
import types
from typing import Any

import numpy
import torch
from torch.utils import _pytree

from ckptplan.errors import InputError
from ckptplan.torch.records import open_records

#: Types of values that are the same whenever a checkpoint is read.
_IMMUTABLE = (
    torch.Tensor, numbers.Number, numpy.generic, str, bytes, type(None), type(Ellipsis), type(NotImplemented),
    enum.Enum, type, range, slice, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
    pathlib.PurePath, datetime.date, datetime.timedelta,
    types.FunctionType, types.BuiltinFunctionType,
)  # fmt: skip


def refuse_other_leaves(tree: Any, *, field: str) -> None:
    """Raise InputError for a leaf of a state that may change, or whose tensors are not found.

    ``field`` is ``"state"`` for the initial state, and ``"cell"`` for what a cell returned.
    """
    opened = open_records(tree)
    for leaf in _pytree.tree_leaves(opened):
        if not _is_constant(leaf):
            verb, place = "returns" if field == "cell" else "has", _find_place(opened, leaf)
            raise InputError(
                f"{verb} {type(leaf).__name__} as {place}, whose values a checkpoint cannot hold",
                field=field,
                accepted=_suggest(leaf),
            )


def _find_place(tree: Any, leaf: object) -> str:
    """Return where a leaf is, as ``state[1].v``; only ``state`` in containers that do not name their parts."""
    try:
        paths = _pytree.tree_leaves_with_path(tree)
    except ValueError:
        return "a part of the state"
    return "state" + next(_pytree.keystr(path) for path, one in paths if one is leaf)


def _suggest(leaf: object) -> str:
    """Return what a value of this type could be instead."""
    if isinstance(leaf, numpy.ndarray):
        return "a tensor, as torch.from_numpy returns it"
    if isinstance(leaf, set):
        return "a tuple or dict"
    return (
        "tensors, numbers, text and None, in tuples, named tuples, lists, dicts and dataclass objects; other "
        "classes by torch.utils._pytree.register_pytree_node"
    )


def _is_constant(leaf: object) -> bool:
    if isinstance(leaf, frozenset):
        return all(_is_constant(one) for one in leaf)
    if isinstance(leaf, functools.partial):
        return all(_is_constant(one) for one in (leaf.func, *leaf.args, *leaf.keywords.values()))
    return isinstance(leaf, _IMMUTABLE)
