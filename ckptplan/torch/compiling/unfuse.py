"""Adds biases and states to products in the kernels that follow, not in the matrix library.

On a CPU, the library adds a product to a matrix in place: PyTorch copies the matrix for it first. The kernel
that reads the sum adds it up for nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

_aten: Any = torch.ops.aten


class SplitSums(CustomGraphPass):
    """A pass of PyTorch's compiler over a graph of single operations, the last one."""

    def __call__(self, graph: fx.Graph) -> None:
        """Change a graph in place."""
        for node in graph.find_nodes(op="call_function", target=_aten.addmm.default):
            value = node.meta.get("val")
            if node.kwargs or not isinstance(value, torch.Tensor) or value.device.type != "cpu":
                continue
            bias, left, right = node.args
            with graph.inserting_before(node):
                product = graph.call_function(_aten.mm.default, (left, right))
                total = graph.call_function(_aten.add.Tensor, (product, bias))
            product.meta["val"] = total.meta["val"] = value
            node.replace_all_uses_with(total)
            graph.erase_node(node)

    def uuid(self) -> Any:
        """Return what the compiler's files on disk know this pass by."""
        return get_hash_for_files((__file__,))
