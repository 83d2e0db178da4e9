"""Adds up the gradients of constants over steps, and forms the products of several steps at once.

The gradient of a weight is a sum of products over steps. If the factors of K steps are stacked, one product has
K times the rows, A_1^T B_1 + ... + A_K^T B_K = [A_1; ...; A_K]^T [B_1; ...; B_K], and the sum is read and
written once instead of K times. Linear operations after a product, such as a transposition or a sum over
devices, are applied to the sum at the end.
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

#: Linear operations of one argument, which may be applied to a sum instead of to each term.
_LINEAR = frozenset(("transpose", "reshape", "squeeze", "neg", "psum", "psum_invariant"))
#: The number of steps whose products are formed at once if memory allows it.
STEPS_PER_MATMUL = 8
#: A variable, and the order of axes in which it is stored.
_Factor = tuple[Any, tuple[int, ...]]
#: Totals before their final linear operations, and the stored factors of a group of steps.
Sums = tuple[Arrays, Arrays]


class _Product(NamedTuple):
    """A product whose factors are stored: the index of its sum, and the indices of its factors."""

    total: int
    left: int
    right: int
    equation: Any


class GradientSums:
    """Adds up the gradients of constants while steps are reversed, from the last step to the first.

    The products of ``steps_per_matmul`` steps are formed at once. ``join`` forms the products of ``count``
    steps. ``join_at`` forms them whenever a step with slot 0 is reversed. Its slot is the step modulo the
    length of a group, and the first group to be reversed may have zeros in place of missing steps.
    """

    steps_per_matmul = 1

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        jaxpr, traced = _absorb_transposes(recording.reverse), recording.traced
        self._held = traced.values
        count, fixed = len(traced.wanted_constants), len(traced.fixed)
        made = {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}
        inner = [_skip_linear(variable, made) for variable in jaxpr.outvars[:count]]
        #: The operations after each sum; None if the sum is the gradient. A gradient of zero is a literal.
        self._ends = [
            None if outer is variable else slice_jaxpr(jaxpr, [outer], [variable], effects=False)
            for outer, variable in zip(jaxpr.outvars[:count], inner, strict=True)
        ]
        known = find_known(jaxpr, jaxpr.invars[:fixed])
        #: The shardings of sums that devices add up once, after all steps.
        self._shardings = [variable.aval.sharding for variable in inner]
        jaxpr, self._inner = _leave_unreduced(jaxpr, inner)
        made = {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}
        #: The stored factors, with their indices.
        kept: dict[_Factor, int] = {}
        self._products = [
            _Product(index, kept.setdefault(left, len(kept)), kept.setdefault(right, len(kept)), made[variable])
            for index, variable in enumerate(inner)
            for left, right in _find_factors(variable, made, known)
        ]
        grouped = {product.total for product in self._products}
        self._added = [index for index in range(count) if index not in grouped]
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
        """The product operations that may be formed for several steps at once."""
        return tuple(product.equation for product in self._products)

    @property
    def factor_bytes(self) -> int:
        """The bytes of the factors of a step."""
        return byte_size(self._kept)

    @property
    def added_bytes(self) -> int:
        """The bytes of the arrays that each step adds to sums."""
        return byte_size([self._inner[index] for index in self._added])

    def start(self, *, as_words: bool = True) -> Sums:
        """Return sums of zero, with room for factors (``make_room``)."""
        if self.steps_per_matmul == 1:
            return make_zeros(self._inner), ()
        return make_zeros(self._inner), make_room(self._kept, self.steps_per_matmul, as_words=as_words)

    def reverse(self, sums: Sums, arguments: tuple[Any, ...], slot: Any) -> tuple[Sums, Arrays, Arrays]:
        """Reverse a step, and return the new sums, and the gradients of the state and of the input.

        Arguments:
            sums: the sums so far. In a group of steps, the factors of the step are stored in them for ``join``.
            arguments: the arguments of ``Recording.reverse`` as trees.
            slot: the index of the step in its group.
        """
        results = evaluate(self.each, (*self._held, *jax.tree.leaves(arguments)))
        added, factors, gradients = split(results, len(self._added), len(self._kept))
        totals, kept = list(sums[0]), sums[1]
        for index, gradient in zip(self._added, added, strict=True):
            totals[index] = totals[index] + gradient
        transposed = [lax.transpose(factor, order) for factor, order in zip(factors, self._orders, strict=True)]
        if self.steps_per_matmul > 1:
            kept = put(kept, transposed, slot)
        else:
            totals = list(self._form(tuple(totals), [lax.expand_dims(factor, (0,)) for factor in transposed]))
        return (tuple(totals), kept), gradients[: self._moved], gradients[self._moved :]

    def join_at(self, sums: Sums, slot: Any) -> Sums:
        """If ``slot`` is 0, which is the last slot of a group, add the products of the group."""
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
        """Add the products of a whole group. Its factors are not used afterwards.

        Compilers compute loop invariants before a loop, even if the loop has no round. A barrier ties each
        factor to the totals of its products, which change in the loop, and so keeps the products inside.
        """
        totals, kept = sums
        behind = []
        for index, leaf in enumerate(kept):
            # Only the totals of its own products, since on a mesh other totals may vary along other axes.
            others = (
                totals[product.total] for product in self._products if index in {product.left, product.right}
            )
            behind.append(lax.optimization_barrier((leaf, *others))[0])
        return self._form(totals, behind), kept

    def _form(self, totals: Arrays, kept: Sequence[jax.Array]) -> Arrays:
        """Add the products of a group of steps, whose factors are stacked."""
        changed = list(totals)
        kept = release(kept, self._kept)
        for product in self._products:
            formed = form_product(product.equation, kept[product.left], kept[product.right])
            changed[product.total] = changed[product.total] + formed
        return tuple(changed)


def form_product(equation: Any, left: Any, right: Any) -> jax.Array:
    """Form a product of stacked factors, summed over the stack. Their axes are in the order of ``_order``."""
    (of_left, _), _ = equation.params["dimension_numbers"]
    count, sharding = 1 + len(of_left), equation.params.get("out_sharding")
    if sharding is None:
        # Merge the axes of rows, since the compiler would copy factors with two. Mesh axes cannot be merged.
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
    """Return the order of axes in which a factor is stored: the contracted axes come first."""
    return (*contracted, *(axis for axis in range(axes) if axis not in contracted))


def _absorb_transposes(jaxpr: core.Jaxpr) -> core.Jaxpr:
    """Replace each transposed product, as in a weight's gradient, by the product of the swapped factors."""
    makers: dict[Any, Any] = {equation.outvars[0]: equation for equation in jaxpr.eqns if equation.outvars}

    def turn(equation: Any) -> Any:
        given = equation.invars[0] if equation.primitive.name == "transpose" else None
        product = None if isinstance(given, core.Literal) else makers.get(given)
        if product is None or product.primitive.name != "dot_general":
            return equation
        (left, right), params = product.invars, product.params
        (of_left, of_right), batch = params["dimension_numbers"]
        axes, moved = product.outvars[0].aval.ndim, left.aval.ndim - len(of_left)
        # Factors may have different precisions or shardings. Leave such products alone.
        plain = params["precision"] is None and params.get("out_sharding") is None and not any(batch)
        if not plain or equation.params["permutation"] != (*range(moved, axes), *range(moved)):
            return equation
        changed = {"dimension_numbers": ((of_right, of_left), batch)}
        return product.replace(invars=[right, left], outvars=equation.outvars, params=params | changed)

    turned: core.Jaxpr = jaxpr.replace(eqns=tuple(map(turn, jaxpr.eqns)))
    return turned


def _leave_unreduced(jaxpr: core.Jaxpr, sums: Sequence[Any]) -> tuple[core.Jaxpr, Arrays]:
    """Return a jaxpr whose sums over explicit mesh axes stay unreduced on devices, and the types of the sums.

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


def _skip_linear(variable: Any, makers: dict[Any, Any]) -> Any:
    """Return the variable from which only linear operations of one argument lead to ``variable``."""
    while not isinstance(variable, core.Literal) and variable in makers:
        equation = makers[variable]
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


def _find_factors(variable: Any, makers: dict[Any, Any], known: set[Any]) -> list[tuple[_Factor, _Factor]]:
    """Return the factors of a variable that is an unbatched product of arrays of a step, [] if it is not.

    Products of single rows are left out: compilers add them to a sum directly, which is quicker than a group.
    """
    if isinstance(variable, core.Literal) or variable not in makers:
        return []
    equation = makers[variable]
    if equation.primitive.name != "dot_general":
        return []
    left, right = equation.invars
    if any(isinstance(variable, core.Literal) or variable in known for variable in (left, right)):
        return []
    contracted, (batch, _) = equation.params["dimension_numbers"]
    rows = math.prod(left.aval.shape[axis] for axis in contracted[0])
    # The factors of a group must vary over the same devices.
    apart = varying_axes(left.aval) != varying_axes(right.aval)
    if rows == 1 or batch or apart or not left.aval.size * right.aval.size:
        return []
    first, second = (
        (variable, _order(variable.aval.ndim, axes))
        for variable, axes in zip((left, right), contracted, strict=True)
    )
    return [(first, second)]
