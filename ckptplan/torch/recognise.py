"""Recognises calls that were made before, and keeps what was found out about them.

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
objects, under hooks of all modules or ``parametrize.cached()``, with computed tensors in ``parameters``, an
observer or a schedule.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch.nn.modules import module as torch_module

from ckptplan.errors import InputError
from ckptplan.torch.ambient import Autocast, read_settings
from ckptplan.torch.call import Call
from ckptplan.torch.inputs import GivenInputs
from ckptplan.torch.parameters import Parameters
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


_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class Recent(OrderedDict[_K, _V]):
    """What is kept of the calls made last, ``most`` of them, by all threads."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most, self._lock = most, threading.Lock()

    def find(self, key: _K) -> _V | None:
        """Return what is kept of a call, None if nothing is."""
        with self._lock:
            if key in self:
                self.move_to_end(key)
            return self.get(key)

    def keep(self, key: _K, value: _V) -> _V:
        """Keep something of a call, in place of what was known, and return it."""
        with self._lock:
            # An old key must go with its references.
            self.pop(key, None)
            self[key] = value
            while len(self) > self._most:
                self.popitem(last=False)
        return value

    def forget(self, key: _K) -> None:
        """Forget what is kept of a call."""
        with self._lock:
            self.pop(key, None)


class StaleFindingsError(InputError):
    """A sequence did what its findings do not know: those of an earlier call, or of the first steps."""

    #: Where later steps begin to count.
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a trial and a sequence showed.

    They are kept with numbers in the place of objects and holders: those that these have in a walk.
    """

    #: Of the results of a step.
    device: torch.device
    #: The numbers of the random generators that steps draw from, perhaps; None if any may be one.
    drawn: frozenset[int] | None = frozenset()
    #: The tensors requiring a gradient that steps use.
    used: tuple[torch.Tensor, ...] = ()
    #: The cell and the losses, if they are modules, and all modules that were called.
    modules: tuple[torch.nn.Module, ...] = ()
    #: The number of tensors requiring a gradient that each step creates.
    temporary: int = 0
    #: What the graph of a step keeps, with the state after it.
    tape_bytes: int = 0
    #: What the state after the first step takes more than the one before: each step's tape may, too.
    growth_bytes: int = 0
    #: The types of floats in the graph of a step.
    dtypes: frozenset[torch.dtype] = frozenset()
    #: What steps change, what of it holds tensors with a graph after a step, and what only the first step
    #: changes, without a graph: caches.
    changed: tuple[Place, ...] = ()
    with_graph: tuple[Place, ...] = ()
    made: tuple[Place, ...] = ()
    #: Whether gradients of a step may be sparse.
    sparse: bool = False
    #: Whether the first steps gave under a plan what they give in a plain loop.
    rehearsed: bool = False
    #: Whether a sequence left a situation that equals the one before it, as most do after the first.
    settled: bool = False

    def count_tapes(self, steps: int) -> int:
        """Return the bytes of the tapes of so many first steps."""
        return steps * self.tape_bytes + steps * (steps - 1) // 2 * self.growth_bytes

    def with_others(self, thing: Callable[[Any], Any], place: Callable[[Any], Any]) -> Findings:
        """Return the findings with others in place of each object, and of each place."""

        def convert(places: Iterable[Any]) -> Any:
            return tuple(dict.fromkeys(map(place, places)))

        return replace(
            self,
            used=tuple(map(thing, self.used)),
            modules=tuple(map(thing, self.modules)),
            changed=convert(self.changed),
            with_graph=convert(self.with_graph),
            made=convert(self.made),
        )


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

    def hash_constants(self, *, but: Iterable[str]) -> int:
        """Return what is equal for equal numbers and texts, ``but`` those that some names hold."""
        names = tuple(but)
        held = tuple(name + sign for name in names for sign in ".[")
        constants = self.signature.constants
        return hash(tuple(one for one in constants if one[0] not in names and not one[0].startswith(held)))

    def walk_again(self, things: Mapping[str, object]) -> Situation:
        """Return the situation after a sequence."""
        signature = Signature()
        reached = walk(things, signature=signature)
        signature.complete &= self.signature.complete
        return Situation(reached=reached, signature=signature, settings=self.settings)


#: With the weak references whose ids are part of the key: an id stays theirs as long as these live.
_kept: Recent[Any, tuple[Findings, tuple[Any, ...]]] = Recent(_MOST)


def recall(situation: Situation) -> Findings | None:
    """Return what was found in an equal situation, with the objects of this one, None if nothing was."""
    kept = None if situation.key is None else _kept.find(situation.key)
    if kept is None:
        return None
    numbered, _ = kept
    things, holders = situation.signature.things, situation.reached.holders
    return numbered.with_others(things.__getitem__, lambda one: Place(holders[one[0]], one[1]))


def keep(situation: Situation, findings: Findings) -> None:
    """Keep the findings for equal situations, unless they are of objects that the walk has not met."""
    key = situation.key
    numbers = {id(thing): number for number, thing in enumerate(situation.signature.things)}
    holders = {one.identity: number for number, one in enumerate(situation.reached.holders)}
    places = (*findings.changed, *findings.with_graph, *findings.made)
    known = (
        all(id(one) in numbers for one in (*findings.used, *findings.modules))
        # Other keys would be kept alive.
        and all(one.holder.identity in holders and type(one.key) in _SIMPLE for one in places)
    )
    if key is not None and known:
        numbered = findings.with_others(
            lambda one: numbers[id(one)], lambda one: (holders[one.holder.identity], one.key)
        )
        _kept.keep(key, (numbered, tuple(situation.signature.references)))


def forget(situation: Situation) -> None:
    """Forget what was found in equal situations."""
    _kept.forget(situation.key)


def describe_call(
    call: Call, reached: Reached, signature: Signature, *, named: Parameters, options: tuple[Any, ...]
) -> Situation:
    """Return all that findings depend on: what a walk met, the shapes, and all else.

    Arguments:
        call: the call; of inputs that are made, nothing is asked.
        reached: what a walk found.
        signature: what it met; incomplete if something cannot be described.
        named: the parameters named by the caller, if they matter.
        options: those of the call that matter.
    """
    (leaves, structure), inputs, device = flatten(call.state), call.sequence, call.device
    # Within parametrize.cached(), the first step to use a weight decides whether it has a graph.
    caches = getattr(sys.modules.get("torch.nn.utils.parametrize"), "_cache_enabled", 0)
    if any(one.grad_fn is not None for one in named) or any(_HOOKS_OF_ALL) or caches:
        signature.complete = False
    plain = structure.plain + (inputs.structure.plain if isinstance(inputs, GivenInputs) else ())
    kinds = tuple(map(type, plain))
    if not all(kind in _SIMPLE for kind in kinds):
        signature.complete, plain = False, tuple(map(repr, plain))
    specs = structure.spec, inputs.structure.spec if isinstance(inputs, GivenInputs) else None
    settings = (
        (tuple(one.shape[1:] for one in inputs.leaves), tuple(one.shape for one in leaves)),
        *(options, kinds, plain, str(specs)),
        # Whatever their length.
        tuple(map(_describe, inputs.leaves)),
        tuple(map(_describe, leaves)),
        tuple((one.shape, *_describe(one)) for one in named),
        *(Autocast.present(device), device),
        *(torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        *(*read_settings(), torch.get_num_threads()),
        *(torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
    )
    return Situation(reached=reached, signature=signature, settings=settings)


def _describe(tensor: torch.Tensor) -> tuple[Any, ...]:
    return type(tensor), tensor.dtype, tensor.device, tensor.requires_grad, tensor.is_inference()
