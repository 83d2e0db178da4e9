"""Restores the settings of the forward pass for steps that run again: autocast, types, hooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack

#: Settings of PyTorch that steps depend on: how each is read, and how it is set.
_SETTINGS: tuple[tuple[Any, Any], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda setting: torch.use_deterministic_algorithms(setting[0], warn_only=setting[1]),
    ),
    (
        lambda: torch.backends.cudnn.deterministic,
        lambda setting: setattr(torch.backends.cudnn, "deterministic", setting),
    ),
    (
        lambda: torch.backends.cudnn.benchmark,
        lambda setting: setattr(torch.backends.cudnn, "benchmark", setting),
    ),
)


class ForwardContext:
    """The settings that are in force when the object is created.

    Arguments:
        device: the type of the device on which steps run.
    """

    def __init__(self, device: str) -> None:
        kinds = dict.fromkeys(("cpu", device))
        self._casts = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds
        ]
        self._is_cached = torch.is_autocast_cache_enabled()
        self._hooks = get_tape_hooks()
        self._settings = [read() for read, _ in _SETTINGS]
        self._modes = [id(mode) for mode in _get_current_function_mode_stack()]

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The types that autocast casts to."""
        return tuple(dtype for _, is_enabled, dtype in self._casts if is_enabled)

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Put the settings in force again. Raises RuntimeError if a function mode was entered or left."""
        if [id(mode) for mode in _get_current_function_mode_stack()] != self._modes:
            raise RuntimeError(
                "a function mode of PyTorch (as torch.set_default_device sets one) was entered or left "
                "between the "
                "forward and the backward pass, so that steps cannot run again as they did"
            )
        current = [read() for read, _ in _SETTINGS]
        with ExitStack() as stack:
            for (_, write), wanted, current_value in zip(_SETTINGS, self._settings, current, strict=True):
                if wanted != current_value:
                    write(wanted)
                    stack.callback(write, current_value)
            for kind, is_enabled, dtype in self._casts:
                if (is_enabled, dtype) != (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)):
                    cast = torch.autocast(kind, enabled=is_enabled, dtype=dtype, cache_enabled=self._is_cached)
                    stack.enter_context(cast)
            if self._hooks is not None:
                stack.enter_context(torch.autograd.graph.saved_tensors_hooks(*self._hooks))
            yield

    @contextmanager
    def cast_again(self) -> Iterator[None]:
        """Run the block without cached casts, since a weight cast without a graph would get no gradient."""
        if self.dtypes:
            torch.clear_autocast_cache()
        try:
            yield
        finally:
            if self.dtypes:
                torch.clear_autocast_cache()


def disable_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context without autocast on the type of a device."""
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device_type=device.type, enabled=False)


def get_tape_hooks() -> Any:
    """Return the innermost hooks for saved tensors that are in force, None if there are none."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


@contextmanager
def without_recomputation() -> Iterator[None]:
    """Run the block without the hooks of an enclosing ``torch.utils.checkpoint``, which would rerun it."""
    hooks = get_tape_hooks()
    if hooks is None or hooks[0].__module__ != "torch.utils.checkpoint":
        yield
        return
    torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        with without_recomputation():
            yield
    finally:
        torch._C._autograd._push_saved_tensors_default_hooks(*hooks)
