"""Changes values beyond recognition, so that a step that reads them returns another result."""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Callable
from itertools import accumulate, cycle, islice
from numbers import Number
from typing import Any

import torch

#: How far into nested objects values are changed.
_DEPTH = 4
#: Lists are made longer, so that their length tells, too; long ones by less.
_TIMES, _TIMES_LONG, _LONG = 8, 2, 10_000
#: Elements at each end of a list that are changed; those between become copies of these.
_ENDS = 256
_COUNT = 1_000_003
#: The most bytes of tensors that are changed at each end.
_MOST_BYTES = 2**23


def disturb(value: Any, leaves: list[torch.Tensor], depth: int = _DEPTH) -> Any:
    """Return a value like this one with other numbers; tensors of floats depend on new ``leaves``.

    Texts, functions, modules and what lies deeper than a few levels stay as they are.
    """
    if isinstance(value, torch.Tensor):
        return _disturb_tensor(value, leaves)
    if isinstance(value, Number):
        return _disturb_number(value)
    if depth == 0 or isinstance(value, torch.nn.Module | torch.Generator | type) or callable(value):
        return value

    def inner(part: Any) -> Any:
        return disturb(part, leaves, depth - 1)

    return _disturb_parts(value, inner)


def _disturb_number(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return value + _COUNT if isinstance(value, int) else value * 1.5 + 0.75


def _disturb_parts(value: Any, inner: Callable[[Any], Any]) -> Any:
    """Return a container, an array or an object of attributes with its parts changed."""
    changed = value
    if isinstance(value, list | deque):
        changed = copy.copy(value)
        changed.clear()
        changed.extend(_disturb_list(list(value), inner))
    elif isinstance(value, tuple):
        parts = [inner(part) for part in value]
        changed = type(value)(*parts) if hasattr(value, "_replace") else tuple(parts)
    elif isinstance(value, dict):
        changed = copy.copy(value)
        changed.update({key: inner(part) for key, part in value.items()})
    elif is_array(value):
        changed = ~value if value.dtype == bool else value + 1
    elif isinstance(getattr(value, "__dict__", None), dict):
        changed = copy.copy(value)
        # Of members of an Enum, loggers and other single objects, a copy is the object itself.
        if changed is not value and vars(changed) is not vars(value):
            for key, part in vars(value).items():
                object.__setattr__(changed, key, inner(part))
    return changed


def _disturb_list(parts: list[Any], inner: Callable[[Any], Any]) -> list[Any]:
    """Return a longer list with all parts changed; the work is bounded, as records of a training are long."""
    count = _count_small(parts)
    first = [inner(part) for part in parts[:count]]
    last = [inner(part) for part in parts[count:][-count:]]
    between = islice(cycle(first), len(parts) - len(first) - len(last))
    return [*first, *between, *last] * (_TIMES if len(parts) <= _LONG else _TIMES_LONG)


def _count_small(parts: list[Any]) -> int:
    """Return how many parts are changed at each end: those of up to so many bytes, at least one."""
    sizes = accumulate(getattr(part, "nbytes", 0) for part in parts[:_ENDS])
    return max(1, len([size for size in sizes if size <= _MOST_BYTES]))


def disturb_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return other numbers of the same shape and type, outside of any graph."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bool:
        return ~tensor
    if tensor.is_floating_point() or tensor.is_complex():
        # Each element by another amount, so that no sum or difference of two stays what it is.
        steps = torch.linspace(0.5, 1.0, max(tensor.numel(), 1), device=tensor.device)[: tensor.numel()]
        wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32)).nan_to_num(
            0.0, posinf=0.0, neginf=0.0
        )
        return (wide * 1.5 + steps.reshape(tensor.shape)).to(tensor.dtype)
    if tensor.device.type == "cpu":
        return tensor + 1
    # They may be indices: beyond the range, a kernel would stop the device for good.
    return torch.where(tensor > 0, tensor - 1, tensor)


def _disturb_tensor(tensor: torch.Tensor, leaves: list[torch.Tensor]) -> torch.Tensor:
    changed = disturb_numbers(tensor)
    if not (changed.is_floating_point() or changed.is_complex()):
        return changed
    leaf = changed.requires_grad_()
    leaves.append(leaf)
    # No leaf itself: a step may write into it.
    return leaf.clone()


def is_array(value: object) -> bool:
    """Return whether a value is an array of numbers of numpy, which need not be installed."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and value.dtype != object
