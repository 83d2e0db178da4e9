"""The parameters of a planned sequence: which they are, and whether a recorded graph reaches others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import torch

from ckptplan.errors import InputError, quote_value
from ckptplan.torch.graphs import find_graph_leaves
from ckptplan.torch.trees import Leaves

Parameters: TypeAlias = tuple[torch.Tensor, ...]
Modules: TypeAlias = tuple[torch.nn.Module, ...]


def list_parameters(parameters: object) -> Parameters:
    """Return the tensors that require a gradient. Raises InputError."""
    if isinstance(parameters, torch.nn.Module):
        parameters = parameters.parameters()
    accepted = "tensors, as module.parameters() gives them"
    if not isinstance(parameters, Iterable) or isinstance(parameters, torch.Tensor | str):
        raise InputError(f"is {quote_value(type(parameters).__name__)}", field="parameters", accepted=accepted)
    named = tuple(parameters)
    for one in named:
        if not isinstance(one, torch.Tensor):
            raise InputError(f"holds {quote_value(type(one).__name__)}", field="parameters", accepted=accepted)
    return tuple(one for one in named if one.requires_grad)


def collect_parameters(modules: Modules, named: Parameters, found: list[torch.Tensor]) -> Parameters:
    """Return the parameters of modules, those named, and those that the first step reached, each once."""
    behind = {id(leaf) for one in named if one.grad_fn is not None for leaf in find_graph_leaves([one])}
    own = (one for module in modules for one in module.parameters() if id(one) not in behind)
    return tuple({id(one): one for one in (*own, *named, *found) if one.requires_grad}.values())


def check_reached(outputs: Leaves, inner: Leaves, *, parameters: Parameters, temporary: int = 0) -> None:
    """Raise InputError if a recorded graph reaches a tensor that is not a known parameter.

    ``inner`` are the leaves where the graph begins: a state and inputs. Up to ``temporary`` leaves may be
    unknown.
    """
    known = {id(one) for one in (*parameters, *inner)}
    computed = tuple(one for one in parameters if one.grad_fn is not None)
    missing = [leaf for leaf in find_graph_leaves(outputs, until=computed) if id(leaf) not in known]
    if len(missing) > temporary:
        raise InputError(
            f"the cell or the loss uses {len(missing)} tensors that require a gradient and were not found "
            f"in the first step, the first one of shape {tuple(missing[0].shape)}",
            field="parameters",
            accepted="parameters=[...] with all of them; for the last step alone, final_loss; what a step "
            "needs of an earlier one goes through the state",
        )
