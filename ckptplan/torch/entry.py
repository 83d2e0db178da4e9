"""Wraps public functions, so that no compiler traces them and no transform differentiates them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import torch
from torch._compile import _disable_dynamo
from torch.autograd import forward_ad

from ckptplan.errors import InputError
from ckptplan.torch.run.context import without_recomputation
from ckptplan.torch.run.inputs import describe_tensors
from ckptplan.torch.state.nests import list_leaves

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def as_entry(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Return a public function that ``torch.compile`` does not trace, so that it runs as it is written.

    The hooks of an enclosing ``torch.utils.checkpoint`` are off, so that it runs none of the steps again.

    Raises InputError within transforms of ``torch.func`` and forward mode. A batch by ``vmap`` is accepted
    without gradients.
    """
    names = tuple(signature(function).parameters)

    @wraps(function)
    def enter(*args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        is_derived = torch.is_grad_enabled() and torch._C._functorch.peek_interpreter_stack() is not None
        if is_derived or forward_ad._current_level >= 0:
            raise InputError(
                "is within a transform of torch.func (grad, vjp, jvp, vmap) or forward mode",
                field="call",
                accepted="loss.backward() or torch.autograd.grad; vmap without gradients, under "
                "torch.no_grad(); any transform within the cell",
            )
        try:
            with without_recomputation():
                return function(*args, **options)
        except Exception as error:
            arguments = dict(zip(names, args, strict=False)) | options
            _doubt_order(error, arguments.get("inputs"), arguments.get("state"))
            raise

    # Not torch.compiler.disable, which imports the compiler with this package.
    return _disable_dynamo(enter)


def count_frames() -> int:
    """Return the stack level of the first caller that is neither of ckptplan nor of PyTorch."""
    frame, level = sys._getframe(1), 1
    # Code that ``exec`` runs may belong to no named module.
    while frame.f_back is not None and _is_internal(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    return level


def _is_internal(module: str) -> bool:
    return module.partition(".")[0] in ("ckptplan", "torch")


def _doubt_order(error: Exception, inputs: Any, state: Any) -> None:
    """Add a note to an error if inputs and state seem to be exchanged.

    The argument ``state`` then has more axes than ``inputs``, since it has time before the batch.
    """
    sample, initial = list_leaves(inputs)[:1], list_leaves(state)[:1]
    if not initial or not (sample or inputs is None):
        return
    if inputs is None or (initial[0].dim() > sample[0].dim() > 0 and initial[0].shape[1] == sample[0].shape[0]):
        error.add_note(
            f"ckptplan: inputs are {describe_tensors(inputs)}, and state is {describe_tensors(state)}: are the "
            "two exchanged? bptt, unroll and plan_for take (cell, inputs, state), scan (cell, state, inputs)"
        )
