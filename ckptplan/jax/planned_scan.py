"""A ``jax.lax.scan`` that JAX traces, and whose gradient follows a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import lax
from jax.extend import core

from ckptplan.errors import InputError
from ckptplan.jax.footprint import choose_footprint, measure_step, warn_of_sizes
from ckptplan.jax.leaves import is_small
from ckptplan.jax.limit import Job, Ways, plan_within
from ckptplan.jax.loops import Batch, Loop
from ckptplan.jax.primitives import run_planned, trace
from ckptplan.jax.program import ScanPasses, make_passes, run_in_words
from ckptplan.jax.step import check_repeatable
from ckptplan.jax.tapes import TracedGradient
from ckptplan.schedule.schedule import Schedule


@dataclass(frozen=True, kw_only=True, eq=False)
class Scan(Loop):
    """A scan that JAX has traced, with the arguments that choose how its gradient runs."""

    ways: Ways
    primitive = core.primitives.scan_p
    names = ("jaxpr", "num_consts")

    def run_alone(self, *arguments: Any) -> Sequence[Any]:
        step = self.step
        if jax.default_backend() != "cpu" or not any(map(is_small, (*step.inputs, *step.outputs))):
            return self.run(*arguments)
        return run_in_words(
            step,
            *step.split_given(arguments),
            **{name: self.params[name] for name in ("length", "reverse", "unroll")},
        )

    def plan(self, wanted: tuple[int, ...], *, batch: Batch, as_words: bool) -> ScanPasses:
        measured = measure_step(TracedGradient(self.step, wanted))
        plan, tape = self.ways.plan, self.ways.tape
        if plan is None:
            job = Job(measured=measured, loop=self, ways=self.ways, batch=batch, as_words=as_words)
            choice = plan_within(job)
            return make_passes(self, choice.table, choice.footprint, as_words=as_words, size=batch.size)
        footprint = choose_footprint(plan, measured, tape=tape)
        if tape is None:
            warn_of_sizes(plan, footprint)
        return make_passes(self, footprint.tabulate(plan), footprint, as_words=as_words)


def trace_scan(
    f: Callable[..., Any], init: Any, xs: Any, ways: Ways, **options: Any
) -> tuple[Scan, core.ClosedJaxpr, Any]:
    """Trace a scan with JAX, which raises its own errors for wrong arguments.

    Returns the scan, the traced function around it, and the tree of its results. Raises InputError if steps
    cannot be recomputed.
    """
    closed, tree = trace(partial(lax.scan, f, **options), init, xs)
    check_repeatable(closed)
    (loop,) = (equation for equation in closed.jaxpr.eqns if equation.primitive is Scan.primitive)
    return Scan(params=loop.params, ways=ways), closed, tree


def run_scan(f: Callable[..., Any], init: Any, xs: Any, ways: Ways, **options: Any) -> tuple[Any, Any]:
    """Run a scan that follows its plan when it is differentiated. Raises InputError."""
    scan, closed, tree = trace_scan(f, init, xs, ways, **options)
    plan, steps = ways.plan, scan.params["length"]
    if not steps:
        # There are no steps to plan.
        return lax.scan(f, init, xs, **options)
    if plan is not None and steps != plan.steps:
        raise InputError(
            f"is for {plan.steps:,} steps, and the sequence has {steps:,}",
            field="plan",
            accepted=f"a plan for {steps:,} steps",
        )
    if isinstance(plan, Schedule):
        plan.check()
    state, outputs = jax.tree.unflatten(tree, run_planned(closed, scan, (init, xs)))
    return state, outputs
