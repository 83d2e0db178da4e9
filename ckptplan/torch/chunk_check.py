"""Compares chunks of a ``ChunkCell`` with its steps under autograd: what they return, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from ckptplan.errors import InputError
from ckptplan.torch.chunk_cell import ChunkCell, reverse_chunk
from ckptplan.torch.graphs import Gradient, as_graph_roots, compute_gradients, find_graph_leaves
from ckptplan.torch.inputs import Sequence, detach_inputs, iterate_steps
from ckptplan.torch.trees import Leaves, Structure, flatten, is_differentiable
from ckptplan.torch.trial import ROUNDING, are_equal, copy_leaves, make_direction

#: Steps whose gradients are compared at a time: those within a chunk depend on each other.
_FEW = 3
#: The most steps that run until an output is not zero: silent neurons hide what spikes would add.
_MOST_SILENT = 64
#: A gradient this many times smaller than the largest one, in roundings of its type, may be rounding alone.
_NOTHING = 100

_STEP_BY_STEP = "cell=lambda state, x: cell(state, x), which runs step by step under autograd"
_ACCEPTED = f"a ChunkCell whose methods say the same as its forward; or {_STEP_BY_STEP}"


def check_chunk(cell: ChunkCell, state: Any, inputs: Sequence) -> None:
    """Raise InputError if a chunk differs from a step, e.g. because a subclass changes only the step."""
    given, nest = inputs.piece(0, 1)
    leaves, structure = flatten(state)
    state, pieces = structure.fill(copy_leaves(leaves)), copy_leaves(given)
    with torch.no_grad(), torch.autocast(device_type=pieces[0].device.type, enabled=False):
        states, saved = cell.run(state, nest.fill(pieces), None)
        after, output = cell(state, next(iterate_steps(pieces, nest, 1)))
        chunk = tuple(leaf[0] for leaf in flatten((states, cell.dense(saved)))[0])
    if not are_equal(flatten((after, output))[0], chunk):
        raise InputError(
            f"{type(cell).__name__}: a chunk of one step, by run, is not what its step returns, by forward",
            field="cell",
            accepted="a ChunkCell whose methods say the same; wrap a cell in a function to change its outputs",
        )


def check_reverse(cell: ChunkCell, state: Any, inputs: Sequence, *, steps: int) -> None:
    """Raise InputError if gradients by ``reverse`` are not those of the same steps under autograd.

    A few steps from the initial state are compared, and a few after which outputs are no longer zero. Hooks on
    the backward pass of the cell are refused: no chunk calls them.
    """
    _refuse_backward_hooks(cell)
    own, before, active = cell.for_sequence(), None, False
    leaves, structure = flatten(state)
    state = structure.fill(copy_leaves(leaves))
    for start in range(0, min(steps, _MOST_SILENT), _FEW):
        pieces, nest = inputs.piece(start, min(start + _FEW, steps))
        device = pieces[0].device.type
        with torch.no_grad(), torch.autocast(device_type=device, enabled=False):
            made = own.run(state, nest.fill(copy_leaves(pieces)), before)
            states, last = flatten(made[0])
            after = last.fill([leaf[-1].clone() for leaf in states])
            if start == 0 or active:
                _Chunk(
                    cell=cell, own=own, begin=state, states=states, inputs=(pieces, nest), saved=made[1]
                ).check()
            if active:
                return
            state, before = after, own.last(made[1])
            active = any(bool(leaf.any()) for leaf in flatten(own.dense(made[1]))[0])


def _refuse_backward_hooks(cell: ChunkCell) -> None:
    everywhere = torch_module._global_backward_hooks or torch_module._global_backward_pre_hooks
    hooked = [
        f"{type(cell).__name__}{'.' * bool(name)}{name}"
        for name, one in cell.named_modules()
        if everywhere or one._backward_hooks or one._backward_pre_hooks
    ]
    if hooked:
        raise InputError(
            f"{hooked[0]} has a hook on its backward pass{' (one of all modules)' if everywhere else ''}: "
            "chunks have a backward pass of their own, which does not call it",
            field="cell",
            accepted=f"hooks on the parameters; or {_STEP_BY_STEP}",
        )


@dataclass(frozen=True, kw_only=True)
class _Chunk:
    """A few steps that a cell has run; ``own`` is the cell for a sequence."""

    cell: ChunkCell
    own: ChunkCell
    begin: Any
    #: The leaves of the states after each step.
    states: Leaves
    inputs: tuple[Leaves, Structure]
    saved: Any

    def check(self) -> None:
        """Raise InputError if its gradients differ from those of its steps."""
        parameters = dict(self.cell.named_parameters())
        places, nest = flatten(self.begin)
        outputs, structure = flatten(self.own.dense(self.saved))
        ends = [_direct(leaf[-1], place) for place, leaf in enumerate(self.states)]
        given = [_direct(leaf, place) for place, leaf in enumerate(outputs)]
        wants_inputs = any(leaf.requires_grad for leaf in self.inputs[0])
        theirs = self._differentiate_steps(tuple(parameters.values()), ends, given)
        found = reverse_chunk(
            self.own,
            self.begin,
            nest.fill(self.states),
            self.inputs,
            self.saved,
            output_gradients=structure.fill(given),  # type: ignore[arg-type]
            state_gradients=ends,
            wants_inputs=wants_inputs,
        )
        inputs = found.inputs if wants_inputs else [None] * len(self.inputs[0])
        names = [
            *_name_leaves("the state", len(places)),
            *_name_leaves("the inputs", len(self.inputs[0])),
            *parameters,
        ]
        self._compare(names, [*found.state, *inputs, *found.parameters], theirs)

    def _differentiate_steps(
        self, parameters: Leaves, ends: list[Gradient], given: list[Gradient]
    ) -> list[Gradient]:
        """Return the gradients by autograd, each step from the state that the chunk left.

        They are those of the initial state, the inputs and the parameters; None where none is wanted.
        """
        pieces, nest = self.inputs
        begins, structure = flatten(self.begin)
        wanted = tuple(leaf.requires_grad for leaf in pieces)
        outputs: list[Leaves] = []
        with torch.enable_grad():
            leaves = roots = as_graph_roots(begins)
            inputs = detach_inputs(pieces, wanted)
            for step, x in enumerate(iterate_steps(inputs, nest, len(pieces[0]))):
                after, output = self.cell(structure.fill(leaves), x)
                outputs.append(flatten(output)[0])
                left = tuple(leaf[step].detach() for leaf in self.states)
                leaves = self._replace_numbers(step, flatten(after)[0], left)
            results = (*leaves, *(torch.stack(parts) for parts in zip(*outputs, strict=True)))
        everything = (*roots, *inputs, *parameters)
        self._refuse_others(results, everything)
        trained = [leaf for leaf in everything if leaf.requires_grad]
        first = len([leaf for leaf in (*roots, *inputs) if leaf.requires_grad])
        gradients = iter(
            compute_gradients(results, [*ends, *given], trained[:first], parameters=trained[first:])
        )
        return [next(gradients) if leaf.requires_grad else None for leaf in everything]

    def _replace_numbers(self, step: int, reached: Leaves, left: Leaves) -> Leaves:
        """Return the graph of a step with the numbers of the chunk: with others, other neurons might fire.

        Raises InputError if they differ.
        """
        for one, other in zip(reached, left, strict=True):
            if is_differentiable(one) and _measure_difference(other, one.detach().clone(), largest=0.0):
                raise InputError(
                    f"{type(self.cell).__name__}.run: the state after step {step} of a chunk is not what "
                    "forward returns",
                    field="cell",
                    accepted=_ACCEPTED,
                )
        return tuple(
            one + (other - one.detach()) if is_differentiable(one) else other
            for one, other in zip(reached, left, strict=True)
        )

    def _refuse_others(self, ends: Leaves, known: Leaves) -> None:
        others = {id(one) for one in known}
        for leaf in find_graph_leaves(ends):
            if id(leaf) not in others:
                raise InputError(
                    f"a step of {type(self.cell).__name__} uses a tensor of shape {tuple(leaf.shape)} that "
                    "requires a gradient and is none of its parameters(), which are all that reverse returns "
                    "gradients of",
                    field="cell",
                    accepted=f"torch.nn.Parameter as an attribute; or {_STEP_BY_STEP}",
                )

    def _compare(self, names: list[str], ours: list[Gradient], theirs: list[Gradient]) -> None:
        largest = max(map(_norm, theirs), default=0.0)
        skipped = len(names) - len(list(self.cell.parameters()))
        wanted = [True] * skipped + [one.requires_grad for one in self.cell.parameters()]
        for name, one, other, compared in zip(names, ours, theirs, wanted, strict=True):
            share = _measure_difference(one, other, largest=largest) if compared else 0.0
            if share:
                what = (
                    "is missing: forward has one" if one is None else f"differs by {share:.1%} from forward's"
                )
                raise InputError(
                    f"{type(self.cell).__name__}.reverse: the gradient of {name} {what} under autograd",
                    field="cell",
                    accepted=_ACCEPTED,
                )


def _direct(leaf: torch.Tensor, place: int) -> Gradient:
    """Return a gradient to begin with, None for integers."""
    return make_direction(leaf, place) if is_differentiable(leaf) else None


def _name_leaves(name: str, count: int) -> Iterator[str]:
    yield from (name,) if count == 1 else (f"tensor {number} of {name}" for number in range(count))


def _norm(gradient: Gradient) -> float:
    if gradient is None:
        return 0.0
    # Squares of half precision would overflow.
    wide = gradient.float() if gradient.dtype in (torch.float16, torch.bfloat16) else gradient
    return float(torch.linalg.vector_norm(wide))


def _measure_difference(one: Gradient, other: Gradient, *, largest: float) -> float:
    """Return the difference of two gradients as a share of the larger one, zero if rounding may cause it.

    The second one may be overwritten: there may be no room for a third.
    """
    present = other if one is None else one
    if present is None:
        return 0.0
    size, eps = max(_norm(one), _norm(other)), torch.finfo(present.dtype).eps
    difference = _norm(present if one is None or other is None else other.sub_(one))
    # A single element of many may be at the edge of a surrogate, so the norm counts.
    return difference / size if difference > max(ROUNDING, 4 * eps) * size + _NOTHING * eps * largest else 0.0
