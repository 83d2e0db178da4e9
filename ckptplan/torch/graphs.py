"""Inspects graphs that autograd recorded: their leaves, and the bytes they keep for the backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import torch

from ckptplan.errors import InputError
from ckptplan.torch.trees import Leaves, is_differentiable


def walk_nodes(outputs: Iterable[torch.Tensor], *, until: Iterable[torch.Tensor] = ()) -> Iterator[Any]:
    """Yield the operations that lead to ``outputs``, each once, without those that lead to ``until``."""
    for node, _ in _walk_nodes(outputs, until):
        yield node


def _walk_nodes(
    outputs: Iterable[torch.Tensor], until: Iterable[torch.Tensor]
) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield operations, each with those before it."""
    ends = {tensor.grad_fn for tensor in until if tensor.grad_fn is not None}
    waiting: list[Any] = list({tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None} - ends)
    met = {None, *waiting, *ends}
    while waiting:
        node = waiting.pop()
        before = node.next_functions
        yield node, before
        for following, _ in before:
            if following not in met:
                met.add(following)
                waiting.append(following)


def find_graph_leaves(
    outputs: Iterable[torch.Tensor], *, until: Iterable[torch.Tensor] = ()
) -> Iterator[torch.Tensor]:
    """Yield the leaves that require a gradient in the graphs of ``outputs``."""
    for node, before in _walk_nodes(outputs, until):
        # Nothing comes before a leaf. Few operations are asked: an attribute that is missing takes time.
        if not before and hasattr(node, "variable"):
            yield node.variable


def read_sequence_number() -> int:
    """Return the sequence number that autograd gives the next operation it records."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def find_outer_node(
    outputs: Iterable[torch.Tensor], *, before: int, until: Iterable[torch.Tensor] = ()
) -> str | None:
    """Return the name of an operation that was recorded ``before`` a sequence number, None if there is none."""
    for node in walk_nodes(outputs, until=until):
        if not hasattr(node, "variable") and node._sequence_nr() < before:
            return str(node.name())
    return None


def count_saved_bytes(
    outputs: Iterable[torch.Tensor], *, end: Iterable[torch.Tensor], without: Iterable[torch.Tensor]
) -> int:
    """Return the bytes of the distinct storages that a graph saved, including the state at its end.

    Storages of ``without`` (the initial state and the inputs) and of leaves that require a gradient
    (parameters) are not counted, since they exist without the graph too.
    """
    outputs = tuple(outputs)
    left_out = {storage_of(tensor) for tensor in without}
    kept: dict[int, int] = {}
    for tensor in (*end, *find_saved_tensors(outputs)):
        place = storage_of(tensor)
        if place not in left_out and not isinstance(tensor, torch.nn.Parameter):
            kept[place] = _count_storage(tensor)
    parameters = {storage_of(leaf) for leaf in find_graph_leaves(outputs)}
    return sum(size for place, size in kept.items() if place not in parameters)


def storage_of(tensor: torch.Tensor) -> int:
    """Return a number that identifies a tensor's storage."""
    if tensor.layout is not torch.strided:
        # Sparse ones have several, or none that can be read.
        return id(tensor)
    return tensor.untyped_storage().data_ptr()


def _count_storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else 0


def count_node_bytes(outputs: Iterable[torch.Tensor], *, until: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the distinct storages saved between ``until`` and ``outputs``."""
    found = find_saved_tensors(outputs, until=until)
    return sum({storage_of(one): _count_storage(one) for one in found}.values())


def find_saved_tensors(
    outputs: Iterable[torch.Tensor], *, until: Iterable[torch.Tensor] = ()
) -> Iterator[torch.Tensor]:
    """Yield the tensors that the nodes of a graph saved."""
    for node in walk_nodes(outputs, until=until):
        if hasattr(node, "saved_tensors"):
            # A function written in Python.
            yield from (one for one in node.saved_tensors if isinstance(one, torch.Tensor))
        kind: Any = type(node)
        for name in _list_saved(kind):
            value = getattr(node, name)
            values = value if isinstance(value, tuple | list) else (value,)
            yield from (one for one in values if isinstance(one, torch.Tensor))


@lru_cache(maxsize=1024)
def _list_saved(kind: Any) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_saved_"))


def as_graph_roots(leaves: Leaves) -> Leaves:
    """Return a detached state as the beginning of a graph: every float requires a gradient."""
    detached = tuple(leaf.detach() for leaf in leaves)
    for leaf in detached:
        if is_differentiable(leaf):
            leaf.requires_grad_()
    return detached


def refuse_hooks(roots: Leaves) -> None:
    """Raise InputError if a step registered a hook on the state that it was given, where a graph begins.

    In plain backpropagation such a hook sees the whole gradient of that state, also what the loss of the step
    before adds. Where a graph begins, that part is missing, since it belongs to the graph before.
    """
    if any(root._backward_hooks or root._post_accumulate_grad_hooks for root in roots):
        raise InputError(
            "registers a hook on the state that it is given, which would miss a part of the gradient where a "
            "recorded run of steps begins",
            field="cell",
            accepted="a hook on the state that the step returns: it sees the whole gradient",
        )
