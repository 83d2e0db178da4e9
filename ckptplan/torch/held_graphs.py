"""Tensors with graphs that steps leave in attributes, lists and caches: named, guarded, explained.

A run records its steps in several graphs and frees each when it is reversed. A tensor that a module, a list
or a cache holds from one step to another ties their graphs together: PyTorch reports a second backward. A plain
loop leaves tensors with a graph there, so that a user may add a loss of them afterwards. Under a plan their
graph is gone, or reaches back to the last chunk only.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ckptplan.errors import InputError
from ckptplan.torch.surroundings.holders import TensorHolder
from ckptplan.torch.surroundings.snapshot import Place
from ckptplan.torch.surroundings.walk import Reached, walk
from ckptplan.torch.trees import DEPTH, holds_graph, is_differentiable, is_plain_object
from ckptplan.torch.trial import list_names


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


_FREED = "backward through the graph a second time"
_CHANGED = "modified by an inplace operation"
_REENTRANT = "use_reentrant=True"
_WATCHED = "_will_engine_execute_node"
_ACCEPTED = (
    "what steps pass on as a part of the state (ckptplan.torch.adapters does it for many neurons), what is "
    "computed from weights made anew in each step, detach() for what is only looked at, and bptt and backward "
    "outside of parametrize.cached()"
)


@contextmanager
def explain_held_graphs(things: Mapping[str, object]) -> Iterator[None]:
    """Turn autograd's error about a graph that is gone into an InputError that names what holds its tensors.

    ``things`` are the cell and the losses, by the names of their arguments.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if _REENTRANT in text:
            raise InputError(
                "uses torch.utils.checkpoint with use_reentrant=True, which gives no gradients of some tensors",
                field="cell or loss",
                accepted="use_reentrant=False, or steps without it: tapes are freed anyhow",
            ) from error
        if _WATCHED in text:
            raise InputError(
                "is under a hook for the gradients of several tensors (register_multi_grad_hook, as "
                "FlopCounterMode has one for each module), of which one is the state that a step is given: "
                "autograd cannot tell there when all are known",
                field="cell",
                accepted="modules that get the state and no other computed tensor, or the forward pass alone",
            ) from error
        if _FREED in text:
            what = (
                "a step used a tensor with a graph that other steps made, and that graph is freed with theirs"
            )
        elif _CHANGED in text:
            what = "a step changed a tensor in place that another step, or an operation before, needs as it was"
        else:
            raise
        names = name_graphs(things)
        where = (
            f": {describe_holders(names)} such a tensor"
            if names
            else "; nothing that can be found holds one at present: look for caches, as of functools"
        )
        raise InputError(what + where, field="cell or loss", accepted=_ACCEPTED) from error
    except InputError as error:
        # A graph that reaches the state at the beginning of other steps looks like an unknown parameter.
        names = name_graphs(things) if error.field == "parameters" else []
        if not names:
            raise
        raise InputError(
            f"{error.message}. {describe_holders(names)} a tensor with a graph, perhaps of another step",
            field=error.field,
            accepted=f"{_ACCEPTED}; or {error.accepted}",
        ) from error


def describe_holders(names: Sequence[str]) -> str:
    """Return names with their verb, as text."""
    return f"{list_names(names, most=3)} {'hold' if len(names) > 1 else 'holds'}"


class LeftoverTensor(torch.autograd.Function):
    """A tensor whose backward pass says that a planned sequence made it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str, *roots: torch.Tensor) -> torch.Tensor:
        """Return the same numbers, as if they were computed from ``roots``."""
        del roots
        ctx.name = name
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        """Raise InputError."""
        raise InputError(
            f"{ctx.name} was left by the steps of a planned sequence, whose graphs are gone: there is no "
            "gradient of it",
            field="loss",
            accepted="a loss taken within the sequence (loss, chunk_loss, final_loss), and what steps pass on "
            "to each other in the state; detach() for what is only looked at",
        )


def guard_tensor(tensor: torch.Tensor, name: str, roots: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the numbers of a tensor with a guard, if it can have a gradient; see ``guard_leftovers``."""
    if not is_differentiable(tensor):
        return tensor
    with torch.enable_grad():
        guarded: torch.Tensor = LeftoverTensor.apply(tensor.detach().requires_grad_(), name, *roots)  # type: ignore[no-untyped-call]
        return guarded


def guard_leftovers(
    places: Iterable[Place], *, with_graph: Container[Place], roots: Sequence[torch.Tensor]
) -> None:
    """Replace the tensors that steps left in some places by the same numbers with a guard.

    Those are guarded that have a graph, and those of places ``with_graph``: a plain loop would give them one.
    They seem to be computed from ``roots``, leaves that require a gradient: ``torch.autograd.grad`` passes over
    operations that lead to none of the tensors it is asked for.
    """
    for place in places:
        holder, value, always = place.holder, place.value, place in with_graph
        if isinstance(holder.thing, torch.Tensor) or not (always or holds_graph(value)):
            continue

        def guard(tensor: torch.Tensor, name: str = place.name, always: bool = always) -> torch.Tensor:
            return guard_tensor(tensor, name, roots) if always or tensor.grad_fn is not None else tensor

        with torch.enable_grad():
            changed = _replace_tensors(value, guard)
        if changed is not value:
            holder.write({**holder.read(), place.key: changed})


def _replace_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor], depth: int = DEPTH) -> Any:
    """Return a value with its tensors replaced; lists, dicts and objects are changed in place."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if not depth:
        return value

    def replace(one: Any) -> Any:
        return _replace_tensors(one, change, depth - 1)

    if isinstance(value, list | deque | dict):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            value[key] = replace(one)
    elif isinstance(value, tuple) and hasattr(value, "_replace"):
        return type(value)(*map(replace, value))
    elif type(value) is tuple:
        return tuple(map(replace, value))
    elif is_plain_object(value):
        for key, one in vars(value).items():
            object.__setattr__(value, key, replace(one))
    return value
