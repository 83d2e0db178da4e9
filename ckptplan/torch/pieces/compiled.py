"""Chooses, compiles and keeps the pieces of calls with ``compile=``, and runs these calls.

A piece is tried like any cell. The first pieces run as they are written in a plain loop, and compiled under a
small schedule. If the results differ, or if pieces cannot be compiled, steps run as they are written, and a
warning says why.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.compile_options import CUDA_GRAPHS, Compile, CompileFallback, CompileProgress
from ckptplan.torch.entry import count_frames
from ckptplan.torch.fit.limited import LimitedCall, run_within
from ckptplan.torch.fit.measure import Measurement, measure
from ckptplan.torch.pieces.compiled_steps import CompiledSteps, NotCompiled, PieceCell, Product
from ckptplan.torch.pieces.inputs import cut_call
from ckptplan.torch.pieces.length import describe_pieces
from ckptplan.torch.run.call import Call
from ckptplan.torch.run.steps import Steps
from ckptplan.torch.run_call import Results, run_plan, try_call

if TYPE_CHECKING:
    from ckptplan.torch.pieces.compiler import CompiledPiece

_logger = logging.getLogger("ckptplan.torch")
#: If no length is given, pieces of these lengths are compiled and timed.
_LENGTHS = (4, 16)
#: How many pieces a trial runs.
_TRIAL_PIECES = 4
#: Pieces are used if they take at most this share of the time of their steps as they are written.
_MAX_TIME_SHARE = 0.97
#: How many calls of another shape run as they are written before pieces are compiled for this shape. The last
#: batch of an epoch is smaller, and takes less time than the compiler.
_UNCOMPILED_CALLS = 2
#: The most kinds of calls whose pieces are kept.
_MAX_KINDS = 64
#: Finds the length of pieces in the cell of a workload that was measured in compiled pieces.
_NAMED_LENGTH = re.compile(r"\bcompile=(\d+)")


_lock = threading.RLock()
#: The piece of each kind of calls, None if its steps run as they are written.
_pieces: OrderedDict[Any, CompiledPiece | None] = OrderedDict()
#: For code that was compiled: by other shapes, the number of calls that ran as they are written.
_uncompiled: OrderedDict[Any, Counter[Any]] = OrderedDict()


def forget_pieces() -> None:
    """Forget all compiled pieces."""
    _pieces.clear()
    _uncompiled.clear()


def count_pieces(plan: object, compile_: Compile | None, steps: int | None) -> int | None:
    """Return the time steps of a piece if a plan counts pieces, as ``calibrate --compile`` does; else None.

    Arguments:
        plan: the plan.
        compile_: how pieces are compiled.
        steps: the time steps of the inputs, None if a function makes these.

    Raises InputError if the plan counts pieces of another length than are compiled.
    """
    if not isinstance(plan, Plan | Schedule) or steps == plan.steps:
        return None
    named = _NAMED_LENGTH.search(plan.workload.cell or "") if isinstance(plan, Plan) else None
    if named is None:
        length = compile_.steps if compile_ is not None else None
        return length if length and steps and -(-steps // length) == plan.steps else None
    length = int(named[1])
    if steps is not None and -(-steps // length) != plan.steps:
        return None
    if compile_ is None or compile_.steps not in (None, length):
        assert isinstance(plan, Plan)  # noqa: S101 - it names a cell
        raise InputError(
            f"counts compiled pieces of {length} steps, as {plan.workload.cell} was calibrated",
            field="plan",
            accepted=f"compile={length} with it, or a plan of single steps",
        )
    return length


def run_compiled(call: Call) -> tuple[Results, Plan | Schedule]:
    """Run a call in compiled pieces if that is possible; return its results, and the plan that ran.

    Raises InputError.
    """
    assert call.compile is not None  # noqa: S101 - it is asked for
    plan = call.plan
    length = count_pieces(plan, call.compile, call.inputs.steps)
    compile_ = call.compile if length is None else replace(call.compile, steps=length)
    call = replace(call, compile=None)
    piece = find_piece(call, compile_) if torch.is_grad_enabled() else None
    if plan is None:
        return _run_within(call, piece)
    if length is not None:
        call = _cut_pieces(call, length, piece)
    elif piece is not None:
        call = replace(call, steps_type=partial(CompiledSteps, piece=piece), run_steps=piece.length)
    results = run_plan(call, plan, schedule=call.schedule, observer=call.observer)
    return _name_piece(results, piece), plan


def _name_piece(results: Results, piece: CompiledPiece | None) -> Results:
    if piece is None:
        return results
    if piece.failure is not None:
        _warn(piece.failure.text)
        return results
    return replace(results, piece=piece.length)


def _run_within(call: Call, piece: CompiledPiece | None) -> tuple[Results, Plan | Schedule]:
    """Run a call within its limit, in compiled pieces or in steps as written, whichever is quicker."""
    memory: Any = call.memory
    if piece is None:
        return run_within(call, memory, observer=call.observer)
    pieces = LimitedCall.measure(_cut_pieces(call, piece.length, piece), memory)
    steps = LimitedCall.measure(call, memory)
    fitting = []
    for limited in (steps, pieces):
        with suppress(InputError):
            limited.choose()
            fitting.append(limited)
    if min(fitting, key=lambda limited: limited.plan.predicted.seconds, default=steps) is steps:
        return run_within(call, memory, observer=call.observer)
    results = _name_piece(pieces.run(call.observer), piece)
    pieces.report(f"compiled pieces of {piece.length} time steps, ")
    return results, describe_pieces(pieces.plan, call.inputs.steps, piece.length)


def _cut_pieces(call: Call, length: int, piece: CompiledPiece | None, *, count: int | None = None) -> Call:
    """Return a call whose steps are pieces of ``length`` time steps, or only its first ``count`` pieces."""
    steps_type = Steps if piece is None else partial(CompiledSteps, piece=piece)
    return replace(cut_call(call, length, count=count), cell=PieceCell(call.cell), steps_type=steps_type)


def find_piece(call: Call, compile_: Compile) -> CompiledPiece | None:
    """Return the compiled piece of a call, compiled now if it is new; None to run steps as they are written.

    Warns of the reason once for each kind of calls. Raises InputError if the first steps are refused.
    """
    code, _, shapes = kind = call.describe_kind()
    lengths = _list_lengths(call, compile_)
    key, code_key = (kind, compile_.steps, compile_.mode, lengths), (code, compile_.steps, compile_.mode)
    with _lock:
        if key not in _pieces:
            counts = _uncompiled.get(code_key)
            if counts is not None and lengths:
                counts[shapes] += 1
                if counts[shapes] <= _UNCOMPILED_CALLS:
                    return None
            reason = ""
            try:
                _pieces[key] = _choose(call, compile_, lengths)
                _uncompiled.setdefault(code_key, Counter())
            except NotCompiled as error:
                _pieces[key], reason = None, error.text
            for table in (_pieces, _uncompiled):
                while len(table) > _MAX_KINDS:
                    table.popitem(last=False)
            if reason:
                _warn(reason)
        piece = _pieces[key]
        return None if piece is None or piece.failure is not None else piece


def _warn(why: str, *, subject: str = "steps") -> None:
    warnings.warn(f"the {subject} run uncompiled: {why}", CompileFallback, stacklevel=count_frames())


def _list_lengths(call: Call, compile_: Compile) -> tuple[int, ...]:
    """Return the lengths of pieces to try. Unless ``compile_`` gives one, a piece must fit at least twice."""
    if compile_.steps is not None:
        return (compile_.steps,) if compile_.steps <= call.inputs.steps else ()
    return tuple(length for length in _LENGTHS if 2 * length <= call.inputs.steps)


def _choose(call: Call, compile_: Compile, lengths: tuple[int, ...]) -> CompiledPiece:
    """Compile the piece of the requested length, or the quickest of a few. Raises NotCompiled."""
    if not lengths:
        shortest = compile_.steps or _LENGTHS[0]
        raise NotCompiled(f"a sequence of {call.inputs.steps} steps is too short for pieces of {shortest}")
    if isinstance(call.cell, ChunkCell) and torch.is_autocast_enabled(call.device.type):
        raise NotCompiled(
            "under autocast, the kernels of a ChunkCell keep the precision of its parameters, which compiled "
            "steps would not"
        )
    if compile_.mode == CUDA_GRAPHS and call.device.type != "cuda":
        raise NotCompiled(f"CUDA graphs need an NVIDIA GPU, and tensors are on {call.device.type}")
    if compile_.steps is not None:
        return _compile(call, compile_.steps, compile_)
    pieces: dict[int, CompiledPiece] = {}
    seconds: dict[int, float] = {}
    for length in lengths:
        try:
            pieces[length] = _compile(call, length, compile_)
        except NotCompiled:
            if not pieces:
                raise
            break
        seconds[length] = _measure_step(_cut_pieces(call, length, pieces[length], count=_TRIAL_PIECES)) / length
    best, as_written = min(pieces, key=lambda length: seconds[length]), _measure_step(call)
    if seconds[best] > _MAX_TIME_SHARE * as_written:
        raise NotCompiled(
            f"a step takes {seconds[best]:.2g} s in compiled pieces of {best}, and {as_written:.2g} s as it is "
            "written"
        )
    return pieces[best]


def _measure_step(call: Call) -> float:
    """Return the seconds of a step without a tape, with a tape, and of its backward pass, as a sum."""
    tried = try_call(call)
    sizes: Measurement = measure(call, tried.scope)
    return sizes.forward_seconds + sizes.record_seconds + sizes.backward_seconds


def _compile(call: Call, length: int, compile_: Compile) -> CompiledPiece:
    """Compile a piece with its loss, or without the loss if that fails. Raises NotCompiled."""
    products: tuple[Product, ...] = ("loss", "chunk_loss", "outputs")
    product = next(name for name in products if name in (*call.losses, "outputs"))
    try:
        return _compile_product(call, length, compile_, product)
    except NotCompiled as error:
        if product == "outputs" or error.whatever_loss:
            raise
        piece = _compile_product(call, length, compile_, "outputs")
        _warn(error.text, subject="losses")
        return piece


def _compile_product(call: Call, length: int, compile_: Compile, product: Product) -> CompiledPiece:
    with warnings.catch_warnings():
        # PyTorch's compiler uses deprecated functions of PyTorch.
        warnings.simplefilter("ignore", DeprecationWarning)
        from ckptplan.torch.pieces.compiler import CompiledPiece

    piece = CompiledPiece(length=length, product=product, mode=compile_.mode)
    suffix = ", without the loss" if call.losses and product == "outputs" else ""
    tried = replace(_cut_pieces(call, length, piece, count=_TRIAL_PIECES), verify=True, is_closed=False)
    with _reporting(f"pieces of {length} steps{suffix}", compile_.progress or _report_on_terminal):
        try:
            try_call(tried)
        except InputError:
            # If steps are refused as they are written, too, they raise the same error there.
            raise NotCompiled("compiled steps differ from those as written", whatever_loss=True) from None
    if piece.failure is not None:
        raise piece.failure
    return piece


@contextmanager
def _reporting(label: str, report: CompileProgress) -> Iterator[None]:
    report(label, None)
    began, seconds = perf_counter(), 0.0
    try:
        yield
        seconds = perf_counter() - began
    finally:
        report(label, seconds)
    _logger.info("compiled %s in %.1f s", label, seconds)


def _report_on_terminal(label: str, seconds: float | None) -> None:
    """Write on a terminal what is being compiled, and how long it took."""
    if not sys.stderr.isatty():
        return
    if seconds is None:
        sys.stderr.write(f"ckptplan: compiling {label} ...")
    else:
        sys.stderr.write(f" {seconds:.1f} s\n")
    sys.stderr.flush()
