"""Finds the compiled piece of a call: one that was made before, or a new one, the quickest of a few lengths.

The steps as they are written are measured first, which is the trial that they have to pass, and a piece as a
step of a plan.
"""

from __future__ import annotations

import logging
import sys
import threading
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch

from ckptplan.schedule.actions import Advance, Backward, Record
from ckptplan.torch.call import Call
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.compiling.build import PieceRequest, build_piece
from ckptplan.torch.compiling.options import Compile, CompileProgress
from ckptplan.torch.compiling.steps import SHIFT, CompiledPiece, NotCompiled, Product, run_with_outputs
from ckptplan.torch.measurement import (
    ActionSeconds,
    FirstRuns,
    Recordings,
    measure_call,
    run_twice,
)
from ckptplan.torch.meters import measure_allocated
from ckptplan.torch.probe import Probed, probe
from ckptplan.torch.recognise import Recent
from ckptplan.torch.surroundings.aside import leave_as_found
from ckptplan.torch.survey import Measurement

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


@dataclass(frozen=True, kw_only=True)
class MeasuredPiece:
    """A compiled piece, and what it takes as a step of a plan."""

    piece: CompiledPiece
    measurement: Measurement

    @property
    def seconds(self) -> float:
        """Seconds of a time step that runs without a tape, again with one, and is reversed."""
        one = self.measurement
        return (one.forward_seconds + one.record_seconds + one.backward_seconds) / self.piece.steps


@dataclass
class _Known:
    """What is known of a call: the piece, or why there is none."""

    found: MeasuredPiece | NotCompiled
    #: Weak references whose ids are a part of the key.
    references: tuple[Any, ...]
    said: bool = False


@dataclass
class _Code:
    """What is known of the calls of the same code, hooks and options."""

    #: Calls by their shapes and modes.
    calls: dict[Any, int] = field(default_factory=dict)
    built: bool = False


_lock = threading.RLock()
_known: Recent[Any, _Known] = Recent(_MOST)
_codes: Recent[Any, _Code] = Recent(_MOST)
#: Kinds of cells and losses whose changes could not be noticed, which was said.
_incomplete: Recent[Any, None] = Recent(_MOST)


def find_piece(call: Call, compile_: Compile | None) -> MeasuredPiece | None:
    """Return the compiled piece for a call, made now if there is none; None if it runs as it is written.

    The reason is said once for each kind of call. ``compile_`` is None for no pieces. Raises InputError if the
    steps are refused.
    """
    if compile_ is None or call.is_closed or not torch.is_grad_enabled():
        return None
    request = PieceRequest(call=call)
    if not request.is_complete:
        _refuse_incomplete(request)
        return None
    with _lock:
        known = _find(request, compile_)
        if known is None:
            return None
        found = known.found
        if isinstance(found, MeasuredPiece):
            return None if found.piece.broken is not None else found
        if not known.said:
            known.said = True
            found.warn()
        return None


def _refuse_incomplete(request: PieceRequest) -> None:
    """Say that changes of a cell could not be noticed, once for each kind of cell."""
    kind = tuple(getattr(one, "__code__", type(one)) for one in request.things.values())
    if kind in _incomplete:
        return
    _incomplete.keep(kind, None)
    NotCompiled(
        text="the cell or the loss reaches something whose changes could not be noticed (an iterator, a module "
        "of torch.jit, hooks of all modules, more than 4,000 objects)",
    ).warn()


def _key(request: PieceRequest, compile_: Compile) -> Any:
    return compile_.steps, compile_.mode, request.settings, request.entries, _list_lengths(request, compile_)


def _find(request: PieceRequest, compile_: Compile) -> _Known | None:
    """Return what is known of a call, found out now if nothing is; None if it wants no gradients."""
    key = _key(request, compile_)
    known = _known.find(key)
    if known is not None:
        return known
    same = compile_.steps, compile_.mode, request.entries
    code = _codes.find(same) or _codes.keep(same, _Code())
    calls = code.calls[request.settings] = code.calls.get(request.settings, 0) + 1
    if code.built and calls <= _PATIENCE and _list_lengths(request, compile_):
        why = NotCompiled(text="the shapes are new, and may be those of a single batch")
        return _Known(found=why, references=(), said=True)
    # Code has to pass the trial before it is compiled.
    probed = probe(request.call, anew=False)
    if not probed.wants_gradients:
        return None
    found = _build(request, probed, compile_)
    code.built |= isinstance(found, MeasuredPiece)
    return _known.keep(key, _Known(found=found, references=request.references))


def _build(request: PieceRequest, probed: Probed, compile_: Compile) -> MeasuredPiece | NotCompiled:
    """Compile the piece that was asked for, or the quickest of a few."""
    call, lengths = request.call, _list_lengths(request, compile_)
    if not lengths:
        return NotCompiled(
            text=f"a sequence of {call.plan.steps} steps is too short for pieces of "
            f"{compile_.steps or _LENGTHS[0]}",
        )
    if isinstance(call.cell, ChunkCell) and torch.is_autocast_enabled(call.device.type):
        return NotCompiled(
            text="under autocast, the kernels of a ChunkCell keep the precision of its parameters, which "
            "compiled steps would not",
        )
    # Of a cell with kernels for chunks, these.
    written = measure_call(call, probed, limit=_LIMIT)
    best: MeasuredPiece | None = None
    for steps in lengths:
        piece = _build_one(request, steps, compile_)
        if isinstance(piece, NotCompiled):
            return best or piece
        found = MeasuredPiece(piece=piece, measurement=_measure(piece, call, probed, written))
        if best is None or found.seconds < best.seconds:
            best = found
    assert best is not None  # noqa: S101 - there was a length
    usual = written.forward_seconds + written.record_seconds + written.backward_seconds
    if compile_.steps is None and best.seconds > _WORTH * usual:
        return NotCompiled(
            text=f"a step takes {best.seconds:.2g} s in compiled pieces of {best.piece.steps}, and {usual:.2g} "
            "s as it is written",
        )
    return best


def _measure(piece: CompiledPiece, call: Call, probed: Probed, written: Measurement) -> Measurement:
    """Return what a piece takes as a step of a plan."""
    count, seen, seconds = piece.steps, Recordings(), ActionSeconds(call.device)
    pieces, nest = call.sequence.piece(0, count)
    with torch.no_grad(), leave_as_found({"cell": call.cell, **call.losses}, device=call.device):
        inputs = nest.fill([leaf.detach() for leaf in pieces])
        # The state after some steps is of the form that was compiled.
        state = run_with_outputs(call.cell, None, SHIFT, call.state, inputs)[1]
    with FirstRuns(replace(call, state=state, compile=piece), probed, limit=0) as runs:
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
        forward_seconds=count * seconds.a_step(Advance),
        record_seconds=count * seconds.a_step(Record),
        backward_seconds=count * seconds.a_step(Backward),
        counted=count,
        steps=count,
    )


def _list_lengths(request: PieceRequest, compile_: Compile) -> tuple[int, ...]:
    """Return the lengths of pieces that come into question: a chosen one is to run at least twice."""
    if compile_.steps is not None:
        return (compile_.steps,) if compile_.steps <= request.call.plan.steps else ()
    return tuple(one for one in _LENGTHS if 2 * one <= request.call.plan.steps)


def _build_one(request: PieceRequest, steps: int, compile_: Compile) -> CompiledPiece | NotCompiled:
    """Compile a piece with its loss; if that cannot be compiled, without."""
    found = _compile(request, steps, compile_, request.product)
    if isinstance(found, CompiledPiece) or request.product == "outputs" or found.whatever_loss:
        return found
    without = _compile(request, steps, compile_, "outputs")
    if isinstance(without, CompiledPiece):
        found.warn(what="losses")
    return without


def _compile(
    request: PieceRequest, steps: int, compile_: Compile, product: Product
) -> CompiledPiece | NotCompiled:
    what = f"pieces of {steps} steps" + (
        "" if product == request.product else f", without the {request.product}"
    )
    report: CompileProgress = compile_.progress or report_on_terminal
    report(what, None)
    begun = perf_counter()
    found = build_piece(request, steps, product, mode=compile_.mode)
    seconds = perf_counter() - begun if isinstance(found, CompiledPiece) else 0.0
    report(what, seconds)
    if seconds:
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
