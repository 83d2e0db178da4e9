"""Explains errors of autograd that mean: a step used a tensor whose graph belongs to other steps.

A run records its steps in several graphs and frees each when it is reversed. A tensor that a module, a list
or a cache holds from one step to another ties their graphs together: PyTorch reports a second backward.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

from ckptplan.errors import InputError

_FREED = "backward through the graph a second time"
_CHANGED = "modified by an inplace operation"
#: How many holders a message names, how deep containers nest, and how many values are looked at.
_NAMED, _DEEPEST, _MOST = 3, 4, 10_000
_ACCEPTED = (
    "what steps pass on as a part of the state (ckptplan.torch.adapters does it for many neurons), what is "
    "computed from weights made anew in each step, detach() for what is only looked at, and bptt and backward "
    "outside of parametrize.cached()"
)


@contextmanager
def explain_held_graphs(modules: Iterable[torch.nn.Module], things: Iterable[object]) -> Iterator[None]:
    """Turn autograd's error about a graph that is gone into an InputError that names what holds its tensors.

    Arguments:
        modules: the modules called in steps; their attributes are searched.
        things: the cell and the losses, whose variables are searched if they are functions.
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
        names = name_holders(modules, things)
        where = (
            f": {_list(names)} such a tensor"
            if names
            else "; nothing that the modules hold at present has one: look at lists and caches outside of them"
        )
        raise InputError(what + where, field="cell or loss", accepted=_ACCEPTED) from error
    except InputError as error:
        # A graph that reaches the state at the beginning of other steps looks like an unknown parameter.
        names = name_holders(modules, things) if error.field == "parameters" else []
        if not names:
            raise
        raise InputError(
            f"{error.message}. {_list(names)} a tensor with a graph, perhaps of another step",
            field=error.field,
            accepted=f"{_ACCEPTED}; or {error.accepted}",
        ) from error


def name_holders(modules: Iterable[torch.nn.Module], things: Iterable[object]) -> list[str]:
    """Return names of attributes and variables that hold a tensor with a graph."""
    modules = list(modules)
    paths: dict[int, str] = {}
    parts: dict[int, torch.nn.Module] = {}
    for module in modules:
        for name, part in module.named_modules():
            paths.setdefault(id(part), f"{type(module).__name__}.{name}" if name else type(module).__name__)
            parts.setdefault(id(part), part)
    search = _Search()
    found = [*_name_cached(paths)]
    for key, part in parts.items():
        found += search.attributes(part, paths[key], depth=0)
    for thing in things:
        if not isinstance(thing, torch.nn.Module):
            found += search.values(thing, getattr(thing, "__name__", type(thing).__name__), depth=0)
    return list(dict.fromkeys(found))


def _list(names: list[str]) -> str:
    more = len(names) - _NAMED
    text = ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"{text} {'hold' if len(names) > 1 else 'holds'}"


def _name_cached(paths: Mapping[int, str]) -> Iterator[str]:
    """Yield the weights that ``parametrize.cached()`` keeps."""
    parametrize: Any = sys.modules.get("torch.nn.utils.parametrize")
    for (module, name), tensor in dict(getattr(parametrize, "_cache", {})).items():
        if getattr(tensor, "grad_fn", None) is not None and module in paths:
            yield f"parametrize.cached() for {paths[module]}.{name}"


class _Search:
    """Looks for tensors with a graph in attributes, containers and the variables of functions."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        # Identities are only unique while the objects live.
        self._alive: list[object] = []

    def attributes(self, owner: Any, path: str, *, depth: int) -> Iterator[str]:
        """Yield the names of attributes of an object."""
        held = dict(getattr(owner, "__dict__", {}))
        if isinstance(owner, torch.nn.Module):
            held |= held.pop("_buffers", {}) | held.pop("_parameters", {})
            del held["_modules"]
        for name, value in held.items():
            yield from self.values(value, f"{path}.{name}", depth=depth + 1)

    def values(self, value: Any, path: str, *, depth: int) -> Iterator[str]:
        """Yield the path of a tensor with a graph, or of those inside a value."""
        if isinstance(value, torch.Tensor):
            if value.grad_fn is not None:
                yield path
            return
        if (
            id(value) in self._seen
            or depth > _DEEPEST
            or len(self._seen) > _MOST
            or isinstance(value, torch.nn.Module | ModuleType | type | str | bytes | int | float)
        ):
            return
        self._seen.add(id(value))
        self._alive.append(value)
        match value:
            case Mapping():
                inner = [(f"{path}[{key!r}]", one) for key, one in list(value.items())]
            case FunctionType():
                inner = [(f"{path}'s {name}", one) for name, one in _variables(value)]
            case MethodType():
                inner = [(f"{type(value.__self__).__name__}", value.__self__), (path, value.__func__)]
            case partial():
                inner = [(path, one) for one in (value.func, *value.args, *value.keywords.values())]
            case _ if isinstance(value, Iterable) and hasattr(value, "__len__"):
                inner = [(f"{path}[{place}]", one) for place, one in enumerate(value)]
            case _:
                yield from self.attributes(value, path, depth=depth)
                return
        for name, one in inner:
            first = next(self.values(one, name, depth=depth + 1), None)
            if first is not None:
                yield first
                if isinstance(value, Iterable):
                    # One of a list says enough.
                    return


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables of enclosing functions, and the globals, that a function reads."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in code.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]
