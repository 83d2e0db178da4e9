"""Describes what a walk meets, so that two walks can be told to have met the same.

A signature has an entry for each reference that is followed: a name and what is there. Numbers, texts and
types are there themselves, functions by their code, objects by their parts, and tensors by shape and type, as
their numbers change with each training step. Two walks with equal signatures met the same things in the same
order, be they other objects: a lambda that a loop makes anew, with the same variables, is the same one.

Nothing is kept alive: classes, code and objects that have no parts are there as weak references.

Which packages and classes the search for surroundings looks into.
"""

from __future__ import annotations

import gc
import io
import sys
import weakref
from argparse import Namespace
from collections import UserDict, UserList, deque
from contextvars import ContextVar
from ctypes import string_at
from functools import _lru_cache_wrapper, lru_cache, partial
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    SimpleNamespace,
)
from typing import Any, TypeGuard

import numpy
import torch
from torch.nn.parameter import is_lazy

#: Packages whose functions and plain objects keep nothing between steps, or nothing that steps read.
_PASSED_OVER = frozenset(sys.stdlib_module_names) | {
    "_pytest", "ckptplan", "lightning", "lightning_fabric", "matplotlib", "numpy", "pandas", "pytest",
    "pytorch_lightning", "scipy", "sklearn", "tensorboard", "torch", "torchmetrics", "torchvision", "tqdm",
    "triton", "wandb",
}  # fmt: skip
#: Classes of such packages whose objects hold what a user put there.
_SEARCHED = (
    "_thread._local", "argparse.", "collections.", "queue.", "torch.distributions.", "torch.optim.", "types.",
    "weakref.",
)  # fmt: skip
#: Classes of the standard library whose objects hold what users put into them.
PLAIN_DATA = (SimpleNamespace, Namespace, UserDict, UserList)


@lru_cache(maxsize=4096)
def is_passed_over_module(name: str) -> bool:
    """Return whether a package, or a module in it, is not searched."""
    return name.partition(".")[0] in _PASSED_OVER


def is_passed_over(thing: Any) -> bool:
    """Return whether a class or a function belongs to a package that is not searched."""
    return is_passed_over_module(getattr(thing, "__module__", None) or "builtins")


def is_searched(one: type) -> bool:
    """Return whether the attributes of objects of a class are looked at."""
    return (
        not is_passed_over(one)
        or issubclass(one, PLAIN_DATA)
        or f"{one.__module__}.{one.__qualname__}".startswith(_SEARCHED)
    )


def is_array(value: object) -> TypeGuard[numpy.ndarray[Any, Any]]:
    """Return whether a value is an array of numbers of numpy."""
    return isinstance(value, numpy.ndarray) and value.dtype != object


#: Tensors up to this size that modules hold are described by their numbers, too: a mode may be one.
_MOST_BYTES = 2**16
#: Longer texts are described by their hash.
_LONG = 256
#: Flag of a class that was made by a class statement: all that its objects hold is in attributes.
_HEAP_TYPE = 1 << 9
_CONTAINERS = (list, deque, tuple, set, frozenset, dict)
_METHODS = (MethodType, BuiltinFunctionType, MethodWrapperType)
#: Their equality says all.
_COMPARED = (torch.dtype, torch.device, torch.Size, type(None))
#: Kinds of random generators: any one draws like another.
GENERATORS = (torch.Generator, numpy.random.Generator, numpy.random.RandomState)
_PLAIN = (int, float, complex, bool, str, bytes, range)


def _names_tensor(thing: Any) -> bool:
    """Return whether a value is a weak reference to a tensor, as recurrent layers hold to their weights."""
    return type(thing) is weakref.ref and thing.__callback__ is None and isinstance(thing(), torch.Tensor)


class Signature:
    """What a walk has met; ``complete`` unless something cannot be described."""

    def __init__(self) -> None:
        self.complete = True
        #: All objects but constants, each once, in the order of the walk.
        self.things: list[Any] = []
        self._entries: list[Any] = []
        #: References, most of them weak, whose ids are part of the entries: they stay theirs as long as
        #: these live.
        self.references: list[Any] = []
        #: Numbers and texts with their names, by which calls that take more or less can be told apart.
        self.constants: list[tuple[str, str]] = []

    @property
    def entries(self) -> tuple[Any, ...]:
        """The entries, which can be compared and hashed."""
        return tuple(self._entries)

    def note_constant(self, name: str, value: Any) -> None:
        """Note a value that has no parts."""
        self._entries.append((name, self.describe_constant(value)))
        if isinstance(value, int | float):
            self.constants.append((name, repr(value)))
        elif isinstance(value, str):
            self.constants.append((name, str.__str__(value) if len(value) <= _LONG else str(hash(value))))

    def note_again(self, name: str, number: int) -> None:
        """Note an object that was met before, as the one of this number."""
        self._entries.append((name, number))

    def note(self, name: str, thing: Any, parts: int) -> None:
        """Note an object of which so many parts follow."""
        self.things.append(thing)
        self._entries.append((name, parts, self._refer(type(thing)), self._describe(thing)))

    def describe_constant(self, value: Any) -> Any:
        """Return what is equal for equal constants."""
        kind = self._refer(type(value))
        if isinstance(value, _COMPARED):
            return kind, value
        if isinstance(value, str | bytes) and len(value) > _LONG:
            return kind, len(value), hash(value)
        if isinstance(value, int | float | complex | str | bytes | range | slice):
            # Subclasses may compare and hash in their own way.
            return kind, value if type(value) in _PLAIN else repr(value)
        return kind, self._refer(value)

    def describe_tensor(self, tensor: torch.Tensor) -> Any:
        """Return what is equal for tensors with which steps do the same; of numbers only a single one tells."""
        if is_lazy(tensor) or tensor.is_nested:
            self.complete = False
            return None
        facts = (
            *(tensor.shape, tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad),
            *(tensor.grad_fn is None, tensor.is_inference(), bool(tensor._backward_hooks)),
        )
        single = tensor.numel() == 1 and not tensor.requires_grad and tensor.grad_fn is None
        return (*facts, self._read_numbers(tensor)) if single else facts

    def _refer(self, thing: Any) -> int:
        """Return a number that stands for one object, as long as the signature lives."""
        try:
            reference: Any = weakref.ref(thing)
        except TypeError:
            if not _names_tensor(thing) and (gc.is_tracked(thing) or type(thing).__hash__ is None):
                self.complete = False
                return 0
            # Such as object(), which marks an argument that is missing: it keeps nothing else alive.
            reference = thing
        self.references.append(reference)
        return id(reference)

    def _describe(self, thing: Any) -> Any:  # noqa: PLR0911 - a case for each kind
        """Return what tells an object from others besides its class and its parts."""
        if isinstance(thing, torch.Tensor):
            return self.describe_tensor(thing)
        if isinstance(thing, torch.nn.Module):
            return self._describe_module(thing)
        if isinstance(thing, numpy.generic):
            return thing.tobytes()
        if is_array(thing):
            return thing.shape, str(thing.dtype), thing.tobytes() if thing.size == 1 else None
        if isinstance(thing, _CONTAINERS):
            return len(thing)
        if isinstance(thing, partial):
            return len(thing.args), tuple(thing.keywords)
        if isinstance(thing, CellType) or issubclass(thing.__class__, GENERATORS):
            return None
        return self._describe_other(thing)

    def _describe_other(self, thing: Any) -> Any:
        if isinstance(thing, FunctionType):
            return self._refer(thing.__code__)
        if isinstance(thing, ContextVar):
            return thing.name
        if isinstance(thing, _METHODS):
            return thing.__name__
        if hasattr(thing, "__next__") and not isinstance(thing, type) and not _is_written_only(thing):
            # What it will give cannot be told.
            self.complete = False
            return None
        if isinstance(thing, _lru_cache_wrapper):
            # What was filled in meanwhile may have a graph or none, and may have taken the place of something.
            kept = [one.requires_grad for one in list_kept(thing) if isinstance(one, torch.Tensor)]
            return self._refer(thing), *read_cache(thing), tuple(kept)
        kind: Any = type(thing)
        return None if not isinstance(thing, type) and _is_open(kind) else self._refer(thing)

    def _describe_module(self, module: torch.nn.Module) -> Any:
        """Return the numbers of the small tensors that a module holds and that are no parameters."""
        if isinstance(module, torch.jit.ScriptModule):
            # Its attributes lie in C++.
            self.complete = False
            return None
        held = (*module._buffers.values(), *vars(module).values())
        return tuple(
            self._read_numbers(one)
            for one in held
            if isinstance(one, torch.Tensor)
            and not is_lazy(one)
            and not (one.requires_grad or one.grad_fn is not None)
            and one.numel() * one.element_size() <= _MOST_BYTES
        )

    def _read_numbers(self, tensor: torch.Tensor) -> Any:
        """Return what is equal for equal numbers."""
        return hash_numbers(tensor)


#: Bytes of a tensor that are hashed at a time, as that copies them.
_AT_ONCE = 2**16


def hash_numbers(tensor: torch.Tensor) -> Any:
    """Return what is equal for equal numbers, None of tensors whose numbers do not lie in memory one by one."""
    if not _is_plain(tensor) or is_freed(tensor):
        return None
    near = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()
    # By ``Tensor.numpy``, the storage could not be resized any more, as FSDP does; a copy would count as live.
    place, size = near.data_ptr(), near.nbytes
    parts = (hash(string_at(place + at, min(_AT_ONCE, size - at))) for at in range(0, size, _AT_ONCE))
    return hash((tensor.shape, *parts))


def is_freed(tensor: torch.Tensor) -> bool:
    """Return whether the memory of a tensor was taken away, as FSDP does."""
    return _is_plain(tensor) and tensor.numel() > 0 and not tensor.untyped_storage().nbytes()


def _is_plain(tensor: torch.Tensor) -> bool:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return plain and tensor.layout == torch.strided and not (tensor.is_meta or tensor.is_quantized)


def read_cache(cache: _lru_cache_wrapper[Any]) -> tuple[int, int]:
    """Return how often a cache was filled, and how much it holds; nothing of one that keeps nothing."""
    found = cache.cache_info()
    return (0, 0) if found.maxsize == 0 else (found.misses, found.currsize)


def list_kept(cache: _lru_cache_wrapper[Any]) -> list[Any]:
    """Return the arguments and the results that a cache keeps, among other things that it refers to."""
    known = gc.get_referents(cache)
    return [*known, *(value for one in known if type(one) is dict for value in one.values())]


def _is_written_only(thing: object) -> bool:
    """Return whether a thing is a file that gives nothing, as those to which messages go."""
    if not isinstance(thing, io.IOBase) or thing.closed:
        return False
    return thing in (sys.stdout, sys.stderr) or not thing.readable()


@lru_cache(maxsize=4096)
def _is_open(kind: type) -> bool:
    """Return whether objects of a class consist of attributes that a walk searches."""
    known = (object, *PLAIN_DATA)
    return is_searched(kind) and all(one in known or one.__flags__ & _HEAP_TYPE for one in kind.__mro__)
