"""Operations of JAX for loops whose reverse mode follows a plan.

Without derivatives, a loop runs as JAX's own loop. Its derivative is a sweep, which saves the plan's
checkpoints and tapes, and a linear operation on tangents. If this operation is evaluated, it runs JAX's forward
mode. If it is transposed, it runs the planned backward pass.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from ckptplan.errors import InputError, PlanMismatch
from ckptplan.jax.jaxprs import replace_loop, unnamed
from ckptplan.jax.leaves import Arrays, differentiable, fill, has_gradient, pick, set_weak, split


@dataclass(frozen=True)
class Batch:
    """The batch of a gradient under ``jax.vmap``: number of examples, and which arguments are batched."""

    size: int = 1
    batched: tuple[bool, ...] = ()

    def spread(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that runs on the whole batch."""
        if self.size == 1:
            return function
        axes = tuple(0 if batched else None for batched in self.batched)
        return jax.vmap(function, in_axes=axes, axis_size=self.size)

    def enlarge(self, arguments: Sequence[jax.ShapeDtypeStruct]) -> list[jax.ShapeDtypeStruct]:
        """Return the arguments with a batch axis in front of the batched ones."""
        if self.size == 1:
            return list(arguments)
        pairs = zip(arguments, self.batched, strict=True)
        return [
            argument.update(shape=(self.size, *argument.shape)) if batched else argument
            for argument, batched in pairs
        ]


class Loop(ABC):
    """A loop that JAX has traced: an operation with its parameters."""

    primitive: core.Primitive
    params: dict[str, Any]
    #: The number of its arguments.
    count: int

    def run(self, *arguments: Any) -> Sequence[Any]:
        """Run the loop as JAX does."""
        results: Sequence[Any] = self.primitive.bind(*arguments, **self.params)
        return results

    def run_alone(self, *arguments: Any) -> Sequence[Any]:
        """Run the loop without derivatives."""
        return self.run(*arguments)

    def run_silently(self, *arguments: Any) -> Sequence[Any]:
        """Run the loop without effects, which the sweep has already had."""
        return self.run(*arguments)

    @abstractmethod
    def rebind(self, params: dict[str, Any], batched: Sequence[bool]) -> Loop:
        """Return the loop that ``jax.vmap`` makes of this one. ``batched`` says which arguments are batched."""

    @abstractmethod
    def plan(self, wanted: tuple[int, ...], *, batch: Batch, as_words: bool) -> Passes:
        """Plan the loop for gradients of the ``wanted`` arguments, and return its passes. Raises InputError.

        Arguments:
            wanted: the indices of the arguments whose gradients are wanted.
            batch: the batch that ``jax.vmap`` makes of the loop.
            as_words: whether buffers may store floating-point numbers as integers, which have no derivative.
        """


class Passes(ABC):
    """The forward and the backward pass of a loop under a plan."""

    loop: Loop
    wanted: tuple[int, ...]
    #: Why ``jax.vmap`` cannot batch the passes, '' if it can.
    refuses_batch: str = ""
    #: Whether buffers store floating-point numbers as integers, which have no derivative.
    holds_words: bool = False
    #: The number of examples that the plan is for; None if it suits any number.
    size: int | None = None

    @abstractmethod
    def run(self, *arguments: Any) -> Sequence[Any]:
        """Run the loop without effects and with the same results as the sweep. It has a forward mode."""

    @abstractmethod
    def sweep(self, *arguments: Any) -> Sequence[Any]:
        """Return the results, followed by the arrays that the backward pass needs besides the arguments."""

    @abstractmethod
    def go_back(self, kept: Arrays, arguments: Arrays, incoming: Sequence[Any]) -> Sequence[Any]:
        """Return the gradients of the wanted arguments.

        ``incoming`` are the gradients of the differentiable results, None for a result without a gradient.
        """


_loop, _tangent, _pass = map(core.Primitive, ("planned_loop", "planned_loop_tangent", "pass_of_a_planned_loop"))
for _primitive in (_loop, _tangent, _pass):
    _primitive.multiple_results = True


# The loop.


def bind_loop(loop: Loop, *arguments: Any) -> list[Any]:
    """Run a loop as an operation that follows its plan when it is differentiated."""
    results: list[Any] = _loop.bind(*arguments, loop=loop)
    return results


_loop.def_impl(lambda *arguments, loop: loop.run_alone(*arguments))
_loop.def_effectful_abstract_eval(lambda *kinds, loop: loop.primitive.abstract_eval(*kinds, **loop.params))
mlir.register_lowering(
    _loop, mlir.lower_fun(lambda *arguments, loop: loop.run_alone(*arguments), multiple_results=True)
)


def _batch_loop(axis_data: Any, arguments: Sequence[Any], axes: Sequence[Any], *, loop: Loop) -> Any:
    """Run the loop that JAX makes of a batch of loops. A plan for it counts the whole batch."""
    of_results: list[Any] = []

    def run(*arguments: Any) -> Any:
        rule = batching.fancy_primitive_batchers[loop.primitive]
        results, of_results[:] = rule(axis_data, arguments, axes, **loop.params)
        return results

    def bind(params: dict[str, Any], *arguments: Any) -> Any:
        return bind_loop(loop.rebind(params, [axis is not None for axis in axes]), *arguments)

    return replace_loop(jax.make_jaxpr(run)(*arguments), loop.primitive, bind, arguments), of_results


batching.fancy_primitive_batchers[_loop] = _batch_loop


def _differentiate_loop(primals: Sequence[Any], tangents: Sequence[Any], *, loop: Loop) -> Any:
    wanted = tuple(index for index, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero))
    batch, is_differentiated = _find_transformations(primals)
    passes = loop.plan(wanted, batch=batch, as_words=not is_differentiated)
    values = _bind_pass(passes.sweep, primals, passes=passes, forward=passes.run)
    kinds = loop.primitive.abstract_eval(*map(jax.typeof, primals), **loop.params)[0]
    results, kept = split(values, len(kinds))
    results = tuple(
        set_weak(result) if kind.weak_type else result for result, kind in zip(results, kinds, strict=True)
    )
    moved = _tangent.bind(*kept, *primals, *pick(tangents, wanted), passes=passes)
    return results, _with_zeros(results, moved)


ad.primitive_jvps[_loop] = _differentiate_loop


def _with_zeros(results: Sequence[Any], moved: Sequence[Any]) -> list[Any]:
    """Return the tangents of all results, given the tangents of the differentiable ones."""
    by_index = dict(zip(differentiable(results), moved, strict=True))
    return [
        by_index[index] if index in by_index else ad.Zero(jax.typeof(result).to_tangent_aval())
        for index, result in enumerate(results)
    ]


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


# The linear operation on tangents. Its arguments: arrays from the sweep, the loop's arguments, and tangents.


def _split_tangent(values: Sequence[Any], passes: Passes) -> tuple[Arrays, Arrays, Arrays]:
    tangents = len(passes.wanted)
    count = passes.loop.count
    kept, arguments, moved = split(values, len(values) - tangents - count, count)
    return kept, arguments, moved


def _push_tangents(*values: Any, passes: Passes) -> Sequence[Any]:
    """Return the tangents of the results, by the forward mode of the loop."""
    _, arguments, moved = _split_tangent(values, passes)
    return _forward_mode(passes.loop.run_silently, passes.wanted)(*arguments, *moved)


def _forward_mode(function: Callable[..., Any], indices: Sequence[int]) -> Callable[..., Sequence[Any]]:
    """Return a function that maps all arguments, and tangents at ``indices``, to tangents of the results."""

    def run(*values: Any) -> Sequence[Any]:
        arguments, moved = split(values, len(values) - len(indices))

        def partly(*varied: Any) -> Any:
            return list(function(*fill(arguments, indices, varied)))

        results, tangents = jax.jvp(partly, pick(arguments, indices), moved)
        return pick(tangents, differentiable(results))

    return run


_tangent.def_impl(lambda *values, passes: jax.jit(partial(_push_tangents, passes=passes))(*values))
_tangent.def_abstract_eval(
    lambda *values, passes: [
        kind.to_tangent_aval()
        for kind in passes.loop.primitive.abstract_eval(
            *_split_tangent(values, passes)[1], **passes.loop.params
        )[0]
        if has_gradient(kind)
    ]
)
mlir.register_lowering(_tangent, mlir.lower_fun(_push_tangents, multiple_results=True))


def _batch_tangent(axis_data: Any, values: Sequence[Any], axes: Sequence[Any], *, passes: Passes) -> Any:
    if all(axis is None for axis in axes):
        tangents = _tangent.bind(*values, passes=passes)
        return tangents, [None] * len(tangents)
    tangents = _vmap(axis_data, partial(_push_tangents, passes=passes), axes)(*values)
    return tangents, [0] * len(tangents)


def _vmap(axis_data: Any, function: Callable[..., Any], axes: Sequence[Any]) -> Callable[..., Any]:
    """Return a function under ``jax.vmap`` with given axes, for use in a batching rule."""
    # An axis without a name has an object in place of the name.
    name = None if type(axis_data.name) is object else axis_data.name
    spmd = {} if axis_data.spmd_name is None else {"spmd_axis_name": axis_data.spmd_name}
    return jax.vmap(function, in_axes=tuple(axes), axis_size=axis_data.size, axis_name=name, **spmd)


batching.fancy_primitive_batchers[_tangent] = _batch_tangent


def _differentiate_tangent(values: Sequence[Any], tangents: Sequence[Any], *, passes: Passes) -> Any:
    """Differentiate JAX's forward mode of the loop. The arrays from the sweep have no part in it."""
    kept, arguments, moved = _split_tangent(values, passes)
    given = *arguments, *moved
    of_given = tangents[len(kept) :]
    indices = [index for index, tangent in enumerate(of_given) if not isinstance(tangent, ad.Zero)]
    run = _forward_mode(passes.loop.run_silently, passes.wanted)
    results = _tangent.bind(*values, passes=passes)
    if not indices:
        return results, [ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    return results, list(_forward_mode(run, indices)(*given, *pick(of_given, indices)))


def _transpose_tangent(incoming: Sequence[Any], *values: Any, passes: Passes) -> list[Any]:
    kept, arguments, _ = _split_tangent(values, passes)
    present = tuple(not isinstance(gradient, ad.Zero) for gradient in incoming)

    def run(*values: Any) -> Sequence[Any]:
        held, given, gradients = split(values, len(kept), len(arguments))
        remaining = iter(gradients)
        return passes.go_back(held, given, [next(remaining) if is_present else None for is_present in present])

    gradients = [gradient for gradient, is_present in zip(incoming, present, strict=True) if is_present]
    of_wanted = _bind_pass(run, [*kept, *arguments, *gradients], passes=passes)
    return [None] * (len(kept) + len(arguments)) + list(of_wanted)


ad.primitive_jvps[_tangent] = _differentiate_tangent
ad.primitive_transposes[_tangent] = _transpose_tangent


# A pass, forward or backward, as one operation. It has a forward mode and no reverse mode.


def _bind_pass(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    passes: Passes,
    forward: Callable[..., Any] | None = None,
) -> list[Any]:
    """Run a function of flat arguments as a pass.

    ``forward`` computes the first results of a sweep by JAX's own loop. Its forward mode can be transposed.
    """
    closed = jax.make_jaxpr(function)(*arguments)
    jaxpr = closed.jaxpr
    whole = jaxpr.replace(
        constvars=(), invars=(*jaxpr.constvars, *jaxpr.invars), debug_info=unnamed(jaxpr.debug_info)
    )
    count = len(jaxpr.invars)
    plain = None if forward is None else lambda *values: forward(*values[len(values) - count :])
    results: list[Any] = _pass.bind(
        *closed.consts, *arguments, jaxpr=core.ClosedJaxpr(whole, ()), passes=passes, forward=plain
    )
    return results


_pass.def_impl(lambda *arguments, jaxpr, **_: jax.jit(core.jaxpr_as_fun(jaxpr))(*arguments))
_pass.def_effectful_abstract_eval(lambda *_, jaxpr, **__: (jaxpr.out_avals, jaxpr.effects))
mlir.register_lowering(
    _pass,
    mlir.lower_fun(lambda *arguments, jaxpr, **_: core.jaxpr_as_fun(jaxpr)(*arguments), multiple_results=True),
)


def _batch_pass(
    axis_data: Any, arguments: Sequence[Any], axes: Sequence[Any], *, jaxpr: Any, passes: Passes, forward: Any
) -> Any:
    """Run a batch of passes. Raises InputError if they keep states in remote memory."""
    if all(axis is None for axis in axes):
        results = _pass.bind(*arguments, jaxpr=jaxpr, passes=passes, forward=forward)
        return results, [None] * len(results)
    if passes.refuses_batch:
        raise InputError(
            passes.refuses_batch,
            field="plan",
            accepted="jax.grad around jax.vmap, or a plan with local checkpoints only",
        )
    if forward is not None and passes.size is not None and passes.size % axis_data.size:
        warnings.warn(
            "memory is of one example, and jax.vmap of a gradient under jit runs "
            f"{axis_data.size:,} at a time: they take up to {axis_data.size:,} times as much. With jax.jit "
            "around jax.vmap, or jax.grad around it, the limit is of all of them",
            PlanMismatch,
            stacklevel=2,
        )
    run = _vmap(axis_data, core.jaxpr_as_fun(jaxpr), axes)
    plain = None if forward is None else _vmap(axis_data, lambda *values: list(forward(*values)), axes)
    results = _bind_pass(run, arguments, passes=passes, forward=plain)
    return results, [0] * len(results)


batching.fancy_primitive_batchers[_pass] = _batch_pass


def _differentiate_pass(
    arguments: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Any, passes: Passes, forward: Any
) -> Any:
    if passes.holds_words:
        raise InputError(
            "forward mode of a gradient in half precision is not supported where jax.jit is between both",
            accepted="jax.jit around jax.jvp and jax.grad, or fp32",
        )
    results = _pass.bind(*arguments, jaxpr=jaxpr, passes=passes, forward=forward)
    indices = [index for index, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]
    given = *arguments, *pick(tangents, indices)
    moved = _bind_pass(_forward_mode(core.jaxpr_as_fun(jaxpr), indices), given, passes=passes)
    if forward is not None:
        # Take the tangents of the first results from ``forward``, which can be transposed.
        of_results = _forward_mode(forward, indices)(*given)
        moved = [*of_results, *moved[len(of_results) :]]
    return results, _with_zeros(results, moved)


def _refuse_transpose(incoming: Sequence[Any], *arguments: Any, **_: Any) -> list[Any]:
    if all(isinstance(gradient, ad.Zero) for gradient in incoming):
        return [None] * len(arguments)
    raise InputError(
        "second derivatives of a loop under a plan are not supported in reverse mode",
        accepted="forward mode around jax.grad, as jax.jvp and jax.jacfwd, or jax.lax.scan",
    )


ad.primitive_jvps[_pass] = _differentiate_pass
ad.primitive_transposes[_pass] = _refuse_transpose
