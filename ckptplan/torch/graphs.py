"""Inspects graphs that autograd recorded, and computes gradients through them.

Their leaves, the bytes they keep for the backward pass; gradients of the state, the parameters and the inputs,
accumulated while a sequence is reversed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from typing import Any, TypeAlias

import torch
from torch.utils._pytree import tree_iter

from ckptplan.errors import InputError
from ckptplan.torch.trees import Leaves, is_differentiable


def walk_nodes(outputs: Iterable[torch.Tensor], *, until: Iterable[torch.Tensor] = ()) -> Iterator[Any]:
    """Yield the operations that lead to ``outputs``, each once, without those that lead to ``until``."""
    for node, _ in _walk_nodes(outputs, until):
        yield node


def _walk_nodes(
    outputs: Iterable[torch.Tensor], until: Iterable[torch.Tensor]
) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield operations, each with those before it."""
    ends = {tensor.grad_fn for tensor in until if tensor.grad_fn is not None}
    waiting: list[Any] = list({tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None} - ends)
    met = {None, *waiting, *ends}
    while waiting:
        node = waiting.pop()
        before = node.next_functions
        yield node, before
        for following, _ in before:
            if following not in met:
                met.add(following)
                waiting.append(following)


def find_graph_leaves(
    outputs: Iterable[torch.Tensor], *, until: Iterable[torch.Tensor] = ()
) -> Iterator[torch.Tensor]:
    """Yield the leaves that require a gradient in the graphs of ``outputs``."""
    for node, before in _walk_nodes(outputs, until):
        # Nothing comes before a leaf. Few operations are asked: an attribute that is missing takes time.
        if not before and hasattr(node, "variable"):
            yield node.variable


def read_sequence_number() -> int:
    """Return the sequence number that autograd gives the next operation it records."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def find_outer_node(
    outputs: Iterable[torch.Tensor], *, before: int, until: Iterable[torch.Tensor] = ()
) -> str | None:
    """Return the name of an operation that was recorded ``before`` a sequence number, None if there is none."""
    for node in walk_nodes(outputs, until=until):
        if not hasattr(node, "variable") and node._sequence_nr() < before:
            return str(node.name())
    return None


def count_saved_bytes(
    outputs: Iterable[torch.Tensor], *, end: Iterable[torch.Tensor], without: Iterable[torch.Tensor]
) -> int:
    """Return the bytes of the distinct storages that a graph saved, including the state at its end.

    Storages of ``without`` (the initial state and the inputs) and of leaves that require a gradient
    (parameters) are not counted, since they exist without the graph too.
    """
    outputs = tuple(outputs)
    left_out = {storage_of(tensor) for tensor in without}
    kept: dict[int, int] = {}
    for tensor in (*end, *find_saved_tensors(outputs)):
        place = storage_of(tensor)
        if place not in left_out and not isinstance(tensor, torch.nn.Parameter):
            kept[place] = _count_storage(tensor)
    parameters = {storage_of(leaf) for leaf in find_graph_leaves(outputs)}
    return sum(size for place, size in kept.items() if place not in parameters)


def storage_of(tensor: torch.Tensor) -> int:
    """Return a number that identifies a tensor's storage."""
    if tensor.layout is not torch.strided:
        # Sparse ones have several, or none that can be read.
        return id(tensor)
    return tensor.untyped_storage().data_ptr()


def _count_storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else 0


def find_saved_tensors(
    outputs: Iterable[torch.Tensor], *, until: Iterable[torch.Tensor] = ()
) -> Iterator[torch.Tensor]:
    """Yield the tensors that the nodes of a graph saved."""
    for node in walk_nodes(outputs, until=until):
        if hasattr(node, "saved_tensors"):
            # A function written in Python, which may keep tensors as attributes, too.
            kept = (node.saved_tensors, vars(node))
            yield from (one for one in tree_iter(kept) if isinstance(one, torch.Tensor))
        kind: Any = type(node)
        for name in _list_saved(kind):
            value = getattr(node, name)
            values = value if isinstance(value, tuple | list) else (value,)
            yield from (one for one in values if isinstance(one, torch.Tensor))


@lru_cache(maxsize=1024)
def _list_saved(kind: Any) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_saved_"))


def as_graph_roots(leaves: Leaves) -> Leaves:
    """Return a detached state as the beginning of a graph: every float requires a gradient."""
    detached = tuple(leaf.detach() for leaf in leaves)
    for leaf in detached:
        if is_differentiable(leaf):
            leaf.requires_grad_()
    return detached


def refuse_hooks(roots: Leaves) -> None:
    """Raise InputError if a step registered a hook on the state that it was given, where a graph begins.

    In plain backpropagation such a hook sees the whole gradient of that state, also what the loss of the step
    before adds. Where a graph begins, that part is missing, since it belongs to the graph before.
    """
    if any(root._backward_hooks or root._post_accumulate_grad_hooks for root in roots):
        raise InputError(
            "registers a hook on the state that it is given, which would miss a part of the gradient where a "
            "recorded run of steps begins",
            field="cell",
            accepted="a hook on the state that the step returns: it sees the whole gradient",
        )


Gradient = torch.Tensor | None
#: Functions of a gradient, as a tensor keeps them.
Hooks: TypeAlias = Mapping[int, Callable[[torch.Tensor], torch.Tensor | None]] | None


class Gradients:
    """The gradients so far; those of the parameters are sums over the reversed steps."""

    def __init__(self, *, parameters: Sequence[torch.Tensor], inputs: Leaves, wanted: Sequence[bool]) -> None:
        #: Gradients of the state at the end of the next steps to reverse; empty if there are none.
        self.state: list[Gradient] = []
        self.parameters: list[Gradient] = [None] * len(parameters)
        self.inputs: list[Gradient] = [None] * len(inputs)
        self._inputs, self._wanted = inputs, wanted
        self._passer = GradientPasser(tuple(parameters))
        #: Whether no gradients follow those that are added.
        self._last = False

    def begin(self, final: Sequence[Gradient]) -> None:
        """Set the gradient of the final state, and allocate those of the inputs."""
        self.state = list(final)
        self.inputs = [
            torch.zeros_like(leaf) if wanted else None
            for leaf, wanted in zip(self._inputs, self._wanted, strict=True)
        ]

    def backpropagate(
        self,
        outputs: Sequence[torch.Tensor],
        gradients: Sequence[Gradient],
        wanted: Sequence[torch.Tensor],
        *,
        last: bool = False,
    ) -> tuple[Gradient, ...]:
        """Return the gradients of ``wanted``, and add those of the parameters; the ``last`` ones end sums."""
        self._last = last
        return self._passer.compute(outputs, gradients, wanted, self.add)

    def add(self, place: int, gradient: torch.Tensor) -> None:
        """Add a gradient of the parameter at a place."""
        total = self.parameters[place]
        if total is None:
            # It may share memory with others, or with itself (an expanded scalar).
            self.parameters[place] = gradient if self._last else gradient.clone()
        elif total.layout is torch.strided:
            total += gradient
        else:
            self.parameters[place] = total + gradient

    def put(self, start: int, stop: int, parts: Sequence[Gradient]) -> None:
        """Store the gradients of the inputs of some steps, given where these lie along the first axis."""
        for whole, part in zip(self.inputs, parts, strict=False):
            if part is not None and whole is not None:
                whole[start:stop] = part

    def release(self) -> tuple[list[Gradient], list[Gradient], list[Gradient]]:
        """Return the gradients of state, inputs and parameters, so that nothing else holds them."""
        found = self.state, self.inputs, self.parameters
        self.state, self.inputs, self.parameters = [], [], []
        return found


def compute_gradients(
    outputs: Sequence[torch.Tensor],
    gradients: Sequence[Gradient],
    wanted: Sequence[torch.Tensor],
    *,
    parameters: Sequence[torch.Tensor],
) -> tuple[Gradient, ...]:
    """Return the gradients of ``wanted``, then of the parameters; None where there is no gradient."""
    found: dict[int, torch.Tensor] = {}
    others = GradientPasser(parameters).compute(outputs, gradients, wanted, found.__setitem__)
    return (*others, *(found.get(place) for place in range(len(parameters))))


class GradientPasser:
    """Computes gradients; passes each of some parameters on as soon as it is complete.

    So only one of these need be alive at a time. Hooks of parameters see the whole gradient at the end.

    Arguments:
        parameters: tensors that require a gradient.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters, self._present = parameters, _Present()
        # They know what is present, and not this, which would wait for the collector of cycles.
        self._hooks = [_make_hook(place, one, self._present) for place, one in enumerate(parameters)]

    def compute(
        self,
        outputs: Sequence[torch.Tensor],
        gradients: Sequence[Gradient],
        wanted: Sequence[torch.Tensor],
        take: Callable[[int, torch.Tensor], object],
    ) -> tuple[Gradient, ...]:
        """Return the gradients of ``wanted``, given those of outputs; None where there is no gradient.

        Arguments:
            outputs: where gradients enter.
            gradients: their gradients.
            wanted: tensors.
            take: called with the number of a parameter and its gradient.
        """
        live = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if gradient is not None and output.requires_grad
        ]
        everything = (*wanted, *self._parameters)
        if not live or not everything:
            return (None,) * len(wanted)
        given = [gradient for _, gradient in live]
        present = self._present
        present.passed.clear()
        # The gradient of a scalar need not be given. PyTorch checks given gradients with symbolic shapes, which
        # would import sympy.
        with torch.enable_grad(), replace_hooks(self._parameters, self._hooks):
            root = GivenGradients.apply(given, present.begin, *(output for output, _ in live))  # type: ignore[no-untyped-call]
            del live, given
            present.take = take
            try:
                found: tuple[Gradient, ...] = torch.autograd.grad(root, everything, allow_unused=True)
            finally:
                present.take = None
        for place, gradient in enumerate(found[len(wanted) :]):
            if place not in present.passed and gradient is not None:
                take(place, gradient)
        return found[: len(wanted)]


@dataclass
class _Present:
    """The present backward pass: its number, as autograd counts them, and what it passed on."""

    task: int = -1
    take: Callable[[int, torch.Tensor], object] | None = None
    passed: set[int] = field(default_factory=set)

    def begin(self, task: int) -> None:
        """Take note of the number."""
        self.task = task


def _make_hook(place: int, parameter: torch.Tensor, present: _Present) -> Hooks:
    """Return hooks that pass the gradient of a parameter on, none if it comes in parts."""
    if not (parameter.is_leaf and type(parameter) in (torch.Tensor, torch.nn.Parameter)):
        return None
    nothing = parameter.detach().new_zeros(()).expand_as(parameter)

    def pass_on(gradient: torch.Tensor) -> torch.Tensor | None:
        # A backward pass may hold another one, as of a solver, which needs the gradient itself.
        here = torch._C._current_graph_task_id() == present.task
        if present.take is None or not here or gradient.layout is not torch.strided:
            return None
        present.take(place, gradient)
        present.passed.add(place)
        return nothing

    return OrderedDict({0: pass_on})


class GivenGradients(torch.autograd.Function):
    """A scalar that passes given gradients to its inputs, whatever its own gradient is."""

    @staticmethod
    def forward(
        ctx: Any,
        gradients: list[torch.Tensor],
        when_begun: Callable[[int], object] | None,
        *outputs: torch.Tensor,
    ) -> torch.Tensor:
        """Return a scalar."""
        ctx.gradients, ctx.when_begun = gradients, when_begun
        return torch.zeros((), device=outputs[0].device)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        """Pass the gradients on, without keeping them."""
        if ctx.when_begun is not None:
            ctx.when_begun(torch._C._current_graph_task_id())
        gradients, ctx.gradients = ctx.gradients, None
        return None, None, *gradients


@contextmanager
def replace_hooks(parameters: Sequence[torch.Tensor], hooks: Sequence[Hooks] = ()) -> Iterator[None]:
    """Put other hooks, or none, in the place of those of parameters: these see the whole gradient."""
    changed: list[tuple[Any, Any]] = []
    for tensor, other in zip_longest(parameters, hooks):
        own: Any = tensor._backward_hooks
        if own or other:
            changed.append((tensor, own))
            tensor._backward_hooks = other
    try:
        yield
    finally:
        for tensor, own in changed:
            tensor._backward_hooks = own
