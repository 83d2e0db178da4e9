"""Backpropagates through one recorded chunk at a time, adds up gradients of parameters, and hands hooks on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef

from ckptplan.errors import InputError
from ckptplan.torch.run.context import disable_autocast

#: The gradient of a tensor; None if nothing reaches the tensor.
Gradient = Tensor | None


class GradientSums:
    """The sums of the gradients of parameters over the chunks that were reversed.

    The sums so far enter a backward pass as gradients of the parameters, and autograd adds to them in place.
    So only one parameter at a time has a second gradient in memory, instead of all parameters.

    Arguments:
        parameters: leaves that require a gradient.
        begin_empty: the number of last parameters whose sums begin with their first gradient. The other sums
            begin with zeros, since the first gradient may be a view, and autograd does not add in place to
            views.
    """

    def __init__(self, parameters: Sequence[Tensor], *, begin_empty: int = 0) -> None:
        self._parameters = parameters
        self._first_empty = len(parameters) - begin_empty
        self._sums: list[Gradient] = [None] * len(parameters)
        #: Whether a gradient reached each parameter.
        self.is_reached = [False] * len(parameters)

    def backpropagate(
        self, ends: Sequence[Tensor], gradients: list[Gradient], wanted: Sequence[Tensor]
    ) -> list[Gradient]:
        """Return the gradients of ``wanted``, given those of ``ends``; add up those of parameters.

        ``gradients`` is emptied, so that each gradient is freed once it is used.
        """
        pairs = zip(ends, gradients, strict=True)
        live = [(end, gradient) for end, gradient in pairs if gradient is not None and end.requires_grad]
        gradients.clear()
        targets = (*wanted, *self._parameters)
        if not live or not targets:
            return [None] * len(wanted)
        zeros = self._add_sums(live)
        given, tensors = [gradient for _, gradient in live], [end for end, _ in live]
        self._sums = []
        with torch.enable_grad(), disable_autocast(tensors[0].device), without_hooks(targets):
            root = _GivenGradients.apply(given, *tensors)  # type: ignore[no-untyped-call]
            # Autograd alone holds the gradients now, so that it may add in place.
            del live, given, tensors
            reached = torch.autograd.grad(root, targets, allow_unused=True)
        self._sums = list(reached[len(wanted) :])
        for place, total in enumerate(self._sums):
            if total is not None:
                # The mark holds for this backward pass alone: the caller gets the sums.
                vars(total).pop("grows_in_place", None)
            if total is not None and not self.is_reached[place]:
                start, version = zeros.get(place, (None, 0))
                is_start = start is not None and total is start()
                self.is_reached[place] = not is_start or total._version != version
        return list(reached[: len(wanted)])

    def _add_sums(self, live: list[tuple[Tensor, Tensor]]) -> dict[int, tuple[TensorWeakRef, int]]:
        """Append the sums to the given gradients; return the zeros among them, with their versions."""
        zeros: dict[int, tuple[TensorWeakRef, int]] = {}
        for place, parameter in enumerate(self._parameters):
            total = self._sums[place]
            if total is None and place < self._first_empty and _can_grow(parameter):
                total = self._sums[place] = torch.zeros_like(parameter)
            if total is not None:
                # With this mark, meters that count bytes let autograd add in place, as it does without meters.
                total.grows_in_place = True  # type: ignore[attr-defined]
                live.append((parameter, total))
                if not self.is_reached[place]:
                    zeros[place] = TensorWeakRef(total), total._version
        return zeros

    def copy(self) -> None:
        """Copy the sums, which may lie in memory that the next chunk overwrites."""
        self._sums = [None if total is None else total.clone() for total in self._sums]

    def release(self) -> list[Gradient]:
        """Return the sums, None for parameters that no chunk reached, and drop them here."""
        pairs = zip(self._sums or [None] * len(self.is_reached), self.is_reached, strict=True)
        sums = [total if is_reached else None for total, is_reached in pairs]
        self._sums = []
        return sums


def _can_grow(parameter: Tensor) -> bool:
    """Return whether autograd adds in place to a sum of the gradients of a parameter."""
    is_plain = type(parameter) in (Tensor, torch.nn.Parameter)
    return is_plain and parameter.layout is torch.strided and parameter.numel() > 0


class _GivenGradients(torch.autograd.Function):
    """A scalar that passes given gradients to its inputs, and keeps none of them."""

    @staticmethod
    def forward(ctx: Any, gradients: list[Tensor], *ends: Tensor) -> Tensor:
        """Return a scalar."""
        ctx.gradients = gradients
        return torch.zeros((), device=ends[0].device)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        """Pass the gradients on."""
        gradients, ctx.gradients = ctx.gradients, None
        return None, *gradients


def drop_waiting_operations() -> None:
    """Drop the operations of a failed backward pass, which otherwise wait for the next backward pass."""
    with torch.enable_grad():
        probe = torch.ones(1, requires_grad=True)
        torch.autograd.grad(probe.sum(), probe)


@contextmanager
def without_hooks(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Run the block without the hooks of tensors, which are for the whole gradient at the end."""
    hooked: list[Any] = [tensor for tensor in tensors if tensor._backward_hooks]
    hooks = [tensor._backward_hooks for tensor in hooked]
    for tensor in hooked:
        tensor._backward_hooks = None
    try:
        yield
    finally:
        for tensor, tensor_hooks in zip(hooked, hooks, strict=True):
            tensor._backward_hooks = tensor_hooks


def take_hooks(given: Sequence[Tensor | None]) -> list[list[Any]]:
    """Return the hooks that steps registered on the tensors that a chunk was given, and remove them there.

    In a plain loop such a hook gets the whole gradient of a state, to which the loss of the step before adds.
    """
    taken: list[list[Any]] = []
    for tensor in given:
        hooks = None if tensor is None else tensor._backward_hooks
        taken.append(list(hooks.values()) if hooks else [])
        if hooks:
            hooks.clear()
    return taken


def check_node_hooks(given: Tensor, root: Tensor, step: int) -> Callable[[Tensor], None]:
    """Return a hook that raises InputError if hooks on the ``grad_fn`` of ``given`` change a gradient.

    Arguments:
        given: a tensor of the state that a chunk was given, computed from ``root`` alone.
        root: the leaf.
        step: the first step of the chunk.
    """

    def check(gradient: Tensor) -> None:
        (changed,) = torch.autograd.grad(given, root, gradient)
        if changed is not gradient and not torch.equal(changed, gradient):
            raise InputError(
                f"step {step} hooks the grad_fn of a state that it is given, and changes its gradient. The "
                "operation that computed the state is no part of the recorded steps",
                field="cell",
                accepted="state.register_hook(...), which gets the whole gradient of the state",
            )

    return check


def hand_over_hooks(hooks: Sequence[Sequence[Any]], ends: Sequence[Tensor]) -> None:
    """Register hooks of the state where a chunk begins on the same state where the chunk before ends."""
    for group, end in zip(hooks, ends, strict=False):
        for hook in group if end.requires_grad else ():
            end.register_hook(hook)


def walk_nodes(outputs: Sequence[Tensor], *, until: Sequence[Tensor] = ()) -> Iterator[Any]:
    """Yield the operations of a graph, each once, without those that lead to ``until``."""
    ends = {tensor.grad_fn for tensor in until}
    nodes: list[Any] = list({tensor.grad_fn for tensor in outputs} - ends - {None})
    visited = {None, *nodes, *ends}
    # The list grows while the loop runs over it.
    for node in nodes:
        yield node
        for following, _ in node.next_functions:
            if following not in visited:
                visited.add(following)
                nodes.append(following)


def find_leaves(outputs: Sequence[Tensor], *, until: Sequence[Tensor] = ()) -> list[Tensor]:
    """Return the leaves of a graph that require a gradient."""
    return [node.variable for node in walk_nodes(outputs, until=until) if hasattr(node, "variable")]


def is_freed(output: Tensor) -> bool:
    """Return whether a backward pass freed a part of the graph of a tensor."""
    for node in walk_nodes([output]):
        for name in _list_saved_names(node.__class__):
            try:
                if getattr(getattr(node, name), "data", None) is None:
                    # The tensor is freed, or hooks packed it. Only a freed one raises an error here.
                    getattr(node, name.removeprefix("_raw"), None)
            except RuntimeError:
                return True
    return False


def list_saved(outputs: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the tensors that the operations of a graph saved, as far as PyTorch shows them."""
    for node in walk_nodes(outputs):
        for name in _list_saved_names(node.__class__):
            saved = getattr(node, name)
            for value in saved if isinstance(saved, tuple | list) else (saved,):
                tensor = getattr(value, "data", None)
                if isinstance(tensor, Tensor):
                    yield tensor
        if hasattr(node, "saved_tensors"):
            for value in vars(node).values():
                values = value if isinstance(value, tuple | list) else (value,)
                yield from (tensor for tensor in values if isinstance(tensor, Tensor))


@lru_cache(maxsize=1024)
def _list_saved_names(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))
