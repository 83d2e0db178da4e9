"""Makes a plan for a limit of memory whose steps are compiled pieces."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ckptplan.errors import InputError
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import schedule_of
from ckptplan.schedule.actions import Action, Advance, Backward, Free, Load, Record, Save, Transfer
from ckptplan.schedule.schedule import Schedule
from ckptplan.torch.budget import (
    count_kept,
    count_steps,
    describe_choice,
    find_shape,
    measure,
    plan_within,
    read_limit,
)
from ckptplan.torch.compiled.piece import CompiledPiece
from ckptplan.torch.compiled.steps import SHIFT, run_with_outputs
from ckptplan.torch.compiling.build import Built
from ckptplan.torch.compiling.options import Compile
from ckptplan.torch.compiling.prepare import find_piece, is_known
from ckptplan.torch.compiling.request import PieceRequest
from ckptplan.torch.inputs import make_sequence
from ckptplan.torch.measurement import (
    ActionSeconds,
    FirstRuns,
    Measurement,
    Recordings,
    find_device,
    measure_call,
    run_twice,
)
from ckptplan.torch.meters import measure_allocated
from ckptplan.torch.parameters import list_parameters
from ckptplan.torch.sequence_watch import leave_as_found
from ckptplan.torch.trees import flatten

_log = logging.getLogger("ckptplan.torch")
#: Measurements that are kept: they live as long as the pieces.
_MOST = 64
#: How a workload of ``calibrate --compile K`` names its cell.
_PIECES = re.compile(r"\bcompile=(\d+)\)$")
_measured: OrderedDict[int, tuple[Built, Measurement]] = OrderedDict()


@dataclass(frozen=True, kw_only=True)
class PlanChoice:
    """A plan, what executes it, and how pieces are compiled."""

    plan: Plan | Schedule
    #: The plan itself, or its actions for time steps if its steps are pieces.
    executed: Plan | Schedule
    compile: Compile | CompiledPiece | None


def choose_plan(
    cell: Any,
    inputs: Any,
    state: Any,
    *,
    memory: int | str,
    losses: Mapping[str, Any],
    compile_: Compile,
    steps: int | None = None,
    **options: Any,
) -> PlanChoice:
    """Return the quickest plan for a call within a limit of memory, in compiled pieces or without.

    Arguments:
        cell: as for ``bptt``.
        inputs: as for ``bptt``.
        state: the initial state.
        memory: bytes, text as "2 GiB", or "auto".
        losses: by the names of their arguments; none for ``unroll``, whose outputs are kept.
        compile_: how pieces are compiled.
        steps: T, if inputs are made by a function.
        options: other arguments of ``bptt``.

    Raises InputError, also if no plan fits.
    """
    count = count_steps(inputs, steps)
    sequence = make_sequence(inputs, steps=count)
    device = find_device((*flatten(state)[0], *sequence.leaves))
    limit = read_limit(memory, device)
    request = PieceRequest(
        cell=cell,
        losses=losses,
        state=state,
        inputs=sequence,
        steps=count,
        parameters=list_parameters(options.get("parameters", ())),
        device=device,
    )
    # Code that nothing is known of has to pass the trial before it is compiled.
    taken = measure if is_known(request, compile_) else measure_call
    take = partial(taken, cell, inputs, state, losses=losses, steps=count, **options)
    written = take(limit=limit)
    kept, shape = count_kept(written, inputs, steps=count, losses=losses), find_shape(inputs)
    plans: list[tuple[Plan, PlanChoice]] = []
    refusal: InputError | None = None
    try:
        plan = plan_within(written, steps=count, limit=limit, kept=kept, shape=shape, take=take)
        plans.append((plan, PlanChoice(plan=plan, executed=plan, compile=None)))
    except InputError as error:
        refusal = error
    built = find_piece(request, compile_)
    if isinstance(built, Built):
        found = _measure(built, request, written, options)
        try:
            pieces = -(-count // built.piece.steps)
            plan = plan_within(found, steps=pieces, limit=limit, kept=kept, shape=shape)
            stretched = stretch(schedule_of(plan), built.piece.steps, count)
            plans.append((plan, PlanChoice(plan=plan, executed=stretched, compile=built.piece)))
        except InputError as error:
            refusal = refusal or error
    if not plans:
        assert refusal is not None  # noqa: S101 - one of the two
        raise refusal
    plan, choice = min(plans, key=lambda one: one[0].predicted.seconds)
    _log.info("%s", describe_choice(plan, limit))
    return choice


def place_plan(plan: Plan | Schedule, inputs: Any, compile_: Compile | None) -> PlanChoice:
    """Return what executes a given plan: the actions of time steps, if it counts pieces.

    Plans of workloads that ``calibrate --compile`` measured do. Raises InputError if the plan counts pieces of
    another size than ``compile_`` has.
    """
    found = _PIECES.search(plan.workload.cell or "") if isinstance(plan, Plan) else None
    as_it_is = PlanChoice(plan=plan, executed=plan, compile=compile_)
    if isinstance(plan, Schedule) or found is None:
        return as_it_is
    piece = int(found[1])
    count = piece * plan.steps if callable(inputs) else count_steps(inputs, None)
    if count == plan.steps or -(-count // piece) != plan.steps:
        return as_it_is
    if compile_ is None or compile_.steps not in (None, piece):
        raise InputError(
            f"counts compiled pieces of {piece} steps, as {plan.workload.cell} was calibrated",
            field="plan",
            accepted=f"compile={piece} with it, or a plan of single steps",
        )
    stretched = stretch(schedule_of(plan), piece, count)
    return PlanChoice(plan=plan, executed=stretched, compile=replace(compile_, steps=piece))


def stretch(schedule: Schedule, piece: int, steps: int) -> Schedule:
    """Return the actions of a schedule of pieces for time steps; the last piece may be shorter."""

    def to(number: int) -> int:
        return min(number * piece, steps)

    def convert(action: Action) -> Action:
        match action:
            case Advance(start, stop) | Record(start, stop) | Backward(start, stop):
                return type(action)(to(start), to(stop))
            case Save(state, tier) | Load(state, tier) | Free(state, tier):
                return type(action)(to(state), tier)
            case Transfer(states, source, target):
                return Transfer(tuple(map(to, states)), source, target)

    def actions() -> Iterator[Action]:
        return map(convert, schedule)

    return Schedule(
        steps=steps,
        actions=actions,
        chunk_size=min(schedule.chunk_size * piece, steps),
        overlaps=schedule.overlaps,
        local_states=schedule.local_states,
    )


def _measure(
    built: Built, request: PieceRequest, written: Measurement, options: Mapping[str, Any]
) -> Measurement:
    """Return what a piece takes as a step of a plan."""
    known = _measured.get(id(built))
    if known is not None:
        return known[1]
    found = _measure_anew(built.piece, request, written, options)
    _measured[id(built)] = built, found
    while len(_measured) > _MOST:
        _measured.popitem(last=False)
    return found


def _measure_anew(
    piece: CompiledPiece, request: PieceRequest, written: Measurement, options: Mapping[str, Any]
) -> Measurement:
    count, seen, seconds = piece.steps, Recordings(), ActionSeconds(request.device)
    pieces, nest = request.inputs.piece(0, count)
    with torch.no_grad(), leave_as_found(request.things, device=request.device):
        inputs = nest.fill([leaf.detach() for leaf in pieces])
        # The state after some steps is of the form that was compiled.
        state = run_with_outputs(request.cell, None, SHIFT, request.state, inputs)[1]
    with FirstRuns(
        request.cell,
        request.inputs,
        state,
        losses=request.losses,
        steps=request.steps,
        device=request.device,
        compile=piece,
        **options,
    ) as runs:
        runs.run(count, run_twice(count), seen)
        runs.run(count, run_twice(count), seconds)
        allocated = runs.run(count, run_twice(count), meter=partial(measure_allocated, request.device))
    (_, tape), *_ = seen.tapes
    known = tape + 2 * written.state_bytes + 2 * count * runs.output_bytes
    return replace(
        written,
        tape_bytes=tape,
        resident_bytes_per_step=0,
        workspace_bytes=max(0, allocated.peak - known) + runs.parameter_bytes,
        forward_seconds=count * seconds.a_step(Advance),
        record_seconds=count * seconds.a_step(Record),
        backward_seconds=count * seconds.a_step(Backward),
        counted=count,
        steps=count,
    )
