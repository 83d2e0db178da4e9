"""Provides the inputs of each step, from tensors over time or from a function that makes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch.utils import _pytree

from ckptplan.errors import InputError, quote_value
from ckptplan.torch.trees import Leaves, Structure, flatten, name_layout

#: More tensors of one shape in a list are hardly as many sequences.
_MOST_SEQUENCES = 2


class Sequence(ABC):
    """Inputs of all steps."""

    #: Tensors that may need gradients, time first.
    leaves: Leaves = ()
    #: The rows of all outputs, where those of steps are joined along the first axis; None if they are stacked.
    joined_rows: int | None = None

    @abstractmethod
    def piece(self, start: int, stop: int) -> tuple[Leaves, Structure]:
        """Return the inputs of some steps, time first."""

    def iterate(self, leaves: Leaves, structure: Structure, start: int, stop: int) -> Iterator[Any]:
        """Yield the input of each step, cut from what ``piece`` returned for these steps, or a copy of it."""
        return iterate_steps(leaves, structure)

    def count_made(self, leaves: Leaves) -> int:
        """Return the bytes of what ``piece`` returned, as far as it was made then."""
        del leaves
        return 0

    def take(self, step: int) -> Any:
        """Return the input of a step."""
        return next(self.iterate(*self.piece(step, step + 1), step, step + 1))

    def rows(self, start: int, stop: int) -> tuple[int, int]:
        """Return where the inputs of some steps begin and end along the first axis of ``leaves``."""
        return start, stop


class GivenInputs(Sequence):
    """Tensors whose first axis is time."""

    def __init__(self, inputs: Any, *, steps: int, asked_by: str) -> None:
        self.leaves, self.structure = flatten(inputs)
        if not self.leaves:
            raise no_tensors(
                inputs, accepted="tensors with time as the first axis{}, or a callable (start, stop) -> chunk"
            )
        refuse_layouts(self.leaves)
        for leaf in self.leaves:
            if leaf.dim() == 0 or leaf.shape[0] != steps:
                raise InputError(
                    f"has {leaf.shape[0] if leaf.dim() else 'no'} steps, the {asked_by} has {steps:,}"
                    f"{_guess_meaning(inputs, leaf, steps)}",
                    field="inputs",
                    value=tuple(leaf.shape),
                    accepted=f"tensors of shape ({steps:,}, ...), or a {asked_by} for as many steps",
                )

    def piece(self, start: int, stop: int) -> tuple[Leaves, Structure]:
        return tuple(leaf[start:stop] for leaf in self.leaves), self.structure


def no_tensors(inputs: Any, *, accepted: str) -> InputError:
    """Return the error for inputs without a tensor; what arrays become one by is said at '{}'."""
    arrays = any(isinstance(leaf, numpy.ndarray) for leaf in _pytree.tree_leaves(inputs))
    problem = f"{quote_value(type(inputs).__name__)} holds no tensor with an axis of time"
    return InputError(
        "a NumPy array is no tensor" if arrays else problem,
        field="inputs",
        accepted=accepted.format(", as torch.from_numpy returns them" if arrays else ""),
    )


def refuse_layouts(leaves: Leaves) -> None:
    """Raise InputError for sparse, nested and other inputs whose time steps do not lie one after the other."""
    for leaf in leaves:
        if (kind := name_layout(leaf)) is not None:
            raise InputError(
                f"hold a {kind} tensor, of which single time steps cannot be taken",
                field="inputs",
                accepted="dense tensors with time as the first axis: to_dense(), or sequences padded to one "
                "length; LIF(spiking_inputs=True) keeps spikes sparse by itself",
            )


def _guess_meaning(inputs: Any, leaf: torch.Tensor, steps: int) -> str:
    """Return a guess at the mistake, as text."""
    if is_list_of_steps(inputs):
        return (
            f": a list of {len(inputs):,} tensors is a nest of {len(inputs):,} inputs; torch.stack makes one "
            "tensor of them"
        )
    if leaf.dim() > 1 and leaf.shape[1] == steps:
        return f": axis 1 has {steps:,}, is the batch first?"
    return ""


def is_list_of_steps(inputs: Any) -> bool:
    """Return whether inputs look like one tensor for each time step, and not like several sequences."""
    if not isinstance(inputs, list | tuple) or len(inputs) <= _MOST_SEQUENCES:
        return False
    return all(isinstance(one, torch.Tensor) and one.shape == inputs[0].shape for one in inputs)


class MadeInputs(Sequence):
    """Chunks that a function makes on demand; it must return the same chunk each time."""

    def __init__(self, make: Callable[[int, int], Any]) -> None:
        self.make = make

    def piece(self, start: int, stop: int) -> tuple[Leaves, Structure]:
        leaves, structure = flatten(self.make(start, stop))
        if not leaves:
            raise InputError(
                f"returned no tensor for steps {start} to {stop}",
                field="inputs",
                accepted="a callable (start, stop) -> tensors with time as the first axis",
            )
        if any(leaf.requires_grad for leaf in leaves):
            raise InputError(
                "returned a tensor that requires a gradient, which would not reach what made it",
                field="inputs",
                accepted="inputs as tensors, or what makes them (an embedding) within the cell",
            )
        refuse_layouts(leaves)
        for leaf in leaves:
            if leaf.dim() == 0 or leaf.shape[0] != stop - start:
                raise InputError(
                    f"returned a tensor of shape {tuple(leaf.shape)} for steps {start} to {stop}",
                    field="inputs",
                    accepted=f"tensors of shape ({stop - start}, ...)",
                )
        return leaves, structure

    def count_made(self, leaves: Leaves) -> int:
        # What is a part of something larger was cut from it.
        return sum(one.nbytes for one in leaves if one.untyped_storage().nbytes() == one.nbytes)


def make_sequence(inputs: Any, *, steps: int, asked_by: str = "plan") -> Sequence:
    """Return the inputs as a sequence, if they are none yet. Raises InputError.

    ``asked_by`` names the source of ``steps``.
    """
    if isinstance(inputs, Sequence):
        return inputs
    return MadeInputs(inputs) if callable(inputs) else GivenInputs(inputs, steps=steps, asked_by=asked_by)


def iterate_steps(leaves: Leaves, structure: Structure) -> Iterator[Any]:
    """Yield the input of each step.

    The chunk is unbound at once: indexing would give each step a gradient as large as the whole chunk.
    """
    for step in zip(*(leaf.unbind(0) for leaf in leaves), strict=True):
        yield structure.fill(step)


def detach_inputs(leaves: Leaves) -> Leaves:
    """Return tensors outside of any graph, which require a gradient if the given ones do."""
    return tuple(leaf.detach().requires_grad_(leaf.requires_grad) for leaf in leaves)
