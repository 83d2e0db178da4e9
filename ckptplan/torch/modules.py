"""Watches the modules of a cell and a loss, and checks that they do not change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from ckptplan.errors import InputError


class WatchedModules:
    """The given modules and those called inside the context, with copies of their buffers."""

    def __init__(self, things: Iterable[object]) -> None:
        self._modules: dict[int, torch.nn.Module] = {}
        self._buffers: dict[int, tuple[str, torch.Tensor, int, torch.Tensor]] = {}
        for thing in things:
            if isinstance(thing, torch.nn.Module):
                self._meet(thing)

    @property
    def modules(self) -> tuple[torch.nn.Module, ...]:
        """The modules met so far."""
        return tuple(self._modules.values())

    def _meet(self, module: torch.nn.Module) -> None:
        if id(module) in self._modules:
            return
        self._modules[id(module)] = module
        for name, buffer in module.named_buffers():
            self._buffers.setdefault(id(buffer), (name, buffer, buffer._version, buffer.clone()))

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Watch modules, and restore their buffers on exit.

        Raises InputError with the names of buffers that changed: a step that runs again would change them
        again, and running statistics would count it twice.
        """
        hook = register_module_forward_pre_hook(lambda module, _: self._meet(module))
        try:
            yield
        finally:
            hook.remove()
            changed = self._restore()
        if changed:
            raise InputError(
                f"a step changes the buffer{'s' if len(changed) > 1 else ''} {', '.join(changed)}, and steps "
                "run again",
                field="cell or loss",
                accepted="no running statistics: BatchNorm in eval() or with track_running_stats=False, or "
                "LayerNorm",
            )

    def _restore(self) -> list[str]:
        """Restore the buffers; return the names of those that had changed."""
        changed = []
        for name, buffer, version, value in self._buffers.values():
            # Some kernels write into a buffer without counting it as a change.
            if buffer._version != version or not torch.equal(_replace_nan(buffer), _replace_nan(value)):
                changed.append(name)
                with torch.no_grad():
                    buffer.copy_(value)
        return changed


def _replace_nan(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with NaN replaced, so that equal tensors compare equal."""
    return torch.nan_to_num(tensor, nan=1e30) if tensor.is_floating_point() else tensor


class Fingerprint:
    """Weights, buffers and modes of modules, which must not change before steps run again."""

    def __init__(self, modules: tuple[torch.nn.Module, ...]) -> None:
        self._modules = modules
        self._tensors, self._training = _list_tensors(modules), _list_modes(modules)

    def check(self) -> None:
        """Raise RuntimeError if anything changed."""
        now = _list_tensors(self._modules)
        changed = [name for name in {**now, **self._tensors} if now.get(name) != self._tensors.get(name)]
        if changed:
            raise RuntimeError(
                f"{changed[0].partition('.')[2]} was changed in place or replaced between the forward and the "
                "backward pass (by an optimizer, an assignment, functional_call), so that steps cannot be run "
                "again as they were"
            )
        if _list_modes(self._modules) != self._training:
            raise RuntimeError(
                "train() or eval() was called between the forward and the backward pass, so that steps cannot "
                "be run again as they were"
            )


def _list_tensors(modules: tuple[torch.nn.Module, ...]) -> dict[str, tuple[int, int]]:
    found: dict[str, Any] = {}
    for number, module in enumerate(modules):
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            found[f"{number}.{name}"] = id(tensor), tensor._version
    return found


def _list_modes(modules: tuple[torch.nn.Module, ...]) -> list[bool]:
    return [one.training for module in modules for one in module.modules()]
