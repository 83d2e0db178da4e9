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
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch

from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.compile_options import Compile, CompileFallback, CompileProgress
from ckptplan.torch.entry import count_frames
from ckptplan.torch.fit.limited import LimitedCall, run_within
from ckptplan.torch.fit.measure import Measurement, measure
from ckptplan.torch.pieces.compiled_steps import CompiledPiece, CompiledSteps, NotCompiled, PieceCell, Product
from ckptplan.torch.pieces.inputs import PieceInputs, PieceLoss
from ckptplan.torch.pieces.length import describe_pieces
from ckptplan.torch.run.call import Call
from ckptplan.torch.run.steps import Steps
from ckptplan.torch.run_call import Results, run_plan, try_call
from ckptplan.torch.state.nests import fill

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
_PIECES = re.compile(r"\bcompile=(\d+)")


@dataclass(kw_only=True)
class _Outcome:
    """A compiled piece, or None if steps run as they are written, and a warning to show once."""

    piece: CompiledPiece | None = None
    warning: str = ""


@dataclass(kw_only=True)
class _Shapes:
    """The number of calls of one code by their shapes, and whether pieces were compiled for any shapes."""

    calls: dict[Any, int] = field(default_factory=dict)
    is_compiled: bool = False


_lock = threading.RLock()
_outcomes: OrderedDict[Any, _Outcome] = OrderedDict()
_shapes_by_code: OrderedDict[Any, _Shapes] = OrderedDict()


def forget_pieces() -> None:
    """Forget all compiled pieces."""
    _outcomes.clear()
    _shapes_by_code.clear()


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
    named = _PIECES.search(plan.workload.cell or "") if isinstance(plan, Plan) else None
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


def run_compiled(
    call: Call, plan: Plan | Schedule | None, memory: int | str | None, *, length: int | None, **options: Any
) -> tuple[Results, Plan | Schedule]:
    """Run a call in compiled pieces if that is possible; return its results, and the plan that ran.

    Arguments:
        call: the call, whose inputs are time steps.
        plan: a plan, or None for a limit of memory.
        memory: the limit.
        length: the time steps of a piece if the plan counts pieces, else None.
        options: those of ``run_plan``.

    Raises InputError.
    """
    assert call.compile is not None  # noqa: S101 - it is asked for
    compile_ = call.compile if length is None else replace(call.compile, steps=length)
    call = replace(call, compile=None)
    piece = find_piece(call, compile_) if torch.is_grad_enabled() else None
    if plan is None:
        assert memory is not None  # noqa: S101 - there is one of the two
        return _run_within(call, memory, piece, options["observer"])
    if length is not None:
        call = _cut_pieces(call, length, piece)
    elif piece is not None:
        call = replace(call, steps_type=partial(CompiledSteps, piece=piece), run_steps=piece.length)
    return _name_piece(run_plan(call, plan, **options), piece), plan


def _name_piece(results: Results, piece: CompiledPiece | None) -> Results:
    if piece is None:
        return results
    if piece.failure is not None:
        _warn(piece.failure.text)
        return results
    return replace(results, piece=piece.length)


def _run_within(
    call: Call, memory: int | str, piece: CompiledPiece | None, observer: Any
) -> tuple[Results, Plan | Schedule]:
    """Run a call within a limit of memory, in compiled pieces or in steps as written, whichever is quicker."""
    if piece is None:
        return run_within(call, memory, observer=observer)
    pieces = LimitedCall.measure(_cut_pieces(call, piece.length, piece), memory)
    steps = LimitedCall.measure(call, memory)
    try:
        pieces.choose()
    except InputError:
        return run_within(call, memory, observer=observer)
    try:
        steps.choose()
    except InputError:
        is_quicker = True
    else:
        is_quicker = pieces.plan.predicted.seconds < steps.plan.predicted.seconds
    if not is_quicker:
        return run_within(call, memory, observer=observer)
    results = _name_piece(pieces.run(observer), piece)
    pieces.report(f"compiled pieces of {piece.length} time steps, ")
    return results, describe_pieces(pieces.plan, call.inputs.steps, piece.length)


def _cut_pieces(call: Call, length: int, piece: CompiledPiece | None, *, count: int | None = None) -> Call:
    """Return a call whose steps are pieces of ``length`` time steps, or only its first ``count`` pieces."""
    steps = call.inputs.steps if count is None else min(count * length, call.inputs.steps)
    leaves, nest = call.inputs.cut(0, steps)
    losses = {name: loss for name, loss in call.losses.items() if name == "final_loss"}
    for name in call.losses.keys() - losses.keys():
        losses["loss"] = PieceLoss(call.losses[name], length, name == "loss")
    return replace(
        call,
        cell=PieceCell(call.cell),
        inputs=PieceInputs(fill(nest, leaves), length),
        losses=losses,
        steps_type=Steps if piece is None else partial(CompiledSteps, piece=piece),
    )


def find_piece(call: Call, compile_: Compile) -> CompiledPiece | None:
    """Return the compiled piece of a call, compiled now if it is new; None to run steps as they are written.

    Warns of the reason once for each kind of calls. Raises InputError if the first steps are refused.
    """
    with _lock:
        outcome = _find(call, compile_)
        if outcome is None:
            return None
        warning, outcome.warning = outcome.warning, ""
        if warning:
            _warn(warning)
        return None if outcome.piece is None or outcome.piece.failure is not None else outcome.piece


def _warn(why: str, *, subject: str = "steps") -> None:
    warnings.warn(f"the {subject} run uncompiled: {why}", CompileFallback, stacklevel=count_frames())


def _find(call: Call, compile_: Compile) -> _Outcome | None:
    """Return the outcome for a call, and compile if it is new; None for the first calls of other shapes."""
    code, _, shapes = kind = call.describe_kind()
    lengths = _list_lengths(call, compile_)
    outcome = _outcomes.get(key := (kind, compile_.steps, compile_.mode, lengths))
    if outcome is not None:
        return outcome
    code_shapes = _shapes_by_code.setdefault((code, compile_.steps, compile_.mode), _Shapes())
    code_shapes.calls[shapes] = code_shapes.calls.get(shapes, 0) + 1
    if code_shapes.is_compiled and code_shapes.calls[shapes] <= _UNCOMPILED_CALLS and lengths:
        return None
    outcome = _Outcome()
    try:
        outcome.piece, code_shapes.is_compiled = _choose(call, compile_, lengths), True
    except NotCompiled as error:
        outcome.warning = error.text
    _outcomes[key] = outcome
    for table in (_outcomes, _shapes_by_code):
        while len(table) > _MAX_KINDS:
            table.popitem(last=False)
    return outcome


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
        from ckptplan.torch.pieces.compiler import CompiledFunction, set_compiler

    advance, record = (CompiledFunction(mode=compile_.mode) for _ in range(2))
    piece = CompiledPiece(
        length=length,
        product=product,
        advance=advance,
        record=record,
        settings=set_compiler,
        reuses_memory=record.reuses_memory,
    )
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
