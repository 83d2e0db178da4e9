"""Keeps the findings of a trial for calls that find everything as it was.

A trial finds how a cell and its losses behave: which parameters they use, what they change, and that steps
can run again. This holds for a later call if the walk meets the same things, and if all else that a trial
depends on is as it was. Findings refer to what is met by numbers, so they keep nothing alive, and another
object in the same place takes the place of the first.

The same must be: objects, attributes, numbers, texts, lists, dicts, classes, hooks and code that the walk
meets; modes and frozen parameters; shapes, types and devices of the state and the inputs; autocast, grad mode,
deterministic algorithms and options. Weights may have other numbers. Those of single-element tensors count, and
those of tensors up to 64 KiB that modules hold; those of tensors in closures and lists (targets, masks) do not.
Counters and running statistics must be as the sequence before left them, and that sequence must have shown that
no step reads them. Nothing is kept for cells that reach iterators, ``torch.jit`` modules or more than 4,000
objects, under hooks of all modules, with computed tensors in ``parameters``, an observer or a schedule.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch.nn.modules import module as torch_module

from ckptplan.errors import InputError
from ckptplan.torch.ambient import Autocast
from ckptplan.torch.inputs import GivenInputs, Sequence
from ckptplan.torch.surroundings.holders import Holder
from ckptplan.torch.surroundings.signature import Signature
from ckptplan.torch.surroundings.snapshot import Place
from ckptplan.torch.surroundings.walk import Reached, walk
from ckptplan.torch.trees import flatten

#: Kinds of calls whose findings are kept.
_MOST = 64
#: What hooks of all modules are kept in; such a hook may keep something.
_HOOKS_OF_ALL = tuple(
    value
    for name, value in vars(torch_module).items()
    if name.startswith("_global_") and isinstance(value, dict)
)
_SIMPLE = (bool, int, float, str, type(None))
#: A place by the number of its holder, and the key within.
PlaceNumber: TypeAlias = tuple[int, Any]


class StaleFindingsError(InputError):
    """A sequence did what the findings that were kept for it do not know: a trial has to find out."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a trial and a sequence showed; objects by their numbers in the walk."""

    #: The tensors requiring a gradient that steps use.
    used: tuple[int, ...]
    modules: tuple[int, ...]
    temporary: int
    device: torch.device
    changed: frozenset[PlaceNumber]
    with_graph: frozenset[PlaceNumber]


@dataclass(frozen=True, kw_only=True)
class Situation:
    """All that findings depend on: what a walk met, and what is set outside of it."""

    reached: Reached
    signature: Signature
    settings: tuple[Any, ...]

    @cached_property
    def key(self) -> tuple[Any, ...] | None:
        """What is equal for situations with the same findings, None if it cannot be told."""
        return (self.settings, self.signature.entries) if self.signature.complete else None

    def walk_again(self, things: Mapping[str, object]) -> Situation:
        """Return the situation after a sequence."""
        signature = Signature()
        reached = walk(things, signature=signature)
        signature.complete &= self.signature.complete
        return Situation(reached=reached, signature=signature, settings=self.settings)


_lock = threading.Lock()
#: With the weak references whose ids are part of the key: an id stays theirs as long as these live.
_kept: OrderedDict[Any, tuple[Findings, tuple[Any, ...]]] = OrderedDict()


def recall(situation: Situation) -> Findings | None:
    """Return what was found in an equal situation, None if nothing was."""
    key = situation.key
    with _lock:
        if key is None or key not in _kept:
            return None
        _kept.move_to_end(key)
        return _kept[key][0]


def keep(situation: Situation, findings: Findings) -> None:
    """Keep the findings for equal situations."""
    key = situation.key
    if key is None:
        return
    with _lock:
        # An old key must go with its references.
        _kept.pop(key, None)
        _kept[key] = findings, tuple(situation.signature.references)
        while len(_kept) > _MOST:
            _kept.popitem(last=False)


def forget(situation: Situation) -> None:
    """Forget what was found in equal situations."""
    with _lock:
        _kept.pop(situation.key, None)


def forget_all() -> None:
    """Forget all findings, so that each call begins with a trial again."""
    with _lock:
        _kept.clear()


def read_settings(
    state: Any,
    inputs: Sequence,
    named: Iterable[torch.Tensor],
    signature: Signature,
    *,
    device: torch.device,
    options: tuple[Any, ...],
) -> tuple[Any, ...]:
    """Return what findings depend on besides what can be reached.

    Arguments:
        state: the initial state.
        inputs: the inputs; of those that are made, nothing is asked.
        named: the parameters named by the caller.
        signature: takes part in describing tensors; incomplete if something cannot be described.
        device: the device on which the cell will probably run.
        options: of the call.
    """
    leaves, structure = flatten(state)
    # Whatever their length.
    tensors = tuple((one.shape[1:], *_describe(one)) for one in inputs.leaves)
    named = tuple(named)
    if any(one.grad_fn is not None for one in named) or any(_HOOKS_OF_ALL):
        signature.complete = False
    plain = structure.plain + (inputs.structure.plain if isinstance(inputs, GivenInputs) else ())
    if not all(type(one) in _SIMPLE for one in plain):
        signature.complete = False
    specs = structure.spec, inputs.structure.spec if isinstance(inputs, GivenInputs) else None
    return (
        *(options, tensors, tuple(map(type, plain)), plain, str(specs)),
        tuple((one.shape, *_describe(one)) for one in leaves),
        tuple((one.shape, *_describe(one)) for one in named),
        *(Autocast.present(device), device),
        *_read_modes(),
    )


def _describe(tensor: torch.Tensor) -> tuple[Any, ...]:
    return type(tensor), tensor.dtype, tensor.device, tensor.requires_grad, tensor.is_inference()


def _read_modes() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        torch.get_num_threads(),
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
    )


def number_findings(
    situation: Situation,
    *,
    used: Iterable[torch.Tensor],
    modules: Iterable[torch.nn.Module],
    temporary: int,
    device: torch.device,
    changed: Iterable[tuple[Holder, Any]],
    with_graph: Iterable[tuple[Holder, Any]],
) -> Findings | None:
    """Return findings by numbers; None if one of the objects is not among what a walk has met.

    Arguments:
        situation: what the walk met.
        used: tensors requiring a gradient that steps use.
        modules: those that were called.
        temporary: the number of tensors requiring a gradient that each step creates.
        device: of the results of a step.
        changed: holders with the keys that change in steps.
        with_graph: those of them that hold tensors with a graph.
    """
    numbers = {id(thing): number for number, thing in enumerate(situation.signature.things)}
    holders = {_identify(one): number for number, one in enumerate(situation.reached.holders)}
    try:
        return Findings(
            used=tuple(numbers[id(one)] for one in used),
            modules=tuple(numbers[id(one)] for one in modules),
            temporary=temporary,
            device=device,
            changed=_number_places(holders, changed),
            with_graph=_number_places(holders, with_graph),
        )
    except KeyError:
        return None


def _identify(holder: Holder) -> tuple[Any, ...]:
    # Functions may use different names of one module.
    return type(holder), id(holder.thing), getattr(holder, "names", None)


def _number_places(
    holders: Mapping[tuple[Any, ...], int], places: Iterable[tuple[Holder, Any]]
) -> frozenset[PlaceNumber]:
    numbers = frozenset((holders[_identify(holder)], key) for holder, key in places)
    if not all(type(key) in _SIMPLE for _, key in numbers):
        # It would be kept alive.
        raise KeyError
    return numbers


def find_places(reached: Reached, numbers: Iterable[PlaceNumber]) -> set[Place]:
    """Return the places of some numbers."""
    return {Place(number, key, reached.holders[number].name_of(key)) for number, key in numbers}
