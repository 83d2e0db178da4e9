"""Plans whose programs are within a limit: planned from shapes, compiled, and planned again if need be.

What a step holds while it runs is an estimate: compilers fuse, copy and order as they like. So the planned
program is compiled once, quickly, and its bytes are read. If they are too many, the difference belongs to the
workspace of the step, and the loop is planned again.

Times of a step for the planner: assumed from its operations, or taken from a calibration.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from operator import itemgetter
from typing import Any

import jax

import ckptplan
from ckptplan.errors import Infeasible, InputError
from ckptplan.execution.advice import (
    DEAR,
    advise_offload,
    describe_choice,
    find_limit,
    leave_margin,
    note_offload,
    refuse_limit,
)
from ckptplan.jax.footprint import StepFootprint, measure_step
from ckptplan.jax.jaxprs import Same, identify
from ckptplan.jax.leaves import byte_size
from ckptplan.jax.program import Loop, count_bytes, make_loop
from ckptplan.jax.remote import find_ways
from ckptplan.jax.step import TracedStep
from ckptplan.jax.tapes import Tape, TracedGradient
from ckptplan.model.plan import Plan
from ckptplan.model.workload import ACTION_TIMES, TIMES, Basis, Workload
from ckptplan.planning.optimize import rank_strategies
from ckptplan.planning.request import Request
from ckptplan.schedule.schedule import Schedule
from ckptplan.search.question import find_reason
from ckptplan.storage.place import Link, OffloadPlace, assume_link
from ckptplan.units import format_bytes, parse_limit

#: Programs that are compiled to plan one loop.
_MOST_PROGRAMS = 3
#: A program that takes less than this share of the limit may have been planned with too little.
_ROOMY = 0.8
#: A program need not be compiled if the limit has room for twice its bytes, and for so many times the estimated
#: workspace: bf16, which compilers for CPUs copy to fp32, has taken eight times of it.
_SURELY = 10
#: What a row of the table takes in addition to its steps.
_ROW_SECONDS = 2e-6


def find_times(
    footprint: StepFootprint, timed: Workload | None, *, among: Sequence[StepFootprint]
) -> tuple[dict[str, Any], Basis]:
    """Return times as fields of a workload: those of a calibrated one, or of operations at assumed rates.

    A calibration was of one kind of tape of ``among``. With another one, what recording and reversing take is
    the estimate, at the pace of the kind that was measured. Raises InputError if the workload is of another
    step.
    """
    if timed is None:
        of_rows = dict.fromkeys(("advance_seconds", "chunk_seconds"), _ROW_SECONDS)
        basis = Basis(kind="assumed", why="operations of the traced step, at assumed rates")
        return {**footprint.seconds, **of_rows}, basis
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
    parts = "forward_seconds", "record_overhead_seconds", "backward_seconds"
    pace = sum(seconds[one] for one in parts) / sum(measured.seconds[one] for one in parts)
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
_log = logging.getLogger("ckptplan.jax")


@dataclass(frozen=True, kw_only=True, eq=False)
class LoopCall:
    """A call of a loop: its step, its length, and what chooses how to run it once a gradient is wanted.

    Calls that compute the same are equal, so that a program is compiled once for them.

    Arguments:
        step: the step of the loop.
        steps: T.
        reverse: whether the sequence runs from its end.
        plan: a plan or a schedule; None to make one within ``memory``.
        memory: the limit in bytes or text.
        workload: a calibrated workload whose times are taken.
        tape: the kind of tape; None to choose it.
        place: where remote states go; None for host memory, and with ``memory`` for nowhere.
    """

    step: TracedStep
    steps: int
    reverse: bool = False
    plan: Plan | Schedule | None = None
    memory: int | str | None = None
    workload: Workload | None = None
    tape: Tape | None = None
    place: OffloadPlace | None = None

    @cached_property
    def _key(self) -> Hashable:
        step = self.step
        # The same operations are another loop if other arrays of them are its state, inputs or outputs.
        ways = Same(self.plan), self.memory, Same(self.workload), self.tape, self.place
        return identify(step.jaxpr), step.counts, step.is_batch, self.steps, self.reverse, *ways

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoopCall) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def plan_within(call: LoopCall, traced: TracedGradient) -> CountedPlan:
    """Return the quickest plan whose program is within the limit of a call, and the footprint that it is for.

    Raises InputError if no plan fits, with a limit that is then accepted, or if the workload is of another
    step.
    """
    job = Job(call=call, measured=measure_step(traced))

    def count(one: CountedPlan) -> CountedPlan:
        if jax.sharding.get_abstract_mesh().manual_axes:
            # A part of a program within shard_map is not compiled: its bytes are the estimate.
            return replace(one, taken=one.footprint.predict(one.plan))
        loop = make_loop(one.plan, one.footprint, reverse=call.reverse, place=call.place)
        return replace(one, loop=loop, taken=count_bytes(loop))

    found = search(job, count)
    _log.info("%s", describe_choice(found.plan, job.limit))
    if call.place is None and found.plan.predicted.overhead > DEAR and (advice := job.advise(found)):
        _log.warning("%s", advice)
    return found


def search(job: Job, count: Callable[[CountedPlan], CountedPlan]) -> CountedPlan:
    """Return the quickest plan whose program is within a limit; ``count`` tells the bytes of a program.

    Whatever the first programs show, the last one is that of the plan with the least need: a limit that it is
    within is always accepted. Raises InputError if the smallest program is too large.
    """
    limit, footprints = job.limit, job.allowed
    best: CountedPlan | None = None
    least: CountedPlan | None = None
    for _ in range(_MOST_PROGRAMS - 1):
        try:
            found = job.find_plan(footprints)
        except Infeasible:
            if best is not None or least is not None:
                break
            found = least = _find_smallest(job, count)
        else:
            if best is not None and found.seconds >= best.seconds:
                break
            predicted, workspace = found.plan.predicted, found.footprint.workspace_bytes
            if 2 * predicted.local_peak_bytes + _SURELY * workspace <= limit:
                return found
            found = count(found)
        if found.taken <= limit:
            best = found
            if found.taken >= _ROOMY * limit or found.plan.strategy == "base":
                break
        footprints = [one.add(found.more) for one in footprints]
    if best is not None:
        return best
    least = least or _find_smallest(job, count)
    if least.taken > limit:
        raise job.refuse(least)
    return replace(least, plan=least.recount())


def _find_smallest(job: Job, count: Callable[[CountedPlan], CountedPlan]) -> CountedPlan:
    """Return the plan with the smallest program, or the quickest within the limit.

    One keeps its states on the chip, and there is one for each way to keep them elsewhere.
    """
    ways = (job.find_least(one) for one in (None, *job.links))
    local, *remote = (count(one) for one in ways if one is not None)
    within = [one for one in remote if one.taken <= job.limit]
    found = _choose_quicker(
        local if local.taken <= job.limit else None, min(within, key=lambda one: one.seconds, default=None)
    )
    return found or min((local, *remote), key=lambda one: one.taken)


@dataclass(frozen=True, kw_only=True)
class CountedPlan:
    """A plan, the footprint that it is for, and the way that its states go off the chip."""

    plan: Plan
    footprint: StepFootprint
    link: Link | None = None
    #: Its program and the bytes of that, once it was compiled to count them. With machine code, it is the one
    #: that runs.
    loop: Loop | None = None
    taken: int = 0

    @property
    def seconds(self) -> float:
        """The predicted time."""
        return self.plan.predicted.seconds

    @property
    def more(self) -> int:
        """The bytes that its program takes beyond what was predicted."""
        return self.taken - self.footprint.predict(self.plan)

    def recount(self) -> Plan:
        """Return the plan with the workspace that its program shows, in a budget that is as much larger."""
        plan = self.plan
        more = max(self.more, -plan.workload.workspace_bytes)

        def add(whole: Any, field: str) -> Any:
            return whole.model_copy(update={field: getattr(whole, field) + more})

        peak = plan.predicted.local_peak_bytes + more
        changed = {
            "workload": add(plan.workload, "workspace_bytes"),
            "profile": add(plan.profile, "local_bytes"),
            "goal": add(plan.goal, "local_bytes"),
            "predicted": replace(plan.predicted, local_peak_bytes=peak),
        }
        return plan.model_copy(update=changed)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A call that is to be planned within its limit.

    Outputs of all steps and their gradients are part of the limit, as are the wanted gradients of parameters
    and inputs. ``measured`` are the footprints of its step (``measure_step``).
    """

    call: LoopCall
    measured: Sequence[StepFootprint]

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """The ways to keep states off the chip. Raises InputError if the place cannot be used."""
        call, state = self.call, self.measured[0].state_bytes
        return find_ways(call.place, state_bytes=state, steps=call.steps, limit=self.limit)

    @property
    def allowed(self) -> list[StepFootprint]:
        """The footprints of the kinds of tape to choose from."""
        return [one for one in self.measured if self.call.tape in {None, one.tape}]

    @property
    def limit(self) -> int:
        """The limit in bytes."""
        return parse_limit(self.call.memory, field="memory")

    def find_plan(self, footprints: Sequence[StepFootprint]) -> CountedPlan:
        """Return the quickest plan within the limit; beside links, it says what they bought.

        Raises Infeasible if there is no plan, with the least need of all footprints.
        """
        reasons: list[Infeasible] = []
        local = self._find_quickest(footprints, (None,), reasons)
        remote = self._find_quickest(footprints, self.links, reasons)
        found = _choose_quicker(local, remote)
        if found is None:
            raise min(reasons, key=lambda one: (one.binding != "local_bytes", one.need))
        return found

    def _find_quickest(
        self,
        footprints: Sequence[StepFootprint],
        links: Sequence[Link | None],
        reasons: list[Infeasible],
        *,
        only_exact: bool = False,
    ) -> CountedPlan | None:
        """Return the quickest plan that uses one of the links, None standing for none.

        Regular strategies come first. The others may take longer than compiling the program, so they are
        searched for the footprint of the regular plan. Nothing is searched that can gain little on what was
        found. Why there is no plan is added to ``reasons``.
        """
        found: CountedPlan | None = None
        bounds = [(self._bound_seconds(*pair), *pair) for pair in product(footprints, links)]
        for exact in (True,) if only_exact else (True, False):
            regular = found
            for least, footprint, link in sorted(bounds, key=itemgetter(0)):
                if found is not None and least >= (1 - _GAIN) * found.seconds:
                    break
                if regular is not None and (footprint, link) != (regular.footprint, regular.link):
                    continue
                try:
                    plan = self._plan(footprint, self.limit, link=link, only_exact=exact)
                except Infeasible as error:
                    reasons.append(error)
                    continue
                is_remote = link is None or exact or plan.predicted.remote_writes > 0
                if is_remote and (found is None or plan.predicted.seconds < found.seconds):
                    found = CountedPlan(plan=plan, footprint=footprint, link=link)
        return found

    def _bound_seconds(self, footprint: StepFootprint, link: Link | None) -> float:
        """Return a lower bound on the time of any schedule within the limit, which needs no search."""
        return self._make_request(footprint, self.limit, link=link).question().least_seconds

    def find_least(self, link: Link | None = None) -> CountedPlan | None:
        """Return the plan with the least need of all kinds of tape, whatever the limit.

        None if the sequence is too short to use a link, or the place too small.
        """
        need, chosen = min(((self._find_need(one, link), one) for one in self.allowed), key=itemgetter(0))
        if need == math.inf:
            return None
        plan = self._plan(chosen, find_limit(need), link=link, only_exact=link is not None)
        return CountedPlan(plan=plan, footprint=chosen, link=link)

    def advise(self, found: CountedPlan) -> str:
        """Return what a place off the chip would save, at an assumed rate; '' if that is little."""
        link = assume_link(found.footprint.state_bytes, self.call.steps)
        remote = self._find_quickest([found.footprint], [link], [], only_exact=True)
        return advise_offload(found.plan, None if remote is None else remote.plan)

    def refuse(self, least: CountedPlan) -> InputError:
        """Return the error for a limit that is too small, by the smallest program that is known."""
        footprint, traced = least.footprint.add(least.more), least.footprint.traced
        state = format_bytes(byte_size(traced.step.state), like=self.limit)
        step, steps = traced.step, self.call.steps
        request = self._make_request(footprint, self.limit, link=least.link)
        reason = Infeasible(
            binding="local_bytes", need=least.taken, have=self.limit, subject="the smallest program"
        )
        try:
            rank_strategies(request, only_best=True).best()
        except Infeasible as error:
            if error.binding == "local_bytes":
                reason = error
                reason.need = max(least.taken, reason.need)
        return refuse_limit(
            reason,
            request,
            memory=self.call.memory,
            limit=self.limit,
            gradients=byte_size([step.constants[place] for place in traced.wanted.constants]),
            parts=f" for {steps:,} steps with a state of {state}",
            shape=(steps, *step.inputs[0].shape) if step.inputs else (),
        )

    def _find_need(self, footprint: StepFootprint, link: Link | None) -> float:
        """Return the bytes that the exact strategies need, which all use a link if there is one."""
        question = self._make_request(footprint, 1, link=link).question()
        exact = question.replace(strategies=_EXACT if link is None else _REMOTE)
        reason = find_reason(exact, subject="no limit")
        return reason.need if reason.binding == "local_bytes" else math.inf

    def _plan(
        self, footprint: StepFootprint, limit: int, *, link: Link | None = None, only_exact: bool = False
    ) -> Plan:
        """Return the quickest plan; with a link, of strategies that keep states remote, too.

        Raises Infeasible, without suggestions: they take longer than planning.
        """
        request = self._make_request(footprint, limit, link=link)
        if not only_exact:
            plan = _choose(request, None)
            if plan.strategy in (*_EXACT, *_REMOTE) or footprint.predict(plan) <= limit:
                return plan
        return _choose(request, _EXACT if link is None else _REMOTE)

    def _make_request(self, footprint: StepFootprint, limit: int, *, link: Link | None = None) -> Request:
        counted = Basis(kind="derived", why="from the shapes of the traced step")
        seconds, timed = find_times(footprint, self.call.workload, among=self.measured)
        workload = ckptplan.Workload(
            name=footprint.name,
            steps=self.call.steps,
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


def _choose(request: Request, strategies: tuple[str, ...] | None) -> Plan:
    ranking = rank_strategies(request, strategies=strategies, only_best=True)
    if not ranking.answers:
        raise find_reason(ranking.question, subject="no strategy fits")
    return ranking.best()


def _choose_quicker(local: CountedPlan | None, remote: CountedPlan | None) -> CountedPlan | None:
    """Return the quicker one, which says what its place off the chip bought; None if there is none."""
    if remote is None or remote.link is None:
        return local
    plan = None if local is None else local.plan
    chosen = remote if local is None or remote.seconds < local.seconds else local
    noted = note_offload(chosen.plan, local=plan, remote=remote.plan, place=remote.link.place)
    return replace(chosen, plan=noted)
