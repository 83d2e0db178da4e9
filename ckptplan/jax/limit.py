"""Plans whose programs are within a limit: planned from shapes, compiled, and planned again if need be.

What a step holds while it runs is an estimate: compilers fuse, copy and order as they like. So the planned
program is compiled once, quickly, and its bytes are read. If they are too many, the difference belongs to the
workspace of the step, and the loop is planned again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax

from ckptplan.errors import Infeasible
from ckptplan.execution.advice import DEAR, describe_choice
from ckptplan.jax.footprint import StepFootprint, measure_step
from ckptplan.jax.jaxprs import Same
from ckptplan.jax.leaves import Arrays, byte_size
from ckptplan.jax.planning import (
    CountedPlan,
    Job,
    choose_quicker,
    predict_program,
    tabulate,
)
from ckptplan.jax.program import Loop, run_both_passes
from ckptplan.jax.remote import RemoteStates
from ckptplan.jax.step import TracedStep
from ckptplan.jax.sums import GradientSums
from ckptplan.jax.tapes import TracedGradient, find_wanted
from ckptplan.model.plan import Plan
from ckptplan.schedule.schedule import Schedule
from ckptplan.storage.memory import find_cached_room
from ckptplan.storage.place import OffloadPlace
from ckptplan.units import parse_limit

#: Programs that are compiled to plan one loop.
_MOST_PROGRAMS = 3
#: A program that takes less than this share of the limit may have been planned with too little.
_ROOMY = 0.8
#: A program need not be compiled if the limit has room for twice its bytes, and for so many times the estimated
#: workspace: bf16, which compilers for CPUs copy to fp32, has taken eight times of it.
_SURELY = 10
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
_log = logging.getLogger("ckptplan.jax")


def plan_within(job: Job) -> CountedPlan:
    """Return the quickest plan whose program is within a limit, and the footprint that it is for.

    Raises InputError if no plan fits, with a limit that is then accepted, or if the workload is of another
    step.
    """
    search = _LimitSearch(job, lambda one: count_bytes(one.plan, one.footprint, place=job.place))
    found = search.run(job.allowed)
    _log.info("%s", describe_choice(found.plan, job.limit))
    if job.place is None and found.plan.predicted.overhead > DEAR and (advice := job.advise(found)):
        _log.warning("%s", advice)
    return found


def check_limit(step: TracedStep, *, steps: int, memory: object, place: OffloadPlace | None) -> None:
    """Raise InputError if not even a forward pass is within a limit: its outputs and the states of a step.

    The least that it names is that of gradients, with states at a ``place``, too.
    """
    least = steps * byte_size(step.outputs) + 2 * byte_size(step.state)
    if least > parse_limit(memory, field="memory"):
        footprints = measure_step(TracedGradient(step, find_wanted(step)))
        plan_within(Job(measured=footprints, steps=steps, memory=memory, place=place))


class _LimitSearch:
    """Looks for a plan whose program is within a limit; ``count`` returns the bytes of a program."""

    def __init__(self, job: Job, count: Callable[[CountedPlan], int]) -> None:
        self._job, self._count = job, count

    def run(self, estimated: Sequence[StepFootprint]) -> CountedPlan:
        """Return the quickest plan. Raises InputError if the smallest program is too large.

        Whatever the first programs show, the last one is that of the plan with the least need: a limit that
        it is within is always accepted.
        """
        limit, footprints = self._job.limit, list(estimated)
        best: CountedPlan | None = None
        least: CountedPlan | None = None
        for _ in range(_MOST_PROGRAMS - 1):
            try:
                found = self._job.find_plan(footprints)
            except Infeasible:
                if best is not None or least is not None:
                    break
                found = least = self._find_smallest(estimated)
            else:
                if best is not None and found.seconds >= best.seconds:
                    break
                predicted, workspace = found.plan.predicted, found.footprint.workspace_bytes
                if 2 * predicted.local_peak_bytes + _SURELY * workspace <= limit:
                    return found
                found = self._compile(found)
            if found.taken <= limit:
                best = found
                if found.taken >= _ROOMY * limit or found.plan.strategy == "base":
                    break
            footprints = [one.add(found.more) for one in footprints]
        if best is not None:
            return best
        least = least or self._find_smallest(estimated)
        if least.taken > limit:
            raise self._job.refuse(least)
        return replace(least, plan=least.recount())

    def _compile(self, found: CountedPlan) -> CountedPlan:
        return replace(found, taken=self._count(found))

    def _find_smallest(self, footprints: Sequence[StepFootprint]) -> CountedPlan:
        """Return the plan with the smallest program, or the quickest within the limit.

        One keeps its states on the chip, and there is one for each way to keep them elsewhere.
        """
        ways = (self._job.find_least(footprints, link=one) for one in (None, *self._job.links))
        local, *remote = (self._compile(one) for one in ways if one is not None)
        within = [one for one in remote if one.taken <= self._job.limit]
        found = choose_quicker(
            local if local.taken <= self._job.limit else None,
            min(within, key=lambda one: one.seconds, default=None),
        )
        return found or min((local, *remote), key=lambda one: one.taken)


def make_loop(
    plan: Plan | Schedule,
    footprint: StepFootprint,
    *,
    reverse: bool = False,
    place: OffloadPlace | None = None,
) -> Loop:
    """Return a step with the schedule that it runs under.

    Arguments:
        plan: a plan or a schedule.
        footprint: that of the step (``choose_footprint``).
        reverse: whether the sequence runs from its end.
        place: where remote states go; None for host memory.
    """
    # Arrays that a rule holds are those of this call.
    make = _make_loop.__wrapped__ if footprint.traced.values else _make_loop
    return make(Same(plan), footprint.sums, footprint.together, reverse, place)


@lru_cache(maxsize=4)
def _make_loop(
    plan: Same, sums: GradientSums, together: int, reverse: bool, place: OffloadPlace | None
) -> Loop:
    # Kept, since a program that was counted is then compiled with machine code.
    state = sums.recording.traced.step.state
    table, remote = tabulate(plan, state, sums.recording.tape), None
    if table.remote_slots:
        room = find_cached_room(table.buffer_bytes)
        through = room is not None and table.remote_slots * byte_size(state) > room
        remote = RemoteStates(place or OffloadPlace(folder=None), through=through)
    return Loop(sums=sums, together=together, table=table, reverse=reverse, remote=remote)


def count_bytes(plan: Plan, footprint: StepFootprint, *, place: OffloadPlace | None = None) -> int:
    """Return the bytes that the program of a plan takes: temporary arrays and results.

    What the caller's loss holds of the outputs is not known: it is that of the mean of their squares. A part
    of a program within ``shard_map`` is not compiled: its bytes are the estimate.
    """
    if jax.sharding.get_abstract_mesh().manual_axes:
        return predict_program(plan, footprint)
    step, loop = footprint.traced.step, make_loop(plan, footprint, place=place)

    def stack(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((plan.steps, *leaf.shape), leaf.dtype)

    def run(constants: Arrays, state: Arrays, xs: Arrays) -> Any:
        return run_both_passes(loop, constants, state, xs)

    shapes = step.constants, step.state, tuple(map(stack, step.inputs))
    lowered = jax.jit(run).lower(*shapes)
    has_small = any(one in lowered.as_text() for one in _SMALL_TYPES)
    compiled = lowered.compile(compiler_options=_QUICKLY if has_small else _MORE_QUICKLY)
    found: Any = compiled.memory_analysis()
    # A first state that is a constant of the program is copied; here it is an argument.
    more = byte_size(step.state) + _SMALL_BYTES
    if step.is_batch:
        more += plan.steps * byte_size(step.outputs)
    return int(found.temp_size_in_bytes + found.output_size_in_bytes + more)
