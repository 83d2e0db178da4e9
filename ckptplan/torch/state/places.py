"""Places: where a step can keep a value for later steps.

A *holder* is an object with content of its own: the attributes of a module or an object, a variable of an
enclosing function, the globals that a function names, a list, an array, a random generator, the numbers of a
tensor. A *place* is a holder with one of its names. Each kind of holder knows how to read its content, how to
compare two contents, and how to write one back.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from operator import is_
from types import CellType, FunctionType, ModuleType
from typing import Any

from torch import Tensor

from ckptplan.errors import InputError
from ckptplan.torch.state.nests import (
    ABSENT,
    CONTAINERS,
    LIBRARIES,
    are_same,
    find_copy_kind,
    is_differentiable,
    list_leaves,
    list_slots,
    overwrite,
    read_version,
)


class Holder:
    """An object with content of its own; ``name`` is how a user would write it, ``owner`` is the object."""

    __slots__ = ("name", "owner")
    #: Whether all of its content is one value. Its only place then has the key None.
    is_whole = True

    def __init__(self, name: str, owner: Any) -> None:
        self.name, self.owner = name, owner

    def read(self) -> Any:
        """Return the current content."""
        raise NotImplementedError

    def write(self, content: Any) -> None:
        """Write a content back."""
        raise NotImplementedError

    def list_values(self) -> Iterable[tuple[str, Any, Place]]:
        """Return the names, values and places of the objects that are found by its content."""
        return ()

    def list_changes(self, before: Any, after: Any) -> Iterable[Any]:
        """Return the names whose values differ between two contents; ``(None,)`` stands for the whole."""
        return () if before == after else (None,)

    def get(self, key: Any) -> Any:
        """Return the value of a name."""
        return self.owner

    def set(self, key: Any, value: Any) -> None:
        """Set the value of a name. Containers need nothing here, since they were filled in place already."""

    def describe(self, key: Any) -> str:
        """Return a name as a user would write it."""
        return self.name


class NamedHolder(Holder):
    """A holder whose content is a dict of values by their names."""

    __slots__ = ()
    is_whole = False

    def list_values(self) -> Iterable[tuple[str, Any, Place]]:
        return [(self.describe(key), value, Place(self, key)) for key, value in self.read().items()]

    def write(self, content: Any) -> None:
        for key in self.list_changes(content, self.read()):
            self.set(key, content.get(key, ABSENT))

    def list_changes(self, before: Any, after: Any) -> Iterable[Any]:
        if (
            len(before) == len(after)
            and all(map(is_, before.values(), after.values()))
            and all(map(is_, before, after))
        ):
            return ()
        names = dict.fromkeys((*before, *after))
        return [name for name in names if not are_same(before.get(name, ABSENT), after.get(name, ABSENT))]

    def get(self, key: Any) -> Any:
        return self.read().get(key, ABSENT)

    def describe(self, key: Any) -> str:
        return f"{self.name}.{key}" if self.name else str(key)


class AttributeHolder(NamedHolder):
    """The names of a dict: attributes of a module or an object, or the globals that a function names.

    Arguments:
        name: how a user would write the object.
        owner: the dict.
        without: names that are left out.
        only: the only names that are included; None for all.
    """

    __slots__ = ("only", "without")

    def __init__(self, name: str, owner: dict[str, Any], *, without: Any = (), only: Any = None) -> None:
        super().__init__(name, owner)
        self.without, self.only = without, only

    def read(self) -> Any:
        if self.only is not None:
            return {key: self.owner[key] for key in self.only if key in self.owner}
        if self.without:
            return {key: value for key, value in self.owner.items() if key not in self.without}
        return self.owner.copy()

    def get(self, key: Any) -> Any:
        return self.owner.get(key, ABSENT)

    def set(self, key: Any, value: Any) -> None:
        if value is ABSENT:
            self.owner.pop(key, None)
        else:
            self.owner[key] = value


class GlobalHolder(AttributeHolder):
    """Globals of a module. Modules and code of libraries among them are not searched for state."""

    __slots__ = ()

    def list_values(self) -> Iterable[tuple[str, Any, Place]]:
        for name, value, place in super().list_values():
            is_code = isinstance(value, FunctionType | type)
            if not isinstance(value, ModuleType) and (not is_code or is_user_code(value.__module__)):
                yield name, value, place


@lru_cache(maxsize=1024)
def is_user_code(module: str | None) -> bool:
    """Return whether a module is a user's: neither installed nor of the standard library."""
    root = module.partition(".")[0] if isinstance(module, str) else ""
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return root not in LIBRARIES and root != "builtins" and "site-packages" not in file


class SlotHolder(NamedHolder):
    """The attributes of an object that has slots."""

    __slots__ = ()

    def read(self) -> Any:
        slots = list_slots(self.owner.__class__)
        return {name: getattr(self.owner, name) for name in slots if hasattr(self.owner, name)}

    def set(self, key: Any, value: Any) -> None:
        if value is not ABSENT:
            object.__setattr__(self.owner, key, value)
        elif hasattr(self.owner, key):
            object.__delattr__(self.owner, key)


class ClassHolder(NamedHolder):
    """The attributes of a class, including methods; ``only`` limits them, for the classes of libraries."""

    __slots__ = ("only",)

    def __init__(self, name: str, owner: type, *, only: Any = None) -> None:
        super().__init__(name, owner)
        self.only = only

    def list_values(self) -> Iterable[tuple[str, Any, Place]]:
        return super().list_values() if self.only is None else ()

    def read(self) -> Any:
        attributes = vars(self.owner)
        if self.only is not None:
            return {key: attributes[key] for key in self.only if key in attributes}
        return {key: value for key, value in attributes.items() if not key.startswith(("__", "_abc_"))}

    def set(self, key: Any, value: Any) -> None:
        if value is not ABSENT:
            setattr(self.owner, key, value)
        elif key in vars(self.owner):
            delattr(self.owner, key)


class VariableHolder(NamedHolder):
    """A variable of an enclosing function, or a context variable."""

    __slots__ = ()

    def read(self) -> Any:
        try:
            return {None: self.owner.cell_contents if isinstance(self.owner, CellType) else self.owner.get()}
        except (ValueError, LookupError):
            return {}

    def set(self, key: Any, value: Any) -> None:
        if isinstance(self.owner, ContextVar):
            if value is ABSENT:
                raise InputError(
                    f"gives {self.name}, a context variable, its first value, which cannot be taken away again",
                    field="cell or loss",
                    accepted=f"{self.name}.set(...) before the sequence",
                )
            self.owner.set(value)
        elif value is not ABSENT:
            self.owner.cell_contents = value
        elif self.read():
            del self.owner.cell_contents

    def describe(self, key: Any) -> str:
        return self.name


class TupleHolder(NamedHolder):
    """The elements of a tuple that an object holds: the defaults of a function, the arguments of a partial."""

    __slots__ = ()

    def read(self) -> Any:
        is_function = isinstance(self.owner, FunctionType)
        return dict(enumerate((self.owner.__defaults__ or ()) if is_function else self.owner.args))

    def set(self, key: Any, value: Any) -> None:
        owner, elements = self.owner, tuple((self.read() | {key: value}).values())
        if isinstance(owner, FunctionType):
            owner.__defaults__ = elements
        else:
            owner.__setstate__((owner.func, elements, owner.keywords, vars(owner)))

    def describe(self, key: Any) -> str:
        return f"{self.name}[{key}]"


class ParameterHookHolder(Holder):
    """The hooks on a parameter."""

    __slots__ = ()

    def read(self) -> Any:
        return dict(self.owner._backward_hooks or ())

    def write(self, content: Any) -> None:
        hooks = self.owner._backward_hooks
        if hooks is not None:
            hooks.clear()
            hooks.update(content)

    def get(self, key: Any) -> Any:
        return self.owner._backward_hooks

    def set(self, key: Any, value: Any) -> None:
        if value is None:
            self.write({})

    def describe(self, key: Any) -> str:
        return f"the hooks of {self.name}"


class CacheHolder(Holder):
    """A ``functools.lru_cache``. It is no part of the state, since equal arguments give equal results.

    Results that the trial cached are dropped, so that random numbers are drawn as in a plain loop.
    """

    __slots__ = ()

    def read(self) -> Any:
        return self.owner.cache_info().misses

    def write(self, content: Any) -> None:
        self.owner.cache_clear()

    def list_changes(self, before: Any, after: Any) -> Iterable[Any]:
        return ()

    def list_tensors(self) -> list[Tensor]:
        """Return the differentiable tensors among the cached results."""
        results = (list_leaves(value) for value in gc.get_referents(self.owner) if not callable(value))
        return [leaf for leaves in results for leaf in leaves if is_differentiable(leaf)]


class CopyHolder(Holder):
    """A container, an array, a set or a random generator, whose content is copied."""

    __slots__ = ("_kind",)

    def __init__(self, name: str, owner: Any) -> None:
        super().__init__(name, owner)
        self._kind: Any = find_copy_kind(owner.__class__)

    def read(self) -> Any:
        return self._kind.read(self.owner)

    def write(self, content: Any) -> None:
        self._kind.write(self.owner, content)

    def list_values(self) -> Iterable[tuple[str, Any, Place]]:
        content = self.read() if isinstance(self.owner, CONTAINERS) else ()
        values = content.values() if isinstance(content, dict) else content
        return [(f"{self.name}[...]", value, Place(self)) for value in values]

    def list_changes(self, before: Any, after: Any) -> Iterable[Any]:
        return () if self._kind.are_equal(before, after) else (None,)


class ContentHolder(Holder):
    """The numbers of a tensor that steps write in place. The value is the tensor itself, which stays."""

    __slots__ = ("_version",)

    def __init__(self, name: str, owner: Tensor) -> None:
        super().__init__(name, owner)
        self._version = read_version(owner)

    def set(self, key: Any, value: Any) -> None:
        if value is not self.owner:
            overwrite(self.owner, value, self._version)

    def describe(self, key: Any) -> str:
        return f"the numbers of {self.name}"


@dataclass(frozen=True, eq=False)
class Place:
    """A holder with one of its names; the key None stands for all of its content."""

    holder: Holder
    key: Any = None

    @property
    def name(self) -> str:
        """The name of the place, as a user would write it."""
        return self.holder.describe(self.key)

    @property
    def label(self) -> tuple[str, bool]:
        """The name, and whether it means a whole object: a list has the name of the attribute that holds it."""
        return self.name, self.holder.is_whole

    @property
    def is_content(self) -> bool:
        """Whether it stands for the numbers of a tensor."""
        return isinstance(self.holder, ContentHolder)

    def get(self) -> Any:
        """Return the value."""
        return self.holder.get(self.key)

    def set(self, value: Any) -> None:
        """Set the value, whose containers were filled already."""
        self.holder.set(self.key, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[Any, ...]:
        return type(self.holder), id(self.holder.owner), self.key


def join_names(places: Sequence[Place], limit: int = 3) -> str:
    """Return the names of places as text."""
    names = list(dict.fromkeys(place.name for place in places))
    omitted_count = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {omitted_count} more" if omitted_count > 0 else "")


def has_graph(tensor: Tensor) -> bool:
    """Return whether a tensor was computed with a graph."""
    return tensor.requires_grad and not tensor.is_leaf
