"""Names what holds tensors with graphs: attributes, variables, lists and caches."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ckptplan.torch.surroundings.number_holders import TensorHolder
from ckptplan.torch.surroundings.walk import Reached, walk


def name_graphs(things: Mapping[str, object]) -> list[str]:
    """Return the names of what holds a tensor with a graph at present, among all that named objects reach."""
    reached = walk(things)
    held = (
        holder.name
        for holder in reached.holders
        if isinstance(holder, TensorHolder) and holder.thing.grad_fn is not None
    )
    return list(dict.fromkeys((*_name_cached(reached), *held)))


def _name_cached(reached: Reached) -> Iterator[str]:
    """Yield the weights that ``torch.nn.utils.parametrize.cached()`` keeps."""
    parametrize: Any = sys.modules.get("torch.nn.utils.parametrize")
    names = {id(module): name for name, module in reached.modules}
    for (module, weight), tensor in dict(getattr(parametrize, "_cache", {})).items():
        if module in names and getattr(tensor, "grad_fn", None) is not None:
            yield f"parametrize.cached() for {names[module]}.{weight}"
