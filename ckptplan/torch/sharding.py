"""Refuses modules that share out their gradients at each call of theirs, if steps call them.

FSDP gathers a module's parameters before each call and reduces their gradients after its backward pass. Steps
run many times inside one operation of autograd, whose gradients are known only at its end: these reductions
would come too early, find nothing, and be missing in silence. Around the call of ``bptt`` they are right.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from ckptplan.errors import InputError

#: Where FSDP2 keeps its class: since torch 2.6, and before.
_FSDP2 = ("torch.distributed.fsdp", "torch.distributed._composable.fsdp")
_ACCEPTED = (
    "fully_shard(model) for the module whose forward calls bptt or unroll, and not for modules that steps or "
    "losses call; or DistributedDataParallel around it"
)


@contextmanager
def refuse_sharded(things: Iterable[object]) -> Iterator[None]:
    """Raise InputError if one of the modules, or one that is called inside the context, is sharded by itself.

    A call is refused before any hook of the module runs, so that FSDP's state stays as it was.
    ``things`` are the cell and the losses; those that are no modules are left out.
    """
    modules = [one for one in things if isinstance(one, torch.nn.Module)]
    for module in modules:
        for name, part in module.named_modules():
            _check(part, f"{type(module).__name__}.{name}" if name else type(module).__name__)
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        # Nothing is sharded then. A hook would be compiled into compiled cells, anew in each call.
        yield
        return
    names = {id(part): name for module in modules for name, part in module.named_modules()}
    hook = register_module_forward_pre_hook(
        lambda module, _: _check(module, names.get(id(module)) or type(module).__name__)
    )
    try:
        yield
    finally:
        hook.remove()


def _check(module: torch.nn.Module, name: str) -> None:
    """Raise InputError if a module that a step calls would not reduce its gradients."""
    if isinstance(module, _classes(_FSDP2, "FSDPModule")):
        raise InputError(
            f"{name} is sharded by itself (fully_shard) and is called in steps: it would not reduce its "
            "gradients, which steps add up inside one operation",
            field="cell or loss",
            accepted=_ACCEPTED,
        )
    if isinstance(module, _classes(_FSDP2[:1], "FullyShardedDataParallel")) or _lies_in_flat(module):
        raise InputError(
            f"{name} keeps its parameters in FullyShardedDataParallel (FSDP1), which gives each forward pass "
            "views of them: they are not the parameters that steps could be run again with",
            field="cell or loss",
            accepted=_ACCEPTED,
        )
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        for option in ("static_graph", "find_unused_parameters"):
            if getattr(module, option, False):
                raise InputError(
                    f"{name} is DistributedDataParallel with {option}=True and is called in steps: it counts "
                    "on one graph for all its calls, but steps are recorded in several",
                    field="cell or loss",
                    accepted=f"DistributedDataParallel around the module whose forward calls bptt or unroll, "
                    f"or without {option}",
                )


def _classes(places: Iterable[str], name: str) -> tuple[type, ...]:
    """Return classes of FSDP; none if nothing imported it, since then no module is sharded."""
    found: list[Any] = [getattr(sys.modules.get(place), name, None) for place in places]
    return tuple(one for one in found if one is not None)


def _lies_in_flat(module: torch.nn.Module) -> bool:
    """Return whether FSDP1, somewhere around, replaced the module's parameters by views of a flat one."""
    if not getattr(module, "_is_fsdp_managed_module", False):
        return False
    held = (*vars(module).values(), *module._parameters.values())
    return any(isinstance(one, torch.Tensor) and one.grad_fn is not None for one in held)
