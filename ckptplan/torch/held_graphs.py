"""Explains errors of autograd that mean: a step used a tensor whose graph belongs to other steps.

A run records its steps in several graphs and frees each when it is reversed. A tensor that a module, a list
or a cache holds from one step to another ties their graphs together: PyTorch reports a second backward.

Names what holds tensors with graphs: attributes, variables, lists and caches.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ckptplan.errors import InputError
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


_FREED = "backward through the graph a second time"
_CHANGED = "modified by an inplace operation"
#: Names in one message.
_NAMED = 3
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
    more = len(names) - _NAMED
    text = ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"{text} {'hold' if len(names) > 1 else 'holds'}"
