"""Finds the compiled piece of a call: one that was made before, or a new one, the quickest of a few lengths."""

from __future__ import annotations

import logging
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

import torch

from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.compiling.build import Built, PieceRequest, build_piece
from ckptplan.torch.compiling.options import Compile, CompileProgress
from ckptplan.torch.compiling.steps import CompiledPiece, NotCompiled
from ckptplan.torch.recognise import Recent

_log = logging.getLogger("ckptplan.torch")
#: The lengths of which the quickest is chosen, if none is given.
_LENGTHS = (4, 16)
#: A piece is used if it takes at most this share of the time of its steps as they are written.
_WORTH = 0.97
#: Calls whose pieces are kept, and kinds of code that are remembered.
_MOST = 64
#: Calls of another shape that run uncompiled before a piece is compiled for them, too: the last batch of an
#: epoch is smaller, and takes less than the compiler.
_PATIENCE = 2


@dataclass
class _Known:
    """What is known of a call: the piece, or why there is none."""

    found: Built | NotCompiled
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


def find_piece(request: PieceRequest, compile_: Compile) -> Built | NotCompiled:
    """Return the compiled piece for a call, made now if there is none, or why it runs uncompiled.

    A reason is said once for each kind of call.
    """
    if not request.is_complete:
        return _refuse_incomplete(request)
    with _lock:
        known = _find(request, compile_)
        found = known.found
        if isinstance(found, Built) and found.piece.broken is not None:
            return found.piece.broken
        if isinstance(found, NotCompiled) and not known.said:
            known.said = True
            found.warn()
        return found


def pick_piece(given: Compile | CompiledPiece, **call: Any) -> CompiledPiece | None:
    """Return the piece that is given, or that of a call, None if the steps run as they are written.

    ``call`` are the arguments of ``PieceRequest``.
    """
    if isinstance(given, CompiledPiece):
        return None if given.broken is not None else given
    found = find_piece(PieceRequest(**call), given)
    return found.piece if isinstance(found, Built) else None


def forget_pieces() -> None:
    """Forget all pieces, so that each call compiles anew."""
    with _lock:
        _known.clear()
        _codes.clear()
        _incomplete.clear()


def _refuse_incomplete(request: PieceRequest) -> NotCompiled:
    """Return that changes of a cell could not be noticed, and say so once for each kind of cell."""
    why = NotCompiled(
        text="the cell or the loss reaches something whose changes could not be noticed (an iterator, a module "
        "of torch.jit, hooks of all modules, more than 4,000 objects)",
    )
    kind = tuple(getattr(one, "__code__", type(one)) for one in request.things.values())
    with _lock:
        said = kind in _incomplete
        _incomplete.keep(kind, None)
    if not said:
        why.warn()
    return why


def _key(request: PieceRequest, compile_: Compile) -> Any:
    return compile_.steps, compile_.mode, request.settings, request.entries, _list_lengths(request, compile_)


def _find(request: PieceRequest, compile_: Compile) -> _Known:
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
    found = _build(request, compile_)
    code.built |= isinstance(found, Built)
    return _known.keep(key, _Known(found=found, references=request.references))


def _build(request: PieceRequest, compile_: Compile) -> Built | NotCompiled:
    """Compile the piece that was asked for, or the quickest of a few."""
    lengths = _list_lengths(request, compile_)
    if not lengths:
        return NotCompiled(
            text=f"a sequence of {request.steps} steps is too short for pieces of "
            f"{compile_.steps or _LENGTHS[0]}",
        )
    if isinstance(request.cell, ChunkCell) and torch.is_autocast_enabled(request.device.type):
        return NotCompiled(
            text="under autocast, the kernels of a ChunkCell keep the precision of its parameters, which "
            "compiled steps would not",
        )
    if compile_.steps is not None:
        return _build_one(request, compile_.steps, compile_)
    best: Built | None = None
    for steps in lengths:
        found = _build_one(request, steps, compile_)
        if isinstance(found, NotCompiled):
            return best or found
        if best is None or found.seconds.together / steps < best.seconds.together / best.piece.steps:
            best = found
    assert best is not None  # noqa: S101 - there was a length
    if best.seconds.together > _WORTH * best.eager.together:
        return NotCompiled(
            text=f"compiled pieces of {best.piece.steps} steps take {best.seconds.together:.2g} s, and "
            f"{best.eager.together:.2g} s as they are written",
        )
    return best


def _list_lengths(request: PieceRequest, compile_: Compile) -> tuple[int, ...]:
    """Return the lengths of pieces that come into question: a chosen one is to run at least twice."""
    if compile_.steps is not None:
        return (compile_.steps,) if compile_.steps <= request.steps else ()
    return tuple(one for one in _LENGTHS if 2 * one <= request.steps)


def _build_one(request: PieceRequest, steps: int, compile_: Compile) -> Built | NotCompiled:
    """Compile a piece with its loss; if that cannot be compiled, without."""
    found = _compile(request, steps, compile_, request.product)
    if isinstance(found, Built) or request.product == "outputs":
        return found
    if found.whatever_loss:
        return found
    without = _compile(request, steps, compile_, "outputs")
    if isinstance(without, NotCompiled):
        return without
    found.warn(what="losses")
    return without


def _compile(request: PieceRequest, steps: int, compile_: Compile, product: Any) -> Built | NotCompiled:
    what = f"pieces of {steps} steps" + (
        "" if product == request.product else f", without the {request.product}"
    )
    report: CompileProgress = compile_.progress or report_on_terminal
    report(what, None)
    found = build_piece(request, steps, product, mode=compile_.mode)
    seconds = found.compile_seconds if isinstance(found, Built) else 0.0
    report(what, seconds)
    if isinstance(found, Built):
        _log.info(
            "compiled %s in %.1f s: %.0f us a step without a tape, %.0f us with its reversal; uncompiled %.0f "
            "and %.0f us",
            what,
            seconds,
            *(1e6 / steps * one for one in _list_times(found)),
        )
    return found


def _list_times(found: Built) -> list[float]:
    return [time for one in (found.seconds, found.eager) for time in (one.forward, one.record + one.backward)]


def report_on_terminal(what: str, seconds: float | None) -> None:
    """Say on a terminal that something is being compiled, and how long it took."""
    if not sys.stderr.isatty():
        return
    if seconds is None:
        sys.stderr.write(f"ckptplan: compiling {what} ...")
    else:
        sys.stderr.write(f" {seconds:.1f} s\n")
    sys.stderr.flush()
