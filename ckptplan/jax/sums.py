"""Sums of the gradients of constants over steps: products of several steps are formed at once.

The gradient of a weight is a sum of products over steps. With the factors of K steps side by side, one product
has K times the rows, A_1^T B_1 + ... + A_K^T B_K = [A_1; ...; A_K]^T [B_1; ...; B_K], and the sum is read and
written once instead of K times. What follows a product and is linear, as a transposition or a sum over devices,
is applied to the sum at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from ckptplan.jax.jaxprs import evaluate, find_known, slice_jaxpr
from ckptplan.jax.leaves import Arrays, byte_size, make_room, make_zeros, put, release, shape_of, split
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


@dataclass(frozen=True, kw_only=True)
class _Product:
    """A product whose factors are kept: the sum that it belongs to, and the places of the factors."""

    place: int
    left: int
    right: int
    equation: Any


class GradientSums:
    """How the gradients of constants are added up while steps are reversed.

    Steps come in turn, from the last to the first, in rows of any length.
    """

    def __init__(self, recording: Recording, *, together: int = 1) -> None:
        """Products of ``together`` steps are formed at once."""
        self.recording = recording
        jaxpr, traced = recording.reverse, recording.traced
        self._held, self.together = traced.values, together
        count, fixed = len(traced.wanted.constants), len(traced.fixed) + len(recording.prepared)
        made = {one: equation for equation in jaxpr.eqns for one in equation.outvars}
        inner = [_pass_linear(one, made) for one in jaxpr.outvars[:count]]
        #: What follows the sums; None if they are the gradients. A gradient of zero is a literal.
        self._ends = [
            None if outer is one else slice_jaxpr(jaxpr, [outer], [one], effects=False)
            for outer, one in zip(jaxpr.outvars[:count], inner, strict=True)
        ]
        known = find_known(jaxpr, jaxpr.invars[:fixed])
        kept: list[_Factor] = []
        self._products = [
            _Product(place=place, left=_place(kept, left), right=_place(kept, right), equation=made[one])
            for place, one in enumerate(inner)
            if together > 1 and (pair := _factors(one, made, known)) is not None
            for left, right in [pair]
        ]
        waiting = {one.place for one in self._products}
        self._added = [place for place in range(count) if place not in waiting]
        self._inner = tuple(one.aval for one in inner)
        self._orders = [order for _, order in kept]
        self._kept = tuple(
            shape_of(jax.eval_shape(partial(lax.transpose, permutation=order), shape_of(one.aval)))
            for one, order in kept
        )
        factors = (one for one, _ in kept)
        outputs = [*(inner[place] for place in self._added), *factors, *jaxpr.outvars[count:]]
        self.each = slice_jaxpr(jaxpr, outputs, jaxpr.invars, effects=True)
        self.hoisted_bytes = estimate_hoisted_bytes(self.each, self.each.invars[:fixed])
        self._moved = len(differentiable(traced.step.state))

    @property
    def products(self) -> tuple[Any, ...]:
        """The operations that are formed for several steps at once."""
        return tuple(one.equation for one in self._products)

    @property
    def kept_bytes(self) -> int:
        """The bytes of the factors of a group."""
        return self.together * byte_size(self._kept)

    @property
    def added_bytes(self) -> int:
        """The bytes of what each step adds to sums."""
        return byte_size([self._inner[place] for place in self._added])

    def start(self) -> Sums:
        """Return sums of nothing."""
        return make_zeros(self._inner), make_room(self._kept, self.together)

    def reverse(self, sums: Sums, arguments: tuple[Any, ...], t: Any) -> tuple[Sums, Arrays, Arrays]:
        """Reverse step t: return the sums that follow, and the gradients of the state and of the input.

        ``arguments`` are trees of those of ``Recording.reverse``.
        """
        found = evaluate(self.each, (*self._held, *jax.tree.leaves(arguments)))
        added, factors, rest = split(found, len(self._added), len(self._kept))
        totals = list(sums[0])
        for place, one in zip(self._added, added, strict=True):
            totals[place] = totals[place] + one
        turned = [lax.transpose(one, order) for one, order in zip(factors, self._orders, strict=True)]
        kept = put(sums[1], turned, t % self.together)
        return (tuple(totals), kept), rest[: self._moved], rest[self._moved :]

    def reverse_all(
        self, start: Any, stop: Any, step: Callable[[Any, Any], Any], carry: Any, *, sums_at: int
    ) -> Any:
        """Reverse the steps from ``stop`` - 1 down to ``start`` by ``step(t, carry)``, in groups.

        ``sums_at`` is the place of the sums in the carry. A group ends at a multiple of its length, and the
        last one at step 0; the first group of a sequence may have zeros in place of steps.
        """

        def down(low: Any, high: Any, carry: Any) -> Any:
            return lax.fori_loop(0, high - low, lambda back, some: step(high - 1 - back, some), carry)

        if not self._products:
            return down(start, stop, carry)
        size = self.together
        last = (stop - 1) // size

        def group(number: Any, carry: Any) -> Any:
            first = (last - number) * size
            carry = list(down(jnp.maximum(start, first), jnp.minimum(stop, first + size), carry))
            # A loop of no or one round: a condition would copy what passes through it.
            totals, kept = carry[sums_at]
            rounds = jnp.where(first >= start, 1, 0)
            totals = lax.fori_loop(0, rounds, lambda _, some: self._form(some, kept), totals)
            carry[sums_at] = totals, kept
            return tuple(carry)

        groups = jnp.where(stop > start, last - start // size + 1, 0)
        return lax.fori_loop(0, groups, group, carry)

    def finish(self, sums: Sums) -> Arrays:
        """Return the gradients of the constants."""
        ends = zip(self._ends, sums[0], strict=True)
        return tuple(total if end is None else evaluate(end, (total,))[0] for end, total in ends)

    def _form(self, totals: Arrays, kept: Arrays) -> Arrays:
        """Add the products of a group."""
        changed = list(totals)
        kept = release(kept, self._kept)
        for one in self._products:
            product = form_together(one.equation, kept[one.left], kept[one.right])
            changed[one.place] = changed[one.place] + product
        return tuple(changed)


def form_together(equation: Any, left: Any, right: Any) -> jax.Array:
    """Return the sum of a product over the first axis of its factors, which are in the order of ``_order``."""
    (of_left, of_right), (batch_left, batch_right) = equation.params["dimension_numbers"]
    if batch_left:
        contracted = (0, *_later(of_left)), (0, *_later(of_right))
        numbers: Any = contracted, (_later(batch_left), _later(batch_right))
    else:
        # One axis of rows: the compiler would copy factors with two.
        left, right = (_merge_axes(one, 1 + len(of_left)) for one in (left, right))
        numbers = ((0,), (0,)), ((), ())
    found: jax.Array = lax.dot_general(
        left,
        right,
        numbers,
        precision=equation.params["precision"],
        preferred_element_type=equation.params["preferred_element_type"],
    )
    return found


def _later(axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(axis + 1 for axis in axes)


def _merge_axes(array: Any, count: int) -> Any:
    return array.reshape((math.prod(array.shape[:count]), *array.shape[count:]))


def _order(axes: int, contracted: Sequence[int], batch: Sequence[int]) -> tuple[int, ...]:
    """Return the order of axes in which a factor is kept: those that are summed over first, without a batch."""
    if batch:
        return tuple(range(axes))
    return (*contracted, *(axis for axis in range(axes) if axis not in contracted))


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


def _factors(variable: Any, made: dict[Any, Any], known: set[Any]) -> tuple[_Factor, _Factor] | None:
    """Return the factors of which a variable is the product, if both are of a step."""
    if isinstance(variable, core.Literal) or variable not in made:
        return None
    equation = made[variable]
    if equation.primitive.name != "dot_general":
        return None
    left, right = equation.invars
    if any(isinstance(one, core.Literal) or one in known for one in (left, right)):
        return None
    contracted, batches = equation.params["dimension_numbers"]
    first, second = (
        (one, _order(one.aval.ndim, axes, batch))
        for one, axes, batch in zip((left, right), contracted, batches, strict=True)
    )
    return first, second


def _place(factors: list[_Factor], one: _Factor) -> int:
    if one not in factors:
        factors.append(one)
    return factors.index(one)
