"""A loop under a plan as one operation of JAX, with its rules: forward, ``vmap``, and reverse mode.

Until it is differentiated it is a plain scan, and nothing is planned. ``vmap`` makes the batch a part of the
step, so that sizes are those of the whole batch when a plan is made.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, NoReturn

import jax
import jax.export
import jax.numpy as jnp
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from ckptplan.errors import InputError, PlanMismatch
from ckptplan.jax.footprint import choose_footprint, measure_step, warn_of_sizes
from ckptplan.jax.jaxprs import identify
from ckptplan.jax.leaves import Arrays, byte_size, has_gradient, set_weak, zeros_of
from ckptplan.jax.limit import LoopCall, plan_within
from ckptplan.jax.program import Loop, make_loop, run_forward
from ckptplan.jax.step import TracedStep, differentiable
from ckptplan.jax.tapes import TracedGradient, Wanted
from ckptplan.model.plan import Plan
from ckptplan.units import format_bytes, parse_bytes

#: Outputs are much of a limit from this share on.
_MUCH = 0.25
_log = logging.getLogger("ckptplan.jax")


def _run(call: LoopCall, *leaves: Any) -> list[Any]:
    """Return the results of a forward pass."""
    found = run_forward(call.step, *call.step.split_given(leaves), steps=call.steps, reverse=call.reverse)
    return [leaf for part in found for leaf in part]


def _plan_loop(call: LoopCall, traced: TracedGradient) -> Loop:
    """Return how the steps run if gradients are wanted. Raises InputError."""
    plan = call.plan
    if plan is None:
        found = plan_within(call, traced)
        _tell_what_is_not_counted(call, found.plan)
        if found.loop is not None:
            return found.loop
        plan, footprint = found.plan, found.footprint
    else:
        footprint = choose_footprint(plan, measure_step(traced), tape=call.tape)
        if call.tape is None:
            warn_of_sizes(plan, footprint)
    return make_loop(plan, footprint, reverse=call.reverse, place=call.place)


def _tell_what_is_not_counted(call: LoopCall, plan: Plan) -> None:
    """Say that a loss may pass the limit, where one more array of all outputs would."""
    outputs = call.steps * byte_size([call.step.outputs[place] for place in differentiable(call.step.outputs)])
    limit = parse_bytes(call.memory)
    if outputs < _MUCH * limit or plan.predicted.local_peak_bytes + outputs <= limit:
        return
    _log.warning(
        "memory=%s counts all outputs (%s) and their gradients. A loss that holds another array "
        "of that size takes it beside the limit; ckptplan.jax.bptt takes the loss step by step",
        format_bytes(limit, like=limit),
        format_bytes(outputs, like=limit),
    )


def _find_loop(call: LoopCall, wanted: Wanted) -> Loop:
    """Return the loop of an equal call for the same gradients if there was one, else a new one."""
    _check_shapes(call.step)
    traced = TracedGradient(call.step, wanted)
    if traced.values:
        # Arrays that a rule holds are those of this call.
        return _plan_loop(call, traced)
    rules = identify(traced.before), identify(traced.whole)
    return _remember(_Asked(key=(call, wanted, rules), traced=traced))


def _check_shapes(step: TracedStep) -> None:
    """Raise InputError if sizes are not known, as those of ``jax.export.symbolic_shape``."""
    for leaf in (*step.constants, *step.state, *step.inputs, *step.outputs):
        if any(map(jax.export.is_symbolic_dim, leaf.shape)):
            raise InputError(
                f"has an array of a symbolic shape {list(leaf.shape)}, which no plan can be made for",
                field="f",
                accepted="arrays of known shapes where a gradient is wanted",
            )


def make_differentiable(call: LoopCall) -> Callable[..., tuple[Arrays, Arrays, Arrays]]:
    """Return the loop as a function of constants, state and inputs with a rule for reverse mode."""
    step = call.step

    @jax.custom_vjp
    def whole(constants: Arrays, state: Arrays, xs: Arrays) -> tuple[Arrays, Arrays, Arrays]:
        return run_forward(step, constants, state, xs, steps=call.steps, reverse=call.reverse)

    def forward(constants: Any, state: Any, xs: Any) -> Any:
        given = tuple(tuple(jnp.asarray(one.value) for one in part) for part in (constants, state, xs))
        # What a program has as constants is counted as arguments are: folding it would make larger copies.
        values = jax.tree.map(jax.lax.optimization_barrier, given)
        wanted = Wanted(constants=perturbed(constants, step.constants), inputs=perturbed(xs, step.inputs))
        loop = _find_loop(call, wanted)
        results, kept = once(lambda *given: loop.sweep(*_watch_batches(call, loop, given)))(*values)
        return results, (Static(loop), *values, kept)

    def backward(held: Any, gradients: Any) -> Any:
        static, constants, state, xs, kept = held
        loop: Loop = static.value
        found = once(loop.go_back)(constants, xs, kept, _materialise(step, gradients))
        return (
            spread(constants, loop.wanted.constants, found[0]),
            spread(state, differentiable(step.state), found[1]),
            spread(xs, loop.wanted.inputs, found[2]),
        )

    whole.defvjp(forward, backward, symbolic_zeros=True)
    return whole


def _watch_batches(call: LoopCall, loop: Loop, given: Any) -> Any:
    """Return the arguments of a loop: that ``jax.vmap`` makes a batch of them later is told.

    Each example has buffers of its own then. Raises InputError if states are kept in remote memory.
    """

    @jax.custom_batching.custom_vmap
    def same(given: Any) -> Any:
        return given

    @same.def_vmap
    def tell(size: int, batched: Any, given: Any) -> Any:
        if loop.remote is not None:
            raise InputError(
                "keeps states in remote memory, which jax.vmap cannot batch",
                field="plan",
                accepted="jax.grad around jax.vmap, or a plan with local checkpoints only",
            )
        if call.plan is None:
            warnings.warn(
                f"memory is of one example, and jax.vmap of a gradient runs {size:,} at a time: they take "
                f"up to {size:,} times as much; with jax.grad around jax.vmap, it is of all of them",
                PlanMismatch,
                stacklevel=2,
            )
        return given, batched[0]

    return same(given)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A call and what of its gradients tells it from others."""

    key: tuple[LoopCall, Wanted, Hashable]
    traced: TracedGradient = field(compare=False)


@lru_cache(maxsize=32)
def _remember(asked: _Asked) -> Loop:
    return _plan_loop(asked.key[0], asked.traced)


@lru_cache(maxsize=32)
def _compile(call: LoopCall) -> Callable[..., Any]:
    return jax.jit(partial(_run, call))


_loop = core.Primitive("planned_loop")
_loop.multiple_results = True


def run_loop(call: LoopCall, constants: Arrays, state: Arrays, xs: Arrays) -> tuple[Arrays, Arrays, Arrays]:
    """Return the final state, the stacked outputs and the sums of terms; all can be differentiated once."""
    found = _loop.bind(*map(guard, (*constants, *state, *xs)), call=call)
    return call.step.split_results(found)


_loop.def_impl(lambda *leaves, call: _compile(call)(*leaves))


def _find_results(*leaves: Any, call: LoopCall) -> tuple[Any, Any]:
    closed = jax.make_jaxpr(partial(_run, call))(*leaves)
    return closed.out_avals, closed.effects


_loop.def_effectful_abstract_eval(_find_results)
mlir.register_lowering(_loop, mlir.lower_fun(lambda *leaves, call: _run(call, *leaves), multiple_results=True))


def _batch(leaves: Sequence[Any], axes: Sequence[Any], *, call: LoopCall) -> tuple[list[Any], list[Any]]:
    """Run a batch as one loop: the batch is the first axis of states, and the second one of inputs."""
    size = next(leaf.shape[axis] for leaf, axis in zip(leaves, axes, strict=True) if axis is not None)
    constants, state, xs = call.step.split_given(list(zip(leaves, axes, strict=True)))
    given = (
        *(_move(leaf, axis, 0) for leaf, axis in constants),
        *(batching.bdim_at_front(leaf, axis, size) for leaf, axis in state),
        *(_move(leaf, axis, 1) for leaf, axis in xs),
    )
    of_constants, of_inputs = ([axis is not None for _, axis in part] for part in (constants, xs))
    many = replace(call, step=call.step.batch(size, constants=of_constants, inputs=of_inputs))
    found = many.step.split_results(_loop.bind(*given, call=many))
    return [leaf for part in found for leaf in part], [
        axis for part, axis in zip(found, (0, 1, 0), strict=True) for _ in part
    ]


def _move(leaf: Any, axis: Any, to: int) -> Any:
    return leaf if axis is None else jnp.moveaxis(leaf, axis, to)


batching.primitive_batchers[_loop] = _batch


def _differentiate(primals: Sequence[Any], tangents: Sequence[Any], *, call: LoopCall) -> Any:
    moved = [place for place, one in enumerate(tangents) if not isinstance(one, ad.Zero)]

    def of_moved(*values: Any) -> Any:
        leaves = list(primals)
        for place, value in zip(moved, values, strict=True):
            leaves[place] = value
        return [leaf for part in make_differentiable(call)(*call.step.split_given(leaves)) for leaf in part]

    return jax.jvp(of_moved, [primals[place] for place in moved], [tangents[place] for place in moved])


def _refuse_transpose(*_: Any, **__: Any) -> NoReturn:
    raise _refused("transposes")


ad.primitive_jvps[_loop] = _differentiate
ad.primitive_transposes[_loop] = _refuse_transpose


@jax.tree_util.register_static
@dataclass(frozen=True)
class Static:
    """What passes from the forward to the backward pass beside arrays."""

    value: Any


def perturbed(primals: Sequence[Any], shapes: Sequence[Any]) -> tuple[int, ...]:
    """Return the places of the primals of a ``jax.custom_vjp`` whose gradients are wanted."""
    return tuple(place for place in differentiable(shapes) if primals[place].perturbed)


def spread(leaves: Sequence[Any], places: Sequence[int], found: Sequence[Any]) -> tuple[Any, ...]:
    """Return a gradient for each leaf, None where none was computed."""
    by_place = dict(zip(places, found, strict=True))
    return tuple(by_place.get(place) for place in range(len(leaves)))


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that refuses to be differentiated."""
    guarded = jax.custom_jvp(function)

    def refuse(*_: Any) -> NoReturn:
        raise _refused("second derivatives")

    guarded.defjvp(refuse)
    return guarded


def _refused(what: str) -> InputError:
    return InputError(
        f"{what} of a loop under a plan are not supported",
        accepted="first derivatives in reverse mode, as by jax.grad and jax.vjp, or jax.lax.scan",
    )


def _refuse_forward(*_: Any, **__: Any) -> NoReturn:
    raise _refused("derivatives in forward mode")


#: The tangent of an argument. Reverse mode transposes it; only forward mode evaluates it, at once or in a
#: program.
_tangent = core.Primitive("tangent_of_a_plan")
_tangent.def_abstract_eval(lambda kind: kind)
_tangent.def_impl(_refuse_forward)
ad.deflinear(_tangent, lambda gradient: [gradient])
batching.primitive_batchers[_tangent] = lambda given, axes: (_tangent.bind(*given), axes[0])
mlir.register_lowering(_tangent, _refuse_forward)


def guard(leaf: jax.Array) -> jax.Array:
    """Return an argument of a loop, whose type is not weak, so that forward mode is refused by name."""
    if not has_gradient(leaf):
        return leaf
    guarded = jax.custom_jvp(lambda one: one)
    guarded.defjvp(lambda primals, tangents: (primals[0], _tangent.bind(tangents[0])))
    found: jax.Array = guarded(set_weak(leaf, weak=False))
    return found


def _materialise(step: TracedStep, gradients: Any) -> tuple[Arrays, Arrays | None, Arrays]:
    """Return the incoming gradients of what is differentiable; None if none of the outputs has one."""
    final, stacked, sums = gradients
    states = tuple(zero_or(final[place], step.state[place]) for place in differentiable(step.state))
    places = differentiable(step.outputs)
    unused = all(isinstance(stacked[place], jax.custom_derivatives.SymbolicZero) for place in places)
    some = tuple(zero_or(stacked[place], step.outputs[place], *stacked[place].shape[:1]) for place in places)
    terms = tuple(zero_or(one, leaf) for one, leaf in zip(sums, step.terms, strict=True))
    return states, None if unused else some, terms


def zero_or(gradient: Any, leaf: jax.ShapeDtypeStruct, *room: int) -> jax.Array:
    """Return a gradient, or that of nothing: zeros with room for a number of leaves."""
    if isinstance(gradient, jax.custom_derivatives.SymbolicZero):
        return zeros_of(leaf, *room)
    return jnp.asarray(gradient)
