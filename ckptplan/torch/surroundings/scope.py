"""Which packages and classes the search for surroundings looks into."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import UserDict, UserList
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

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
