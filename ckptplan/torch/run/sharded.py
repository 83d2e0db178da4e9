"""Refuses modules of parallel training that steps may not call.

FSDP gathers the parameters of a module before each call and reduces their gradients after its backward pass.
Steps run many times inside one operation of autograd, whose gradients are known only at its end. Such
reductions would come too early and find nothing. Around the call of ``bptt`` they are right.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ckptplan.errors import InputError

_AROUND = (
    "fully_shard(model) for the module whose forward calls bptt or unroll, and not for modules that steps or "
    "losses call; or DistributedDataParallel around it"
)


def refuse_sharded(roots: Iterable[Any]) -> None:
    """Raise InputError for a module of a cell or a loss whose gradients would not be reduced.

    A module whose forward pass is running encloses the call, and is accepted.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    modules = [module for root in roots for module in _list_modules(root)]
    for module in modules:
        problem = None
        if fsdp is not None and isinstance(module, fsdp.FSDPModule) and not _is_running(module):
            problem = "is sharded by itself (fully_shard)"
        elif fsdp is not None and isinstance(module, fsdp.FullyShardedDataParallel):
            problem = "is FullyShardedDataParallel (FSDP1)"
        elif isinstance(module, DistributedDataParallel) and module.static_graph:
            problem = "is DistributedDataParallel with static_graph=True"
        if problem:
            raise InputError(
                f"{_find_name(module, modules)} {problem} and is called in steps. Its gradients would not be "
                "reduced, since steps add them up inside one operation of autograd",
                field="cell or loss",
                accepted=_AROUND,
            )


def _list_modules(root: Any) -> Iterator[torch.nn.Module]:
    """Yield the modules that a cell or a loss is, is bound to, or holds in attributes or closure variables."""
    candidates = [root, getattr(root, "__self__", None), *getattr(root, "__dict__", {}).values()]
    for cell in getattr(root, "__closure__", None) or ():
        with suppress(ValueError):
            candidates.append(cell.cell_contents)
    for value in candidates:
        if isinstance(value, torch.nn.Module):
            yield from value.modules()


def _is_running(module: Any) -> bool:
    state = module._get_fsdp_state()._training_state
    return state is not None and state.name == "FORWARD"


def _find_name(module: torch.nn.Module, modules: Sequence[torch.nn.Module]) -> str:
    """Return the name of a module within its parent among ``modules``, or else its class."""
    names = (
        f"{type(parent).__name__}.{name}"
        for parent in modules
        for name, child in parent.named_children()
        if child is module
    )
    return next(names, type(module).__name__)
