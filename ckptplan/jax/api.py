"""The entry points ``scan``, ``bptt`` and ``plan_for``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Never, SupportsIndex

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from ckptplan.errors import InputError, refuse_arguments
from ckptplan.execution.execute import check_functions
from ckptplan.jax.footprint import choose_footprint, measure_step, warn_of_sizes
from ckptplan.jax.jaxprs import check_repeatable
from ckptplan.jax.leaves import differentiable, is_small, widen, zeros_of
from ckptplan.jax.limit import Job, Ways, plan_within, read_limit
from ckptplan.jax.loops import Batch, Loop, run_planned, trace
from ckptplan.jax.program import ScanPasses, run_in_words
from ckptplan.jax.remote import rehearse_host
from ckptplan.jax.tapes import Tape, TracedGradient, trace_gradient
from ckptplan.model.plan import Plan
from ckptplan.model.workload import Workload
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
        plan, tape, size = self.ways.plan, self.ways.tape, None
        if plan is None:
            choice = plan_within(Job(measured, loop=self, ways=self.ways, batch=batch, as_words=as_words))
            footprint, table, size = choice.footprint, choice.table, batch.size
        else:
            footprint = choose_footprint(plan, measured, tape=tape)
            table = footprint.tabulate(plan)
            if tape is None:
                warn_of_sizes(plan, footprint)
        if table.remote_slots:
            rehearse_host(jax.default_backend())
        return ScanPasses(loop=self, sums=footprint.sums, table=table, as_words=as_words, size=size)


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


def scan(  # noqa: PLR0917 - the signature of jax.lax.scan
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
    *,
    plan: Plan | Schedule | None = None,
    memory: SupportsIndex | str | None = None,
    workload: Workload | None = None,
    tape: Tape | None = None,
    **unknown: Never,
) -> tuple[Any, Any]:
    """Return the final state and the stacked outputs: ``jax.lax.scan`` under a plan, with its gradients.

    JAX traces the step. So the first seven arguments are those of ``jax.lax.scan``, and raise its errors.
    Without a gradient, and in forward mode, the loop runs as in JAX and keeps no checkpoints.

    Arguments:
        f: ``f(state, x)`` returns (state, output). Arrays that it closes over have gradients, too.
        init: the initial state, any pytree; integers and random keys are fine.
        xs: a pytree of arrays with time as the first axis, or None.
        length: T, if ``xs`` has no arrays.
        reverse: whether the sequence runs from its end.
        unroll: the steps per round of the loop, in a forward pass without gradients.
        plan: a plan, or a ``ckptplan.Schedule`` if nothing was planned. Its remote checkpoints are kept in host
            memory.
        memory: in place of a plan, the bytes that the call may take on each device, or text as "64 MiB". A plan
            is made from shapes alone while a gradient is traced. The limit includes the outputs of all steps,
            the requested gradients, and all examples of ``jax.vmap``.
        workload: a workload from a calibration of this cell in JAX. A plan for ``memory`` then uses its times.
        tape: the arrays that the backward of a step starts from: its 'residuals', the fewest bytes that avoid
            recomputing its matrix 'products', or its 'states'. By default, the kind that the plan was made for.

    A second reverse pass (``grad`` of ``grad``) is refused. Raises InputError, also if no plan fits ``memory``.
    """
    refuse_arguments(unknown, scan)
    ways = Ways(plan=plan, memory=read_limit(memory), workload=workload, tape=tape)
    options: dict[str, Any] = {"length": length, "reverse": reverse, "unroll": unroll}
    options["_split_transpose"] = _split_transpose
    loop, closed, tree = trace_scan(f, init, xs, ways, **options)
    steps = loop.params["length"]
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
    state, outputs = jax.tree.unflatten(tree, run_planned(closed, loop, (init, xs)))
    return state, outputs


def bptt(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    loss: Callable[[Any, Any], Any],
    length: int | None = None,
    *,
    plan: Plan | Schedule | None = None,
    memory: SupportsIndex | str | None = None,
    workload: Workload | None = None,
    tape: Tape | None = None,
    **unknown: Never,
) -> tuple[jax.Array, Any]:
    """Return the loss of a sequence and the final state, without keeping the outputs.

    The loss is the sum of ``loss(t, output)`` over all steps. Each term is a real number, and terms in half
    precision are added up in fp32. The sum is a part of the state. Around ``bptt``, use
    ``jax.value_and_grad(..., has_aux=True)``. The other arguments are those of ``scan``. Raises InputError,
    also if no plan fits ``memory``.
    """
    step, start = with_loss(f, init, xs, loss)
    options: dict[str, Any] = {"plan": plan, "memory": memory, "workload": workload, "tape": tape}
    (state, _, total), _ = scan(step, start, xs, length, **options, **unknown)
    return total, state


def plan_for(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    loss: Callable[[Any, Any], Any] | None = None,
    length: int | None = None,
    *,
    memory: SupportsIndex | str | None = None,
    workload: Workload | None = None,
    input_gradients: bool = False,
    **unknown: Never,
) -> Plan:
    """Return the plan that ``bptt`` makes for ``memory``; without a loss, the plan of ``scan``.

    Arrays may be given as ``jax.ShapeDtypeStruct``, since sizes come from shapes and nothing runs. The plan's
    ``tape_bytes`` show which kind of tape was chosen. With ``input_gradients``, the limit includes gradients of
    ``xs``. Times come from ``workload``, if it is given. Raises InputError, also if no plan fits.
    """
    refuse_arguments(unknown, scan)
    ways = Ways(memory=read_limit(memory), workload=workload)
    plans: list[Plan] = []

    def trace(init: Any, xs: Any) -> None:
        step, start = (f, init) if loss is None else with_loss(f, init, xs, loss)
        loop, _, _ = trace_scan(step, start, xs, ways, length=length)
        inputs = differentiable(loop.step.inputs) if input_gradients else ()
        measured = measure_step(trace_gradient(loop.step, inputs=inputs))
        plans.append(plan_within(Job(measured, loop=loop, ways=ways)).plan)

    jax.eval_shape(trace, init, xs)
    return plans[0]


def with_loss(
    f: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, loss: Callable[[Any, Any], Any]
) -> tuple[Callable[[Any, Any], tuple[Any, Any]], Any]:
    """Return a step without outputs, and its state, which count steps and add up ``loss(t, output)``."""
    check_functions(f=f, loss=loss)

    def term_of(t: Any, output: Any) -> Any:
        term = jnp.asarray(loss(t, output))
        if term.shape or not jnp.issubdtype(term.dtype, jnp.floating):
            raise InputError(
                f"returns {term.dtype}{list(term.shape)}", field="loss", accepted="a single real number"
            )
        return widen(term)

    def step(state: Any, x: Any) -> Any:
        inner, t, total = state
        returned: Any = f(inner, x)
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            # JAX raises its own error for this.
            return returned
        after, output = returned
        return (after, t + 1, total + term_of(t, output)), None

    total: Any = 0.0
    if jax.sharding.get_abstract_mesh().manual_axes:
        # Within shard_map, the initial sum needs the axes of devices along which its terms vary.
        def first_term(init: Any, xs: Any) -> Any:
            return step((init, jnp.int32(0), 0.0), jax.tree.map(lambda leaf: leaf[0], xs))[0][2]

        total = zeros_of(jax.make_jaxpr(first_term)(init, xs).out_avals[0])
    return step, (init, jnp.int32(0), total)
