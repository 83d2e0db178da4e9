"""Lists the public names of the package with their signatures, a line each."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

FOLDER = Path(__file__).parent / "names"
PACKAGES = ("ckptplan", "ckptplan.torch", "ckptplan.jax")


def list_names(package: str) -> str:
    """Return the public names of a package: what it offers, its parameters, fields and methods."""
    module = importlib.import_module(package)
    return "".join(
        f"{line}\n" for name in sorted(module.__all__) for line in _describe(name, getattr(module, name))
    )


def _describe(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        yield f"class {name}({bases}){_signature(value)}"
        for one, member in sorted(vars(value).items()):
            if not one.startswith("_"):
                yield from (f"    {line}" for line in _describe(one, member))
    elif isinstance(value, property):
        yield f"{name}: property"
    elif isinstance(value, classmethod | staticmethod):
        yield f"{type(value).__name__} {name}{_signature(value.__func__)}"
    elif callable(value):
        yield f"{name}{_signature(value)}"
    else:
        yield name


def _signature(value: Any) -> str:
    """Return the parameters with their defaults; how types are written differs between versions of Python."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return "(...)"
    plain = (one.replace(annotation=inspect.Parameter.empty) for one in parameters)
    text = re.sub(r" at 0x[0-9a-f]+", "", str(inspect.Signature(list(plain))))
    return text + "".join(_list_wishes(value, one) for one in parameters)


def _list_wishes(value: Any, parameter: inspect.Parameter) -> str:
    """Return the keyword arguments that a parameter such as ``**wishes: Unpack[Wishes]`` stands for."""
    if parameter.kind is not parameter.VAR_KEYWORD or "Unpack[" not in str(parameter.annotation):
        return ""
    (names,) = get_args(eval(parameter.annotation, value.__globals__))  # noqa: S307 - the package's own
    return f" {parameter.name}: {', '.join(sorted(names.__annotations__))}"
