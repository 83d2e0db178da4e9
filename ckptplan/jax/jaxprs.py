"""Parts of traced functions: what computes some of their variables, and what depends on others only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jax.extend import core

from ckptplan.jax.leaves import Arrays


def unnamed(info: core.DebugInfo) -> core.DebugInfo:
    """Return where a jaxpr comes from, without the names of its arguments and results, which have changed."""
    return info._replace(arg_names=None, result_paths=None)


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


def evaluate(jaxpr: core.Jaxpr, arguments: Sequence[Any]) -> Arrays:
    """Return the results of a jaxpr without constants."""
    return tuple(core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))(*arguments))
