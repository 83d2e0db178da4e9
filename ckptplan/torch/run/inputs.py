"""Provides the inputs of each step, from tensors over time or from a function that makes them.

A *step of a plan* is one time step, or a piece of several time steps that a cell takes in one call. Subclasses
of ``Inputs`` say how the two are related (``rows``), and how a piece is cut (``iterate``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils import _pytree

from ckptplan.errors import InputError, quote_value
from ckptplan.torch.state.nests import LEAF, Nest, fill, flatten, unstack

#: The value of ``Inputs.cut_steps`` without a limit of memory.
CUT_STEPS = 64
#: A list of more tensors of one shape is taken for a list of time steps.
_MAX_SEQUENCES = 2


class Inputs:
    """The inputs of all steps of a plan.

    Arguments:
        given: tensors whose first axis is time, a nest of these, or a function (start, stop) -> these.
        steps: T; None to take it from the shapes of the tensors.
        asked_by: where ``steps`` comes from, for messages.

    Raises InputError.
    """

    #: Whether outputs of steps are joined along their first axis; otherwise they are stacked.
    joins_outputs = False
    #: How many inputs are cut or made at a time while no step is recorded.
    cut_steps = CUT_STEPS

    def __init__(self, given: Any, steps: int | None = None, *, asked_by: str = "plan") -> None:
        self.is_made = callable(given)
        self.make: Any = given
        #: The tensors, which may require gradients; none if a function makes them.
        self.leaves: list[Tensor] = []
        self.nest: Nest = LEAF
        if self.is_made:
            if steps is None:
                raise InputError(
                    "is missing: inputs that a function makes have no length",
                    field="steps",
                    accepted="plan=, or steps=T",
                )
            self.steps = steps
            return
        self.leaves, self.nest = flatten(given, parameters=True)
        if not self.leaves:
            raise _refuse_without_tensors(given)
        _refuse_layouts(self.leaves)
        self.steps = steps if steps is not None else (self.leaves[0].shape[0] if self.leaves[0].dim() else 0)
        if not self.steps:
            raise InputError(
                "hold no time step",
                field="inputs",
                accepted="tensors with time as the first axis, of one time step at least",
            )
        for leaf in self.leaves:
            if leaf.dim() == 0 or leaf.shape[0] != self.steps:
                count = leaf.shape[0] if leaf.dim() else "no"
                raise InputError(
                    f"has {count} steps, the {asked_by} has {self.steps:,}{_guess(given, leaf, self.steps)}",
                    field="inputs",
                    value=tuple(leaf.shape),
                    accepted=f"tensors of shape ({self.steps:,}, ...), or a {asked_by} for as many steps",
                )

    def cut(self, start: int, stop: int) -> tuple[list[Tensor], Nest]:
        """Return the inputs of steps ``start`` to ``stop``, time first."""
        if not self.is_made:
            first, last = self.rows(start, stop)
            return [leaf[first:last] for leaf in self.leaves], self.nest
        leaves, nest = flatten(self.make(start, stop))
        accepted = "a callable (start, stop) -> tensors with time as the first axis"
        if not leaves:
            raise InputError(
                f"returned no tensor for steps {start} to {stop}", field="inputs", accepted=accepted
            )
        refuse_gradients(leaves, "returned")
        _refuse_layouts(leaves)
        for leaf in leaves:
            if leaf.dim() == 0 or leaf.shape[0] != stop - start:
                raise InputError(
                    f"returned a tensor of shape {tuple(leaf.shape)} for steps {start} to {stop}",
                    field="inputs",
                    accepted=f"tensors of shape ({stop - start}, ...)",
                )
        return leaves, nest

    def rows(self, start: int, stop: int) -> tuple[int, int]:
        """Return where the steps begin and end along the first axis of ``leaves`` and of joined outputs."""
        return start, stop

    def join(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the outputs of all steps, which are given in the order in which steps ran, as one tensor."""
        return torch.cat(tuple(outputs))

    def iterate(self, leaves: Sequence[Tensor], nest: Nest, start: int, stop: int) -> Iterator[Any]:
        """Return the input of each step from the leaves and the nest that ``cut`` returned for these steps."""
        return unstack(leaves, nest)

    def iterate_all(self) -> Iterator[Any]:
        """Yield the input of each step of the whole sequence, within its graph."""
        leaves, nest = self.cut(0, self.steps)
        return self.iterate(leaves, nest, 0, self.steps)

    def get_step(self, step: int) -> Any:
        """Return the input of one step."""
        leaves, nest = self.cut(step, step + 1)
        return next(self.iterate(leaves, nest, step, step + 1))

    def list_first(self) -> list[Tensor]:
        """Return the tensors of the first step; none if a function makes them."""
        first, last = self.rows(0, 1)
        return [leaf[first:last] for leaf in self.leaves]

    def take_first(self, steps: int) -> Inputs:
        """Return the inputs of only the first steps, outside of any graph."""
        if self.is_made:
            return Inputs(self.make, steps)
        leaves, nest = self.cut(0, steps)
        return Inputs(fill(nest, detach_inputs(leaves)), steps)


def detach_inputs(leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors outside of any graph, which require a gradient if the leaves do."""
    return [leaf.detach().requires_grad_(leaf.requires_grad) for leaf in leaves]


def refuse_gradients(leaves: Sequence[Tensor], verb: str) -> None:
    """Raise InputError for made inputs that require a gradient; ``verb`` says what the function did."""
    if any(leaf.requires_grad for leaf in leaves):
        raise InputError(
            f"{verb} a tensor that requires a gradient, which would not reach the code that made it",
            field="inputs",
            accepted="inputs as tensors, or the module that makes them (an embedding) within the cell",
        )


def _refuse_without_tensors(given: Any) -> InputError:
    is_array = any(isinstance(leaf, numpy.ndarray) for leaf in _pytree.tree_leaves(given))
    problem = f"{quote_value(type(given).__name__)} holds no tensor with an axis of time"
    converted = ", as torch.from_numpy returns them" if is_array else ""
    return InputError(
        "a NumPy array is no tensor" if is_array else problem,
        field="inputs",
        accepted=f"tensors with time as the first axis{converted}, or a callable (start, stop) -> chunk",
    )


def _refuse_layouts(leaves: Sequence[Tensor]) -> None:
    """Raise InputError for sparse and nested tensors, of which single time steps cannot be taken."""
    for leaf in leaves:
        if leaf.layout is not torch.strided or leaf.is_nested:
            kind = "nested" if leaf.is_nested else str(leaf.layout).removeprefix("torch.").replace("_", " ")
            raise InputError(
                f"hold a {kind} tensor, of which single time steps cannot be taken",
                field="inputs",
                accepted="dense tensors with time as the first axis: to_dense(), or sequences padded to one "
                "length; LIF(spiking_inputs=True) keeps spikes sparse by itself",
            )


def _guess(given: Any, leaf: Tensor, steps: int) -> str:
    """Return a guess at the mistake, as text."""
    if is_list_of_steps(given):
        return (
            f": a list of {len(given):,} tensors is a nest of {len(given):,} inputs; torch.stack makes one "
            "tensor of them"
        )
    if leaf.dim() > 1 and leaf.shape[1] == steps:
        return f": axis 1 has {steps:,}, is the batch first?"
    return ""


def describe_tensors(value: Any) -> str:
    """Return the types and shapes of the tensors of a value as text."""
    leaves = flatten(value)[0]
    shapes = (f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}" for leaf in leaves[:4])
    return ", ".join((*shapes, *(["..."] if len(leaves) > 4 else []))) if leaves else quote_value(value)


def is_list_of_steps(given: Any) -> bool:
    """Return whether inputs look like one tensor for each time step, and not like several sequences."""
    if not isinstance(given, list | tuple) or len(given) <= _MAX_SEQUENCES:
        return False
    return all(isinstance(item, Tensor) and item.shape == given[0].shape for item in given)
