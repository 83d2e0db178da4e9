"""Plans whose programs are within a limit: planned from shapes, compiled, and planned again if need be.

What a step holds while it runs is an estimate: compilers fuse, copy and order as they like. So the planned
program is compiled once, quickly, and its bytes are read. If they are too many, the difference belongs to the
workspace of the step, and the loop is planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax

from ckptplan.errors import Infeasible
from ckptplan.jax.footprint import StepFootprint, measure_step
from ckptplan.jax.jaxprs import Same
from ckptplan.jax.leaves import Arrays, byte_size
from ckptplan.jax.planning import Job, choose_footprint, predict_program, tabulate
from ckptplan.jax.program import Loop, run_both_passes
from ckptplan.jax.remote import RemoteStates, find_ways
from ckptplan.jax.step import TracedStep
from ckptplan.jax.sums import GradientSums
from ckptplan.jax.tapes import Recording, Tape, TracedGradient, Wanted, find_wanted
from ckptplan.model.plan import Plan
from ckptplan.model.workload import Workload
from ckptplan.schedule.schedule import Schedule
from ckptplan.storage.place import Link, OffloadPlace, find_cached_room

#: Programs that are compiled to plan one loop.
_MOST_PROGRAMS = 3
#: A program that takes less than this share of the limit may have been planned with too little.
_ROOMY = 0.8
_NOTHING = Wanted(constants=(), inputs=())
#: What a caller's numbers and their alignment take.
_SMALL_BYTES = 4096
#: Machine code is not needed to know the bytes of a program.
_QUICKLY: dict[str, str | bool] = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_parallel_codegen_split_count": "1",
}
#: Nor are slower writers of loops, by which only programs with small floating-point numbers need more bytes.
_MORE_QUICKLY = {**_QUICKLY, "xla_cpu_use_fusion_emitters": False}
_SMALL_TYPES = ("f16", "f8E")


def plan_within(
    footprints: Sequence[StepFootprint],
    *,
    steps: int,
    memory: object,
    timed: Workload | None = None,
    tape: Tape | None = None,
    place: OffloadPlace | None = None,
) -> Plan:
    """Return the quickest plan whose program is within a limit; its tape bytes say which kind of tape it has.

    Arguments:
        footprints: those of the step of the loop (``measure_step``).
        steps: T.
        memory: the limit, bytes or text. Outputs of all steps and their gradients are part of it, as are the
            wanted gradients of parameters and inputs.
        timed: a calibrated workload whose times are taken.
        tape: the kind of tape; None to choose it.
        place: where states may go off the chip; None for nowhere.

    Raises InputError if no plan fits, with a limit that is then accepted, or if the workload is of another
    step.
    """
    traced = footprints[0].recording.traced
    step, wanted = traced.step, traced.wanted
    job = make_job(step, steps=steps, memory=memory, wanted=wanted, timed=timed)
    state_bytes = footprints[0].state_bytes
    links = find_ways(place, state_bytes=state_bytes, steps=steps, limit=job.limit) if place else ()
    search = _LimitSearch(
        job=replace(job, measured=tuple(footprints), links=links),
        count=lambda plan, footprint: count_bytes(plan, footprint, place=place),
    )
    found = search.run([one for one in footprints if tape in {None, one.tape}])
    if found is not None:
        return found
    smallest = search.smallest
    raise search.job.refuse(
        smallest.corrected,
        link=smallest.link,
        need=smallest.taken,
        gradients=byte_size([step.constant_shapes[place] for place in wanted.constants]),
        shape=(steps, *step.inputs[0].shape) if step.inputs else (),
    )


def make_job(
    step: TracedStep,
    *,
    steps: int,
    memory: object,
    wanted: Wanted = _NOTHING,
    timed: Workload | None = None,
) -> Job:
    """Return what is to be planned; the arguments are those of ``plan_within``. Raises InputError."""
    kept = 2 * byte_size(step.outputs) + byte_size([step.inputs[place] for place in wanted.inputs])
    return Job(steps=steps, memory=memory, kept_bytes=kept, timed=timed)


def check_limit(step: TracedStep, *, steps: int, memory: object, place: OffloadPlace | None) -> None:
    """Raise InputError if not even a forward pass is within a limit: its outputs and the states of a step.

    The least that it names is that of gradients, with states at a ``place``, too.
    """
    job = make_job(step, steps=steps, memory=memory)
    if steps * byte_size(step.outputs) + 2 * byte_size(step.state_shapes) > job.limit:
        footprints = measure_step(TracedGradient(step, find_wanted(step)))
        plan_within(footprints, steps=steps, memory=memory, place=place)


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """A plan, the footprint that it is for, the bytes of its program, and the way that its states go."""

    plan: Plan
    footprint: StepFootprint
    taken: int
    link: Link | None

    @property
    def corrected(self) -> StepFootprint:
        """The footprint with which the plan needs the bytes of its program."""
        return _add(self.footprint, self.taken - predict_program(self.plan, self.footprint))


class _LimitSearch:
    """Looks for a plan whose program is within a limit."""

    def __init__(self, *, job: Job, count: Callable[[Plan, StepFootprint], int]) -> None:
        self.job, self._count = job, count
        #: The smallest program of plans with the least need.
        self.smallest: _Counted

    def run(self, estimated: Sequence[StepFootprint]) -> Plan | None:
        """Return the plan; None if the smallest program is too large.

        Whatever the first programs show, the last one is that of the plan with the least need: a limit that
        it is within is always accepted.
        """
        footprints = list(estimated)
        best: Plan | None = None
        for _ in range(_MOST_PROGRAMS - 1):
            try:
                plan, footprint = self.job.find_plan(footprints)
            except Infeasible:
                if best is not None or hasattr(self, "smallest"):
                    break
                least = self._find_smallest(estimated)
                plan, footprint, taken = least.plan, least.footprint, least.taken
            else:
                if best is not None and plan.predicted.seconds >= best.predicted.seconds:
                    return best
                taken = self._count(plan, footprint)
            more = taken - predict_program(plan, footprint)
            if taken <= self.job.limit:
                best = plan
                if taken >= _ROOMY * self.job.limit or plan.strategy == "base":
                    return best
            footprints = [_add(one, more) for one in footprints]
        if best is not None:
            return best
        if not hasattr(self, "smallest"):
            self._find_smallest(estimated)
        least = self.smallest
        if least.taken > self.job.limit:
            return None
        # The same plan, with the bytes that its program has.
        return self.job.plan_again(least.plan, least.corrected, link=least.link)

    def _find_smallest(self, footprints: Sequence[StepFootprint]) -> _Counted:
        """Count the plan whose states stay on the chip, and one for each way to keep them elsewhere."""
        found = []
        for link in (None, *self.job.links):
            plan, footprint = self.job.find_least(footprints, link=link)
            taken = self._count(plan, footprint)
            found.append(_Counted(plan=plan, footprint=footprint, taken=taken, link=link))
        self.smallest = min(found, key=lambda one: one.taken)
        return self.smallest


def _add(footprint: StepFootprint, more: int) -> StepFootprint:
    return replace(footprint, workspace_bytes=max(0, footprint.workspace_bytes + more))


def make_loop(
    plan: Plan | Schedule,
    footprints: Sequence[StepFootprint],
    *,
    tape: Tape | None = None,
    reverse: bool = False,
    place: OffloadPlace | None = None,
) -> Loop:
    """Return a step with the schedule that it runs under.

    Arguments:
        plan: a plan or a schedule.
        footprints: those of the step (``measure_step``).
        tape: the kind of tape; None for the one that the plan was made for.
        reverse: whether the sequence runs from its end.
        place: where remote states go; None for host memory.
    """
    found = choose_footprint(plan, footprints, tape=tape)
    # Arrays that a rule holds are those of this call.
    make = _make_loop.__wrapped__ if found.recording.traced.values else _make_loop
    return make(Same(plan), found.recording, found.sums, reverse, place)


@lru_cache(maxsize=4)
def _make_loop(
    plan: Same, recording: Recording, sums: GradientSums, reverse: bool, place: OffloadPlace | None
) -> Loop:
    # Kept, since a program that was counted is then compiled with machine code.
    state = recording.traced.step.state_shapes
    table, remote = tabulate(plan, state, recording.tape), None
    if table.remote_slots:
        room = find_cached_room(table.buffer_bytes)
        through = room is not None and table.remote_slots * byte_size(state) > room
        remote = RemoteStates(place or OffloadPlace(folder=None), through=through)
    return Loop(recording=recording, sums=sums, table=table, reverse=reverse, remote=remote)


def count_bytes(plan: Plan, footprint: StepFootprint, *, place: OffloadPlace | None = None) -> int:
    """Return the bytes that the program of a plan takes: temporary arrays and results.

    What the caller's loss holds of the outputs is not known: it is that of the mean of their squares. A part
    of a program within ``shard_map`` is not compiled: its bytes are the estimate.
    """
    if jax.sharding.get_abstract_mesh().manual_axes:
        return predict_program(plan, footprint)
    step, loop = footprint.recording.traced.step, make_loop(plan, [footprint], tape=footprint.tape, place=place)

    def stack(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((plan.steps, *leaf.shape), leaf.dtype)

    def run(constants: Arrays, state: Arrays, xs: Arrays) -> Any:
        return run_both_passes(loop, constants, state, xs)

    shapes = step.constant_shapes, step.state_shapes, tuple(map(stack, step.inputs))
    lowered = jax.jit(run).lower(*shapes)
    has_small = any(one in lowered.as_text() for one in _SMALL_TYPES)
    compiled = lowered.compile(compiler_options=_QUICKLY if has_small else _MORE_QUICKLY)
    found: Any = compiled.memory_analysis()
    # A first state that is a constant of the program is copied; here it is an argument.
    more = byte_size(step.state_shapes) + _SMALL_BYTES
    if step.is_batch:
        more += plan.steps * byte_size(step.outputs)
    return int(found.temp_size_in_bytes + found.output_size_in_bytes + more)
