"""Compiles a piece: runs it aside, compares it with the steps as they are written, and measures both.

Times the kernels of a ``ChunkCell``, which compiled pieces of its steps have to beat.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch

from ckptplan.torch.ambient import Autocast, Generators
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.chunk_engine import MOST_WORKING
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
from ckptplan.torch.graphs import compute_gradients, count_saved_bytes, find_graph_leaves
from ckptplan.torch.inputs import Sequence, detach_inputs
from ckptplan.torch.meters import choose_clock
from ckptplan.torch.recognise import describe_call
from ckptplan.torch.surroundings.aside import leave_as_found
from ckptplan.torch.surroundings.signature import Signature
from ckptplan.torch.surroundings.walk import Reached, walk
from ckptplan.torch.trees import Leaves, flatten, is_differentiable


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
    """A call whose pieces are to be compiled.

    Arguments:
        cell: ``cell(state, x) -> (state, output)``.
        losses: by the names of their arguments.
        state: the initial state.
        inputs: the inputs of all steps.
        steps: T.
        parameters: those that the caller has named.
        device: where the cell runs.
    """

    cell: Any
    losses: Mapping[str, Any]
    state: Any
    inputs: Sequence
    steps: int
    parameters: tuple[torch.Tensor, ...]
    device: torch.device

    @property
    def things(self) -> dict[str, object]:
        """The cell and the losses, by the names of their arguments."""
        return {"cell": self.cell, **self.losses}

    @property
    def product(self) -> Product:
        """What a piece would best return."""
        if "loss" in self.losses:
            return "loss"
        return "chunk_loss" if "chunk_loss" in self.losses else "outputs"

    @property
    def loss(self) -> Any:
        """The loss of the steps, None if there is none."""
        return self.losses.get(self.product)

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
            self.state,
            self.inputs,
            (),
            signature,
            device=self.device,
            options=(tuple(one.requires_grad for one in self.inputs.leaves), tuple(self.things)),
        )

    @property
    def is_complete(self) -> bool:
        """Whether all that may change can be told."""
        complete = bool(self.settings)
        return complete and self._met[1].complete


def time_kernels(
    cell: ChunkCell,
    state: Any,
    inputs: Any,
    *,
    loss: Callable[[Any], Any],
    clock: Callable[[], float],
) -> tuple[float, float, float]:
    """Return the seconds of a chunk: run for the first time, replayed with its loss, and reversed.

    Arguments:
        cell: the cell.
        state: a state to start from.
        inputs: those of the chunk, time first.
        loss: returns the losses of the outputs of the chunk, or what gradients begin with.
        clock: returns seconds, once the device has finished.
    """
    cell = cell.for_sequence()
    with torch.no_grad():
        times = [clock()]
        _, saved = cell.run(state, inputs, None)
        times.append(clock())
        states = cell.replay(state, inputs, saved)
        gradients = _differentiate(cell.dense(saved), loss)
        leaves, structure = flatten(states)
        last = structure.fill([torch.ones_like(leaf[-1]) for leaf in leaves])
        times.append(clock())
        cell.reverse(
            state,
            states,
            inputs,
            saved,
            output_gradients=gradients,
            state_gradients=last,
            wants_inputs=False,
        )
        times.append(clock())
    run, replayed, reversed_ = (max(after - before, 1e-9) for before, after in pairwise(times))
    return run, replayed, reversed_


def _differentiate(outputs: Any, loss: Callable[[Any], Any]) -> Any:
    """Return the gradients of outputs; None for those without."""
    leaves, structure = flatten(outputs)
    with torch.enable_grad():
        roots = [
            leaf.detach().requires_grad_() if is_differentiable(leaf) else leaf.detach() for leaf in leaves
        ]
        ends = [one for one in flatten(loss(structure.fill(roots)))[0] if one.requires_grad]
        wanted = [root for root in roots if root.requires_grad]
        given = [torch.ones_like(one) for one in ends]
        found = compute_gradients(ends, given, wanted, parameters=())
    by_root = dict(zip(map(id, wanted), found, strict=True))
    gradients: Any = [by_root.get(id(root)) for root in roots]
    return structure.fill(gradients)


_FUNCTIONS: dict[Product, PieceFunction] = {
    "loss": run_with_loss,
    "chunk_loss": run_with_chunk_loss,
    "outputs": run_with_outputs,
}
#: What compiled steps may differ by from those that run as they are written, as a share of the largest number.
_ROUNDING = 1e-3
#: What the compiler's parts raise besides its own errors.
_ERRORS = (RuntimeError, NotImplementedError, AssertionError, OSError)
#: Rounds of which the quickest counts.
_ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Seconds of a piece: without a tape, with one (or replayed by kernels), and of its reversal."""

    forward: float
    record: float
    backward: float

    @property
    def together(self) -> float:
        """What a chunk that runs twice takes."""
        return self.forward + self.record + self.backward


@dataclass(frozen=True, kw_only=True)
class Built:
    """A compiled piece, and what was measured."""

    piece: CompiledPiece
    #: Of the piece, and of its steps as they are written.
    seconds: Seconds
    eager: Seconds
    tape_bytes: int
    compile_seconds: float


def _return_input(state: Any, x: Any) -> tuple[Any, Any]:
    """Take a step whose output is known."""
    return state, x


class _Runs:
    """Runs a piece of a request aside, compiled or not, always from the same state and the same inputs."""

    def __init__(self, request: PieceRequest, steps: int, leaves: Leaves, fill: Callable[[Any], Any]) -> None:
        self.request, self.leaves, self.fill = request, leaves, fill
        self.pieces, self.nest = request.inputs.piece(0, steps)
        self.generators = Generators(request.device, wanted=True, held=request.reached.generators)
        self.drawn = self.generators.state()
        self.start = SHIFT
        self.order: dict[int, int] = {}
        self.clock = choose_clock(request.device)

    def _call(self, run: PieceFunction, begin: Leaves, inputs: Leaves) -> tuple[Any, Any]:
        self.generators.restore(self.drawn)
        return run(self.request.cell, self.request.loss, self.start, self.fill(begin), self.nest.fill(inputs))

    def advance(self, run: PieceFunction) -> tuple[Leaves, float]:
        """Run without a tape; return all tensors, and the seconds."""
        with torch.no_grad():
            begin = prepare_leaves(self.leaves, roots=False)
            inputs = tuple(leaf.detach() for leaf in self.pieces)
            begun = self.clock()
            result = self._call(run, begin, inputs)
            seconds = self._stop(begun)
        return flatten(result)[0], seconds

    def record(self, run: PieceFunction) -> tuple[Leaves, Leaves, tuple[float, float], int]:
        """Run with a tape and backwards; return tensors, gradients, seconds and the bytes of the tape."""
        with torch.enable_grad():
            begin = prepare_leaves(tuple(leaf.detach() for leaf in self.leaves), roots=True)
            inputs = detach_inputs(
                self.pieces, tuple(leaf.requires_grad for leaf in self.request.inputs.leaves)
            )
            begun = self.clock()
            result = self._call(run, begin, inputs)
            recorded = self._stop(begun)
            leaves = flatten(result)[0]
            tape = count_saved_bytes(leaves, end=flatten(result[1])[0], without=(*begin, *inputs))
            ends = [leaf for leaf in leaves if leaf.requires_grad and is_differentiable(leaf)]
            wanted = [leaf for leaf in (*begin, *inputs) if leaf.requires_grad]
            parameters = self._list_parameters(ends, wanted)
            begun = self.clock()
            found = compute_gradients(
                ends, [torch.ones_like(leaf) for leaf in ends], wanted, parameters=parameters
            )
            backward = self._stop(begun)
        gradients = tuple(torch.zeros(()) if one is None else one for one in found)
        return tuple(leaf.detach() for leaf in leaves), gradients, (recorded, backward), tape

    def _list_parameters(self, ends: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return what gradients reach besides the state and the inputs, always in the same order."""
        named = self.request.parameters
        inner = {id(one) for one in (*wanted, *named)}
        found = {id(one): one for one in find_graph_leaves(ends, until=named) if id(one) not in inner}
        for key in found:
            self.order.setdefault(key, len(self.order))
        return [*named, *sorted(found.values(), key=lambda one: self.order[id(one)])]

    def _stop(self, begun: float) -> float:
        return max(self._read_clock() - begun, 1e-9)

    def measure_written(self, run: PieceFunction) -> Seconds:
        """Return the least times of the steps without the compiler: by the kernels of a cell that has some."""
        request = self.request
        if not isinstance(request.cell, ChunkCell):
            return self.measure(run, run)
        count = min(request.steps, MOST_WORKING)
        pieces, nest = request.inputs.piece(0, count)
        rounds = [
            time_kernels(
                request.cell,
                self.fill(tuple(leaf.detach() for leaf in self.leaves)),
                nest.fill([leaf.detach() for leaf in pieces]),
                loss=lambda outputs: run(_return_input, request.loss, self.start, (), outputs)[0],
                clock=self._read_clock,
            )
            for _ in range(_ROUNDS)
        ]
        # Of as many steps as the piece has.
        share = len(self.pieces[0]) / count
        forward, record, backward = (share * min(each) for each in zip(*rounds, strict=True))
        return Seconds(forward=forward, record=record, backward=backward)

    def _read_clock(self) -> float:
        if self.request.device.type == "cuda":
            torch.cuda.synchronize(self.request.device)
        return self.clock()

    def measure(self, advance: PieceFunction, record: PieceFunction) -> Seconds:
        """Return the least of a few times."""
        times = []
        for _ in range(_ROUNDS):
            forward = self.advance(advance)[1]
            times.append((forward, *self.record(record)[2]))
        return Seconds(
            **dict(zip(("forward", "record", "backward"), map(min, zip(*times, strict=True)), strict=True))
        )


def build_piece(request: PieceRequest, steps: int, product: Product, *, mode: str) -> Built | NotCompiled:
    """Compile a piece of so many steps. All is left as it was.

    The first steps run once as they are written: the state after them is of the form that most states have.
    """
    with leave_as_found(request.things, device=request.device):
        return _build(request, steps, product, mode=mode)


def _build(request: PieceRequest, steps: int, product: Product, *, mode: str) -> Built | NotCompiled:
    with warnings.catch_warnings():
        # PyTorch's compiler uses what PyTorch deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        from ckptplan.torch.compiling.backend import CompiledFunction, explain_error, set_compiler

    written = _FUNCTIONS[product]
    autocast = Autocast.present(request.device)
    leaves, structure = flatten(request.state)
    with autocast.cast_anew():
        given = _Runs(request, steps, leaves, structure.fill)
        with torch.no_grad():
            pieces, nest = request.inputs.piece(0, steps)
            inputs = nest.fill([leaf.detach() for leaf in pieces])
            state = run_with_outputs(request.cell, None, given.start, request.state, inputs)[1]
            leaves, structure = flatten(state)
            again = flatten(run_with_outputs(request.cell, None, given.start, state, inputs)[1])
        form = Form.of(leaves, structure)
        if Form.of(*again) != form:
            return NotCompiled(
                whatever_loss=True,
                text="the state holds numbers outside of tensors, or shapes, that differ from step to step",
            )
        runs = _Runs(request, steps, tuple(leaf.detach() for leaf in leaves), structure.fill)
        advance, record = (CompiledFunction(written, mode=mode) for _ in range(2))
        begun = perf_counter()
        try:
            with set_compiler():
                first, _ = runs.advance(advance)
                second, gradients, _, tape = runs.record(record)
        except PieceError as error:
            return error.why
        except torch.OutOfMemoryError:
            raise
        except _ERRORS as error:
            return explain_error(error)
        spent = perf_counter() - begun
        third, expected, _, _ = runs.record(written)
        difference = _find_difference((*first, *second), (*third, *third)) or _find_difference(
            gradients, expected
        )
        if difference:
            return NotCompiled(text=f"compiled steps differ from those as written by {difference}")
        with set_compiler():
            seconds = runs.measure(advance, record)
        return Built(
            piece=CompiledPiece(
                steps=steps,
                product=product,
                form=form,
                advance=advance,
                record=record,
                settings=set_compiler,
                reuses_memory=record.reuses_memory,
            ),
            seconds=seconds,
            eager=runs.measure_written(written),
            tape_bytes=tape,
            compile_seconds=spent,
        )


def _find_difference(ones: Leaves, others: Leaves) -> str:
    """Return the largest difference beyond rounding as text, an empty one if there is none."""
    worst = 0.0
    for one, other in zip(ones, others, strict=True):
        if one.shape != other.shape:
            return f"a shape, {tuple(one.shape)} for {tuple(other.shape)}"
        wide, usual = (leaf.detach().to(torch.float64).nan_to_num(0.0, 1.0, -1.0) for leaf in (one, other))
        if usual.numel():
            scale = max(float(usual.abs().max()), torch.finfo(torch.float32).tiny)
            limit = (
                _ROUNDING if not is_differentiable(other) else max(_ROUNDING, 8 * torch.finfo(other.dtype).eps)
            )
            difference = float((wide - usual).abs().max()) / scale
            worst = max(worst, difference if difference > limit else 0.0)
    return f"{worst:.1g} of their size" if worst else ""
