"""Finds operations of a step that communicate over a named axis of ``jax.vmap``; plans do not take them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
from jax.extend import core

from ckptplan.errors import InputError


def check_collectives(jaxpr: core.Jaxpr) -> None:
    """Raise InputError if a step communicates over an axis of ``jax.vmap``; axes of ``shard_map`` are fine."""
    manual = set(jax.sharding.get_abstract_mesh().manual_axes)
    for name, axis in _collectives(jaxpr):
        if axis not in manual:
            raise InputError(
                f"calls {name} over the axis {axis!r} of jax.vmap, which is not supported under a plan",
                field="f",
                accepted="collectives of shard_map, or the same sum over an axis of the state",
            )


def _collectives(jaxpr: core.Jaxpr) -> Iterator[tuple[str, str]]:
    """Yield the names of collectives and of their axes, also of those in inner jaxprs."""
    for equation in jaxpr.eqns:
        for key in ("axes", "axis_name"):
            for axis in _as_tuple(equation.params.get(key)):
                if isinstance(axis, str):
                    yield equation.primitive.name, axis
        for inner in core.jaxprs_in_params(equation.params):
            yield from _collectives(inner)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
