"""Compiles a piece: runs it aside, and compares it with the steps as they are written."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from ckptplan.torch.ambient import Autocast
from ckptplan.torch.call import Call
from ckptplan.torch.compiling.steps import (
    SHIFT,
    CompiledPiece,
    NotCompiled,
    PieceFunction,
    Product,
    describe_form,
    prepare_leaves,
    run_with_chunk_loss,
    run_with_loss,
    run_with_outputs,
)
from ckptplan.torch.graphs import GivenPairs, compute_gradients
from ckptplan.torch.inputs import detach_inputs
from ckptplan.torch.probe import Probed
from ckptplan.torch.recognise import Situation, describe_call
from ckptplan.torch.surroundings.signature import Signature
from ckptplan.torch.surroundings.snapshot import leave_as_found
from ckptplan.torch.surroundings.walk import walk
from ckptplan.torch.trees import Leaves, flatten, is_differentiable
from ckptplan.torch.trial import are_equal


class CodeSignature(Signature):
    """Describes hooks, methods, functions and options that a cell can reach, but no numbers.

    PyTorch's compiler looks for the numbers that a graph depends on each time the graph is called; it does not
    look for hooks, nor for methods that were replaced.
    """

    def describe_constant(self, value: Any) -> Any:
        """Return what is equal for constants of the same kind, of numbers the type."""
        if isinstance(value, int | float | complex) and not isinstance(value, bool):
            return self._refer(type(value))
        return super().describe_constant(value)

    def describe_tensor(self, tensor: torch.Tensor) -> Any:
        """Return what is equal for tensors of the same kind; of targets and the like, the shape may differ."""
        facts = super().describe_tensor(tensor)
        return facts if facts is None or tensor.requires_grad else facts[1:]

    def _read_numbers(self, tensor: torch.Tensor) -> Any:
        del tensor


def walk_code(call: Call) -> Situation:
    """Return what the compiled pieces of a call depend on: code, hooks, options, shapes, types and modes."""
    things, signature = {"cell": call.cell, **call.losses}, CodeSignature()
    reached = walk(things, signature=signature)
    settings = describe_call(
        call.state, call.sequence, (), signature, device=call.device, options=tuple(things)
    )
    return Situation(reached=reached, signature=signature, settings=settings)


def choose_product(call: Call) -> Product:
    """Return what a piece of a call would best return."""
    if "loss" in call.losses:
        return "loss"
    return "chunk_loss" if "chunk_loss" in call.losses else "outputs"


_FUNCTIONS: dict[Product, PieceFunction] = {
    "loss": run_with_loss,
    "chunk_loss": run_with_chunk_loss,
    "outputs": run_with_outputs,
}
#: What compiled steps may differ by from those that run as they are written, as a share of the largest number.
_ROUNDING = 1e-3
#: What the compiler's parts raise besides its own errors.
_ERRORS = (RuntimeError, NotImplementedError, AssertionError, OSError)


def build_piece(
    call: Call, probed: Probed, steps: int, product: Product, *, mode: str
) -> tuple[CompiledPiece, Any]:
    """Compile a piece of so many steps; return it with a state of its form. All is left as it was.

    The first steps run once as they are written: the state after them is of the form that most states have.
    Raises NotCompiled.
    """
    things = {"cell": call.cell, **call.losses}
    with leave_as_found(things, device=call.device), Autocast.present(call.device).cast_anew():
        return _build(call, probed, steps, product, mode=mode)


def _take_state(call: Call, steps: int) -> Any:
    """Return the state after the first steps as they are written. Raises NotCompiled if its form changes."""
    pieces, nest = call.sequence.piece(0, steps)
    inputs = nest.fill([leaf.detach() for leaf in pieces])
    with torch.no_grad():
        state = run_with_outputs(call.cell, None, SHIFT, call.state, inputs)[1]
        after = run_with_outputs(call.cell, None, SHIFT, state, inputs)[1]
    if describe_form(*flatten(after)) != describe_form(*flatten(state)):
        raise NotCompiled(
            "the state holds numbers outside of tensors, or shapes, that differ from step to step",
            whatever_loss=True,
        )
    return state


def _build(call: Call, probed: Probed, steps: int, product: Product, *, mode: str) -> tuple[CompiledPiece, Any]:
    with warnings.catch_warnings():
        # PyTorch's compiler uses what PyTorch deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        from ckptplan.torch.compiling.backend import CompiledFunction, explain_error, set_compiler

    state, drawn = _take_state(call, steps), probed.generators.state()

    def run_aside(piece: PieceFunction, *, graph: bool) -> tuple[Leaves, Leaves]:
        """Return all tensors that a piece returns from that state, and gradients: zeros without a ``graph``."""
        leaves, structure = flatten(state)
        given, nest = call.sequence.piece(0, steps)
        begin = prepare_leaves(tuple(leaf.detach() for leaf in leaves), roots=graph)
        rows = detach_inputs(given) if graph else tuple(leaf.detach() for leaf in given)
        probed.generators.restore(drawn)
        with torch.set_grad_enabled(graph):
            loss = call.losses.get(product)
            made, _ = flatten(piece(call.cell, loss, SHIFT, structure.fill(begin), nest.fill(rows)))
            ends = [leaf for leaf in made if leaf.requires_grad and is_differentiable(leaf)]
            wanted = [leaf for leaf in (*begin, *rows) if leaf.requires_grad]
            pairs: GivenPairs = [(leaf, torch.ones_like(leaf)) for leaf in ends]
            found = compute_gradients(pairs, [*wanted, *probed.parameters])
        gradients = tuple(torch.zeros(()) if one is None else one for one in found)
        return tuple(leaf.detach() for leaf in made), gradients

    advance, record = (CompiledFunction(_FUNCTIONS[product], mode=mode) for _ in range(2))
    try:
        with set_compiler():
            first, _ = run_aside(advance, graph=False)
            second, gradients = run_aside(record, graph=True)
    except (NotCompiled, torch.OutOfMemoryError):
        raise
    except _ERRORS as error:
        raise explain_error(error) from error
    third, expected = run_aside(_FUNCTIONS[product], graph=True)
    floats = [one for one in (*third, *expected) if one.is_floating_point()]
    rounding = max([_ROUNDING, *(8 * torch.finfo(one.dtype).eps for one in floats)])
    pairs = ((first, third), (second, third), (gradients, expected))
    if not all(are_equal(ours, theirs, rounding=rounding) for ours, theirs in pairs):
        raise NotCompiled("compiled steps differ from those as written")
    piece = CompiledPiece(
        steps=steps,
        product=product,
        form=describe_form(*flatten(state)),
        advance=advance,
        record=record,
        settings=set_compiler,
        reuses_memory=record.reuses_memory,
    )
    return piece, state
