"""A ``jax.lax.scan`` that JAX traces, and whose gradient follows a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from ckptplan.errors import InputError
from ckptplan.jax.footprint import choose_footprint, measure_step, warn_of_sizes
from ckptplan.jax.jaxprs import replace_loop, slice_jaxpr, vary_constants
from ckptplan.jax.leaves import Arrays, differentiable, is_small, zeros_of
from ckptplan.jax.limit import Job, Ways, plan_within
from ckptplan.jax.primitives import Batch, Loop, Passes, bind_loop
from ckptplan.jax.program import LoopProgram, go_back, make_program, run_in_words, sweep
from ckptplan.jax.step import Step, check_repeatable
from ckptplan.jax.tapes import TracedGradient, Wanted
from ckptplan.schedule.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Scan(Loop):
    """A scan that JAX has traced, with the arguments that choose how its gradient runs."""

    params: dict[str, Any]
    ways: Ways
    #: Whether ``jax.vmap`` batched its constants. JAX then moves an axis of all outputs, which copies them.
    copies_outputs: bool = False
    primitive = core.primitives.scan_p

    @cached_property
    def step(self) -> Step:
        """The step."""
        counts = self.params["num_consts"], self.params["num_carry"]
        return Step(self.params["jaxpr"], constants=counts[0], states=counts[1])

    @property
    def count(self) -> int:  # type: ignore[override]
        return len(self.params["jaxpr"].in_avals)

    @property
    def steps(self) -> int:
        """T."""
        return int(self.params["length"])

    def run_alone(self, *arguments: Any) -> Sequence[Any]:
        step = self.step
        if jax.default_backend() != "cpu" or not any(map(is_small, (*step.inputs, *step.outputs))):
            return self.run(*arguments)
        return run_in_words(
            step,
            *step.split_given(arguments),
            **{name: self.params[name] for name in ("length", "reverse", "unroll")},
        )

    def run_silently(self, *arguments: Any) -> Sequence[Any]:
        closed = self.params["jaxpr"]
        if not closed.effects:
            return self.run(*arguments)
        silent = slice_jaxpr(closed.jaxpr, closed.jaxpr.outvars, closed.jaxpr.invars, effects=False)
        params = {**self.params, "jaxpr": core.ClosedJaxpr(silent, closed.consts)}
        results: Sequence[Any] = self.primitive.bind(*arguments, **params)
        return results

    def rebind(self, params: dict[str, Any], batched: Sequence[bool]) -> Scan:
        return Scan(params, self.ways, copies_outputs=any(batched[: self.params["num_consts"]]))

    def plan(self, wanted: tuple[int, ...], *, batch: Batch, as_words: bool) -> ScanPasses:
        self.step.check_shapes()
        traced = TracedGradient(self.step, Wanted.among(self.step, wanted))
        ways, reverse = self.ways, self.params["reverse"]
        plan, size = ways.plan, None
        program: LoopProgram | None = None
        if plan is None:
            job = Job.of(traced, steps=self.steps, ways=ways, reverse=reverse, batch=batch, as_words=as_words)
            choice = plan_within(replace(job, copies_outputs=self.copies_outputs))
            plan, footprint, program, size = choice.plan, choice.footprint, choice.program, batch.size
        else:
            footprint = choose_footprint(plan, measure_step(traced), tape=ways.tape)
            if ways.tape is None:
                warn_of_sizes(plan, footprint)
        program = program or make_program(plan, footprint, reverse=reverse, as_words=as_words)
        return ScanPasses(loop=self, wanted=wanted, program=program, size=size)


@dataclass(frozen=True, kw_only=True, eq=False)
class ScanPasses(Passes):
    """The passes of a scan as a program of rows."""

    loop: Scan
    wanted: tuple[int, ...]
    program: LoopProgram
    size: int | None

    @property
    def refuses_batch(self) -> str:  # type: ignore[override]
        return "keeps states in remote memory, which jax.vmap cannot batch" if self.program.host_bytes else ""

    @property
    def holds_words(self) -> bool:  # type: ignore[override]
        step, tape = self.loop.step, self.program.sums.recording.tape
        return self.program.as_words and any(map(is_small, (*step.state, *tape, *step.outputs)))

    def run(self, *arguments: Any) -> Sequence[Any]:
        traced = self.program.sums.recording.traced
        if not traced.step.has_reverse_rules:
            return self.loop.run_silently(*arguments)
        body = core.ClosedJaxpr(traced.silent, ())
        params = self.loop.params | {"jaxpr": body, "num_consts": len(traced.fixed)}
        results: Sequence[Any] = self.loop.primitive.bind(*traced.values, *arguments, **params)
        return results

    def sweep(self, *arguments: Any) -> Sequence[Any]:
        # Keep XLA from folding constants of the program into larger ones: they are counted like arguments.
        given = list(map(lax.optimization_barrier, arguments))
        state, outputs, kept = sweep(self.program, *self.loop.step.split_given(given))
        return [*state, *outputs, *kept]

    def go_back(self, kept: Arrays, arguments: Arrays, incoming: Sequence[Any]) -> Sequence[Any]:
        step = self.loop.step
        constants, _, xs = step.split_given(arguments)
        moving = differentiable(step.state)
        of_state, of_outputs = incoming[: len(moving)], incoming[len(moving) :]
        final = _fill_zeros(of_state, step.state)
        stacked = None
        if any(gradient is not None for gradient in of_outputs):
            stacked = _fill_zeros(of_outputs, step.outputs, self.loop.steps)
        gradients = go_back(self.program, constants, xs, kept, (final, stacked))
        first = len(step.constants), len(step.constants) + len(step.state)
        wanted = self.program.wanted
        indices = (
            *wanted.constants,
            *(first[0] + index for index in moving),
            *(first[1] + index for index in wanted.inputs),
        )
        by_index = dict(zip(indices, (leaf for part in gradients for leaf in part), strict=True))
        return [by_index[index] for index in self.wanted]


def _fill_zeros(gradients: Sequence[Any], leaves: Sequence[Any], *room: int) -> Arrays:
    """Return the gradients of differentiable leaves, with zeros in place of None."""
    pairs = zip(gradients, (leaves[index] for index in differentiable(leaves)), strict=True)
    return tuple(
        zeros_of(leaf.to_ct_aval(), *room) if gradient is None else gradient for gradient, leaf in pairs
    )


def trace_scan(
    f: Callable[..., Any], init: Any, xs: Any, ways: Ways, **options: Any
) -> tuple[Scan, core.ClosedJaxpr, Any]:
    """Trace a scan with JAX, which raises its own errors for wrong arguments.

    Returns the scan, the traced function around it, and the tree of its results. Raises InputError if steps
    cannot be recomputed.
    """
    with jax.disable_jit(False):
        closed, shapes = jax.make_jaxpr(partial(lax.scan, f, **options), return_shape=True)(init, xs)
    check_repeatable(closed)
    (loop,) = (equation for equation in closed.jaxpr.eqns if equation.primitive is Scan.primitive)
    return Scan(loop.params, ways), closed, jax.tree.structure(shapes)


def run_scan(f: Callable[..., Any], init: Any, xs: Any, ways: Ways, **options: Any) -> tuple[Any, Any]:
    """Run a scan that follows its plan when it is differentiated. Raises InputError."""
    scan, closed, tree = trace_scan(f, init, xs, ways, **options)
    plan = ways.plan
    if plan is not None and scan.steps not in {0, plan.steps}:
        raise InputError(
            f"is for {plan.steps:,} steps, and the sequence has {scan.steps:,}",
            field="plan",
            accepted=f"a plan for {scan.steps:,} steps",
        )
    if isinstance(plan, Schedule):
        plan.check()
    arguments = [jnp.asarray(leaf) for leaf in jax.tree.leaves((init, xs))]

    def run(params: dict[str, Any], *arguments: Any) -> Sequence[Any]:
        if scan.steps == 0:
            # There are no steps to plan.
            return scan.run(*arguments)
        constants, state, xs = scan.step.split_given(arguments)
        body, constants = vary_constants(params["jaxpr"], constants)
        given = *constants, *state, *xs
        changed = {"jaxpr": body, "num_consts": len(constants)}
        return bind_loop(replace(scan, params=params | changed), *given)

    state, outputs = jax.tree.unflatten(tree, replace_loop(closed, Scan.primitive, run, arguments))
    return state, outputs
