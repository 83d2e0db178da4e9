"""Chooses how a sequence is cut into pieces, and the plan whose steps these pieces are.

Pieces of a few lengths are measured as the steps of any call are, on zeros.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from ckptplan.errors import InputError
from ckptplan.execution.advice import describe_choice
from ckptplan.model.plan import Plan
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.ambient import Autocast
from ckptplan.torch.budget import Space, name_pieces, plan_within, tell_offload
from ckptplan.torch.call import Call
from ckptplan.torch.measurement import measure_call
from ckptplan.torch.probe import probe
from ckptplan.torch.recognise import Recent
from ckptplan.torch.rehearsal import make_single_record
from ckptplan.torch.survey import Measurement
from ckptplan.torch.wrapping.pieces import FusedCell, Hidden, SequenceRows
from ckptplan.units import format_things

_log = logging.getLogger("ckptplan.torch")
#: Lengths that are tried. Longer pieces are hardly quicker, and take more memory at a time.
_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
#: Pieces of a length that are measured, and how often they are timed: the least counts.
_PIECES, _ROUNDS = 2, 3
#: The longer of the two pieces from which others are estimated: at most so many time steps, and this share of
#: the sequence. The other one is a quarter of it.
_LONGEST_MEASURED, _SHARE = 32, 16
#: What a piece takes at least besides its steps: checkpoints, comparisons, gradients.
_RUNTIME_SECONDS = 2e-4
#: What each of several runs keeps until it is reversed, and what only the one has that works.
_KEPT_BY_EACH = ("state_bytes", "tape_bytes")
_KEPT_ONCE = ("workspace_bytes", "first_bytes", "parameter_bytes")
#: Lengths whose measurements are kept, and calls whose plans are.
_MOST_MEASURED, _MOST = 256, 64
_measured: Recent[Any, Measurement] = Recent(_MOST_MEASURED)
_chosen: Recent[Any, tuple[Plan, int]] = Recent(_MOST)


@dataclass(frozen=True, kw_only=True)
class PiecePlan:
    """A plan whose steps are pieces of so many time steps each; the last one may be shorter."""

    plan: Plan | Schedule
    piece: int


@dataclass(frozen=True, kw_only=True)
class PieceRun:
    """A sequence that is to run in pieces; of its ``rows``, the shape and the type count."""

    cell: FusedCell
    rows: SequenceRows
    state: Hidden

    @cached_property
    def kind(self) -> Any:
        """What bytes and seconds of pieces depend on."""
        cell, data, weights = self.cell, self.rows.data, self.cell.flat_weights
        return (
            (cell.kernel, cell.bias, cell.dropout, cell.training, cell.backwards, len(cell.weights)),
            tuple((weight.shape, weight.dtype, weight.requires_grad) for weight in weights),
            (self.rows.batch, data.shape[-1], data.dtype, data.device, data.requires_grad),
            self.rows.batch_sizes is not None,
            tuple((part.shape, part.dtype) for part in self.state),
            (Autocast.present(data.device), torch.get_num_threads()),
        )

    def measure(self, length: int, limit: int) -> Measurement:
        """Return what pieces of a length take, as steps of a plan; it is kept for calls of the same kind."""
        count = min(_PIECES, -(-self.rows.steps // length))
        key = (self.kind, length, count)
        known = _measured.find(key)
        if known is not None:
            return known
        cell = self.cell.detach()
        call = Call(
            cell=cell,
            inputs=self.rows.make_like(count, length),
            state=self.state,
            plan=make_single_record(count),
            parameters=cell.parameters,
        )
        with torch.enable_grad():
            found = measure_call(call, probe(call), limit=limit, rounds=_ROUNDS)
        return _measured.keep(key, found)

    def estimate(self, length: int, limit: int) -> Measurement:
        """Return what pieces of a length take, from those of two lengths, which are measured.

        A piece takes something by itself, and the same for each step: that, other programs can only lengthen.
        """
        steps = self.rows.steps
        long = max(1, min(_LONGEST_MEASURED, steps, max(4, steps // _SHARE)))
        short = max(1, long // 4)
        few, many = self.measure(short, limit), self.measure(long, limit)

        def find_size(name: str) -> int:
            low, high = int(getattr(few, name)), int(getattr(many, name))
            slope = max((high - low) / max(1, long - short), 0.0)
            # Bytes come in blocks: no part of a piece is free, whatever the line says.
            return round(max(high + slope * (length - long), high * length / long / 2))

        def find_time(name: str) -> float:
            low, high = float(getattr(few, name)), float(getattr(many, name))
            rates = [low / short, high / long, *([(high - low) / (long - short)] if long > short else [])]
            each = max(min(rates), high / long / 2)
            return max(low - each * short, _RUNTIME_SECONDS) + each * length

        sizes = {name: find_size(name) for name in (*_KEPT_BY_EACH, *_KEPT_ONCE, "output_bytes")}
        times = {name: find_time(name) for name in ("forward_seconds", "record_seconds", "backward_seconds")}
        # What a piece takes by itself includes its checkpoint. Other calls of the kind try no pieces.
        others = ("chunk_seconds", "save_seconds", "load_seconds", "taken_bytes")
        estimated: dict[str, Any] = {**sizes, **times, **dict.fromkeys(others, 0)}
        return replace(many, **estimated)


@dataclass(frozen=True, kw_only=True)
class Room:
    """The memory of runs that begin one after another, and are reversed in the end.

    All follow one plan, whose states and tapes are those of all: each run keeps its own until it is reversed.
    One works at a time.

    Arguments:
        runs: the runs.
        space: the memory of all.
    """

    runs: Sequence[PieceRun]
    space: Space

    def choose(self, piece: int | None) -> PiecePlan:
        """Return the quickest plan, with pieces of a length, or of the best one; it is kept for equal calls.

        Raises InputError if nothing fits.
        """
        steps = self.runs[0].rows.steps
        key = (tuple(run.kind for run in self.runs), steps, self.space, piece)
        chosen = _chosen.find(key)
        if chosen is None:
            lengths = [min(piece, steps)] if piece is not None else _list_lengths(steps)
            chosen = _chosen.keep(key, self._search(lengths))
            self.space.warn_of_turn(chosen[0], key[0])
            if not self.space.links:
                found = self._measure(chosen[1], exact=True)
                tell_offload(chosen[0], found, key[0], steps=chosen[0].steps, space=self.space)
        plan, length = chosen
        told = format_things(length, "time step")
        _log.info("pieces of %s, %s", told, describe_choice(plan, self.space.limit))
        return PiecePlan(plan=name_pieces(plan, length), piece=length)

    def plan(self, length: int, *, exact: bool = False) -> Plan:
        """Return the quickest plan with pieces of a length. Raises InputError if none fits.

        Bytes are estimated unless the plan is to be ``exact``.
        """
        steps = -(-self.runs[0].rows.steps // length)
        return plan_within(self._measure(length, exact=exact), steps=steps, space=self.space)

    def _measure(self, length: int, *, exact: bool) -> Measurement:
        """Return what pieces of a length take of all runs together."""
        all_ = [self._find(run, length, exact=exact) for run in self.runs]
        most = {name: max(getattr(one, name) for one in all_) for name in (*_KEPT_BY_EACH, *_KEPT_ONCE)}
        together: dict[str, Any] = {**most, **{name: len(all_) * most[name] for name in _KEPT_BY_EACH}}
        return replace(all_[0], **together)

    def _find(self, run: PieceRun, length: int, *, exact: bool) -> Measurement:
        found = run.estimate(length, self.space.limit)
        if not exact:
            return found
        sizes = run.measure(length, self.space.limit)
        return replace(found, **{name: getattr(sizes, name) for name in (*_KEPT_BY_EACH, *_KEPT_ONCE)})

    def _search(self, lengths: Sequence[int]) -> tuple[Plan, int]:
        """Return the best plan, and the length of its pieces. Raises InputError if none fits."""
        found: dict[int, Plan] = {}
        for length in lengths:
            with suppress(InputError):
                found[length] = self.plan(length)
        exact: set[int] = set()
        while found:
            best = self.space.choose([*found.values()])
            length = next(one for one, plan in found.items() if plan is best)
            if length in exact:
                return best, length
            exact.add(length)
            del found[length]
            with suppress(InputError):
                # Kernels allocate in blocks, so that another length may be better.
                found[length] = self.plan(length, exact=True)
        # The shortest pieces need least.
        return self.plan(lengths[0], exact=True), lengths[0]


def _list_lengths(steps: int) -> list[int]:
    """Return lengths from 1, each about a fifth longer, which cut a sequence evenly."""
    counts = {-(-steps // min(steps, length)) for length in _LENGTHS}
    return sorted({-(-steps // count) for count in counts})


def fit_pieces(plan: Plan | Schedule, steps: int, *, piece: int | None) -> PiecePlan:
    """Return a given plan with the length of its pieces. Raises InputError if it has another number of them."""
    length = -(-steps // plan.steps) if piece is None else min(piece, steps)
    count = -(-steps // length)
    if count != plan.steps:
        each = format_things(length if piece is not None else steps, "time step")
        cut = f"pieces of {each} are {count:,}" if piece is not None else each
        raise InputError(
            f"has {format_things(plan.steps, 'step')}, and {cut}: each step of it is a piece of the sequence",
            field="plan",
            value=plan.steps,
            accepted=f"a plan of {format_things(count, 'step')}, another piece, or memory='2 GiB' in its place",
        )
    return PiecePlan(plan=plan, piece=length)
