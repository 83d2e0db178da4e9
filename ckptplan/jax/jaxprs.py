"""Takes traced functions apart: finds variables that depend on given ones only, and slices of operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend import core

from ckptplan.jax.leaves import Arrays


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
    primitive: core.Primitive,
    run: Callable[..., Sequence[Any]],
    arguments: Sequence[Any],
) -> list[Any]:
    """Run a traced function with ``run(params, *arguments)`` in place of its loop, and return its results."""
    jaxpr = closed.jaxpr
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *arguments), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for equation in jaxpr.eqns:
        if equation.primitive is primitive:
            results = run(equation.params, *map(read, equation.invars))
        else:
            given = variables(equation.invars)
            results = evaluate(
                slice_jaxpr(jaxpr, equation.outvars, given, effects=False), list(map(read, given))
            )
        values.update(zip(equation.outvars, results, strict=True))
    return list(map(read, jaxpr.outvars))


def inline_calls(closed: core.ClosedJaxpr) -> tuple[core.Jaxpr, Arrays]:
    """Return a jaxpr without constants, whose first arguments are these arrays instead, and the arrays.

    Calls of functions under ``jax.jit`` are replaced by the operations of the functions.
    """
    constants: dict[Any, Any] = {}
    operations: list[Any] = []

    def add(inner: core.ClosedJaxpr, arguments: Sequence[Any]) -> list[Any]:
        """Add the operations of a jaxpr with given arguments, under new names, and return its results."""
        held = [core.Var(variable.aval) for variable in inner.jaxpr.constvars]
        constants.update(zip(held, inner.consts, strict=True))
        names = dict(zip((*inner.jaxpr.constvars, *inner.jaxpr.invars), (*held, *arguments), strict=True))

        def read(atom: Any) -> Any:
            return atom if isinstance(atom, core.Literal) else names[atom]

        for equation in inner.jaxpr.eqns:
            given = list(map(read, equation.invars))
            if _is_plain_call(equation):
                outputs = add(equation.params["jaxpr"], given)
            else:
                outputs = [core.Var(variable.aval) for variable in equation.outvars]
                operations.append(equation.replace(invars=given, outvars=outputs))
            names.update(zip(equation.outvars, outputs, strict=True))
        return list(map(read, inner.jaxpr.outvars))

    jaxpr = closed.jaxpr
    results, info = add(closed, jaxpr.invars), unnamed(jaxpr.debug_info)
    inlined = core.Jaxpr((), (*constants, *jaxpr.invars), results, operations, jaxpr.effects, info)
    return inlined, tuple(constants.values())


def _is_plain_call(equation: Any) -> bool:
    """Return whether an operation is a call by ``jax.jit`` without shardings."""
    shardings = (*equation.params.get("in_shardings", ()), *equation.params.get("out_shardings", ()))
    return equation.primitive.name in {"jit", "pjit"} and all(
        type(sharding).__name__ == "UnspecifiedValue" for sharding in shardings
    )


def evaluate(jaxpr: core.Jaxpr | core.ClosedJaxpr, arguments: Sequence[Any]) -> Arrays:
    """Return the results of a jaxpr. Plain numbers among them are converted to arrays."""
    closed = jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else core.ClosedJaxpr(jaxpr, ())
    values = zip(core.jaxpr_as_fun(closed)(*arguments), closed.out_avals, strict=True)
    return tuple(value if hasattr(value, "dtype") else jnp.asarray(value, kind.dtype) for value, kind in values)
