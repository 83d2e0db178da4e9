"""Finds the compiled piece of a call: one that was made before, or a new one, the quickest of a few lengths.

The steps as they are written are measured first, which is the trial that they have to pass, and a piece as a
step of a plan. A piece is compiled aside, and compared with the steps as they are written.
"""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch

from ckptplan.schedule.actions import Advance, Backward, Record
from ckptplan.torch.ambient import Autocast
from ckptplan.torch.call import Call
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.compile_options import Compile, CompileProgress
from ckptplan.torch.compiling.steps import (
    SHIFT,
    CompiledPiece,
    NotCompiled,
    Product,
    describe_form,
    prepare_leaves,
    run_steps,
    warn_uncompiled,
)
from ckptplan.torch.graphs import GivenPairs, compute_gradients
from ckptplan.torch.inputs import detach_inputs
from ckptplan.torch.measurement import ActionSeconds, FirstRuns, Recordings, measure_call, run_twice
from ckptplan.torch.meters import measure_allocated
from ckptplan.torch.probe import Probed, probe
from ckptplan.torch.recognise import Recent, Situation, describe_call
from ckptplan.torch.surroundings.signature import Signature
from ckptplan.torch.surroundings.snapshot import aside
from ckptplan.torch.surroundings.walk import walk
from ckptplan.torch.survey import Measurement
from ckptplan.torch.trees import Leaves, flatten, is_differentiable
from ckptplan.torch.trial import are_equal

_log = logging.getLogger("ckptplan.torch")
#: The lengths of which the quickest is chosen, if none is given.
_LENGTHS = (4, 16)
#: Rounds of which the quickest counts.
_ROUNDS = 3
#: A piece is used if it takes at most this share of the time of its steps as they are written.
_WORTH = 0.97
#: Calls whose pieces are kept, and kinds of code that are remembered.
_MOST = 64
#: Calls of another shape that run uncompiled before a piece is compiled for them, too: the last batch of an
#: epoch is smaller, and takes less than the compiler.
_PATIENCE = 2
#: Bytes that the measured steps may take.
_LIMIT = 2**26
_INCOMPLETE = (
    "the cell or the loss reaches something whose changes could not be noticed (an iterator, a module of "
    "torch.jit, hooks of all modules, more than 4,000 objects)"
)


@dataclass
class _Known:
    """What is known of a call: the piece, if there is one, and what is yet to be said of steps as written."""

    found: CompiledPiece | None = None
    why: str = ""
    #: Weak references whose ids are a part of the key.
    references: tuple[Any, ...] = ()


@dataclass
class _Code:
    """What is known of the calls of the same code, hooks and options."""

    #: Calls by their shapes and modes.
    calls: dict[Any, int] = field(default_factory=dict)
    built: bool = False


_lock = threading.RLock()
_known: Recent[Any, _Known] = Recent(_MOST)
_codes: Recent[Any, _Code] = Recent(_MOST)


def find_piece(call: Call) -> CompiledPiece | None:
    """Return the compiled piece that a call asks for, made now if there is none; None to run as is written.

    The reason is said once for each kind of call. Raises InputError if the steps are refused.
    """
    if call.compile is None or call.is_closed or not torch.is_grad_enabled():
        return None
    with _lock:
        known = _find(call, walk_code(call), call.compile)
        if known is None:
            return None
        why, known.why = known.why, ""
        if why:
            warn_uncompiled(why)
        return None if known.found is None or known.found.broken else known.found


def _find(call: Call, situation: Situation, compile_: Compile) -> _Known | None:
    """Return what is known of a call, found out now if nothing is; None if there is nothing to be said."""
    if situation.key is None:
        return _known.find(call.code) or _known.keep(call.code, _Known(why=_INCOMPLETE))
    lengths = _list_lengths(call, compile_)
    known = _known.find(key := (compile_.steps, compile_.mode, lengths, situation.key))
    if known is not None:
        return known
    same = compile_.steps, compile_.mode, situation.signature.entries
    code = _codes.find(same) or _codes.keep(same, _Code())
    calls = code.calls[situation.settings] = code.calls.get(situation.settings, 0) + 1
    if code.built and calls <= _PATIENCE and lengths:
        return None
    # Code has to pass the trial before it is compiled.
    call = call.measured
    probed = probe(call, anew=False)
    if not probed.wants_gradients:
        return None
    found = _Known(references=tuple(situation.signature.references))
    try:
        found.found, code.built = _build(call, probed, compile_, lengths), True
    except NotCompiled as error:
        found.why = error.text
    return _known.keep(key, found)


def _build(call: Call, probed: Probed, compile_: Compile, lengths: tuple[int, ...]) -> CompiledPiece:
    """Compile the piece that was asked for, or the quickest of a few. Raises NotCompiled."""
    if not lengths:
        raise NotCompiled(
            f"a sequence of {call.plan.steps} steps is too short for pieces of {compile_.steps or _LENGTHS[0]}"
        )
    if isinstance(call.cell, ChunkCell) and torch.is_autocast_enabled(call.device.type):
        raise NotCompiled(
            "under autocast, the kernels of a ChunkCell keep the precision of its parameters, which compiled "
            "steps would not"
        )
    # Of a cell with kernels for chunks, these. Its steps are rehearsed then.
    written = measure_call(call, probed, limit=_LIMIT)
    probed = replace(probed, found=replace(probed.found, rehearsed=True))
    best: CompiledPiece | None = None
    for steps in lengths:
        try:
            piece, state = _build_one(call, probed, steps, compile_)
        except NotCompiled:
            if best is None:
                raise
            break
        piece.measurement = _measure(piece.steps, replace(call, state=state, compile=piece), probed, written)
        if best is None or piece.seconds < best.seconds:
            best = piece
    assert best is not None  # noqa: S101 - there was a length
    usual = written.forward_seconds + written.record_seconds + written.backward_seconds
    if compile_.steps is None and best.seconds > _WORTH * usual:
        raise NotCompiled(
            f"a step takes {best.seconds:.2g} s in compiled pieces of {best.steps}, and {usual:.2g} s as "
            "it is written"
        )
    return best


def _measure(count: int, call: Call, probed: Probed, written: Measurement) -> Measurement:
    """Return what a piece of so many steps takes as a step of a plan, in a call from a state of its form."""
    seen, seconds = Recordings(), ActionSeconds(call.device)
    runs = FirstRuns(call, probed, limit=0)
    runs.run(count, run_twice(count), seen)
    for _ in range(_ROUNDS):
        runs.run(count, run_twice(count), seconds)
    allocated = runs.run(count, run_twice(count), meter=partial(measure_allocated, call.device))
    (_, tape), *_ = seen.tapes
    known = tape + 2 * written.state_bytes + 2 * count * runs.output_bytes
    return replace(
        written,
        tape_bytes=tape,
        resident_bytes_per_step=0,
        workspace_bytes=max(0, allocated.peak - known),
        first_bytes=written.state_bytes,
        forward_seconds=count * seconds.a_step(Advance),
        record_seconds=count * seconds.a_step(Record),
        backward_seconds=count * seconds.a_step(Backward),
        counted=count,
        steps=count,
    )


def _list_lengths(call: Call, compile_: Compile) -> tuple[int, ...]:
    """Return the lengths of pieces that come into question: a chosen one is to run at least twice."""
    if compile_.steps is not None:
        return (compile_.steps,) if compile_.steps <= call.plan.steps else ()
    return tuple(one for one in _LENGTHS if 2 * one <= call.plan.steps)


def _build_one(call: Call, probed: Probed, steps: int, compile_: Compile) -> tuple[CompiledPiece, Any]:
    """Compile a piece with its loss; if that cannot be compiled, without. Raises NotCompiled."""
    products: tuple[Product, ...] = ("loss", "chunk_loss", "outputs")
    product = next(one for one in products if one in (*call.losses, "outputs"))
    try:
        return _compile(call, probed, steps, compile_, product)
    except NotCompiled as error:
        if product == "outputs" or error.whatever_loss:
            raise
        without = _compile(call, probed, steps, compile_, "outputs", what=f", without the {product}")
        warn_uncompiled(error.text, what="losses")
        return without


def _compile(
    call: Call, probed: Probed, steps: int, compile_: Compile, product: Product, *, what: str = ""
) -> tuple[CompiledPiece, Any]:
    what = f"pieces of {steps} steps{what}"
    report: CompileProgress = compile_.progress or report_on_terminal
    report(what, None)
    begun, seconds = perf_counter(), 0.0
    outside = aside(probed.situation.reached, probed.generators)
    try:
        with outside, Autocast.present(call.device).cast_anew():
            found = _build_piece(call, probed, steps, product, mode=compile_.mode)
        seconds = perf_counter() - begun
    finally:
        report(what, seconds)
    _log.info("compiled %s in %.1f s", what, seconds)
    return found


def report_on_terminal(what: str, seconds: float | None) -> None:
    """Say on a terminal that something is being compiled, and how long it took."""
    if not sys.stderr.isatty():
        return
    if seconds is None:
        sys.stderr.write(f"ckptplan: compiling {what} ...")
    else:
        sys.stderr.write(f" {seconds:.1f} s\n")
    sys.stderr.flush()


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
    return describe_call(call, reached, signature, named=(), options=tuple(things))


#: What compiled steps may differ by from those that run as they are written, as a share of the largest number.
_ROUNDING = 1e-3
#: What the compiler's parts raise besides its own errors.
_ERRORS = (RuntimeError, NotImplementedError, AssertionError, OSError)


def _take_state(call: Call, steps: int) -> Any:
    """Return the state after the first steps as they are written. Raises NotCompiled if its form changes."""
    pieces, nest = call.sequence.piece(0, steps)
    inputs = nest.fill([leaf.detach() for leaf in pieces])
    with torch.no_grad():
        _, state = run_steps(call.cell, None, SHIFT, call.state, inputs)
        _, after = run_steps(call.cell, None, SHIFT, state, inputs)
    if describe_form(*flatten(after)) != describe_form(*flatten(state)):
        raise NotCompiled(
            "the state holds numbers outside of tensors, or shapes, that differ from step to step",
            whatever_loss=True,
        )
    return state


def _build_piece(
    call: Call, probed: Probed, steps: int, product: Product, *, mode: str
) -> tuple[CompiledPiece, Any]:
    """Compile a piece of so many steps, and return it with a state of its form. Raises NotCompiled.

    The first steps run once as they are written: the state after them is of the form that most states have.
    """
    with warnings.catch_warnings():
        # PyTorch's compiler uses what PyTorch deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        from ckptplan.torch.compiling.backend import CompiledFunction, explain_error, set_compiler

    state, drawn = _take_state(call, steps), probed.generators.state()

    def run_aside(run: Callable[..., Any], *, graph: bool) -> tuple[Leaves, Leaves]:
        """Return all tensors that a piece returns from that state, and gradients: zeros without a ``graph``."""
        leaves, structure = flatten(state)
        parts, nest = call.sequence.piece(0, steps)
        begin = prepare_leaves(tuple(leaf.detach() for leaf in leaves), roots=graph)
        rows = detach_inputs(parts) if graph else tuple(leaf.detach() for leaf in parts)
        probed.generators.restore(drawn)
        with torch.set_grad_enabled(graph):
            loss = call.losses.get(product)
            given = structure.fill(begin), nest.fill(rows)
            made, _ = flatten(run(call.cell, loss, SHIFT, *given, product=product))
            ends = [leaf for leaf in made if leaf.requires_grad and is_differentiable(leaf)]
            wanted = [leaf for leaf in (*begin, *rows) if leaf.requires_grad]
            pairs: GivenPairs = [(leaf, torch.ones_like(leaf)) for leaf in ends]
            found = compute_gradients(pairs, [*wanted, *probed.parameters])
        gradients = tuple(torch.zeros(()) if one is None else one for one in found)
        return tuple(leaf.detach() for leaf in made), gradients

    advance, record = (CompiledFunction(mode=mode) for _ in range(2))
    try:
        with set_compiler():
            first, _ = run_aside(advance, graph=False)
            second, gradients = run_aside(record, graph=True)
    except (NotCompiled, torch.OutOfMemoryError):
        raise
    except _ERRORS as error:
        raise explain_error(error) from error
    third, expected = run_aside(run_steps, graph=True)
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
