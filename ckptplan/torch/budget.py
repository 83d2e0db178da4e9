"""Makes a plan for a call and a limit of memory: measures the call once for each kind, and keeps plans.

Measurements are kept by the kind of a call, and by the plain constants that it can reach: a depth, an option or
a length may decide what steps take. What steps themselves count by tells no call from others. What showed in
all steps holds for calls with other constants whose first steps take as many bytes.
Nothing of the caller is kept alive. Where steps are compiled, a step of the plan may be a compiled piece.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product, takewhile
from typing import Any

import torch

import ckptplan
from ckptplan.errors import Infeasible, InputError, quote_value
from ckptplan.execution.advice import (
    DEAR,
    advise_offload,
    describe_choice,
    leave_margin,
    name_limit,
    note_offload,
    refuse_limit,
)
from ckptplan.model.plan import Plan
from ckptplan.model.workload import Basis
from ckptplan.planning.optimize import rank_strategies
from ckptplan.planning.playback import schedule_of
from ckptplan.planning.request import Request
from ckptplan.schedule.actions import Backward, Free, Record, Save, Tier, Transfer, renumber
from ckptplan.schedule.schedule import Schedule, check_count
from ckptplan.storage.memory import round_down
from ckptplan.storage.place import Link, OffloadPlace, assume_link
from ckptplan.torch.call import Call, leave_room
from ckptplan.torch.chunk_cell import ChunkCell
from ckptplan.torch.executor import MADE_OF_OUTPUTS
from ckptplan.torch.inputs import no_tensors, refuse_layouts
from ckptplan.torch.measurement import choose_count, measure_call, measure_grown, run_twice
from ckptplan.torch.memory import available_bytes
from ckptplan.torch.offload import find_links
from ckptplan.torch.piece_choice import find_piece
from ckptplan.torch.probe import Probed, probe
from ckptplan.torch.recognise import Recent
from ckptplan.torch.survey import KEPT, Measurement, Survey, warn_of_excess
from ckptplan.torch.trees import byte_size, flatten, refuse_other_leaves
from ckptplan.units import format_bytes, format_things, parse_limit

_log = logging.getLogger("ckptplan.torch")
#: The share of what the device has free that ``memory="auto"`` takes: the rest is for fragmentation, the
#: optimizer's first step, and other programs.
AUTO_SHARE = 0.7
#: The regular ones that keep nothing remote. Others never fit, and would say that remote memory is missing.
_STRATEGIES = ("base", "standard", "nested", "growing", "revolve")
#: Those that go on from a state as it is read, and the one that reads states into its slots.
_REMOTE_STRATEGIES = ("remote", "double", "double-growing", "periodic")
_BATCH_STRATEGIES = ("hierarchical",)
#: Kinds of calls, with their constants or without, of which something is kept.
_MOST = 256
#: By the kind of a call and its constants.
_measured: Recent[Any, Measurement] = Recent(_MOST)
#: How far what a step keeps may differ from the proportion of the shapes, in calls that differ in these alone.
_DEVIATION = 1.5
#: How many times as large, or as small, such a call may be to need no measurement.
_MOST_RATIO = 4
#: Kinds of calls of which it was said that a place off the chip would help, and that outputs take too much.
_advised: Recent[Any, bool] = Recent(_MOST)
_told: Recent[Any, bool] = Recent(_MOST)
#: The sizes of all steps, by the kind of a call, T and the sizes of the first steps; their times, by constants,
#: too; how many calls there were by the constants, and the strategy with its settings.
_surveyed: Recent[Any, Measurement] = Recent(_MOST)
_timed: Recent[Any, Measurement] = Recent(_MOST)
_seen: Recent[Any, int] = Recent(_MOST)


@dataclass(frozen=True, kw_only=True)
class _Size:
    """The shapes of a state and an input, their bytes, and those that the first step kept in a trial."""

    shapes: Any
    bytes: int
    tape: int


#: The latest measurement of calls that differ in shapes alone.
_alike: Recent[Any, tuple[Measurement, _Size]] = Recent(_MOST)


#: Times are measured once: of plans whose times differ by less, the one that takes less memory is chosen.
_ABOUT = 1.02
#: What makes a loss that is a sum over time, as messages name it.
_SUMS = "ckptplan.torch.bptt of a cell, or bptt of a wrapped network that keeps its state"
#: Plans that are looked at to find one that has room at the turn.
_TRIES = 4


@dataclass(frozen=True, kw_only=True)
class Space:
    """The memory of a call, and what is there besides checkpoints, tapes and the tensors of a step.

    Arguments:
        limit: the bytes that the call may take.
        kept: bytes that are there all the time.
        later: bytes that are there in the backward pass, as gradients of inputs.
        outputs: bytes of the outputs that are returned, None if it is a loss.
        postpones: whether the last steps are recorded after the turn if their tapes leave no room there.
        links: ways to keep checkpoints off the chip.
    """

    limit: int
    kept: int = 0
    later: int = 0
    outputs: int | None = None
    postpones: bool = True
    links: tuple[Link, ...] = ()

    @property
    def resident(self) -> int:
        """The bytes that a plan counts for the whole sequence: outputs and their gradients, too."""
        return self.kept + self.later + 2 * (self.outputs or 0)

    def choose(self, plans: Sequence[Plan]) -> Plan:
        """Return the quickest plan that has room for what a loss makes of outputs.

        If none has, it is the one that leaves most, of those that take about the time of the quickest.
        """
        excess = {id(one): max(0, self.find_excess(one)) for one in plans}
        having = [one for one in plans if not excess[id(one)]] or plans
        enough = _ABOUT * min(one.predicted.seconds for one in having)
        quick = (one for one in having if one.predicted.seconds <= enough)
        return min(quick, key=lambda one: (excess[id(one)], one.predicted.local_peak_bytes))

    def warn_of_turn(self, plan: Plan, kind: Any) -> None:
        """Say, once for a kind of call, if a loss of the outputs will probably pass the limit."""
        if kind in _told or not torch.is_grad_enabled():
            return
        excess = self.find_excess(plan)
        if excess > KEPT * self.limit:
            _told.keep(kind, True)
            _log.info(
                "between the forward and the backward pass, a loss like a mean of squares of all outputs (%s) "
                "will take about %s more than the limit. A loss that is a sum over time can be made in the "
                "steps, by %s",
                *(format_bytes(size, like=self.limit) for size in (self.outputs or 0, excess)),
                _SUMS,
            )

    def find_excess(self, plan: Plan) -> int:
        """Return the bytes by which a plan passes the limit at the turn, where the caller makes a loss.

        Zero or less if it has room. A mean of squares is assumed: nothing tells what a loss will make.
        """
        if self.outputs is None:
            return 0
        # There are the states before and after the last steps, too; the first of all is the caller's.
        sizes, states, recorded, last = plan.workload, 2, 0, Record(0, 0)
        for action in takewhile(lambda one: not isinstance(one, Backward), schedule_of(plan)):
            match action:
                case Save(state, Tier.LOCAL):
                    states += state > 0
                case Free(state, Tier.LOCAL):
                    states -= state > 0
                case Transfer(moved, Tier.LOCAL, _):
                    states -= sum(state > 0 for state in moved)
                case Record(start, stop):
                    recorded, last = recorded + stop - start, action
        # What records all steps at once runs none of them again.
        tapes = recorded - (last.stop - last.start if self.postpones and last.start else 0)
        made = plan.steps * sizes.resident_bytes_per_step - self.later + (MADE_OF_OUTPUTS - 2) * self.outputs
        return made + states * sizes.state_bytes + tapes * sizes.tape_bytes - self.limit


def plan_within(
    measurement: Measurement,
    *,
    steps: int,
    space: Space,
    shape: tuple[int, ...] = (),
    take: Callable[..., Measurement] | None = None,
) -> Plan:
    """Return the quickest plan for a measured call, with room for what a loss makes of outputs if there is one.

    Arguments:
        measurement: what the call takes.
        steps: T.
        space: the memory of the call.
        shape: that of the inputs, time first.
        take: measures the call as it runs within another ``limit``.

    Raises InputError if no plan fits the limit; one that it names is enough.
    """
    try:
        return _plan(measurement, steps, space)
    except Infeasible as error:
        if error.binding != "local_bytes":
            raise
        named, tried = 0, int(measurement.taken_bytes / (1 + KEPT))
        # Within the limit that is named, the call may be measured otherwise, and need more.
        while take is not None and named < (least := name_limit(max(error.need, tried), like=space.limit)):
            named, there = least, take(limit=least)
            if there.counted != measurement.counted and not _has_plan(
                there, steps, replace(space, limit=least)
            ):
                return plan_within(there, steps=steps, space=space, shape=shape, take=take)
            tried = max(tried, int(there.taken_bytes / (1 + KEPT)))
        inside, kept = (
            format_bytes(size, like=space.limit) for size in (measurement.workspace_bytes, space.resident)
        )
        parts = f", of which {inside} are gradients and the tensors of a step"
        if space.resident:
            what = "outputs and gradients of the sequence" if space.outputs else "kept for the whole sequence"
            parts += f", {kept} {what}"
            if space.outputs and space.resident > space.limit:
                parts += f", more than the limit: a loss that is a sum over time needs none with {_SUMS}"
        raise refuse_limit(
            error,
            _make_request(measurement, steps, space),
            memory=space.limit,
            limit=space.limit,
            gradients=measurement.parameter_bytes,
            parts=parts,
            tried=tried,
            shape=shape,
        ) from None


def count_steps(inputs: Any, steps: int | None) -> int:
    """Return T: the length of the inputs, or ``steps`` if a function makes them. Raises InputError."""
    if callable(inputs):
        if steps is None:
            raise InputError(
                "is missing: inputs are made by a function, which does not say how many steps there are",
                field="steps",
                accepted="the number of time steps, or a plan in place of memory",
            )
        check_count("steps", steps)
        return steps
    leaves = flatten(inputs)[0]
    refuse_layouts(leaves)
    accepted = "tensors of shape (T, ...), with T from 1{}"
    if not leaves or leaves[0].dim() == 0:
        raise no_tensors(inputs, accepted=accepted)
    if len(leaves[0]) == 0:
        raise InputError("hold no time step", field="inputs", accepted=accepted.format(""))
    if steps is not None and steps != len(leaves[0]):
        raise InputError(
            f"is {quote_value(steps)}, and inputs have {format_things(len(leaves[0]), 'time step')}",
            field="steps",
            value=steps,
            accepted="steps only with inputs that are made by a function",
        )
    return len(leaves[0])


def read_limit(memory: object, device: torch.device) -> int:
    """Return a limit of memory in bytes. Raises InputError."""
    if memory == "auto":
        free = available_bytes(device)
        if free is None:
            raise InputError(
                "cannot be found out on this system", field="memory", accepted="a size, as '2 GiB'"
            )
        # What a sequence of the same shapes had free before should give the same plan again.
        return round_down(int(AUTO_SHARE * free))
    return parse_limit(memory, field="memory", or_else=", or 'auto'")


def measure(call: Call, probed: Probed, *, limit: int, scales: bool = False) -> Measurement:
    """Return what a call takes, measured now or for a call of the same kind. Raises InputError.

    ``scales`` allows for the measurement of a call of other shapes, the first time: whoever runs the call
    watches its sizes, and shapes that come again are measured.
    """
    if probed.found.sparse:
        raise InputError(
            "is given for steps with sparse gradients, whose sums grow with each step without a bound",
            field="memory",
            accepted="dense gradients, as of Embedding(sparse=False), or a plan in place of a limit",
        )
    count = choose_count(call, probed, limit=limit)
    described, constants = probed.describe_kind(call), probed.constants
    kind = described, count, constants
    known = _measured.find(kind)
    if known is not None and not known.is_scaled:
        return known
    size = _Size(
        shapes=described[1],
        bytes=byte_size((*flatten(call.state)[0], *call.sequence.piece(0, 1)[0])),
        tape=probed.found.tape_bytes,
    )
    same = described[0], count, constants
    alike = _alike.find(same) if scales and known is None and not isinstance(call.cell, ChunkCell) else None
    found = None if alike is None else _scale(*alike, size)
    if found is None:
        found = measure_call(call, probed, limit=limit)
        _alike.keep(same, (found, size))
    _measured.keep(kind, replace(found, taken_bytes=0))
    return found


def _measure_all(call: Call, probed: Probed, kind: Any, *, limit: int, scales: bool = False) -> Measurement:
    """Return what all steps of a call of a kind take, as ``measure`` does for the first ones."""
    found = measure(call, probed, limit=limit, scales=scales)
    if not found.grows:
        return found
    # It may do so to the end, which differs from length to length.
    key = kind, call.plan.steps, found.sizes
    grown = _surveyed.find(key)
    if grown is None:
        grown = measure_grown(call, probed, limit=limit)
        _surveyed.keep(key, replace(grown, taken_bytes=0))
    return replace(grown, taken_bytes=max(found.taken_bytes, grown.taken_bytes))


def _scale(known: Measurement, before: _Size, now: _Size) -> Measurement | None:
    """Return a measurement for a call of another size, None if its steps seem to do something else."""
    by_shape, by_tape = now.bytes / max(1, before.bytes), now.tape / max(1, before.tape)
    alike = by_tape / _DEVIATION < by_shape < by_tape * _DEVIATION
    near = 1 / _MOST_RATIO <= by_tape <= _MOST_RATIO
    # A plan for a larger call is one for a smaller one, as for the last batch of an epoch.
    ratio = max(by_shape, by_tape, 1.0)
    return known.scale(ratio) if alike and near and now.shapes != before.shapes else None


@lru_cache(maxsize=1024)
def _plan(measurement: Measurement, steps: int, space: Space) -> Plan:
    """Return the quickest plan that has room at the turn, as ``Space.choose`` does. Raises Infeasible."""
    make = partial(_make_request, measurement, steps, space)
    plan = _search(make, space.links)
    if plan is None:
        # Raises, and says what would help.
        return rank_strategies(make(), only_best=True).best()
    plans, room, less = [plan], leave_margin(space.limit), 0
    while (excess := space.find_excess(plans[-1])) > 0 and len(plans) < _TRIES:
        # Less memory is no help to what keeps all tapes: the next one does not.
        if plans[-1].strategy != "base":
            less = room - plans[-1].predicted.local_peak_bytes + excess
        found = None
        if less < room - space.resident:
            found = _search(partial(make, less=less, at_once=False), space.links)
        if found is None:
            break
        plans.append(found)
    return space.choose(plans)


def _has_plan(measurement: Measurement, steps: int, space: Space) -> bool:
    try:
        _plan(measurement, steps, space)
    except Infeasible:
        return False
    return True


def _search(make: Callable[..., Request], links: tuple[Link, ...]) -> Plan | None:
    """Return the quickest plan, which says what links bought; None if none fits."""
    local, remote = _find_best(make()), _plan_remote(make, links)
    if remote is None:
        return local
    plan, place = remote
    quicker = plan if local is None or plan.predicted.seconds < local.predicted.seconds else local
    return note_offload(quicker, local=local, remote=plan, place=place)


def _find_best(request: Request) -> Plan | None:
    """Return the best plan, None if none fits: why is a question that takes longer."""
    ranking = rank_strategies(request, only_best=True)
    return ranking.best() if ranking.answers else None


def tell_offload(local: Plan, measurement: Measurement, kind: Any, *, steps: int, space: Space) -> None:
    """Say, once for calls of a kind, what ``offload=`` would save at an assumed rate, if that is much.

    ``steps`` are T of the measured steps, whatever the pieces of the plan.
    """
    if local.predicted.overhead <= DEAR or kind in _advised:
        return
    _advised.keep(kind, True)
    make = partial(_make_request, measurement, steps, space)
    remote = _plan_remote(make, (assume_link(measurement.state_bytes, steps),))
    advice = advise_offload(local, None if remote is None else remote[0])
    if advice:
        _log.warning("%s", advice)


def _plan_remote(make: Callable[..., Request], links: tuple[Link, ...]) -> tuple[Plan, str] | None:
    """Return the quickest plan that uses a link, and its place; None if none fits.

    Transfers beside compute need two buffers, which may be better spent on checkpoints.
    """
    found: list[tuple[Plan, str]] = []
    for link, overlaps, batches in product(links, (True, False), (True, False)):
        if overlaps and not link.overlaps:
            continue
        plan = _find_best(make(link=link, overlaps=overlaps, batches=batches))
        if plan is not None:
            found.append((plan, link.place))
    return min(found, key=lambda one: one[0].predicted.seconds, default=None)


def _make_request(
    measurement: Measurement,
    steps: int,
    space: Space,
    *,
    less: int = 0,
    at_once: bool = True,
    link: Link | None = None,
    overlaps: bool = False,
    batches: bool = False,
) -> Request:
    """Return the request for a plan that takes so much ``less`` than the limit.

    ``at_once`` allows for one that records all steps at once. States move in ``batches``, or singly.
    """
    call = "a call of other shapes, and scaled" if measurement.is_scaled else "the call"
    steps_timed = "the first call" if measurement.retimed else f"the first {measurement.steps} steps of {call}"
    # A state that was read singly is no checkpoint in local memory, and alive until its steps are reversed.
    more = 0 if link is None else measurement.first_bytes if batches else measurement.state_bytes
    counted: dict[str, Any] = {
        # A state of plain numbers alone has no tensors.
        "state_bytes": max(1, measurement.state_bytes),
        "tape_bytes": measurement.tape_bytes,
        "resident_bytes_per_step": measurement.resident_bytes_per_step + -(-space.resident // steps),
        "workspace_bytes": measurement.workspace_bytes + more,
    }
    timed: dict[str, Any] = {
        "forward_seconds": measurement.forward_seconds,
        "recompute_seconds": measurement.forward_seconds,
        "record_overhead_seconds": max(0.0, measurement.record_seconds - measurement.forward_seconds),
        "backward_seconds": measurement.backward_seconds,
        "chunk_seconds": measurement.chunk_seconds,
        "save_seconds": measurement.save_seconds,
        "load_seconds": measurement.load_seconds,
    }
    why = f"counted in the first {measurement.counted} steps of {call}", f"timed once over {steps_timed}"
    bases = (Basis(kind="measured", why=one) for one in why)
    workload = ckptplan.Workload(
        name="call",
        steps=steps,
        units=1,
        **counted,
        **timed,
        limited=True,
        basis={name: basis for names, basis in zip((counted, timed), bases, strict=True) for name in names},
    )
    if link is None:
        profile = ckptplan.HardwareProfile(name="memory-limit", local_bytes=space.limit, remote_bytes=0)
    else:
        # Batches move what was saved in local memory; single states are saved and loaded as they move.
        each = 0.0 if batches else (measurement.save_seconds + measurement.load_seconds) / 2
        profile = link.make_profile(space.limit, overlaps=overlaps, message_seconds=each)
    strategies = _STRATEGIES if at_once else _STRATEGIES[1:]
    return Request.of(
        workload,
        profile,
        # What is not tensors of the cell: numbers by which steps are recognised, states of random generators.
        local_bytes=leave_margin(space.limit) - less,
        strategies=strategies if link is None else _BATCH_STRATEGIES if batches else _REMOTE_STRATEGIES,
        command="ckptplan.torch.plan_for",
    )


#: How a workload of ``calibrate --compile K`` names its cell.
_PIECES = re.compile(r"\bcompile=(\d+)\)$")


def settle_plan(
    plan: Plan | Schedule | None, memory: int | str | None, *, held_states: int = 0, **fields: Any
) -> Call:
    """Return a call with what executes the plan that is given, or one for a limit of memory. Raises InputError.

    ``held_states`` are as for ``choose_plan``, ``fields`` the other fields of ``Call``.
    """
    if memory is not None:
        return choose_plan(ask(**fields), memory, held_states=held_states, scales=True)
    if plan is None:
        raise InputError("is missing, and so is memory", field="plan", accepted="a plan, or memory='2 GiB'")
    return place_plan(Call(plan=plan, **fields))


def ask(*, inputs: Any, state: Any, steps: int | None = None, **fields: Any) -> Call:
    """Return a call that is to be planned; ``steps`` is T if inputs are made by a function. Raises InputError.

    In place of a plan it has a schedule that runs steps again, as most plans do: what is measured is rehearsed.
    """
    count = count_steps(inputs, steps)
    refuse_other_leaves(state, field="state")
    twice = Schedule(steps=count, actions=run_twice(count), local_states=2, chunk_size=count)
    return Call(inputs=inputs, state=state, plan=twice, **fields)


@dataclass(frozen=True, kw_only=True)
class _Showed:
    """What calls showed of all of their steps, by their kind, T, constants and the sizes of the first steps."""

    kind: Any
    steps: int
    constants: int
    sizes: tuple[Any, ...]

    @property
    def _key(self) -> Any:
        return self.kind, self.steps, self.sizes

    @property
    def _timed(self) -> Any:
        return self._key, self.constants

    def complete(self, first: Measurement) -> Measurement:
        """Return a measurement of the first steps with what calls showed."""
        found = (_surveyed.find(self._key) or first).with_times(_timed.find(self._timed) or first)
        return replace(found, taken_bytes=first.taken_bytes)

    def describe(self, plan: Plan) -> Any:
        """Return what calls under a plan are counted by."""
        return self._timed, plan.strategy, *plan.parameters.items()

    def keep(self, sizes: Measurement, plan: Plan) -> None:
        """Keep the sizes of a call, and the times of the first one, so that plans stay as they are."""
        call, known = self.describe(plan), _timed.find(self._timed)
        number = _seen.get(call, 0)
        found = sizes if not number or known is None else sizes.with_times(known)
        _timed.keep(self._timed, _surveyed.keep(self._key, found))
        _seen.keep(call, number + 1)

    def is_watched(self, plan: Plan, *, runs: bool) -> bool:
        """Return whether a call under a plan is watched; one that ``runs`` counts.

        The first, second, fourth, eighth, ... one is: what steps keep may depend on data.
        """
        call = self.describe(plan)
        number = _seen.get(call, 0)
        watched = not number & (number + 1)
        if runs and not watched:
            _seen.keep(call, number + 1)
        return watched


def choose_plan(
    asked: Call,
    memory: int | str,
    *,
    held_states: int = 0,
    advises: bool = True,
    scales: bool = False,
) -> Call:
    """Return a call with the quickest plan within a limit of memory, in compiled pieces or without.

    Arguments:
        asked: the call, from ``ask``.
        memory: bytes, text as "2 GiB", or "auto".
        held_states: copies of the state that the caller holds meanwhile.
        advises: whether a dear plan is followed by a line that says what a place off the chip would save.
        scales: whether the measurement of a call of other shapes will do, since this one runs and is watched.

    Without gradients, a call that runs keeps a schedule that it does not need, since nothing is kept for a
    backward pass. Raises InputError, also if no plan fits.
    """
    limit = read_limit(memory, asked.device)
    asked = replace(asked, room=leave_room(limit))
    call, count, inputs = asked.measured, asked.plan.steps, asked.inputs
    place = asked.remote_dir if isinstance(asked.remote_dir, OffloadPlace) else None
    if scales and not torch.is_grad_enabled():
        # Inputs that are made are there one at a time.
        plan = replace(asked.planned, chunk_size=1) if callable(inputs) else asked.plan
        return replace(asked, plan=plan, compile=None)
    with torch.enable_grad():
        probed = probe(call, anew=False)
    kind = probed.describe_kind(call)

    def take(**options: Any) -> Measurement:
        first = _measure_all(call, probed, kind, **options)
        return replace(showed, sizes=first.sizes).complete(first)

    first = _measure_all(call, probed, kind, limit=limit, scales=scales)
    showed = _Showed(kind=kind, steps=count, constants=probed.constants, sizes=first.sizes)
    written = showed.complete(first)
    space = Space(
        limit=limit,
        outputs=None if call.losses else count * written.output_bytes,
        kept=held_states * written.state_bytes + count * written.compared_bytes,
        later=sum(leaf.nbytes for leaf in call.sequence.leaves if leaf.requires_grad),
        links=find_links(
            place, state_bytes=written.state_bytes, steps=count, device=call.device, local_bytes=limit
        ),
    )
    shape = () if callable(inputs) else flatten(inputs)[0][0].shape
    fit = partial(plan_within, space=space, shape=tuple(shape))
    plans: list[tuple[Plan, Call, Space]] = []
    refusal: InputError | None = None
    try:
        plan = fit(written, steps=count, take=take)
        survey = Survey(
            measurement=written,
            plan=plan,
            replan=partial(fit, steps=count),
            keep=showed.keep,
            is_first=showed.describe(plan) not in _seen,
            is_open=not isinstance(call.cell, ChunkCell) and showed.is_watched(plan, runs=scales),
            # A measurement, or a rehearsal, finds out more.
            probed=probed if probed.recalled and probed.found.rehearsed else None,
        )
        plans.append((plan, replace(asked, plan=plan, compile=None, survey=survey), space))
    except InputError as error:
        refusal = error
    built = find_piece(asked)
    if built is not None:
        try:
            # The actions of pieces do not say that states are written through.
            cached = tuple(link for link in space.links if not link.through)
            of_pieces = replace(space, links=cached, postpones=False)
            pieces = -(-count // built.steps)
            plan = name_pieces(fit(built.measurement, steps=pieces, space=of_pieces), built.steps)
            plans.append(
                (
                    plan,
                    replace(
                        asked, plan=stretch(schedule_of(plan), built.steps, count), pieced=plan, compile=built
                    ),
                    of_pieces,
                )
            )
        except InputError as error:
            refusal = refusal or error
    if refusal is not None and not plans:
        if not written.is_scaled:
            raise refusal
        return choose_plan(asked, memory, held_states=held_states, advises=advises)
    plan, found, used = min(plans, key=lambda one: one[0].predicted.seconds)
    _log.info("%s", describe_choice(plan, limit))
    if scales and not (found.survey is not None and found.survey.is_open):
        warn_of_excess(plan, tried=written.taken_bytes)
    if found.survey is None or found.survey.is_first:
        used.warn_of_turn(plan, kind)
    if advises and place is None:
        tell_offload(plan, written, kind, steps=count, space=space)
    return found


def name_pieces(plan: Plan, piece: int) -> Plan:
    """Return a plan that says, where it names its job, that its steps are pieces of so many time steps."""
    workload = plan.workload.model_copy(update={"name": f"call-in-pieces-of-{piece}"})
    return plan.model_copy(update={"workload": workload})


def place_plan(call: Call) -> Call:
    """Return a call with what executes its given plan: the actions of time steps, if it counts pieces.

    Plans of workloads that ``calibrate --compile`` measured do. Raises InputError if the plan counts pieces of
    another size than are to be compiled.
    """
    plan, compile_ = call.plan, call.compile
    if isinstance(plan, Plan) and (found := _PIECES.search(plan.workload.cell or "")):
        piece = int(found[1])
        count = piece * plan.steps if callable(call.inputs) else count_steps(call.inputs, None)
        if count != plan.steps and -(-count // piece) == plan.steps:
            if compile_ is None or compile_.steps not in (None, piece):
                raise InputError(
                    f"counts compiled pieces of {piece} steps, as {plan.workload.cell} was calibrated",
                    field="plan",
                    accepted=f"compile={piece} with it, or a plan of single steps",
                )
            compile_ = replace(compile_, steps=piece)
            call = replace(call, plan=stretch(schedule_of(plan), piece, count), pieced=plan, compile=compile_)
    return call if call.compile is None else replace(call, compile=find_piece(call))


def stretch(schedule: Schedule, piece: int, steps: int) -> Schedule:
    """Return the actions of a schedule of pieces for time steps; the last piece may be shorter."""

    def to(number: int) -> int:
        return min(number * piece, steps)

    return Schedule(
        steps=steps,
        actions=lambda: (renumber(action, to) for action in schedule),
        chunk_size=min(schedule.chunk_size * piece, steps),
        overlaps=schedule.overlaps,
        local_states=schedule.local_states,
    )
