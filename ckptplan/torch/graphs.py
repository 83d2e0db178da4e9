"""Looks into graphs that autograd recorded: their leaves, and the bytes they keep for the backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch


def nodes(outputs: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Return the operations behind some tensors, each once."""
    waiting = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    met = set(waiting)
    while waiting:
        node: Any = waiting.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in met:
                met.add(following)
                waiting.append(following)


def graph_leaves(outputs: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Return the leaves that require a gradient, of the graphs behind some tensors."""
    yield from (node.variable for node in nodes(outputs) if hasattr(node, "variable"))


def saved_bytes(
    outputs: Iterable[torch.Tensor], *, end: Iterable[torch.Tensor], without: Iterable[torch.Tensor]
) -> int:
    """Return the bytes of the distinct storages that a graph saved, the state at its end included.

    Not counted: ``without`` (the state it begins with and the inputs) and leaves that require a gradient
    (parameters), which live whether the graph does or not.
    """
    outputs = tuple(outputs)
    left_out = {storage_of(tensor) for tensor in without}
    kept: dict[int, int] = {}
    for tensor in (*end, *saved_tensors(outputs)):
        place = storage_of(tensor)
        if place not in left_out and not isinstance(tensor, torch.nn.Parameter):
            kept[place] = tensor.untyped_storage().nbytes()
    parameters = {storage_of(leaf) for leaf in graph_leaves(outputs)}
    return sum(size for place, size in kept.items() if place not in parameters)


def storage_of(tensor: torch.Tensor) -> int:
    """Return what tells storages apart."""
    return tensor.untyped_storage().data_ptr()


def saved_tensors(outputs: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Return the tensors that the nodes of a graph saved."""
    for node in nodes(outputs):
        if hasattr(node, "saved_tensors"):
            # A function written in Python.
            yield from (one for one in node.saved_tensors if isinstance(one, torch.Tensor))
        for name in dir(node):
            if name.startswith("_saved_"):
                value = getattr(node, name)
                values = value if isinstance(value, tuple | list) else (value,)
                yield from (one for one in values if isinstance(one, torch.Tensor))
