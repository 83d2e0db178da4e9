"""The entry points ``scan``, ``bptt`` and ``plan_for``.

Steps that communicate over a named axis of ``jax.vmap`` are refused.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ckptplan.errors import InputError, quote_value
from ckptplan.execution.execute import check_functions
from ckptplan.jax.leaves import widen
from ckptplan.jax.limit import LoopCall, plan_within
from ckptplan.jax.primitive import run_loop
from ckptplan.jax.step import Step, differentiable, trace_step
from ckptplan.jax.tapes import Tape, TracedGradient, check_tape, find_wanted
from ckptplan.model.plan import Plan
from ckptplan.model.workload import Workload
from ckptplan.schedule.schedule import Schedule
from ckptplan.storage.place import OffloadPlace, OffloadTo, read_offload
from ckptplan.storage.remote_folder import make_parent
from ckptplan.units import parse_limit

#: More arrays of one shape in a list are hardly as many sequences.
_MOST_SEQUENCES = 2


def scan(  # noqa: PLR0917 - the signature of jax.lax.scan
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    plan: Plan | Schedule | None = None,
    memory: int | str | None = None,
    workload: Workload | None = None,
    tape: Tape | None = None,
    offload: OffloadTo = None,
    remote_dir: str | os.PathLike[str] | None = None,
) -> tuple[Any, Any]:
    """Return the final state and the stacked outputs: ``jax.lax.scan`` under a plan, with its gradients.

    Arguments:
        f: ``f(state, x)`` returns (state, output); what it closes over has gradients, too.
        init: the initial state, any pytree; integers and random keys are fine.
        xs: a pytree of arrays with time as the first axis, or None.
        length: T, if ``xs`` has no arrays.
        reverse: whether the sequence runs from its end, as in ``jax.lax.scan``.
        unroll: accepted as in ``jax.lax.scan``; it makes no difference.
        plan: a plan, or a ``ckptplan.Schedule`` if nothing was planned.
        memory: in place of a plan, the bytes that the call may take, or text as "64 MiB". A plan is made from
            shapes alone while a gradient is traced; a forward pass alone is a plain scan. The outputs of all
            steps and the gradients that are wanted are part of it.
        workload: of a calibration of this cell in JAX; a plan for ``memory`` is then chosen by its times.
        tape: how the backward of a step is fed: 'residuals' of the step, the fewest bytes that spare its matrix
            'products', or its 'states'. By default it is the kind whose bytes the plan was made for.
        offload: with ``memory``, where checkpoints may go beside it: "host", a folder, or
            ``ckptplan.jax.Offload(folder, limit="50 GB")``. Plans with remote checkpoints compete with local
            ones, at rates that the first call times.
        remote_dir: a folder for remote checkpoints of ``plan``; without it, they are kept in host memory.

    Works under ``jit``, ``grad``, ``vmap`` and ``shard_map``. First derivatives in reverse mode only. Raises
    InputError, also if no plan fits ``memory``.
    """
    step = make_step(f)
    _check_unroll(unroll)
    steps = _count_steps(xs, length, least=0)
    if steps == 0 and plan is None:
        state, outputs = lax.scan(f, init, xs, length=length, reverse=reverse)
        return state, outputs
    state, outputs, _ = _run(
        step,
        init,
        xs,
        steps=steps,
        reverse=reverse,
        plan=plan,
        memory=memory,
        workload=workload,
        tape=tape,
        offload=offload,
        remote_dir=remote_dir,
    )
    return state, outputs


def bptt(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    loss: Callable[[Any, Any], Any],
    length: int | None = None,
    *,
    plan: Plan | Schedule | None = None,
    memory: int | str | None = None,
    workload: Workload | None = None,
    tape: Tape | None = None,
    offload: OffloadTo = None,
    remote_dir: str | os.PathLike[str] | None = None,
) -> tuple[jax.Array, Any]:
    """Return the loss of a sequence and the final state; outputs are not kept.

    The loss is the sum of ``loss(t, output)`` over all steps, each a real number; terms in half precision are
    added up in fp32. Use it with ``jax.value_and_grad(..., has_aux=True)``. The other arguments are those of
    ``scan``. Raises InputError, also if no plan fits ``memory``.
    """
    check_functions(f=f, loss=loss)
    state, _, (total,) = _run(
        make_step(f, loss),
        init,
        xs,
        steps=_count_steps(xs, length),
        plan=plan,
        memory=memory,
        workload=workload,
        tape=tape,
        offload=offload,
        remote_dir=remote_dir,
    )
    return total, state


def plan_for(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    loss: Callable[[Any, Any], Any] | None = None,
    length: int | None = None,
    *,
    memory: int | str,
    workload: Workload | None = None,
    offload: OffloadTo = None,
    input_gradients: bool = False,
) -> Plan:
    """Return the plan that ``bptt`` makes for ``memory``; without a loss, the one of ``scan``.

    Arrays may be given as ``jax.ShapeDtypeStruct``: sizes come from shapes, and nothing runs. The plan's
    ``tape_bytes`` say which kind of tape was chosen. Gradients of ``xs`` are part of the limit with
    ``input_gradients``. Times are those of ``workload``, if given; ``offload`` is that of ``scan``. Raises
    InputError, also if no plan fits.
    """
    step = make_step(f, loss)
    steps = _count_steps(xs, length)
    place = read_offload(offload, plan=None, memory=memory)
    plans: list[Plan] = []

    def trace(init: Any, xs: Any) -> None:
        traced, _, _ = trace_step(step, init, xs)
        inputs = differentiable(traced.inputs) if input_gradients else ()
        call = LoopCall(step=traced, steps=steps, memory=memory, workload=workload, place=place)
        plans.append(plan_within(call, TracedGradient(traced, find_wanted(traced, inputs=inputs))).plan)

    jax.eval_shape(trace, init, xs)
    return plans[0]


def _run(step: Step, init: Any, xs: Any, *, steps: int, **ways: Any) -> tuple[Any, Any, Any]:
    """Return the final state, the outputs and the sums of terms; ``ways`` are those of ``LoopCall``."""
    plan, memory, tape = ways["plan"], ways["memory"], ways["tape"]
    if (plan is None) == (memory is None):
        problem = "is missing" if plan is None else "is given together with memory"
        raise InputError(problem, field="plan", accepted="a plan, or memory='64 MiB' in its place")
    folder, offload = ways.pop("remote_dir"), ways.pop("offload")
    place = read_offload(offload, plan=plan, memory=memory)
    if folder is not None and memory is not None:
        raise InputError(
            "is given together with memory: a plan is made, which keeps nothing there",
            field="remote_dir",
            accepted="plan=... with remote_dir, or memory=... with offload",
        )
    if folder is not None:
        place = OffloadPlace(folder=make_parent(folder), field="remote_dir")
    if ways["workload"] is not None and memory is None:
        raise InputError(
            "is given without memory, and a plan has its own", field="workload", accepted="memory='64 MiB'"
        )
    traced, constants, first = trace_step(step, init, xs)
    if tape is not None:
        check_tape(tape)
    if plan is not None:
        _check_plan(plan, steps=steps)
    else:
        parse_limit(memory, field="memory")
    call = LoopCall(step=traced, steps=steps, place=place, **ways)
    leaves = tuple(map(jnp.asarray, jax.tree.leaves(xs)))
    state, outputs, sums = run_loop(call, constants, first, leaves)
    return *traced.raise_results(state, outputs), sums


def make_step(f: Callable[[Any, Any], tuple[Any, Any]], loss: Callable[[Any, Any], Any] | None = None) -> Step:
    """Return a step that keeps its outputs; with a loss, its term is ``loss(t, output)`` in their place."""
    check_functions(f=f)
    if loss is None:
        return lambda _, state, x: (*_call(f, state, x), ())
    check_functions(loss=loss)

    def step(t: Any, state: Any, x: Any) -> tuple[Any, Any, Any]:
        after, output = _call(f, state, x)
        term = jnp.asarray(loss(t, output))
        if term.shape or not jnp.issubdtype(term.dtype, jnp.floating):
            raise InputError(
                f"returns {term.dtype}{list(term.shape)}", field="loss", accepted="a single real number"
            )
        return after, (), (widen(term),)

    return step


def _call(f: Callable[[Any, Any], Any], state: Any, x: Any) -> tuple[Any, Any]:
    """Return what a step returns. Raises InputError if it is no pair, or if ``xs`` is a list of steps."""
    try:
        returned = f(state, x)
    except (AttributeError, TypeError) as error:
        kind = type(x).__name__
        listed = isinstance(x, list | tuple) and len(x) > _MOST_SEQUENCES and f"'{kind}'" in str(error)
        if not listed or len({getattr(one, "shape", None) for one in x}) > 1:
            raise
        raise InputError(
            f"is a {kind} of {len(x):,} arrays, which is a nest of {len(x):,} inputs: each step gets a {kind} "
            f"of {len(x):,}, on which f fails ({error})",
            field="xs",
            accepted=f"one array, as jnp.stack(xs) makes it; or a step that takes such a {kind}",
        ) from error
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise InputError(
            f"returns {quote_value(type(returned).__name__)}, not a pair", field="f", accepted="(state, output)"
        )
    after, output = returned
    return after, output


def _check_unroll(unroll: object) -> None:
    if not isinstance(unroll, int) or unroll < 0:
        raise InputError(
            f"{quote_value(unroll)} is not accepted",
            field="unroll",
            accepted="a whole number from 0, or a bool",
        )


def _count_steps(xs: Any, length: int | None, *, least: int = 1) -> int:
    """Return T. Raises InputError if lengths differ, or if there is none or fewer steps than ``least``."""
    lengths: dict[str, int] = {}
    if length is not None:
        try:
            lengths["length"] = operator.index(length)
        except TypeError:
            raise InputError(
                f"is {quote_value(length)}", field="length", accepted="the number of steps, a whole number"
            ) from None
    for path, leaf in jax.tree_util.tree_flatten_with_path(xs)[0]:
        name = f"xs{jax.tree_util.keystr(path)}"
        if not getattr(leaf, "shape", ()):
            raise InputError("has no axis of time", field=name, accepted="an array of shape (T, ...)")
        lengths[name] = leaf.shape[0]
    if not lengths:
        raise InputError("is missing", field="length", accepted="the number of steps, or arrays in xs")
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {one}" for name, one in lengths.items())
        raise InputError(f"have different lengths: {found}", field="xs", accepted="one length")
    name, steps = next(iter(lengths.items()))
    if steps < least:
        raise InputError(
            f"{steps} time steps are too few", field=name, value=steps, accepted=f"{least} or more"
        )
    return steps


def _check_plan(plan: object, *, steps: int) -> None:
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
