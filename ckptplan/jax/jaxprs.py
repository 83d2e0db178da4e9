"""Parts of traced functions: what computes some of their variables, and what depends on others only."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
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
        if (effects and _has_effects(equation)) or not needed.isdisjoint(equation.outvars):
            kept.append(equation)
            used = {one for one in equation.invars if not isinstance(one, core.Literal)}
            needed |= used - given
    seen = jaxpr.effects if effects else frozenset()
    return core.Jaxpr((), tuple(inputs), tuple(outputs), tuple(reversed(kept)), seen, unnamed(jaxpr.debug_info))


def _has_effects(equation: Any) -> bool:
    """Return whether an operation does more than compute; communication over a named axis is part of that."""
    return any(type(one).__name__ != "NamedAxisEffect" for one in equation.effects)


def inline_calls(closed: core.ClosedJaxpr) -> tuple[core.Jaxpr, Arrays]:
    """Return a jaxpr whose first arguments are the arrays that it holds, and these.

    The operations of functions under ``jax.jit`` are put in place of their calls.
    """
    constants: dict[Any, Any] = {}
    operations: list[Any] = []

    def add(inner: core.ClosedJaxpr, arguments: Sequence[Any]) -> list[Any]:
        """Add the operations of a jaxpr of some arguments, under new names, and return its results."""
        held = [core.Var(one.aval) for one in inner.jaxpr.constvars]
        constants.update(zip(held, inner.consts, strict=True))
        names = dict(zip((*inner.jaxpr.constvars, *inner.jaxpr.invars), (*held, *arguments), strict=True))

        def read(one: Any) -> Any:
            return one if isinstance(one, core.Literal) else names[one]

        for equation in inner.jaxpr.eqns:
            given = list(map(read, equation.invars))
            if _is_plain_call(equation):
                made = add(equation.params["jaxpr"], given)
            else:
                made = [core.Var(one.aval) for one in equation.outvars]
                operations.append(equation.replace(invars=given, outvars=made))
            names.update(zip(equation.outvars, made, strict=True))
        return list(map(read, inner.jaxpr.outvars))

    jaxpr = closed.jaxpr
    results, info = add(closed, jaxpr.invars), unnamed(jaxpr.debug_info)
    inlined = core.Jaxpr((), (*constants, *jaxpr.invars), results, operations, jaxpr.effects, info)
    return inlined, tuple(constants.values())


def _is_plain_call(equation: Any) -> bool:
    """Return whether an operation is a call by ``jax.jit`` that asks for no sharding."""
    shardings = (*equation.params.get("in_shardings", ()), *equation.params.get("out_shardings", ()))
    return equation.primitive.name in {"jit", "pjit"} and all(
        type(one).__name__ == "UnspecifiedValue" for one in shardings
    )


#: What the derivatives of an operation are, which its own results do not depend on.
_RULES = frozenset(("jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd"))


def identify(jaxpr: core.Jaxpr) -> Hashable:
    """Return what two jaxprs have in common only if they compute the same, derivatives aside.

    Functions that they call, and arrays that they hold, are the same objects then.
    """
    numbers: dict[Any, int] = {}

    def name(one: Any) -> Hashable:
        if isinstance(one, core.Literal):
            return one.aval, np.asarray(one.val).tobytes()
        return numbers.setdefault(one, len(numbers)), one.aval

    def of(value: Any) -> Hashable:
        if isinstance(value, core.Jaxpr):
            return identify(value)
        if isinstance(value, core.ClosedJaxpr):
            return identify(value.jaxpr), tuple(map(Same, value.consts))
        if isinstance(value, tuple | list):
            return tuple(map(of, value))
        try:
            hash(value)
        except TypeError:
            return Same(value)
        found: Hashable = value
        return found

    given = tuple(map(name, (*jaxpr.constvars, *jaxpr.invars)))
    operations = tuple(
        (
            equation.primitive,
            equation.ctx,
            tuple(map(name, equation.invars)),
            tuple((key, of(value)) for key, value in sorted(equation.params.items()) if key not in _RULES),
            tuple(map(name, equation.outvars)),
        )
        for equation in jaxpr.eqns
    )
    return given, operations, tuple(map(name, jaxpr.outvars))


class Same:
    """An object that equals itself alone."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def evaluate(jaxpr: core.Jaxpr, arguments: Sequence[Any]) -> Arrays:
    """Return the results of a jaxpr without constants, as arrays: plain numbers may be among them."""
    found = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))(*arguments)
    kinds: Any = [one.aval for one in jaxpr.outvars]
    return tuple(
        one if hasattr(one, "dtype") else jnp.asarray(one, kind.dtype)
        for one, kind in zip(found, kinds, strict=True)
    )
