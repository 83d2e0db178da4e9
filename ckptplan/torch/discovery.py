"""What a cell depends on, found by running its first step once: parameters, and habits that spoil a rerun."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ckptplan.errors import InputError, shown
from ckptplan.torch.trees import Leaves, flattened, is_differentiable

Parameters = tuple[torch.Tensor, ...]


def parameters_of(things: Sequence[object], reached: Iterable[torch.Tensor]) -> Parameters:
    """Return trainable parameters of modules, and what a graph reached besides, each once."""
    found: dict[int, torch.Tensor] = {}
    for thing in things:
        if isinstance(thing, torch.nn.Module):
            found |= {id(one): one for one in thing.parameters() if one.requires_grad}
    found |= {id(one): one for one in reached}
    return tuple(found.values())


@contextmanager
def untouched_buffers(things: Sequence[object]) -> Iterator[None]:
    """Raise InputError if a step changes a buffer, by the name of the buffer; put it back first.

    A step that is run again would change it again: running statistics would count it twice.
    """
    named = {
        name: buffer
        for thing in things
        if isinstance(thing, torch.nn.Module)
        for name, buffer in thing.named_buffers()
    }
    before = {name: (buffer._version, buffer.clone()) for name, buffer in named.items()}
    yield
    # Some kernels write into a buffer without counting it as a change.
    changed = [
        name
        for name, (version, value) in before.items()
        if named[name]._version != version or not torch.equal(named[name], value)
    ]
    with torch.no_grad():
        for name in changed:
            named[name].copy_(before[name][1])
    if changed:
        raise InputError(
            f"changes the buffer{'s' if len(changed) > 1 else ''} {', '.join(changed)} in each step, and steps "
            "are run again",
            field="cell",
            accepted="a cell without running statistics: BatchNorm in eval() or with "
            "track_running_stats=False, or LayerNorm",
        )


def check_result(result: object) -> tuple[Any, Any]:
    """Return what a cell returned. Raises InputError if it is not (state, output)."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise InputError(
            f"returned {shown(type(result).__name__)}"
            + (f" of {len(result)}" if isinstance(result, tuple) else ""),
            field="cell",
            accepted="cell(state, x) -> (state, output); ckptplan.torch.adapters has those of torch.nn, "
            "snnTorch, Norse and SpikingJelly",
        )
    return result


def check_state(before: Leaves, versions: Sequence[int], state: object, *, given: int) -> None:
    """Raise InputError if a step changed its state in place, or returned a state that nests otherwise."""
    if list(versions) != [leaf._version for leaf in before]:
        raise InputError(
            "changes its state in place, so that nothing could be run again from a checkpoint",
            field="cell",
            accepted="a cell that returns a new state",
        )
    leaves, _ = flattened(state)
    if before and given and len(leaves) != given:
        raise InputError(
            f"takes a state of {given} tensors and returns one of {len(leaves)}",
            field="cell",
            accepted="a state that is the same structure at every step",
        )


@contextmanager
def hooks_suspended(parameters: Parameters) -> Iterator[None]:
    """Keep hooks of parameters from firing for every chunk: they fire once, for the whole gradient."""
    hooked: list[tuple[Any, Any]] = [(one, one._backward_hooks) for one in parameters if one._backward_hooks]
    for one, _ in hooked:
        one._backward_hooks = None
    try:
        yield
    finally:
        for one, hooks in hooked:
            one._backward_hooks = hooks


def begin(leaves: Leaves) -> Leaves:
    """Return a state that a graph begins with: every float requires a gradient, the first one, too."""
    detached = tuple(leaf.detach() for leaf in leaves)
    for leaf in detached:
        if is_differentiable(leaf):
            leaf.requires_grad_()
    return detached
