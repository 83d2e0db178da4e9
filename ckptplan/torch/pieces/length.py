"""Chooses how many time steps a piece has, and runs the pieces of a sequence."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from ckptplan.errors import Infeasible, InputError
from ckptplan.model.plan import Plan
from ckptplan.schedule.actions import Backward, Record
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.checking.trial import TIGHT_TRIAL_STEPS
from ckptplan.torch.fit.choose import ALONE, OtherSequences, Space, choose_plan, read_limit
from ckptplan.torch.fit.limited import LimitedCall
from ckptplan.torch.fit.measure import Measurement
from ckptplan.torch.run.call import Call
from ckptplan.torch.run_call import Results, run_plain_loop, run_plan
from ckptplan.units import format_count, format_things

#: Lengths that are tried. Longer pieces are hardly quicker, and take more memory at a time.
_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
#: The most time steps of a piece that is measured, and the least ratio of the sequence to this piece.
_LONGEST_MEASURED, _SHARE = 32, 16
#: The share of the limit that a plan with estimated sizes may take.
_ESTIMATED_SHARE = 0.95
#: The most kinds of calls whose length is remembered.
_MAX_KINDS = 256
_chosen: OrderedDict[Any, int] = OrderedDict()
MakeCall = Callable[[int], Call]


@dataclass(frozen=True, kw_only=True)
class PieceRun:
    """A plan whose steps are pieces of ``piece`` time steps each; the last piece may be shorter."""

    plan: Plan | Schedule
    piece: int


def forget_lengths() -> None:
    """Forget the lengths of pieces, so that they are measured again."""
    _chosen.clear()


def fit_length(plan: Plan | Schedule, steps: int, piece: int | None) -> int:
    """Return the length of the pieces of a plan. Raises InputError if the plan has another number of pieces."""
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
    return length


def run_pieces(
    make_call: MakeCall,
    steps: int,
    *,
    piece: int | None = None,
    others: OtherSequences = ALONE,
) -> tuple[PieceRun, Results]:
    """Run a sequence in pieces; return the plan with the length of its pieces, and the results.

    Arguments:
        make_call: returns the call with pieces of a length. Steps of its plan, if it has one, are pieces.
        steps: the time steps of the sequence.
        piece: the time steps of a piece; None for the quickest length.
        others: the memory that other sequences take.

    Raises InputError.
    """
    at_once = make_call(steps)
    if (plan := at_once.plan) is not None:
        length = fit_length(plan, steps, piece)
        return PieceRun(plan=plan, piece=length), run_plan(make_call(length), plan, observer=at_once.observer)
    if not torch.is_grad_enabled():
        schedule = Schedule(steps=1, actions=(Record(0, 1), Backward(0, 1)))
        return PieceRun(plan=schedule, piece=steps), run_plain_loop(at_once)
    lengths = _list_lengths(steps) if piece is None else [min(piece, steps)]
    while True:
        length, limited = choose_length(make_call, lengths, steps, others)
        shorter = [other for other in lengths if other < length]
        try:
            results = limited.run(at_once.observer)
        except InputError as error:
            if error.field != "memory" or not shorter:
                raise
            # Later pieces take more than the limit allows.
            lengths = shorter
        else:
            break
    limited.report(f"pieces of {format_things(length, 'time step')}, ")
    return PieceRun(plan=describe_pieces(limited.plan, steps, length), piece=length), results


def describe_pieces(plan: Plan, steps: int, length: int) -> Plan:
    """Return a plan whose steps are pieces, with a description of the time steps, which ``print`` shows."""
    pieces = f"T = {format_count(steps)} in {format_things(plan.steps, 'piece')} of {format_count(length)}"
    workload = plan.workload.model_copy(update={"description": pieces})
    return plan.model_copy(update={"workload": workload})


def choose_length(
    make_call: MakeCall, lengths: list[int], steps: int, others: OtherSequences
) -> tuple[int, LimitedCall]:
    """Return the quickest length of pieces within a limit, and the call with these pieces and its plan.

    Two lengths are measured, and others estimated, until the best length is a measured one. Raises InputError
    if no plan fits.
    """
    first = make_call(lengths[0])
    memory: Any = first.memory
    key = first.describe_kind(), steps, read_limit(memory, first.device), tuple(lengths), others
    measured: dict[int, LimitedCall] = {}

    def measure(length: int) -> LimitedCall:
        if length not in measured:
            measured[length] = LimitedCall.measure(make_call(length), memory, others=others)
        return measured[length]

    length = _chosen.get(key)
    if length is not None:
        with suppress(InputError):
            # This length may not fit: sequences of one shape differ, as the two directions of a layer do.
            measure(length).choose(surveys=False)
            return length, measured[length]
    length = lengths[0] if len(lengths) == 1 else _search(lengths, steps, measure, is_known=first.is_closed)
    try:
        measure(length).choose(surveys=length == lengths[0])
    except InputError:
        if length == lengths[0]:
            raise
        # The shortest pieces need least.
        length = lengths[0]
        measure(length).choose()
    limited = measure(length)
    _chosen.pop(key, None)
    _chosen[key] = length
    while len(_chosen) > _MAX_KINDS:
        _chosen.popitem(last=False)
    return length, limited


def _search(lengths: list[int], steps: int, measure: Callable[[int], LimitedCall], *, is_known: bool) -> int:
    """Return the length of the quickest plan; the shortest length, which needs least, if no plan fits.

    ``is_known`` says that pieces need no trial, in which two of them keep their tapes.
    """
    long = max(2, min(_LONGEST_MEASURED, lengths[-1], max(4, steps // _SHARE)))
    short = max(1, long // 4) if is_known else lengths[0]
    few = measure(short)
    if not is_known:
        # Longer pieces are tried only within the limit.
        lengths = [length for length in lengths if _has_room(few, length / short)] or [short]
        long = min(long, lengths[-1])
        if long == short:
            return short
    many = measure(long)

    def plan(length: int, sizes: Measurement, space: Space) -> None:
        with suppress(Infeasible):
            plans[length] = choose_plan(sizes, -(-steps // length), space)

    plans: dict[int, Plan] = {}
    # What is estimated has to fit while it is measured.
    estimated = replace(few.space, limit=math.ceil(_ESTIMATED_SHARE * few.space.limit))
    for length in lengths:
        plan(length, _estimate(few.sizes, many.sizes, short, long, length), estimated)
    exact: set[int] = set()
    while plans:
        best = min(plans, key=lambda length: plans[length].predicted.seconds)
        if best in exact:
            return best
        # Kernels allocate in blocks, so that another length may be better.
        exact.add(best)
        del plans[best]
        plan(best, measure(best).sizes, measure(best).space)
    return lengths[0]


def _has_room(shortest: LimitedCall, ratio: float) -> bool:
    """Return whether pieces that are longer by a ratio can be tried: at least two tapes are held then."""
    sizes = shortest.sizes
    fixed = min(sizes.workspace_bytes, sizes.parameter_bytes + sizes.largest_bytes)
    longer = TIGHT_TRIAL_STEPS * sizes.tape_bytes + sizes.workspace_bytes - fixed
    return fixed + ratio * longer <= shortest.space.limit


def _estimate(few: Measurement, many: Measurement, short: int, long: int, length: int) -> Measurement:
    """Estimate pieces of a length: a piece takes a fixed part, and an equal part for each time step."""
    changes: dict[str, Any] = {}
    for name in vars(many):
        low, high = float(getattr(few, name)), float(getattr(many, name))
        if name in ("state_bytes", "steps", "parameter_bytes", "largest_bytes"):
            continue
        slope = max((high - low) / (long - short), 0.0)
        # A piece takes at least half of its proportional share, whatever the line says.
        value = max(high + slope * (length - long), high * length / long / 2)
        changes[name] = math.ceil(value) if name.endswith("_bytes") else value
    return replace(many, **changes)


def _list_lengths(steps: int) -> list[int]:
    """Return lengths from 1, each about a fifth longer, which cut a sequence evenly."""
    counts = {-(-steps // min(steps, length)) for length in _LENGTHS}
    return sorted({-(-steps // count) for count in counts})
