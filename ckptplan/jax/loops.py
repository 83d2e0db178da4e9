"""Loops that JAX has traced, as operations of JAX whose reverse mode follows a plan.

Without derivatives and in forward mode, a loop runs as JAX's own loop, and keeps no checkpoints. For reverse
mode, JAX linearizes the loop: then a sweep saves the plan's checkpoints and tapes, and the transpose of the
linear operation on tangents is the planned backward pass. Within ``jax.checkpoint``, JAX transposes forward
mode. Then the backward pass begins with the sweep.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.interpreters import ad, batching, mlir, partial_eval

from ckptplan.errors import InputError, PlanMismatch
from ckptplan.jax.jaxprs import Step, lift_constants, replace_loop, slice_jaxpr
from ckptplan.jax.leaves import (
    Arrays,
    differentiable,
    fill,
    fill_zeros,
    has_gradient,
    is_small,
    pick,
    set_weak,
    split,
)
from ckptplan.jax.sums import GradientSums


@dataclass(frozen=True)
class Batch:
    """The batch of a gradient under ``jax.vmap``: number of examples, and which arguments are batched."""

    size: int = 1
    batched: tuple[bool, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Loop(ABC):
    """A loop that JAX has traced: an operation with its parameters.

    Its arguments are constants of the condition, if there is one, and then the arguments of the body:
    constants, the state, and the inputs of all steps.
    """

    params: dict[str, Any]
    #: Whether ``jax.vmap`` batched its constants. JAX then moves an axis of all outputs, which copies them.
    copies_outputs: bool = False
    primitive: ClassVar[core.Primitive]
    #: The parameters with the body, and with the number of the constants of the body.
    names: ClassVar[tuple[str, str]]

    @property
    def first(self) -> int:
        """The index of the first argument of the body."""
        return int(self.params.get("cond_nconsts", 0))

    @property
    def body(self) -> core.ClosedJaxpr:
        """The body, with constants, the state and an input as arguments."""
        body: core.ClosedJaxpr = self.params[self.names[0]]
        return body

    @cached_property
    def step(self) -> Step:
        """The body as a step."""
        constants = self.params[self.names[1]]
        states = self.params.get("num_carry", len(self.body.in_avals) - constants)
        return Step(self.body, constants=constants, states=states)

    def run(self, *arguments: Any) -> Sequence[Any]:
        """Run the loop as JAX does."""
        results: Sequence[Any] = self.primitive.bind(*arguments, **self.params)
        return results

    def run_alone(self, *arguments: Any) -> Sequence[Any]:
        """Run the loop without derivatives."""
        return self.run(*arguments)

    def run_silently(self, *arguments: Any) -> Sequence[Any]:
        """Run the loop without the effects of steps, which the sweep has already had."""
        body = self.body
        if not body.effects:
            return self.run(*arguments)
        silent = slice_jaxpr(body.jaxpr, body.jaxpr.outvars, body.jaxpr.invars, effects=False)
        params = self.params | {self.names[0]: core.ClosedJaxpr(silent, body.consts)}
        return replace(self, params=params).run(*arguments)

    def rebind(self, params: dict[str, Any], batched: Sequence[bool]) -> Self:
        """Return the loop that ``jax.vmap`` makes of this one. ``batched`` says which arguments are batched."""
        constants = batched[self.first : self.first + self.params[self.names[1]]]
        return replace(self, params=params, copies_outputs=any(constants))

    @abstractmethod
    def plan(self, wanted: tuple[int, ...], *, batch: Batch, as_words: bool) -> Passes:
        """Plan the loop for gradients of the ``wanted`` arguments, and return its passes. Raises InputError.

        Arguments:
            wanted: the indices of the arguments of the body whose gradients are wanted.
            batch: the batch that ``jax.vmap`` makes of the loop.
            as_words: whether buffers may store floating-point numbers as integers, which have no derivative.
        """


@dataclass(frozen=True, kw_only=True, eq=False)
class Passes(ABC):
    """The forward and the backward pass of a loop under a plan.

    Arguments:
        loop: the loop.
        sums: how a step is recorded and reversed.
        as_words: whether buffers store small floating-point numbers as integers, which have no derivative.
        size: the number of examples that the plan is for; None if it suits any number.
    """

    loop: Loop
    sums: GradientSums
    as_words: bool
    size: int | None = None

    @property
    def host_bytes(self) -> int:
        """The bytes of states in arrays in host memory."""
        return 0

    @property
    def step(self) -> Step:
        """The step."""
        return self.sums.traced.step

    @property
    def holds_words(self) -> bool:
        """Whether any buffer stores floating-point numbers as integers."""
        leaves = *self.step.state, *self.sums.tape, *self.step.outputs
        return self.as_words and any(map(is_small, leaves))

    def split(self, arguments: Sequence[Any]) -> tuple[Arrays, Arrays, Arrays]:
        """Return constants, state and inputs among the arguments of the loop."""
        return self.step.split_given(arguments[self.loop.first :])

    def go_back(self, kept: Arrays, arguments: Arrays, incoming: Sequence[Any]) -> Sequence[Any]:
        """Return the gradients of the wanted arguments.

        ``incoming`` are the gradients of the differentiable results, None for a result without a gradient.
        """
        final, stacked = split(incoming, len(differentiable(self.step.state)))
        gradients = self.reverse(kept, arguments, fill_zeros(final, self.step.state), stacked)
        return self.sums.traced.order(*gradients)

    @abstractmethod
    def sweep(self, *arguments: Any) -> Sequence[Any]:
        """Return the results, then the arrays that the sweep keeps for the backward pass."""

    @abstractmethod
    def reverse(
        self, kept: Arrays, arguments: Arrays, final: Arrays, stacked: Arrays
    ) -> tuple[Arrays, Arrays, Arrays]:
        """Return the gradients of the wanted constants, the differentiable state and the wanted inputs.

        Arguments:
            kept: the arrays from the sweep.
            arguments: the arguments of the loop.
            final: the gradients of the differentiable leaves of the final state.
            stacked: the gradients of the differentiable outputs, None for an output without a gradient.
        """


def trace(function: Callable[..., Any], *arguments: Any) -> tuple[core.ClosedJaxpr, Any]:
    """Trace a function of JAX's loops, which raise their own errors. Returns also the tree of its results."""
    with jax.disable_jit(False):
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    return closed, jax.tree.structure(shapes)


def run_planned(closed: core.ClosedJaxpr, loop: Loop, arguments: Any) -> Arrays:
    """Run a traced function with ``loop`` in place of JAX's loop in it, and return its flat results."""
    given = [jnp.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
    return replace_loop(closed, loop.primitive, _loop, lambda _: {"loop": loop}, given)


def _define(name: str, run: Callable[..., Any], kinds: Callable[..., Any]) -> core.Primitive:
    """Return an operation that runs a function; ``kinds`` returns the types and effects of its results."""
    primitive = core.Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(run)
    primitive.def_effectful_abstract_eval(kinds)
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True))
    return primitive


def _find_moving(tangents: Sequence[Any]) -> list[int]:
    """Return the indices of the tangents that are not zero."""
    return [index for index, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]


def _with_zeros(results: Sequence[Any], moved: Sequence[Any]) -> list[Any]:
    """Return the tangents of all results, given those of the differentiable results."""
    zeros = [ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    return list(fill(zeros, differentiable(results), moved))


# The loop.


def _find_kinds(*kinds: Any, loop: Loop) -> Any:
    return loop.primitive.abstract_eval(*kinds, **loop.params)


_loop = _define("planned_loop", lambda *values, loop: loop.run_alone(*values), _find_kinds)


def _batch_loop(axis_data: Any, arguments: Sequence[Any], axes: Sequence[Any], *, loop: Loop) -> Any:
    """Run the loop that JAX makes of a batch of loops. A plan for it counts the whole batch."""
    of_results: list[Any] = []

    def run(*arguments: Any) -> Any:
        rule = batching.fancy_primitive_batchers[loop.primitive]
        results, of_results[:] = rule(axis_data, arguments, axes, **loop.params)
        return results

    def change(params: dict[str, Any]) -> dict[str, Any]:
        return {"loop": loop.rebind(params, [axis is not None for axis in axes])}

    traced = jax.make_jaxpr(run)(*arguments)
    return replace_loop(traced, loop.primitive, _loop, change, arguments), of_results


def _find_wanted(loop: Loop, tangents: Sequence[Any]) -> tuple[int, ...]:
    """Return the indices of the arguments that have tangents. A condition has no gradient."""
    return tuple(index for index in _find_moving(tangents) if index >= loop.first)


def _differentiate_loop(primals: Sequence[Any], tangents: Sequence[Any], *, loop: Loop) -> Any:
    """Return the results and their tangents. Only if JAX linearizes the loop, a sweep saves checkpoints."""
    passes: Passes | None = None
    kept: Arrays = ()
    if _are_unknown(tangents):
        passes, results, kept = _sweep(loop, _find_wanted(loop, tangents), primals)
    else:
        results = tuple(_loop.bind(*primals, loop=loop))
    return results, _push(primals, tangents, results, loop=loop, passes=passes, kept=kept)


def _push(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    results: Sequence[Any],
    *,
    loop: Loop,
    passes: Passes | None = None,
    kept: Arrays = (),
) -> list[Any]:
    """Return the tangents of the results of a loop."""
    wanted = _find_wanted(loop, tangents)
    moved = _tangent.bind(*kept, *primals, *pick(tangents, wanted), loop=loop, wanted=wanted, passes=passes)
    return _with_zeros(results, moved)


def _are_unknown(tangents: Sequence[Any]) -> bool:
    """Return whether any tangent is unknown, which holds while JAX linearizes a function."""
    return any(isinstance(tangent, partial_eval.JaxprTracer) for tangent in tangents)


batching.fancy_primitive_batchers[_loop] = _batch_loop
ad.primitive_jvps[_loop] = _differentiate_loop


def _sweep(loop: Loop, wanted: Sequence[int], primals: Sequence[Any]) -> tuple[Passes, Arrays, Arrays]:
    """Plan a loop, and return its passes, its results, and the checkpoints and tapes of the sweep."""
    batch, is_differentiated = _find_transformations(primals)
    indices = tuple(index - loop.first for index in wanted)
    passes = loop.plan(indices, batch=batch, as_words=not is_differentiated)
    kinds = _find_kinds(*map(jax.typeof, primals), loop=loop)[0]
    results, kept = split(_bind_pass(passes.sweep, primals, passes=passes, is_sweep=True), len(kinds))
    weak = (set_weak(result) if kind.weak_type else result for result, kind in zip(results, kinds, strict=True))
    return passes, tuple(weak), kept


def _find_transformations(values: Sequence[Any]) -> tuple[Batch, bool]:
    """Return the batch that ``jax.vmap`` makes of values, and whether they are differentiated again."""
    sizes: dict[int, int] = {}
    batched = [False] * len(values)
    is_differentiated = False
    for index, value in enumerate(values):
        tracer: Any = value
        while isinstance(tracer, jax.core.Tracer):
            if hasattr(tracer, "batch_dim"):
                if tracer.batch_dim is not None:
                    batched[index] = True
                    sizes[id(tracer._trace)] = tracer._trace.axis_data.size
                tracer = tracer.val
            elif hasattr(tracer, "primal"):
                is_differentiated = True
                tracer = tracer.primal
            else:
                break
    return Batch(math.prod(sizes.values()), tuple(batched)), is_differentiated


# The linear operation on tangents. Its arguments: arrays from a sweep, the loop's arguments, and tangents.


def _split_tangent(values: Sequence[Any], loop: Loop, wanted: Sequence[int]) -> tuple[Arrays, Arrays, Arrays]:
    count = loop.first + len(loop.body.in_avals)
    kept, arguments, moved = split(values, len(values) - len(wanted) - count, count)
    return kept, arguments, moved


def _push_tangents(*values: Any, loop: Loop, wanted: Sequence[int], **_: Any) -> Sequence[Any]:
    """Return the tangents of the results, by the forward mode of JAX's loop."""
    arguments, moved = _split_tangent(values, loop, wanted)[1:]
    return _forward_mode(loop.run_silently, wanted)(*arguments, *moved)


def _forward_mode(function: Callable[..., Any], indices: Sequence[int]) -> Callable[..., Sequence[Any]]:
    """Return a function that maps all arguments, and tangents at ``indices``, to tangents of the results."""

    def run(*values: Any) -> Sequence[Any]:
        arguments, moved = split(values, len(values) - len(indices))

        def partly(*varied: Any) -> Any:
            return list(function(*fill(arguments, indices, varied)))

        results, tangents = jax.jvp(partly, pick(arguments, indices), moved)
        return pick(tangents, differentiable(results))

    return run


def _find_tangent_kinds(*values: Any, loop: Loop, wanted: Sequence[int], **_: Any) -> Any:
    kinds, _ = _find_kinds(*_split_tangent(values, loop, wanted)[1], loop=loop)
    return [kind.to_tangent_aval() for kind in kinds if has_gradient(kind)], core.no_effects


_tangent = _define("planned_loop_tangent", _push_tangents, _find_tangent_kinds)


def _differentiate_tangent(
    values: Sequence[Any], tangents: Sequence[Any], *, loop: Loop, wanted: Sequence[int], passes: Passes | None
) -> Any:
    """Differentiate JAX's forward mode of the loop. The arrays from the sweep have no part in it."""
    kept, arguments, moved = _split_tangent(values, loop, wanted)
    of_given = tangents[len(kept) :]
    indices = _find_moving(of_given)
    run = _forward_mode(_forward_mode(loop.run_silently, wanted), indices)
    results = _tangent.bind(*values, loop=loop, wanted=wanted, passes=passes)
    return results, list(run(*arguments, *moved, *pick(of_given, indices)))


def _transpose_tangent(
    incoming: Sequence[Any], *values: Any, loop: Loop, wanted: Sequence[int], passes: Passes | None
) -> list[Any]:
    """Run the backward pass, after the sweep if it has not run."""
    kept, arguments, _ = _split_tangent(values, loop, wanted)
    fixed = [None] * (len(kept) + len(arguments))
    if passes is None:
        passes, _, kept = _sweep(loop, wanted, arguments)
    present = _find_moving(incoming)

    def run(*values: Any) -> Sequence[Any]:
        held, given, gradients = split(values, len(kept), len(arguments))
        return passes.go_back(held, given, fill([None] * len(incoming), present, gradients))

    values = *kept, *arguments, *pick(incoming, present)
    return [*fixed, *_bind_pass(run, values, passes=passes, is_sweep=False)]


def _define_batch(primitive: core.Primitive, rule: Callable[..., Sequence[Any]]) -> None:
    """Register how an operation runs if any value has an axis of ``jax.vmap``.

    ``rule(size, spread, values, **params)`` gets the number of examples, and a function that runs a function on
    all of them.
    """

    def batch(axis_data: Any, values: Sequence[Any], axes: Sequence[Any], **params: Any) -> Any:
        if all(axis is None for axis in axes):
            results = primitive.bind(*values, **params)
            return results, [None] * len(results)
        # An axis without a name has an object in place of the name.
        name = None if type(axis_data.name) is object else axis_data.name
        spmd = {} if axis_data.spmd_name is None else {"spmd_axis_name": axis_data.spmd_name}
        size = axis_data.size
        spread = partial(jax.vmap, in_axes=tuple(axes), axis_size=size, axis_name=name, **spmd)
        results = rule(size, spread, values, **params)
        return results, [0] * len(results)

    batching.fancy_primitive_batchers[primitive] = batch


ad.primitive_jvps[_tangent] = _differentiate_tangent
ad.primitive_transposes[_tangent] = _transpose_tangent
_define_batch(_tangent, lambda _, spread, values, **params: spread(partial(_push_tangents, **params))(*values))


# A pass, forward or backward, as one operation. It has a forward mode and no reverse mode.


def _run_pass(*arguments: Any, jaxpr: core.ClosedJaxpr, **_: Any) -> Any:
    # Compile calls without ``jax.jit`` as a whole.
    return jax.jit(core.jaxpr_as_fun(jaxpr), inline=True)(*arguments)


_pass = _define("pass_of_a_planned_loop", _run_pass, lambda *_, jaxpr, **__: (jaxpr.out_avals, jaxpr.effects))


def _bind_pass(
    function: Callable[..., Any], arguments: Sequence[Any], *, passes: Passes, is_sweep: bool
) -> list[Any]:
    """Run a function of flat arguments as a pass."""
    jaxpr, constants = lift_constants(jax.make_jaxpr(function)(*arguments))
    closed = core.ClosedJaxpr(jaxpr, ())
    results: list[Any] = _pass.bind(*constants, *arguments, jaxpr=closed, passes=passes, is_sweep=is_sweep)
    return results


def _batch_pass(
    size: int, spread: Any, arguments: Sequence[Any], *, jaxpr: Any, passes: Passes, is_sweep: bool
) -> list[Any]:
    """Run a batch of passes. Raises InputError if they keep states in remote memory."""
    if passes.host_bytes:
        raise InputError(
            "keeps states in remote memory, which jax.vmap cannot batch",
            field="plan",
            accepted="jax.grad around jax.vmap, or a plan with local checkpoints only",
        )
    if is_sweep and passes.size is not None and passes.size % size:
        warnings.warn(
            f"memory is of one example, and jax.vmap of a gradient under jit runs {size:,} at a time: they "
            f"take up to {size:,} times as much. With jax.jit around jax.vmap, or jax.grad around it, the "
            "limit is of all of them",
            PlanMismatch,
            stacklevel=2,
        )
    return _bind_pass(spread(core.jaxpr_as_fun(jaxpr)), arguments, passes=passes, is_sweep=is_sweep)


def _differentiate_pass(
    arguments: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Any, passes: Passes, is_sweep: bool
) -> Any:
    if passes.holds_words:
        raise InputError(
            "forward mode of a gradient in half precision is not supported where jax.jit is between both",
            accepted="jax.jit around jax.jvp and jax.grad, or fp32",
        )
    indices = _find_moving(tangents)
    push, given = _forward_mode(core.jaxpr_as_fun(jaxpr), indices), (*arguments, *pick(tangents, indices))
    moved = _bind_pass(push, given, passes=passes, is_sweep=False)
    results = _pass.bind(*arguments, jaxpr=jaxpr, passes=passes, is_sweep=is_sweep)
    of_results = _with_zeros(results, moved)
    if is_sweep and _are_unknown(tangents):
        # The gradient of the value that comes with a gradient: the results of a sweep are those of the loop,
        # and have a reverse mode of their own. The constants of the sweep come first.
        loop = passes.loop
        first, count = len(arguments) - loop.first - len(loop.body.in_avals), len(loop.body.out_avals)
        of_results[:count] = _push(arguments[first:], tangents[first:], results[:count], loop=loop)
    return results, of_results


def _refuse_transpose(incoming: Sequence[Any], *arguments: Any, **_: Any) -> list[Any]:
    if not _find_moving(incoming):
        return [None] * len(arguments)
    raise InputError(
        "second derivatives of a loop under a plan are not supported in reverse mode",
        accepted="forward mode around jax.grad, as jax.jvp and jax.jacfwd, or jax.lax.scan",
    )


_define_batch(_pass, _batch_pass)
ad.primitive_jvps[_pass] = _differentiate_pass
ad.primitive_transposes[_pass] = _refuse_transpose
