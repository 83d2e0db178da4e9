"""Parts of traced functions: what computes some of their variables, and what depends on others only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
from jax.extend import core

from ckptplan.jax.leaves import Arrays


def unnamed(info: core.DebugInfo) -> core.DebugInfo:
    """Return where a jaxpr comes from, without the names of its arguments and results, which have changed."""
    return info._replace(arg_names=None, result_paths=None)


def walk(jaxpr: core.Jaxpr) -> Iterator[core.Jaxpr]:
    """Yield a jaxpr, and those that its operations run."""
    yield jaxpr
    for equation in jaxpr.eqns:
        for inner in core.jaxprs_in_params(equation.params):
            yield from walk(inner)


def find_known(jaxpr: core.Jaxpr, known: Iterable[Any]) -> set[Any]:
    """Return the variables that can be computed from the known ones."""
    found = set(known)
    for equation in jaxpr.eqns:
        if not equation.effects and all(
            isinstance(one, core.Literal) or one in found for one in equation.invars
        ):
            found.update(equation.outvars)
    return found


def slice_jaxpr(
    jaxpr: core.Jaxpr, outputs: Sequence[Any], inputs: Sequence[Any], *, effects: bool
) -> core.Jaxpr:
    """Return the part of a jaxpr that computes variables from others, with or without what has effects."""
    given = set(inputs)
    needed = {one for one in outputs if not isinstance(one, core.Literal)} - given
    kept: list[Any] = []
    for equation in reversed(jaxpr.eqns):
        if (effects and equation.effects) or not needed.isdisjoint(equation.outvars):
            kept.append(equation)
            used = {one for one in equation.invars if not isinstance(one, core.Literal)}
            needed |= used - given
    seen = jaxpr.effects if effects else frozenset()
    return core.Jaxpr((), tuple(inputs), tuple(outputs), tuple(reversed(kept)), seen, unnamed(jaxpr.debug_info))


def inline_calls(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Return a jaxpr with the operations of functions under ``jax.jit`` in place of their calls."""
    if not any(map(_is_plain_call, closed.jaxpr.eqns)):
        return closed
    inlined: core.ClosedJaxpr = jax.make_jaxpr(partial(_run, closed.jaxpr))(closed.consts, *closed.in_avals)
    count = len(closed.consts)
    jaxpr = inlined.jaxpr
    variables = (*jaxpr.constvars, *jaxpr.invars[:count])
    return core.ClosedJaxpr(
        core.Jaxpr(
            variables,
            jaxpr.invars[count:],
            jaxpr.outvars,
            jaxpr.eqns,
            jaxpr.effects,
            unnamed(jaxpr.debug_info),
        ),
        (*inlined.consts, *closed.consts),
    )


def _is_plain_call(equation: Any) -> bool:
    """Return whether an operation is a call by ``jax.jit`` that asks for no sharding."""
    shardings = (*equation.params.get("in_shardings", ()), *equation.params.get("out_shardings", ()))
    return equation.primitive.name in {"jit", "pjit"} and all(
        type(one).__name__ == "UnspecifiedValue" for one in shardings
    )


def _run(jaxpr: core.Jaxpr, consts: Sequence[Any], *arguments: Any) -> list[Any]:
    """Evaluate a jaxpr, its calls in place."""
    values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))

    def read(one: Any) -> Any:
        return one.val if isinstance(one, core.Literal) else values[one]

    for equation in jaxpr.eqns:
        found: Sequence[Any]
        if _is_plain_call(equation):
            inner = equation.params["jaxpr"]
            found = _run(inner.jaxpr, inner.consts, *map(read, equation.invars))
        else:
            used = list(dict.fromkeys(one for one in equation.invars if not isinstance(one, core.Literal)))
            info = unnamed(jaxpr.debug_info)
            alone = core.Jaxpr((), used, equation.outvars, [equation], equation.effects, info)
            found = evaluate(alone, list(map(read, used)))
        values.update(zip(equation.outvars, found, strict=True))
    return list(map(read, jaxpr.outvars))


def evaluate(jaxpr: core.Jaxpr, arguments: Sequence[Any]) -> Arrays:
    """Return the results of a jaxpr without constants."""
    return tuple(core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))(*arguments))
