"""What public calls have in common: no compiler looks into them, no transform derives them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch._compile import _disable_dynamo
from torch.autograd import forward_ad

from ckptplan.errors import InputError
from ckptplan.torch.ambient import without_recomputation

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def as_entry(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Return a public function that runs as it is written in code that ``torch.compile`` takes.

    What it does is none of what ``torch.utils.checkpoint`` around it runs again to reverse it.

    Raises InputError within transforms of ``torch.func`` and forward mode. A batch by ``vmap`` is fine without
    gradients.
    """

    @wraps(function)
    def enter(*args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        reverse = torch.is_grad_enabled() and torch._C._functorch.peek_interpreter_stack() is not None
        if reverse or forward_ad._current_level >= 0:
            raise InputError(
                "is within a transform of torch.func (grad, vjp, jvp, vmap) or forward mode",
                field="call",
                accepted="loss.backward() or torch.autograd.grad; vmap without gradients, under "
                "torch.no_grad(); any transform within the cell",
            )
        with without_recomputation():
            return function(*args, **options)

    # Not torch.compiler.disable, which imports the compiler with this package.
    return _disable_dynamo(enter)
