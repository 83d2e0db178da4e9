"""Looks for tensors with graphs in values that steps leave behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

#: How far into nested values tensors are looked for.
_DEPTH = 4


def find_tensors(value: Any, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value: itself, or in containers and in the attributes of plain objects."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, list | tuple | deque | set):
        for one in value:
            yield from find_tensors(one, depth - 1)
    elif depth and isinstance(value, dict):
        for one in value.values():
            yield from find_tensors(one, depth - 1)
    elif depth and _is_plain_object(value):
        for one in vars(value).values():
            yield from find_tensors(one, depth - 1)


def holds_graph(value: Any) -> bool:
    """Return whether a value holds a tensor that was computed, with its graph."""
    return any(tensor.grad_fn is not None for tensor in find_tensors(value))


def replace_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor], depth: int = _DEPTH) -> Any:
    """Return a value with its tensors replaced; lists, dicts and objects are changed in place."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if not depth:
        return value
    if isinstance(value, list | deque):
        for place, one in enumerate(value):
            value[place] = replace_tensors(one, change, depth - 1)
    elif isinstance(value, tuple) and hasattr(value, "_replace"):
        return type(value)(*(replace_tensors(one, change, depth - 1) for one in value))
    elif type(value) is tuple:
        return tuple(replace_tensors(one, change, depth - 1) for one in value)
    elif isinstance(value, dict):
        for key, one in value.items():
            value[key] = replace_tensors(one, change, depth - 1)
    elif _is_plain_object(value):
        for key, one in vars(value).items():
            object.__setattr__(value, key, replace_tensors(one, change, depth - 1))
    return value


def _is_plain_object(value: Any) -> bool:
    attributes = getattr(value, "__dict__", None)
    return (
        isinstance(attributes, dict) and not isinstance(value, torch.nn.Module | type) and not callable(value)
    )
