"""Sums of the gradients of constants over steps: products of several steps are formed at once.

The gradient of a weight is a sum of products over steps. With the factors of K steps side by side, one product
has K times the rows, A_1^T B_1 + ... + A_K^T B_K = [A_1; ...; A_K]^T [B_1; ...; B_K], and the sum is read and
written once instead of K times. What follows a product and is linear, as a transposition or a sum over devices,
is applied to the sum at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.extend import core

from ckptplan.jax.jaxprs import evaluate, find_known, slice_jaxpr
from ckptplan.jax.leaves import (
    Arrays,
    axes_of,
    byte_size,
    make_room,
    make_zeros,
    put,
    release,
    run_if,
    shape_of,
    split,
)
from ckptplan.jax.step import differentiable
from ckptplan.jax.tapes import Recording
from ckptplan.jax.work import estimate_hoisted_bytes

#: Linear operations of one argument, which sums may pass through.
_LINEAR = frozenset(("transpose", "reshape", "squeeze", "neg", "psum", "psum_invariant"))
#: The steps whose products are formed at once, where memory allows it.
TOGETHER = 8
#: A variable, and the order of its axes in which it is kept.
_Factor = tuple[Any, tuple[int, ...]]
#: Totals before their linear ends, and the factors of a group of steps.
Sums = tuple[Arrays, Arrays]


class _Product(NamedTuple):
    """A product whose factors are kept: the sum that it belongs to, and the places of the factors."""

    place: int
    left: int
    right: int
    equation: Any


class GradientSums:
    """How the gradients of constants are added up while steps are reversed, from the last to the first.

    Products of ``together`` steps are formed at once: in ``join``, of steps that the caller counts, or in
    ``join_at``. There a group ends at a multiple of its length, and the last one at step 0; the first group of
    a sequence may have zeros in place of steps.
    """

    together = 1

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        jaxpr, traced = _turn_products(recording.reverse), recording.traced
        self._held = traced.values
        count, fixed = len(traced.wanted.constants), len(traced.fixed)
        made = {one: equation for equation in jaxpr.eqns for one in equation.outvars}
        inner = [_pass_linear(one, made) for one in jaxpr.outvars[:count]]
        #: What follows the sums; None if they are the gradients. A gradient of zero is a literal.
        self._ends = [
            None if outer is one else slice_jaxpr(jaxpr, [outer], [one], effects=False)
            for outer, one in zip(jaxpr.outvars[:count], inner, strict=True)
        ]
        known = find_known(jaxpr, jaxpr.invars[:fixed])
        #: The factors that are kept, with their places.
        kept: dict[_Factor, int] = {}
        self._products = [
            _Product(place, kept.setdefault(left, len(kept)), kept.setdefault(right, len(kept)), made[one])
            for place, one in enumerate(inner)
            for left, right in _factors(one, made, known)
        ]
        waiting = {one.place for one in self._products}
        self._added = [place for place in range(count) if place not in waiting]
        self._inner = tuple(one.aval for one in inner)
        self._orders = [order for _, order in kept]
        self._kept = tuple(
            shape_of(one.aval).update(shape=tuple(one.aval.shape[axis] for axis in order))
            for one, order in kept
        )
        factors = (one for one, _ in kept)
        outputs = [*(inner[place] for place in self._added), *factors, *jaxpr.outvars[count:]]
        self.each = slice_jaxpr(jaxpr, outputs, jaxpr.invars, effects=True)
        self.hoisted_bytes = estimate_hoisted_bytes(self.each, self.each.invars[:fixed])
        self._moved = len(differentiable(traced.step.state))

    def group(self) -> GradientSums:
        """Return the same sums, with products of several steps at once."""
        grouped = copy(self)
        grouped.together = TOGETHER
        return grouped

    @property
    def products(self) -> tuple[Any, ...]:
        """The operations that are formed for several steps at once."""
        return tuple(one.equation for one in self._products)

    @property
    def factor_bytes(self) -> int:
        """The bytes of the factors of a step."""
        return byte_size(self._kept)

    @property
    def added_bytes(self) -> int:
        """The bytes of what each step adds to sums."""
        return byte_size([self._inner[place] for place in self._added])

    def start(self) -> Sums:
        """Return sums of nothing."""
        return make_zeros(self._inner), make_room(self._kept, self.together) if self.together > 1 else ()

    def reverse(self, sums: Sums, arguments: tuple[Any, ...], slot: Any) -> tuple[Sums, Arrays, Arrays]:
        """Reverse a step: return the sums that follow, and the gradients of the state and of the input.

        Arguments:
            sums: those before; the factors of a step of a group are put into them, for ``join``.
            arguments: trees of those of ``Recording.reverse``.
            slot: which of the steps of its group this is.
        """
        found = evaluate(self.each, (*self._held, *jax.tree.leaves(arguments)))
        added, factors, rest = split(found, len(self._added), len(self._kept))
        totals, kept = list(sums[0]), sums[1]
        for place, one in zip(self._added, added, strict=True):
            totals[place] = totals[place] + one
        turned = [lax.transpose(one, order) for one, order in zip(factors, self._orders, strict=True)]
        if self.together > 1:
            kept = put(kept, turned, slot)
        else:
            totals = list(self._form(tuple(totals), [lax.expand_dims(one, (0,)) for one in turned]))
        return (tuple(totals), kept), rest[: self._moved], rest[self._moved :]

    def join_at(self, sums: Sums, slot: Any) -> Sums:
        """Add the products of a group, whose last step is in slot 0, if this is that."""
        joined: Sums = run_if(slot == 0, self._form_group, sums) if self.together > 1 else sums
        return joined

    def join(self, sums: Sums, count: int) -> Sums:
        """Add the products of the steps in the first ``count`` slots."""
        totals, kept = sums
        return (self._form(totals, [one[:count] for one in kept]) if kept else totals), kept

    def finish(self, sums: Sums) -> Arrays:
        """Return the gradients of the constants."""
        ends = zip(self._ends, sums[0], strict=True)
        return tuple(total if end is None else evaluate(end, (total,))[0] for end, total in ends)

    def _form_group(self, sums: Sums) -> Sums:
        """Add the products of a whole group, after which its factors are of no use.

        Compilers form what does not change in a loop before it, whether or not the loop has a round: behind a
        barrier, a factor is like the totals of its products, which change.
        """
        totals, kept = sums
        behind = []
        for place, leaf in enumerate(kept):
            # Of these alone: on a mesh, each varies along axes of its own.
            others = (totals[one.place] for one in self._products if place in {one.left, one.right})
            behind.append(lax.optimization_barrier((leaf, *others))[0])
        return self._form(totals, behind), kept

    def _form(self, totals: Arrays, kept: Sequence[jax.Array]) -> Arrays:
        """Add the products of a group of steps, whose factors are side by side."""
        changed = list(totals)
        kept = release(kept, self._kept)
        for one in self._products:
            product = form_together(one.equation, kept[one.left], kept[one.right])
            changed[one.place] = changed[one.place] + product
        return tuple(changed)


def form_together(equation: Any, left: Any, right: Any) -> jax.Array:
    """Return the sum of a product over the first axis of its factors, which are in the order of ``_order``."""
    (of_left, _), _ = equation.params["dimension_numbers"]
    # One axis of rows: the compiler would copy factors with two.
    found: jax.Array = lax.dot_general(
        _merge_axes(left, 1 + len(of_left)),
        _merge_axes(right, 1 + len(of_left)),
        (((0,), (0,)), ((), ())),
        precision=equation.params["precision"],
        preferred_element_type=equation.params["preferred_element_type"],
    )
    return found


def _merge_axes(array: Any, count: int) -> Any:
    return array.reshape((math.prod(array.shape[:count]), *array.shape[count:]))


def _order(axes: int, contracted: Sequence[int]) -> tuple[int, ...]:
    """Return the order of axes in which a factor is kept: those that are summed over first."""
    return (*contracted, *(axis for axis in range(axes) if axis not in contracted))


def _turn_products(jaxpr: core.Jaxpr) -> core.Jaxpr:
    """Return a jaxpr in which factors change places where their product, as that of a weight, is transposed."""
    made: dict[Any, Any] = {equation.outvars[0]: equation for equation in jaxpr.eqns if equation.outvars}

    def turn(equation: Any) -> Any:
        given = equation.invars[0] if equation.primitive.name == "transpose" else None
        product = None if isinstance(given, core.Literal) else made.get(given)
        if product is None or product.primitive.name != "dot_general":
            return equation
        (left, right), params = product.invars, product.params
        (of_left, of_right), batch = params["dimension_numbers"]
        axes, moved = product.outvars[0].aval.ndim, left.aval.ndim - len(of_left)
        # Of a precision or a sharding, each factor may have its own: such a product is left alone.
        plain = params["precision"] is None and params.get("out_sharding") is None and not any(batch)
        if not plain or equation.params["permutation"] != (*range(moved, axes), *range(moved)):
            return equation
        changed = {"dimension_numbers": ((of_right, of_left), batch)}
        return product.replace(invars=[right, left], outvars=equation.outvars, params=params | changed)

    turned: core.Jaxpr = jaxpr.replace(eqns=tuple(map(turn, jaxpr.eqns)))
    return turned


def _pass_linear(variable: Any, made: dict[Any, Any]) -> Any:
    """Return the variable that linear operations of one argument make another one of."""
    while not isinstance(variable, core.Literal) and variable in made:
        equation = made[variable]
        if equation.primitive.name not in _LINEAR or len(equation.outvars) != 1:
            break
        if isinstance(equation.invars[0], core.Literal):
            break
        variable = equation.invars[0]
    return variable


def _factors(variable: Any, made: dict[Any, Any], known: set[Any]) -> list[tuple[_Factor, _Factor]]:
    """Return the factors of which a variable is the product, if they are arrays of a step, in no batch."""
    if isinstance(variable, core.Literal) or variable not in made:
        return []
    equation = made[variable]
    if equation.primitive.name != "dot_general":
        return []
    left, right = equation.invars
    if any(isinstance(one, core.Literal) or one in known for one in (left, right)):
        return []
    contracted, (batch, _) = equation.params["dimension_numbers"]
    # Those of one group vary over the same devices.
    apart = axes_of(left.aval) != axes_of(right.aval)
    if batch or apart or not left.aval.size * right.aval.size:
        return []
    first, second = (
        (one, _order(one.aval.ndim, axes)) for one, axes in zip((left, right), contracted, strict=True)
    )
    return [(first, second)]
