"""Sums of the gradients of constants over steps: products of several steps are formed at once.

The gradient of a weight is a sum of products over steps. With the factors of K steps side by side, one product
has K times the rows, A_1^T B_1 + ... + A_K^T B_K = [A_1; ...; A_K]^T [B_1; ...; B_K], and the sum is read and
written once instead of K times. What follows a product and is linear, as a transposition or a sum over devices,
is applied to the sum at the end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.extend import core

from ckptplan.jax.jaxprs import evaluate, find_known, slice_jaxpr, variables
from ckptplan.jax.leaves import (
    Arrays,
    byte_size,
    describe,
    differentiable,
    make_room,
    make_zeros,
    put,
    release,
    run_if,
    split,
    varying_axes,
)
from ckptplan.jax.tapes import Recording
from ckptplan.jax.work import estimate_hoisted_bytes, variable_bytes

#: Linear operations of one argument, which sums may pass through.
_LINEAR = frozenset(("transpose", "reshape", "squeeze", "neg", "psum", "psum_invariant"))
#: The steps whose products are formed at once, where memory allows it.
STEPS_PER_MATMUL = 8
#: A variable, and the order of its axes in which it is kept.
_Factor = tuple[Any, tuple[int, ...]]
#: Totals before their linear ends, and the factors of a group of steps.
Sums = tuple[Arrays, Arrays]


class _Product(NamedTuple):
    """A product whose factors are kept: the number of its sum, and the numbers of its factors."""

    total: int
    left: int
    right: int
    equation: Any


class GradientSums:
    """How the gradients of constants are added up while steps are reversed, from the last to the first.

    Products of ``steps_per_matmul`` steps are formed at once: in ``join``, of steps that the caller counts, or
    in ``join_at``. There a group ends at a multiple of its length, and the last one at step 0; the first group
    of a sequence may have zeros in place of steps.
    """

    steps_per_matmul = 1

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        jaxpr, traced = _turn_products(recording.reverse), recording.traced
        self._held = traced.values
        count, fixed = len(traced.wanted.constants), len(traced.fixed)
        made = {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}
        inner = [_pass_linear(variable, made) for variable in jaxpr.outvars[:count]]
        #: What follows the sums; None if they are the gradients. A gradient of zero is a literal.
        self._ends = [
            None if outer is variable else slice_jaxpr(jaxpr, [outer], [variable], effects=False)
            for outer, variable in zip(jaxpr.outvars[:count], inner, strict=True)
        ]
        known = find_known(jaxpr, jaxpr.invars[:fixed])
        #: The shardings of sums that devices add up once, after all steps.
        self._shardings = [variable.aval.sharding for variable in inner]
        jaxpr, self._inner = _leave_unreduced(jaxpr, inner)
        made = {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}
        #: The factors that are kept, with their places.
        kept: dict[_Factor, int] = {}
        self._products = [
            _Product(index, kept.setdefault(left, len(kept)), kept.setdefault(right, len(kept)), made[variable])
            for index, variable in enumerate(inner)
            for left, right in _factors(variable, made, known)
        ]
        waiting = {product.total for product in self._products}
        self._added = [index for index in range(count) if index not in waiting]
        self._orders = [order for _, order in kept]
        self._kept = tuple(
            describe(jax.make_jaxpr(partial(lax.transpose, permutation=order))(factor.aval).out_avals)[0]
            for factor, order in kept
        )
        factors = (factor for factor, _ in kept)
        outputs = [*(inner[index] for index in self._added), *factors, *jaxpr.outvars[count:]]
        self.each = slice_jaxpr(jaxpr, outputs, jaxpr.invars, effects=True)
        self.hoisted_bytes = estimate_hoisted_bytes(self.each, self.each.invars[:fixed])
        self._moved = len(differentiable(traced.step.state))

    def group(self) -> GradientSums:
        """Return the same sums, with products of several steps at once."""
        grouped = copy(self)
        grouped.steps_per_matmul = STEPS_PER_MATMUL
        return grouped

    @property
    def products(self) -> tuple[Any, ...]:
        """The operations that are formed for several steps at once."""
        return tuple(product.equation for product in self._products)

    @property
    def factor_bytes(self) -> int:
        """The bytes of the factors of a step."""
        return byte_size(self._kept)

    @property
    def added_bytes(self) -> int:
        """The bytes of what each step adds to sums."""
        return byte_size([self._inner[index] for index in self._added])

    def start(self, *, as_words: bool = True) -> Sums:
        """Return sums of nothing, with room for factors (``make_room``)."""
        if self.steps_per_matmul == 1:
            return make_zeros(self._inner), ()
        return make_zeros(self._inner), make_room(self._kept, self.steps_per_matmul, as_words=as_words)

    def reverse(self, sums: Sums, arguments: tuple[Any, ...], slot: Any) -> tuple[Sums, Arrays, Arrays]:
        """Reverse a step: return the sums that follow, and the gradients of the state and of the input.

        Arguments:
            sums: those before; the factors of a step of a group are put into them, for ``join``.
            arguments: trees of those of ``Recording.reverse``.
            slot: which of the steps of its group this is.
        """
        results = evaluate(self.each, (*self._held, *jax.tree.leaves(arguments)))
        added, factors, gradients = split(results, len(self._added), len(self._kept))
        totals, kept = list(sums[0]), sums[1]
        for index, gradient in zip(self._added, added, strict=True):
            totals[index] = totals[index] + gradient
        turned = [lax.transpose(factor, order) for factor, order in zip(factors, self._orders, strict=True)]
        if self.steps_per_matmul > 1:
            kept = put(kept, turned, slot)
        else:
            totals = list(self._form(tuple(totals), [lax.expand_dims(factor, (0,)) for factor in turned]))
        return (tuple(totals), kept), gradients[: self._moved], gradients[self._moved :]

    def join_at(self, sums: Sums, slot: Any) -> Sums:
        """Add the products of a group, whose last step is in slot 0, if this is that."""
        joined: Sums = run_if(slot == 0, self._form_group, sums) if self.steps_per_matmul > 1 else sums
        return joined

    def join(self, sums: Sums, count: int) -> Sums:
        """Add the products of the steps in the first ``count`` slots."""
        totals, kept = sums
        return (self._form(totals, [factor[:count] for factor in kept]) if kept else totals), kept

    def finish(self, sums: Sums) -> Arrays:
        """Return the gradients of the constants."""
        pairs = zip(sums[0], self._inner, self._shardings, strict=True)
        totals = [
            jax.reshard(total, sharding) if kind.sharding.spec.unreduced else total
            for total, kind, sharding in pairs
        ]
        ends = zip(self._ends, totals, strict=True)
        return tuple(total if end is None else evaluate(end, (total,))[0] for end, total in ends)

    def _form_group(self, sums: Sums) -> Sums:
        """Add the products of a whole group, after which its factors are of no use.

        Compilers form what does not change in a loop before it, whether or not the loop has a round: behind a
        barrier, a factor is like the totals of its products, which change.
        """
        totals, kept = sums
        behind = []
        for index, leaf in enumerate(kept):
            # Of these alone: on a mesh, each varies along axes of its own.
            others = (
                totals[product.total] for product in self._products if index in {product.left, product.right}
            )
            behind.append(lax.optimization_barrier((leaf, *others))[0])
        return self._form(totals, behind), kept

    def _form(self, totals: Arrays, kept: Sequence[jax.Array]) -> Arrays:
        """Add the products of a group of steps, whose factors are side by side."""
        changed = list(totals)
        kept = release(kept, self._kept)
        for product in self._products:
            formed = form_product(product.equation, kept[product.left], kept[product.right])
            changed[product.total] = changed[product.total] + formed
        return tuple(changed)


def form_product(equation: Any, left: Any, right: Any) -> jax.Array:
    """Return the sum of a product over the first axis of its factors, which are in the order of ``_order``."""
    (of_left, _), _ = equation.params["dimension_numbers"]
    count, sharding = 1 + len(of_left), equation.params.get("out_sharding")
    if sharding is None:
        # One axis of rows: the compiler would copy factors with two. Axes of a mesh cannot be merged.
        left, right = (_merge_axes(factor, count) for factor in (left, right))
        count = 1
    axes = tuple(range(count))
    product: jax.Array = lax.dot_general(
        left,
        right,
        ((axes, axes), ((), ())),
        precision=equation.params["precision"],
        preferred_element_type=equation.params["preferred_element_type"],
        out_sharding=sharding,
    )
    return product


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


def _leave_unreduced(jaxpr: core.Jaxpr, sums: Sequence[Any]) -> tuple[core.Jaxpr, Arrays]:
    """Return a jaxpr whose sums over explicit axes of a mesh stay apart on devices, and the types of the sums.

    Otherwise devices would communicate in each step.
    """
    used = (*(atom for equation in jaxpr.eqns for atom in equation.invars), *jaxpr.outvars)
    uses = Counter(atom for atom in used if isinstance(atom, core.Var))
    kinds = {variable: variable.aval for variable in variables(sums)}

    def change(equation: Any) -> Any:
        names = _find_summed_axes(equation)
        if not names or equation.outvars[0] not in kinds or uses[equation.outvars[0]] != 1:
            return equation
        kind = equation.outvars[0].aval
        apart = kind.sharding.update(spec=kind.sharding.spec.update(unreduced=names))
        kinds[equation.outvars[0]] = kind.update(sharding=apart)
        return equation.replace(params=equation.params | {"out_sharding": apart})

    changed = jaxpr.replace(eqns=tuple(map(change, jaxpr.eqns)))
    return changed, tuple(
        kinds[variable] if isinstance(variable, core.Var) else variable.aval for variable in sums
    )


def _find_summed_axes(equation: Any) -> frozenset[str]:
    """Return the explicit axes of a mesh over which a product or a sum adds up."""
    match equation.primitive.name:
        case "dot_general":
            axes = equation.params["dimension_numbers"][0][0]
        case "reduce_sum":
            axes = equation.params["axes"]
        case _:
            return frozenset()
    names = (equation.invars[0].aval.sharding.spec.partitions[axis] for axis in axes)
    return frozenset(
        name for given in names if given for name in (given if isinstance(given, tuple) else (given,))
    )


def _pass_linear(variable: Any, made: dict[Any, Any]) -> Any:
    """Return the variable that linear operations of one argument make another one of."""
    while not isinstance(variable, core.Literal) and variable in made:
        equation = made[variable]
        is_linear = equation.primitive.name in _LINEAR or _keeps_size(equation)
        if not is_linear or len(equation.outvars) != 1:
            break
        if isinstance(equation.invars[0], core.Literal):
            break
        variable = equation.invars[0]
    return variable


def _keeps_size(equation: Any) -> bool:
    """Return whether an operation is a sum over axes of one element."""
    sizes = [variable_bytes(variable) for variable in (*equation.invars, *equation.outvars)]
    return equation.primitive.name == "reduce_sum" and min(sizes) == max(sizes)


def _factors(variable: Any, made: dict[Any, Any], known: set[Any]) -> list[tuple[_Factor, _Factor]]:
    """Return the factors of which a variable is the product, if they are arrays of a step, in no batch.

    Compilers add a product of single rows to a sum as they form it, which is quicker than a group of them.
    """
    if isinstance(variable, core.Literal) or variable not in made:
        return []
    equation = made[variable]
    if equation.primitive.name != "dot_general":
        return []
    left, right = equation.invars
    if any(isinstance(variable, core.Literal) or variable in known for variable in (left, right)):
        return []
    contracted, (batch, _) = equation.params["dimension_numbers"]
    rows = math.prod(left.aval.shape[axis] for axis in contracted[0])
    # Those of one group vary over the same devices.
    apart = varying_axes(left.aval) != varying_axes(right.aval)
    if rows == 1 or batch or apart or not left.aval.size * right.aval.size:
        return []
    first, second = (
        (variable, _order(variable.aval.ndim, axes))
        for variable, axes in zip((left, right), contracted, strict=True)
    )
    return [(first, second)]
