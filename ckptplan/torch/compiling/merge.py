"""Merges the products of weights in a compiled piece: one product for all its steps in place of one a step.

Gradients of weights are sums over steps, each of a product. Put side by side, the factors of all steps give the
sum in a single product. In the same way, inputs of all steps are multiplied by their weights at once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

_aten: Any = torch.ops.aten


class MergeProducts(CustomGraphPass):
    """A pass of PyTorch's compiler over a graph of single operations."""

    def __call__(self, graph: fx.Graph) -> None:
        """Change a graph in place."""
        _merge_inputs(graph)
        _merge_sums(graph)
        graph.eliminate_dead_code()

    def uuid(self) -> Any:
        """Return what the compiler's files on disk know this pass by."""
        return get_hash_for_files((__file__,))


def _call(graph: fx.Graph, function: Callable[..., Any], *args: Any) -> fx.Node:
    """Insert an operation, with the shape of its result."""
    node = graph.call_function(function, args)
    values = fx.map_arg(args, lambda one: one.meta["val"])
    mode = detect_fake_mode(values)
    if mode is not None:
        with mode:
            node.meta["val"] = function(*values)
    return node


def _is_call(node: object, *functions: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target in functions


def _shape(node: Any) -> tuple[int, ...]:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def _is_static(node: Any) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and all(isinstance(size, int) for size in value.shape)


# Inputs of all steps times their weights


def _merge_inputs(graph: fx.Graph) -> None:
    """Multiply rows of an input by the same weights at once, if every step of the input is multiplied."""
    groups: dict[Any, list[Any]] = {}
    for node in graph.nodes:
        if _is_call(node, _aten.mm.default, _aten.addmm.default) and not node.kwargs:
            *bias, left, right = node.args
            step = _find_step(left)
            if step is not None:
                groups.setdefault((tuple(bias), step, _name(right)), []).append(node)
    for (bias, source, _), nodes in groups.items():
        steps = {node.args[-2].args[1]: node for node in nodes}
        if len(nodes) == len(steps) == _shape(source)[0] > 1:
            _multiply_at_once(graph, bias, source, [steps[one] for one in sorted(steps)])


def _find_step(left: Any) -> Any:
    """Return the tensor (steps, rows, columns) that a factor is a step of."""
    if not _is_call(left, operator.getitem):
        return None
    whole = left.args[0]
    if not _is_call(whole, _aten.unbind.int) or (len(whole.args) > 1 and whole.args[1] != 0):
        return None
    source = whole.args[0]
    given = isinstance(source, fx.Node) and source.op == "placeholder" and len(_shape(source)) == 3
    return source if given and _is_static(source) else None


def _name(right: Any) -> Any:
    """Return what is equal for equal factors: views of weights are made anew for each step."""
    return (right.target, str(right.args)) if _is_call(right, _aten.permute.default) else right


def _multiply_at_once(graph: fx.Graph, bias: Any, source: Any, nodes: list[Any]) -> None:
    order = {node: place for place, node in enumerate(graph.nodes)}
    first = min(nodes, key=lambda node: order[node])
    steps, rows, columns = _shape(source)
    if bias and len(_shape(bias[0])) != 1:
        return
    if any(order[one] > order[first] for one in (*bias, first.args[-1])):
        return
    with graph.inserting_before(first):
        flat = _call(graph, _aten.reshape.default, source, [steps * rows, columns])
        function = _aten.addmm.default if bias else _aten.mm.default
        whole = _call(graph, function, *bias, flat, first.args[-1])
        parts = _call(graph, _aten.split.Tensor, whole, rows)
        for number, node in enumerate(nodes):
            part = graph.call_function(operator.getitem, (parts, number))
            part.meta["val"] = parts.meta["val"][number]
            node.replace_all_uses_with(part)


# Sums over steps


def _merge_sums(graph: fx.Graph) -> None:
    """Replace sums of products by one product over all rows."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    stacked: dict[tuple[fx.Node, ...], fx.Node] = {}
    for root in list(graph.nodes):
        if not _is_add(root) or (len(root.users) == 1 and _is_add(next(iter(root.users)))):
            continue
        leaves = _list_leaves(root)
        if len(leaves) > 1 and all(_is_product(leaf) and _shape(leaf) == _shape(root) for leaf in leaves):
            leaves.sort(key=lambda node: order[node])
            with graph.inserting_before(root):
                root.replace_all_uses_with(_merge_products(graph, leaves, stacked))


def _is_add(node: Any) -> bool:
    return (
        _is_call(node, _aten.add.Tensor)
        and not node.kwargs
        and len(node.args) == 2
        and all(isinstance(one, fx.Node) for one in node.args)
        and _is_static(node)
    )


def _list_leaves(root: Any) -> list[Any]:
    """Return the terms of a sum."""
    leaves: list[Any] = []
    waiting: list[Any] = list(root.args)
    while waiting:
        node = waiting.pop()
        if _is_add(node) and len(node.users) == 1 and _shape(node) == _shape(root):
            waiting += node.args
        else:
            leaves.append(node)
    return leaves


def _is_product(node: Any) -> bool:
    return _is_call(node, _aten.mm.default) and len(node.users) == 1 and not node.kwargs


def _merge_products(
    graph: fx.Graph, nodes: Sequence[Any], stacked: dict[tuple[fx.Node, ...], fx.Node]
) -> fx.Node:
    lefts, rights = [one.args[0] for one in nodes], [one.args[1] for one in nodes]
    if all(_is_call(one, _aten.permute.default) for one in lefts):
        # Rows stay rows; that both factors are read along them costs nothing.
        left = _call(
            graph, _aten.permute.default, _stack(graph, [one.args[0] for one in lefts], stacked), [1, 0]
        )
    else:
        left = _call(graph, _aten.cat.default, lefts, 1)
    return _call(graph, _aten.mm.default, left, _stack(graph, rights, stacked))


def _stack(graph: fx.Graph, nodes: Sequence[Any], stacked: dict[tuple[fx.Node, ...], fx.Node]) -> fx.Node:
    """Return rows of several matrices as one matrix, made once for all who need it."""
    key = tuple(nodes)
    if key not in stacked:
        order = {node: place for place, node in enumerate(graph.nodes)}
        last = max(nodes, key=lambda node: order[node])
        with graph.inserting_after(last):
            stacked[key] = _call(graph, _aten.cat.default, list(nodes), 0)
    return stacked[key]
