"""Compiles a piece: runs it aside, and compares it with the steps as they are written."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ckptplan.torch.ambient import Autocast, Generators
from ckptplan.torch.call import Call
from ckptplan.torch.compiling.steps import (
    SHIFT,
    CompiledPiece,
    Form,
    NotCompiled,
    PieceError,
    PieceFunction,
    Product,
    prepare_leaves,
    run_with_chunk_loss,
    run_with_loss,
    run_with_outputs,
)
from ckptplan.torch.graphs import GivenPairs, compute_gradients, find_graph_leaves
from ckptplan.torch.inputs import detach_inputs
from ckptplan.torch.recognise import describe_call
from ckptplan.torch.surroundings.aside import leave_as_found
from ckptplan.torch.surroundings.signature import Signature
from ckptplan.torch.surroundings.walk import Reached, walk
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


@dataclass(frozen=True, kw_only=True)
class PieceRequest:
    """A call whose pieces are to be compiled."""

    call: Call

    @property
    def things(self) -> dict[str, object]:
        """The cell and the losses, by the names of their arguments."""
        return {"cell": self.call.cell, **self.call.losses}

    @property
    def product(self) -> Product:
        """What a piece would best return."""
        if "loss" in self.call.losses:
            return "loss"
        return "chunk_loss" if "chunk_loss" in self.call.losses else "outputs"

    @property
    def loss(self) -> Any:
        """The loss of the steps, None if there is none."""
        return self.call.losses.get(self.product)

    @cached_property
    def _met(self) -> tuple[Reached, CodeSignature]:
        signature = CodeSignature()
        return walk(self.things, signature=signature), signature

    @property
    def reached(self) -> Reached:
        """What the cell and the losses can reach."""
        return self._met[0]

    @property
    def references(self) -> tuple[Any, ...]:
        """Weak references that must live as long as the key: its ids are theirs."""
        return tuple(self._met[1].references)

    @property
    def entries(self) -> tuple[Any, ...]:
        """What is equal for the same code, hooks and options."""
        return self._met[1].entries

    @cached_property
    def settings(self) -> tuple[Any, ...]:
        """Shapes, types and modes; those that cannot be told make it incomplete."""
        signature = self._met[1]
        return describe_call(
            self.call.state,
            self.call.sequence,
            (),
            signature,
            device=self.call.device,
            options=(tuple(one.requires_grad for one in self.call.sequence.leaves), tuple(self.things)),
        )

    @property
    def is_complete(self) -> bool:
        """Whether all that may change can be told."""
        complete = bool(self.settings)
        return complete and self._met[1].complete


_FUNCTIONS: dict[Product, PieceFunction] = {
    "loss": run_with_loss,
    "chunk_loss": run_with_chunk_loss,
    "outputs": run_with_outputs,
}
#: What compiled steps may differ by from those that run as they are written, as a share of the largest number.
_ROUNDING = 1e-3
#: What the compiler's parts raise besides its own errors.
_ERRORS = (RuntimeError, NotImplementedError, AssertionError, OSError)


class _Runs:
    """Runs a piece of a request aside, compiled or not, always from the same state and the same inputs."""

    def __init__(self, request: PieceRequest, steps: int, leaves: Leaves, fill: Callable[[Any], Any]) -> None:
        self.request, self.leaves, self.fill = request, leaves, fill
        self.pieces, self.nest = request.call.sequence.piece(0, steps)
        self.generators = Generators(request.call.device, wanted=True, held=request.reached.generators)
        self.drawn = self.generators.state()
        self.order: dict[int, int] = {}

    def _call(self, run: PieceFunction, begin: Leaves, inputs: Leaves) -> tuple[Any, Any]:
        self.generators.restore(self.drawn)
        return run(self.request.call.cell, self.request.loss, SHIFT, self.fill(begin), self.nest.fill(inputs))

    def advance(self, run: PieceFunction) -> Leaves:
        """Run without a tape; return all tensors."""
        with torch.no_grad():
            begin = prepare_leaves(self.leaves, roots=False)
            return flatten(self._call(run, begin, tuple(leaf.detach() for leaf in self.pieces)))[0]

    def record(self, run: PieceFunction) -> tuple[Leaves, Leaves]:
        """Run with a tape and backwards; return all tensors, and gradients."""
        with torch.enable_grad():
            begin = prepare_leaves(tuple(leaf.detach() for leaf in self.leaves), roots=True)
            inputs = detach_inputs(
                self.pieces, tuple(leaf.requires_grad for leaf in self.request.call.sequence.leaves)
            )
            leaves = flatten(self._call(run, begin, inputs))[0]
            ends = [leaf for leaf in leaves if leaf.requires_grad and is_differentiable(leaf)]
            wanted = [leaf for leaf in (*begin, *inputs) if leaf.requires_grad]
            pairs: GivenPairs = [(leaf, torch.ones_like(leaf)) for leaf in ends]
            found = compute_gradients(pairs, [*wanted, *self._list_parameters(ends, wanted)])
        gradients = tuple(torch.zeros(()) if one is None else one for one in found)
        return tuple(leaf.detach() for leaf in leaves), gradients

    def _list_parameters(self, ends: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return what gradients reach besides the state and the inputs, always in the same order."""
        named = self.request.call.parameters
        inner = {id(one) for one in (*wanted, *named)}
        found = {id(one): one for one in find_graph_leaves(ends, until=named) if id(one) not in inner}
        for key in found:
            self.order.setdefault(key, len(self.order))
        return [*named, *sorted(found.values(), key=lambda one: self.order[id(one)])]


def build_piece(
    request: PieceRequest, steps: int, product: Product, *, mode: str
) -> CompiledPiece | NotCompiled:
    """Compile a piece of so many steps. All is left as it was.

    The first steps run once as they are written: the state after them is of the form that most states have.
    """
    with leave_as_found(request.things, device=request.call.device):
        return _build(request, steps, product, mode=mode)


def _build(request: PieceRequest, steps: int, product: Product, *, mode: str) -> CompiledPiece | NotCompiled:
    with warnings.catch_warnings():
        # PyTorch's compiler uses what PyTorch deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        from ckptplan.torch.compiling.backend import CompiledFunction, explain_error, set_compiler

    written = _FUNCTIONS[product]
    autocast = Autocast.present(request.call.device)
    leaves, structure = flatten(request.call.state)
    with autocast.cast_anew():
        with torch.no_grad():
            pieces, nest = request.call.sequence.piece(0, steps)
            inputs = nest.fill([leaf.detach() for leaf in pieces])
            state = run_with_outputs(request.call.cell, None, SHIFT, request.call.state, inputs)[1]
            leaves, structure = flatten(state)
            again = flatten(run_with_outputs(request.call.cell, None, SHIFT, state, inputs)[1])
        form = Form.of(leaves, structure)
        if Form.of(*again) != form:
            return NotCompiled(
                whatever_loss=True,
                text="the state holds numbers outside of tensors, or shapes, that differ from step to step",
            )
        runs = _Runs(request, steps, tuple(leaf.detach() for leaf in leaves), structure.fill)
        advance, record = (CompiledFunction(written, mode=mode) for _ in range(2))
        try:
            with set_compiler():
                first = runs.advance(advance)
                second, gradients = runs.record(record)
        except PieceError as error:
            return error.why
        except torch.OutOfMemoryError:
            raise
        except _ERRORS as error:
            return explain_error(error)
        third, expected = runs.record(written)
        floats = [one for one in (*third, *expected) if one.is_floating_point()]
        rounding = max([_ROUNDING, *(8 * torch.finfo(one.dtype).eps for one in floats)])
        pairs = ((first, third), (second, third), (gradients, expected))
        if not all(are_equal(ours, theirs, rounding=rounding) for ours, theirs in pairs):
            return NotCompiled(text="compiled steps differ from those as written")
        return CompiledPiece(
            steps=steps,
            product=product,
            form=form,
            advance=advance,
            record=record,
            settings=set_compiler,
            reuses_memory=record.reuses_memory,
        )
