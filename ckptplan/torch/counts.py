"""What steps may count themselves by, which is set back when steps run again from a checkpoint.

A step may do something else only after many: detach its state by a counter of its own, or change a slope. No
value shows that. So small contents that steps change are a part of each checkpoint, as random generators are:
numbers, texts and short tuples of them under a name, tensors and arrays of a few elements, and lists of
numbers. Of other lists only what was added is dropped.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from numbers import Number
from typing import Any

import torch

from ckptplan.torch.ambient import RandomSource
from ckptplan.torch.surroundings.holders import (
    ABSENT,
    ArrayHolder,
    Holder,
    NamedValues,
    SequenceHolder,
    TensorHolder,
)
from ckptplan.torch.surroundings.snapshot import Place, Surroundings

#: The most elements of a tensor, an array or a tuple, and of a list.
_MOST, _MOST_LISTED = 16, 1_024
#: Stands for a value that is left alone.
_LEFT = object()


def list_counts(
    surroundings: Surroundings, changed: Collection[Place], *, with_graph: Collection[Place]
) -> list[RandomSource]:
    """Return a source for each place that steps change and may count by.

    Records of tensors ``with_graph`` stay as they are: what lies there is guarded.
    """
    made = (_make_source(surroundings.holders[one.holder], one.key) for one in changed if one not in with_graph)
    return [one for one in made if one is not None]


def has_number(surroundings: Surroundings, place: Place) -> bool:
    """Return whether a place is a name that has a number by now."""
    holder = surroundings.holders[place.holder]
    return isinstance(holder, NamedValues) and isinstance(_read_value(holder, place.key), Number | torch.Tensor)


def is_set_back(surroundings: Surroundings, place: Place) -> bool:
    """Return whether all that a place has is set back, if it is known that steps change it."""
    holder = surroundings.holders[place.holder]
    source = _make_source(holder, place.key)
    if source is None:
        return False
    content = source.state()
    return content is not _LEFT and not (isinstance(holder, SequenceHolder) and isinstance(content, int))


def _make_source(holder: Holder, key: Any) -> RandomSource | None:
    if isinstance(holder, NamedValues):
        return RandomSource(partial(_read_value, holder, key), partial(_give, holder, key))
    if isinstance(holder, SequenceHolder):
        return RandomSource(partial(_read_list, holder), partial(_write_list, holder))
    if isinstance(holder, TensorHolder) and _is_small(holder.thing):
        return RandomSource(holder.thing.detach().clone, holder.thing.data.copy_)
    if isinstance(holder, ArrayHolder) and holder.thing.size <= _MOST:
        return RandomSource(holder.thing.copy, partial(holder.thing.__setitem__, ...))
    return None


def _is_small(tensor: torch.Tensor) -> bool:
    # A step that asks a GPU for a count waits for it; checkpoints do not.
    return tensor.numel() <= _MOST and tensor.device.type == "cpu"


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return len(value) <= _MOST and all(map(_is_plain, value))
    return value is None or isinstance(value, Number | str | bytes)


def _read_value(holder: NamedValues, key: Any) -> Any:
    value = holder.get(key)
    if isinstance(value, torch.Tensor):
        # It may be bound anew in each step, or changed in place.
        return value.clone() if _is_small(value) and not value.requires_grad else _LEFT
    return value if value is ABSENT or _is_plain(value) else _LEFT


def _give(holder: NamedValues, key: Any, value: Any) -> None:
    if value is not _LEFT:
        holder.give(key, value.clone() if isinstance(value, torch.Tensor) else value)


def _read_list(holder: SequenceHolder) -> Any:
    """Return the elements of a list of plain values, of another one the length."""
    values = holder.thing
    return tuple(values) if len(values) <= _MOST_LISTED and all(map(_is_plain, values)) else len(values)


def _write_list(holder: SequenceHolder, content: Any) -> None:
    values = holder.thing
    if isinstance(content, tuple):
        values.clear()
        values.extend(content)
        return
    while len(values) > content:
        values.pop()
