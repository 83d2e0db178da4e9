"""Takes traced functions apart, as the step of a loop: dependent variables, and slices of operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from ckptplan.errors import InputError
from ckptplan.jax.leaves import Arrays, describe, split


def unnamed(info: core.DebugInfo) -> core.DebugInfo:
    """Return the debug info of a jaxpr without the names of arguments and results, which have changed."""
    return info._replace(arg_names=None, result_paths=None)


def walk(jaxpr: core.Jaxpr) -> Iterator[core.Jaxpr]:
    """Yield a jaxpr, and all inner jaxprs that its operations run."""
    yield jaxpr
    for equation in jaxpr.eqns:
        for inner in core.jaxprs_in_params(equation.params):
            yield from walk(inner)


def variables(atoms: Iterable[Any]) -> list[Any]:
    """Return the variables among atoms (variables and literals), each once."""
    return list(dict.fromkeys(atom for atom in atoms if not isinstance(atom, core.Literal)))


def find_known(jaxpr: core.Jaxpr, known: Iterable[Any]) -> set[Any]:
    """Return the variables that can be computed from the known variables alone."""
    computable = set(known)
    for equation in jaxpr.eqns:
        if not equation.effects and computable.issuperset(variables(equation.invars)):
            computable.update(equation.outvars)
    return computable


def slice_jaxpr(
    jaxpr: core.Jaxpr, outputs: Sequence[Any], inputs: Sequence[Any], *, effects: bool
) -> core.Jaxpr:
    """Return the part of a jaxpr that computes ``outputs`` from ``inputs``, with or without effects."""
    given = set(inputs)
    needed = set(variables(outputs)) - given
    ops: list[Any] = []
    for equation in reversed(jaxpr.eqns):
        if (effects and _has_effects(equation)) or not needed.isdisjoint(equation.outvars):
            ops.append(equation)
            needed |= set(variables(equation.invars)) - given
    kinds = jaxpr.effects if effects else frozenset()
    return core.Jaxpr((), tuple(inputs), tuple(outputs), tuple(reversed(ops)), kinds, unnamed(jaxpr.debug_info))


def _has_effects(equation: Any) -> bool:
    """Return whether an operation has side effects. Communication over a named axis does not count."""
    return any(type(effect).__name__ != "NamedAxisEffect" for effect in equation.effects)


def replace_loop(
    closed: core.ClosedJaxpr,
    old: core.Primitive,
    new: core.Primitive,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    arguments: Sequence[Any],
) -> Arrays:
    """Run a traced function with ``new`` in place of its loop ``old``, and return its results.

    ``change(params)`` returns the parameters of the new operation, given those of the loop.
    """
    operations = [
        equation.replace(primitive=new, params=change(equation.params))
        if equation.primitive is old
        else equation
        for equation in closed.jaxpr.eqns
    ]
    return evaluate(core.ClosedJaxpr(closed.jaxpr.replace(eqns=operations), closed.consts), arguments)


def lift_constants(closed: core.ClosedJaxpr) -> tuple[core.Jaxpr, Arrays]:
    """Return a jaxpr without constants, whose first arguments are these arrays instead, and the arrays."""
    jaxpr = closed.jaxpr
    arguments, info = (*jaxpr.constvars, *jaxpr.invars), unnamed(jaxpr.debug_info)
    return jaxpr.replace(constvars=(), invars=arguments, debug_info=info), tuple(closed.consts)


def inline_calls(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Replace calls of functions under ``jax.jit`` without shardings by the operations of the functions."""
    return jax.make_jaxpr(core.jaxpr_as_fun(_mark_inline(closed)))(*closed.in_avals)


def _mark_inline(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Mark calls of functions under ``jax.jit``, so that JAX inlines them when it traces the function again."""
    operations = [
        equation.replace(
            params=equation.params | {"inline": True, "jaxpr": _mark_inline(equation.params["jaxpr"])}
        )
        if "inline" in equation.params
        else equation
        for equation in closed.jaxpr.eqns
    ]
    return core.ClosedJaxpr(closed.jaxpr.replace(eqns=operations), closed.consts)


def evaluate(jaxpr: core.Jaxpr | core.ClosedJaxpr, arguments: Sequence[Any]) -> Arrays:
    """Return the results of a jaxpr. Plain numbers among them are converted to arrays."""
    closed = jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else core.ClosedJaxpr(jaxpr, ())
    values = zip(core.jaxpr_as_fun(closed)(*arguments), closed.out_avals, strict=True)
    return tuple(value if hasattr(value, "dtype") else jnp.asarray(value, kind.dtype) for value, kind in values)


#: Operations that a loop under a plan does not support, since a step may run more than once: the problem, and
#: what is accepted.
_UNSUPPORTED = {
    "check": (
        "calls checkify.check, which is not supported under a plan",
        "a check of outputs after the call, or jax.lax.scan",
    ),
    "io_callback": (
        "uses what io_callback returns, and a step may run more than once",
        "values that are part of the state or the inputs, or jax.pure_callback of a function that always "
        "returns the same for the same arguments",
    ),
    "new_ref": (
        "makes a jax.Ref, which is not supported under a plan",
        "arrays that are replaced, as by x.at[0].set(y)",
    ),
}


class Step:
    """A step: constants, state and input -> next state and outputs.

    Constants are the arrays that the step closes over. All leaves are abstract values.
    """

    def __init__(self, closed: core.ClosedJaxpr, *, constants: int, states: int) -> None:
        """Take the body of a JAX loop, and the numbers of its arguments that are constants and states."""
        self.closed, self._counts = closed, (constants, states)
        self.constants, self.state, self.inputs = self.split_given(describe(closed.in_avals))
        self.outputs = describe(closed.out_avals)[states:]

    def run(self, constants: Sequence[Any], state: Sequence[Any], x: Sequence[Any]) -> tuple[Arrays, Arrays]:
        """Return the next state and the outputs of a step."""
        next_state, outputs = split(evaluate(self.closed, (*constants, *state, *x)), len(self.state))
        return next_state, outputs

    def split_given(self, leaves: Sequence[Any]) -> tuple[Arrays, Arrays, Arrays]:
        """Split flat leaves into constants, state and inputs."""
        constants, state, inputs = split(leaves, *self._counts)
        return constants, state, inputs


def check_repeatable(closed: core.ClosedJaxpr, *, field: str = "f") -> None:
    """Raise InputError if a step may give other results when it is recomputed.

    A step may not use mutable arrays, results of callbacks with effects, or ``checkify.check``.
    """
    for jaxpr in walk(closed.jaxpr):
        used = set(variables((*jaxpr.outvars, *(atom for equation in jaxpr.eqns for atom in equation.invars))))
        for equation in jaxpr.eqns:
            name = equation.primitive.name
            if name in _UNSUPPORTED and (name != "io_callback" or not used.isdisjoint(equation.outvars)):
                problem, accepted = _UNSUPPORTED[name]
                raise InputError(problem, field=field, accepted=accepted)
    if any(isinstance(constant, jax.Ref) for constant in closed.consts):
        raise InputError(
            "reads or writes a jax.Ref from outside, and a step may run more than once",
            field=field,
            accepted="a step whose changing arrays are part of its state",
        )
