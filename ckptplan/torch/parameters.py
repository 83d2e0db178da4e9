"""Which parameters and modules steps use, whether these change before steps run again, and which are refused.

FSDP gathers a module's parameters before each call and reduces their gradients after its backward pass. Steps
run many times inside one operation of autograd, whose gradients are known only at its end: these reductions
would come too early, find nothing, and be missing in silence. Around the call of ``bptt`` they are right.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from ckptplan.errors import InputError, quote_value
from ckptplan.torch.ambient import read_settings
from ckptplan.torch.graphs import find_graph_leaves
from ckptplan.torch.trees import Leaves

Parameters: TypeAlias = tuple[torch.Tensor, ...]
Modules: TypeAlias = tuple[torch.nn.Module, ...]


def list_parameters(parameters: object) -> Parameters:
    """Return the tensors that require a gradient. Raises InputError."""
    if isinstance(parameters, torch.nn.Module):
        parameters = parameters.parameters()
    accepted = "tensors, as module.parameters() gives them"
    if not isinstance(parameters, Iterable) or isinstance(parameters, torch.Tensor | str):
        raise InputError(f"is {quote_value(type(parameters).__name__)}", field="parameters", accepted=accepted)
    named = tuple(parameters)
    for one in named:
        if not isinstance(one, torch.Tensor):
            raise InputError(f"holds {quote_value(type(one).__name__)}", field="parameters", accepted=accepted)
    return tuple(one for one in named if one.requires_grad)


def collect_parameters(modules: Modules, named: Parameters, found: list[torch.Tensor]) -> Parameters:
    """Return the parameters of modules, those named, and those that the first step reached, each once."""
    behind = {id(leaf) for one in named if one.grad_fn is not None for leaf in find_graph_leaves([one])}
    own = (one for module in modules for one in module.parameters() if id(one) not in behind)
    return tuple({id(one): one for one in (*own, *named, *found) if one.requires_grad}.values())


def check_reached(outputs: Leaves, inner: Leaves, *, parameters: Parameters, temporary: int = 0) -> None:
    """Raise InputError if a recorded graph reaches a tensor that is not a known parameter.

    ``inner`` are the leaves where the graph begins: a state and inputs. Up to ``temporary`` leaves may be
    unknown.
    """
    known = {id(one) for one in (*parameters, *inner)}
    computed = tuple(one for one in parameters if one.grad_fn is not None)
    missing = [leaf for leaf in find_graph_leaves(outputs, until=computed) if id(leaf) not in known]
    if len(missing) > temporary:
        raise InputError(
            f"the cell or the loss uses {len(missing)} tensors that require a gradient and were not found "
            f"in the first step, the first one of shape {tuple(missing[0].shape)}",
            field="parameters",
            accepted="parameters=[...] with all of them; for the last step alone, final_loss; what a step "
            "needs of an earlier one goes through the state",
        )


class CalledModules:
    """The given modules, those called inside the context, and other members of lists that hold these.

    Raises InputError before one is called that is sharded by itself, so that FSDP's state stays as it was.
    """

    def __init__(self, reachable: Iterable[torch.nn.Module], *, given: Iterable[object]) -> None:
        self._modules = {id(one): one for one in given if isinstance(one, torch.nn.Module)}
        self._lists = [one for one in reachable if isinstance(one, torch.nn.ModuleList | torch.nn.ModuleDict)]

    @property
    def modules(self) -> tuple[torch.nn.Module, ...]:
        """The modules met so far."""
        found = dict(self._modules)
        for one in self._lists:
            # As one BatchNorm for each step: the first steps call the first ones.
            if any(id(member) in self._modules for member in one.children()):
                found |= {id(member): member for member in one.children()}
        return tuple(found.values())

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Note the modules that are called, not those that other threads call at the same time."""
        here = threading.get_ident()

        def meet(module: torch.nn.Module, _: object) -> None:
            # PyTorch's compiler, which takes this into what it compiles, knows no threads.
            compiles = torch.compiler.is_compiling()
            if compiles or threading.get_ident() == here:
                self._modules.setdefault(id(module), module)
            if not compiles:
                # Parts of the given ones were looked at before, by their names.
                _refuse_shard(module, type(module).__name__)

        hook = register_module_forward_pre_hook(meet)
        try:
            yield
        finally:
            hook.remove()


_SETTINGS = "default type, deterministic algorithms, precision"


class _Marks(NamedTuple):
    """What tells whether a tensor is the one that it was."""

    id: int
    version: int
    kind: tuple[torch.dtype, torch.device, torch.Size]
    trained: bool


class Fingerprint:
    """Weights, buffers and modes of modules, which must not change before steps run again.

    Arguments:
        modules: the modules.
        others: other parameters, by their names.
        changing: tensors that may, and names in dicts, by the ids of these: statistics that steps write and
            never read, and other calls, too; buffers that are a part of the state.
    """

    def __init__(
        self,
        modules: tuple[torch.nn.Module, ...],
        *,
        others: Mapping[str, torch.Tensor],
        changing: frozenset[tuple[int, Any]],
    ) -> None:
        self._modules, self._others, self._changing = modules, others, changing
        self._tensors, self._set = self._list_tensors(), self._read_settings()

    def check(self) -> list[str]:
        """Return the names of parameters that are trained only since. Raises RuntimeError for other changes."""
        now, settings = self._list_tensors(), self._read_settings()
        changes = [what for what, then in self._set.items() if then != settings[what]]
        for name in {**now, **self._tensors}:
            before, after = self._tensors.get(name), now.get(name)
            how = _name_change(before, after)
            if how and not (after is not None and (after.id, None) in self._changing):
                changes = [f"{name.partition('.')[2]} was {how}"]
                break
        if changes:
            raise RuntimeError(
                f"{changes[0]} between the forward and the backward pass, so that steps cannot be run again as "
                "they were"
            )
        trained = [
            name for name, one in self._tensors.items() if name in now and now[name].trained > one.trained
        ]
        return [name.partition(".")[2] for name in trained]

    def _read_settings(self) -> dict[str, Any]:
        """Return modes, the numbers of hooks, and settings, by what is said of a change."""
        modules = [one for module in self._modules for one in module.modules()]
        kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
        return {
            "train() or eval() was called": [one.training for one in modules],
            "a hook of a module was added or removed": [
                tuple(getattr(one, kind)) for one in modules for kind in kinds
            ],
            f"a setting of PyTorch ({_SETTINGS}) was changed": read_settings(),
        }

    def _list_tensors(self) -> dict[str, _Marks]:
        found = {f".{name}": _mark(tensor) for name, tensor in self._others.items()}
        for number, module in enumerate(self._modules):
            for path, one in module.named_modules(prefix=str(number)):
                for values in (one._parameters, one._buffers):
                    for name, tensor in values.items():
                        if tensor is not None and (id(values), name) not in self._changing:
                            found[f"{path}.{name}"] = _mark(tensor)
        return found


def _mark(tensor: torch.Tensor) -> _Marks:
    kind = tensor.dtype, tensor.device, tensor.shape
    return _Marks(id(tensor), 0 if tensor.is_inference() else tensor._version, kind, tensor.requires_grad)


def _name_change(before: _Marks | None, after: _Marks | None) -> str:
    """Return how a tensor was changed, nothing if it is as before; one that is trained later is."""
    if before is None or after is None or before.id != after.id:
        return "replaced (by an assignment, functional_call)"
    if before.trained and not after.trained:
        return "frozen (requires_grad=False)"
    if before.kind != after.kind:
        return "converted (another type, device or shape)"
    return "" if before.version == after.version else "changed in place (by an optimizer)"


#: Where FSDP2 keeps its class: since torch 2.6, and before.
_FSDP2 = ("torch.distributed.fsdp", "torch.distributed._composable.fsdp")
_AROUND = (
    "fully_shard(model) for the module whose forward calls bptt or unroll, and not for modules that steps or "
    "losses call; or DistributedDataParallel around it"
)


def refuse_sharded(things: Iterable[object]) -> None:
    """Raise InputError if the cell or a loss is a module of which a part is sharded by itself."""
    for module in things:
        for name, part in module.named_modules() if isinstance(module, torch.nn.Module) else ():
            _refuse_shard(part, f"{type(module).__name__}.{name}" if name else type(module).__name__)


def _refuse_shard(module: torch.nn.Module, name: str) -> None:
    """Raise InputError if a module that a step calls would not reduce its gradients."""
    if isinstance(module, _classes(_FSDP2, "FSDPModule")):
        raise InputError(
            f"{name} is sharded by itself (fully_shard) and is called in steps: it would not reduce its "
            "gradients, which steps add up inside one operation",
            field="cell or loss",
            accepted=_AROUND,
        )
    if isinstance(module, _classes(_FSDP2[:1], "FullyShardedDataParallel")) or _lies_in_flat(module):
        raise InputError(
            f"{name} keeps its parameters in FullyShardedDataParallel (FSDP1), which gives each forward pass "
            "views of them: they are not the parameters that steps could be run again with",
            field="cell or loss",
            accepted=_AROUND,
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
