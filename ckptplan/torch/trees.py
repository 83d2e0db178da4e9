"""Nested structures of tensors and other values, as states are: tuples, dicts, dataclass objects.

They are flattened and rebuilt, dataclass objects opened, so that the tensors in their fields are found and the
objects rebuilt. The class of the caller is not registered in PyTorch's pytree, which would be global; where the
caller has registered it, pytree opens it and this module never sees it. Values that are not tensors: which of
them a checkpoint can hold, and whether two are equal. Values that steps leave behind: which tensors they hold.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import numbers
import pathlib
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy
import torch
from torch.utils import _pytree

from ckptplan.errors import InputError
from ckptplan.torch.digests import is_close


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenRecord:
    """The values of an object's attributes, in pytree's place of the object."""

    kind: type
    names: tuple[str, ...]
    values: list[Any]


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
    """Return an object with these values, made without its constructor, which may compute others."""
    kind, names = context
    made: Any = object.__new__(kind)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made


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


@functools.lru_cache(maxsize=64)
def _nest_in_tuple(count: int) -> Structure:
    """Return how tensors nest in a tuple."""
    _, spec = _pytree.tree_flatten((torch.empty(0),) * count)
    return Structure(spec=spec, plain=(), is_tensor=(True,) * count)


def flatten(tree: Any) -> tuple[Leaves, Structure]:
    """Return the tensors of a structure and how they nest."""
    if isinstance(tree, torch.Tensor):
        return (tree,), _SINGLE
    if type(tree) is tuple and all(isinstance(value, torch.Tensor) for value in tree):
        # A frequent case, which needs no search.
        return tree, _nest_in_tuple(len(tree))
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


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], tree: Any) -> Any:
    """Return a structure with its tensors changed, in containers of its own."""
    leaves, nest = flatten(tree)
    return nest.fill([change(leaf) for leaf in leaves])


def detach_state(state: Any) -> Any:
    """Return a state outside of any graph."""
    return map_tensors(torch.Tensor.detach, state)


def read_versions(leaves: Leaves) -> tuple[int, ...]:
    """Return numbers that grow as tensors are changed in place; tensors of inference mode have none."""
    return tuple([0 if leaf.is_inference() else leaf._version for leaf in leaves])


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


#: How far into nested values tensors are looked for.
DEPTH = 4


def find_tensors(value: Any, depth: int = DEPTH) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value: itself, or in containers and in the attributes of plain objects."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth:
        if isinstance(value, dict):
            parts: Iterable[Any] = value.values()
        elif isinstance(value, list | tuple | deque | set):
            parts = value
        else:
            parts = vars(value).values() if is_plain_object(value) else ()
        for one in parts:
            yield from find_tensors(one, depth - 1)


def holds_graph(value: Any) -> bool:
    """Return whether a value holds a tensor that was computed, with its graph."""
    return any(tensor.grad_fn is not None for tensor in find_tensors(value))


def is_plain_object(value: Any) -> bool:
    """Return whether a value is an object with attributes, and no module, class or function."""
    attributes = getattr(value, "__dict__", None)
    kinds = torch.nn.Module | type | types.ModuleType
    return isinstance(attributes, dict) and not isinstance(value, kinds) and not callable(value)


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
    for leaf in _pytree.tree_leaves(open_records(tree)):
        found = _find_other(leaf)
        if found is not None:
            verb, place = "returns" if field == "cell" else "has", find_place(tree, leaf) + found[0]
            raise InputError(
                f"{verb} {_name_kind(found[1])} as {place}, whose values a checkpoint cannot hold",
                field=field,
                accepted=_suggest(found[1]),
            )


def can_be_held(tree: Any) -> bool:
    """Return whether a checkpoint can hold a value as part of a state."""
    return all(_find_other(leaf) is None for leaf in _pytree.tree_leaves(open_records(tree)))


def find_place(tree: Any, leaf: object) -> str:
    """Return where a leaf is, as ``state[1].v``; only ``state`` in containers that do not name their parts."""
    try:
        paths = _pytree.tree_leaves_with_path(open_records(tree))
    except ValueError:
        return "a part of the state"
    return "state" + next((_pytree.keystr(path) for path, one in paths if one is leaf), "")


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
