"""Makes a plan for a loop and a limit of memory, or checks a given one, with the kind of tape that it is for.

Times of a step for the planner: assumed from its operations, or taken from a calibration.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from operator import itemgetter
from typing import Any

import ckptplan
from ckptplan.errors import Infeasible, InputError, PlanMismatch, quote_value
from ckptplan.execution.advice import (
    OFFLOAD,
    advise_offload,
    find_limit,
    leave_margin,
    note_offload,
    refuse_limit,
)
from ckptplan.jax.footprint import StepFootprint
from ckptplan.jax.jaxprs import Same
from ckptplan.jax.leaves import byte_size
from ckptplan.jax.table import Leaves, RowTable, make_table
from ckptplan.jax.tapes import Tape
from ckptplan.model.plan import Plan
from ckptplan.model.workload import ACTION_TIMES, TIMES, Basis, Workload
from ckptplan.planning.optimize import rank_strategies
from ckptplan.planning.playback import schedule_of
from ckptplan.planning.request import Request
from ckptplan.schedule.actions import Action
from ckptplan.schedule.schedule import Schedule
from ckptplan.storage.place import Link, assume_link
from ckptplan.units import format_bytes, parse_limit

#: What a row of the table takes in addition to its steps.
_ROW_SECONDS = 2e-6


#: Times as fields of a workload, with their basis.
_Times = tuple[dict[str, Any], Basis]


def assume_times(footprint: StepFootprint) -> _Times:
    """Return the times of the operations of a step at assumed rates."""
    of_rows = dict.fromkeys(("advance_seconds", "chunk_seconds"), _ROW_SECONDS)
    basis = Basis(kind="assumed", why="operations of the traced step, at assumed rates")
    return {**footprint.seconds, **of_rows}, basis


def take_times(footprint: StepFootprint, timed: Workload, *, among: Sequence[StepFootprint]) -> _Times:
    """Return the times of a calibrated workload.

    It was measured with one kind of tape of ``among``. With another one, what recording and reversing take is
    the estimate, at the pace of the kind that was measured. Raises InputError if the workload is of another
    step.
    """
    units = timed.units or 1
    state, tape = timed.state_bytes * units, timed.tape_bytes * units
    equal = [one for one in among if (one.state_bytes, one.tape_bytes) == (state, tape)]
    kind = None if timed.calibration is None else timed.calibration.tape
    measured = next((one for one in equal if one.tape == kind), equal[0] if equal else None)
    if measured is None:
        tapes = ", ".join(format_bytes(one.tape_bytes) for one in among)
        raise InputError(
            f"{timed.name!r} has a state of {format_bytes(state)} and tapes of {format_bytes(tape)}; this step "
            f"has {format_bytes(among[0].state_bytes)}, and tapes of {tapes}",
            field="workload",
            accepted="one that was calibrated with this cell and batch in JAX",
        )
    seconds = {name: getattr(timed, name) for name in (*TIMES, *ACTION_TIMES)}
    why = f"calibrated: workload {timed.name}"
    if footprint.name == measured.name:
        return seconds, Basis(kind="measured", why=why)
    known = timed.forward_seconds + timed.record_overhead_seconds + timed.backward_seconds
    pace = known / (measured.record_seconds + measured.seconds["backward_seconds"])
    seconds |= {
        name: pace * footprint.seconds[name] for name in ("record_overhead_seconds", "backward_seconds")
    }
    why = f"{why}, whose tapes are of another kind: recording and reversing at its pace"
    return seconds, Basis(kind="derived", why=why)


#: Closed forms whose programs take what was predicted, whatever the shapes of states and tapes.
_EXACT = ("base", "standard", "nested", "revolve")
#: Those that keep states in remote memory.
_REMOTE = ("remote", "hierarchical", "double", "periodic")
_COUNTED = ("state_bytes", "tape_bytes", "resident_bytes_per_step", "resident_bytes", "workspace_bytes")


#: The share of time that another plan has to gain to be searched.
_GAIN = 0.01
#: Up to so many steps, all strategies are searched in some 0.1 s.
_QUICK_STEPS = 1024
#: How much larger the next limit is that is tried where a plan with the least need is looked for.
_MORE = 1.01
#: What of a plan says which program runs.
_SCHEDULE = ("strategy", "parameters", "splits", "regular")


@dataclass(frozen=True, kw_only=True)
class CountedPlan:
    """A plan, the footprint that it is for, and the way that its states go off the chip."""

    plan: Plan
    footprint: StepFootprint
    link: Link | None = None
    #: The bytes of its program, once that was compiled.
    taken: int = 0

    @property
    def seconds(self) -> float:
        """The predicted time."""
        return self.plan.predicted.seconds

    @property
    def more(self) -> int:
        """The bytes that its program takes beyond what was predicted."""
        return self.taken - predict_program(self.plan, self.footprint)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A loop that is to be planned within a limit.

    Arguments:
        measured: the footprints of its step, those of all kinds of tape.
        steps: T.
        memory: the limit as it was given.
        timed: a calibrated workload whose times are taken; None to assume times.
        links: ways to keep states off the chip.
    """

    measured: Sequence[StepFootprint]
    steps: int
    memory: object
    timed: Workload | None = None
    links: tuple[Link, ...] = ()

    @property
    def limit(self) -> int:
        """The limit in bytes."""
        return parse_limit(self.memory, field="memory")

    def find_plan(self, footprints: Sequence[StepFootprint]) -> CountedPlan:
        """Return the quickest plan within the limit; beside links, it says what they bought.

        Raises Infeasible if there is no plan, with the least need of all footprints.
        """
        reasons: list[Infeasible] = []
        local = self._find_quickest(footprints, (None,), reasons)
        remote = self._find_quickest(footprints, self.links, reasons)
        found = choose_quicker(local, remote)
        if found is None:
            raise min(reasons, key=lambda one: (one.binding != "local_bytes", one.need))
        return found

    def _find_quickest(
        self,
        footprints: Sequence[StepFootprint],
        links: Sequence[Link | None],
        reasons: list[Infeasible],
    ) -> CountedPlan | None:
        """Return the quickest plan that uses one of the links, if there are any.

        Regular strategies come first. The others may take longer than compiling the program. So they are
        searched where something can be gained, for the footprint of the regular plan and, unless the sequence
        is long, for the one that promises most.
        """
        regular = self._compare(footprints, links, reasons, strategies=_EXACT)
        if regular is not None:
            others = footprints if self.steps <= _QUICK_STEPS else ()
            bound = partial(self._bound_seconds, link=regular.link)
            promising = min(others, key=bound, default=regular.footprint)
            footprints = list(dict.fromkeys((regular.footprint, promising)))
        found = self._compare(footprints, links, reasons, rival=regular)
        is_local = found is not None and found.link is not None and found.plan.predicted.remote_writes == 0
        return regular if is_local else found

    def _compare(
        self,
        footprints: Sequence[StepFootprint],
        links: Sequence[Link | None],
        reasons: list[Infeasible],
        *,
        strategies: tuple[str, ...] | None = None,
        rival: CountedPlan | None = None,
    ) -> CountedPlan | None:
        """Return the quickest plan of some strategies, or the rival if no schedule can gain much on it.

        Why there is no plan is added to ``reasons``.
        """
        found = rival
        pairs = [(self._bound_seconds(*pair), pair) for pair in product(footprints, links)]
        for least, (footprint, link) in sorted(pairs, key=itemgetter(0)):
            if found is not None and least >= (1 - _GAIN) * found.seconds:
                break
            try:
                plan = self._plan(footprint, self.limit, link=link, strategies=strategies)
            except Infeasible as error:
                reasons.append(error)
                continue
            if found is None or plan.predicted.seconds < found.seconds:
                found = CountedPlan(plan=plan, footprint=footprint, link=link)
        return found

    def _bound_seconds(self, footprint: StepFootprint, link: Link | None) -> float:
        """Return a lower bound on the time of any schedule within the limit, which needs no search."""
        return self._make_request(footprint, self.limit, link=link).question().least_seconds

    def find_least(self, footprints: Sequence[StepFootprint], *, link: Link | None = None) -> CountedPlan:
        """Return the plan with the least need of all footprints, whatever the limit."""
        needs = [(self._find_need(one, link), number) for number, one in enumerate(footprints)]
        need, number = min(needs)
        chosen = footprints[number]
        while True:
            try:
                plan = self._plan(chosen, find_limit(need), link=link)
            except Infeasible as error:
                # Buffers hold more than what this strategy keeps at a time: another one needs a little more.
                local = error.need if error.binding == "local_bytes" else 0.0
                need = max(local, need * _MORE)
            else:
                return CountedPlan(plan=plan, footprint=chosen, link=link)

    def plan_again(self, least: CountedPlan) -> Plan:
        """Return a plan of ``find_least`` with the bytes that its program takes, if its schedule stays."""
        footprint, plan = least.footprint.add(least.more), least.plan
        limit = min(find_limit(self._find_need(footprint, least.link)), self.limit)
        try:
            again = self._plan(footprint, limit, link=least.link)
        except Infeasible:
            return plan
        same = all(getattr(again, name) == getattr(plan, name) for name in _SCHEDULE)
        if not same:
            return plan
        notes = (one for one in plan.estimate_basis if one.field == OFFLOAD)
        return again.replace(estimate_basis=(*again.estimate_basis, *notes))

    def advise(self, found: CountedPlan) -> str:
        """Return what a place off the chip would save, at an assumed rate; '' if that is little."""
        link = assume_link(found.footprint.state_bytes, self.steps)
        remote = self._compare([found.footprint], [link], [], strategies=_EXACT)
        return advise_offload(found.plan, None if remote is None else remote.plan)

    def refuse(self, least: CountedPlan) -> InputError:
        """Return the error for a limit that is too small, by the smallest program that is known."""
        footprint, traced = least.footprint.add(least.more), least.footprint.traced
        request = self._make_request(footprint, self.limit, link=least.link)
        reason = Infeasible(
            binding="local_bytes", need=least.taken, have=self.limit, subject="the smallest program"
        )
        try:
            rank_strategies(request).best()
        except Infeasible as error:
            if error.binding == "local_bytes":
                reason = error
                reason.need = max(least.taken, reason.need)
        inputs = traced.step.inputs
        return refuse_limit(
            reason,
            request,
            memory=self.memory,
            limit=self.limit,
            gradients=byte_size([traced.step.constants[place] for place in traced.wanted.constants]),
            parts=f" for {self.steps:,} steps with a state of {format_bytes(byte_size(traced.step.state))}",
            shape=(self.steps, *inputs[0].shape) if inputs else (),
        )

    def _find_need(self, footprint: StepFootprint, link: Link | None) -> float:
        try:
            self._plan(footprint, 1, link=link)
        except Infeasible as error:
            return error.need if error.binding == "local_bytes" else math.inf
        return 1.0

    def _times_of(self, footprint: StepFootprint) -> _Times:
        if self.timed is None:
            return assume_times(footprint)
        return take_times(footprint, self.timed, among=self.measured)

    def _plan(
        self,
        footprint: StepFootprint,
        limit: int,
        *,
        link: Link | None = None,
        strategies: tuple[str, ...] | None = None,
    ) -> Plan:
        """Return the quickest plan of some strategies; with a link, of those that keep states remote, too."""
        request = self._make_request(footprint, limit, link=link)
        if link is not None and strategies is not None:
            strategies = _REMOTE
        found = rank_strategies(request, strategies=strategies).best()
        if found.strategy in (*_EXACT, *_REMOTE) or predict_program(found, footprint) <= limit:
            return found
        return rank_strategies(request, strategies=_EXACT if link is None else _REMOTE).best()

    def _make_request(self, footprint: StepFootprint, limit: int, *, link: Link | None = None) -> Request:
        counted = Basis(kind="derived", why="from the shapes of the traced step")
        seconds, timed = self._times_of(footprint)
        workload = ckptplan.Workload(
            name=footprint.name,
            steps=self.steps,
            units=1,
            state_bytes=footprint.state_bytes,
            tape_bytes=footprint.tape_bytes,
            resident_bytes_per_step=footprint.kept_bytes,
            # A state that moves is in a message, too.
            workspace_bytes=footprint.workspace_bytes + (0 if link is None else footprint.state_bytes),
            **seconds,
            basis={**dict.fromkeys(_COUNTED, counted), **dict.fromkeys(TIMES, timed)},
        )
        profile = ckptplan.HardwareProfile(name="memory-limit", local_bytes=limit, remote_bytes=0)
        if link is not None:
            profile = link.make_profile(limit, overlaps=False)
        # The rest is left for what the compiler arranges in another way.
        return Request.of(workload, profile, local_bytes=leave_margin(limit), command="ckptplan.jax.plan_for")


def choose_quicker(local: CountedPlan | None, remote: CountedPlan | None) -> CountedPlan | None:
    """Return the quicker one, which says what its place off the chip bought; None if there is none."""
    if remote is None or remote.link is None:
        return local
    plan = None if local is None else local.plan
    chosen = remote if local is None or remote.seconds < local.seconds else local
    noted = note_offload(chosen.plan, local=plan, remote=remote.plan, place=remote.link.place)
    return replace(chosen, plan=noted)


def predict_program(plan: Plan, footprint: StepFootprint) -> int:
    """Return what a program of a plan needs: buffers can hold more than what is kept at one time."""
    table = tabulate(Same(plan), footprint.state_leaves, footprint.tape_leaves)
    return plan.predicted.local_peak_bytes + table.buffer_bytes - table.held_bytes


@lru_cache(maxsize=4)
def tabulate(plan: Same, state: Leaves, tape: Leaves) -> RowTable:
    """Return the table of a plan or a schedule."""
    return make_table(lambda: read_schedule(plan.value), steps=plan.value.steps, state=state, tape=tape)


#: The share by which bytes may differ from the plan's without a warning.
_TOLERANCE = 0.05


def check_steps(steps: int) -> None:
    """Raise InputError if there is no step."""
    if steps < 1:
        raise InputError("hold no time step", field="xs", accepted="arrays of shape (T, ...), with T from 1")


def check_plan(plan: object, *, steps: int) -> None:
    """Raise InputError unless this is a plan, or a legal schedule, for so many steps."""
    if not isinstance(plan, Plan | Schedule):
        raise InputError(
            f"{quote_value(plan)} is not a plan", field="plan", accepted="a plan, or a ckptplan.Schedule"
        )
    if plan.steps != steps:
        raise InputError(
            f"is for {plan.steps:,} steps, and the sequence has {steps:,}",
            field="plan",
            accepted=f"a plan for {steps:,} steps",
        )
    if isinstance(plan, Schedule):
        plan.check()


def read_schedule(plan: Plan | Schedule) -> Iterable[Action]:
    """Return the actions of a plan, or of a schedule."""
    return schedule_of(plan) if isinstance(plan, Plan) else plan


def choose_footprint(
    plan: Plan | Schedule, footprints: Sequence[StepFootprint], *, tape: Tape | None = None
) -> StepFootprint:
    """Return the footprint of a step as a plan runs it: the kind of tape, unless it is given, and the groups.

    Warns of PlanMismatch if the state or every kind of tape is larger than planned.
    """
    if isinstance(plan, Schedule):
        return next(one for one in footprints if one.tape == (tape or "residuals"))
    workload, units = plan.workload, plan.workload.units or 1
    sizes = {one.tape: one.tape_bytes for one in footprints}
    most = workload.tape_bytes * units * (1 + _TOLERANCE)
    named = {one.name: one.tape for one in footprints if one.tape_bytes <= most}
    chosen = tape or named.get(workload.name) or pick_tape(sizes, workload)
    fits = sizes[chosen] <= most
    state, known = footprints[0].state_bytes, workload.state_bytes * units
    if tape is None and (not fits or state > known * (1 + _TOLERANCE)):
        planned = format_bytes(workload.tape_bytes * units)
        warnings.warn(
            f"the plan is for a state of {format_bytes(known)} and tapes of {planned}; this step has a state "
            f"of {format_bytes(state)} and tapes of at least {format_bytes(sizes[chosen])}",
            PlanMismatch,
            stacklevel=4,
        )
    alone, *together = (one for one in footprints if one.tape == chosen)
    if workload.calibration is not None:
        # Calibration measures steps alone.
        return alone
    # Products of several steps at once need the workspace that they were planned with.
    return next((one for one in together if workload.name.endswith(one.suffix)), alone)


def pick_tape(sizes: Mapping[Tape, int], workload: Workload) -> Tape:
    """Return the kind of tape that a workload is of: the largest within its bytes; the smallest if none is.

    Of kinds of one size it is the calibrated one, else the one that computes the least again.
    """
    planned = workload.tape_bytes * (workload.units or 1)
    fitting = [kind for kind, size in sizes.items() if size <= planned * (1 + _TOLERANCE)]
    if not fitting:
        return min(sizes, key=sizes.__getitem__)
    most = max(sizes[kind] for kind in fitting)
    equal = [kind for kind in fitting if sizes[kind] == most]
    calibrated = None if workload.calibration is None else workload.calibration.tape
    return next((kind for kind in equal if kind == calibrated), equal[0])
