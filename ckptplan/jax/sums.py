"""Adds up the gradients of constants over steps, and forms the products of several steps at once.

The gradient of a weight is a sum of products over steps. If the factors of K steps are stacked, one product has
K times the rows, A_1^T B_1 + ... + A_K^T B_K = [A_1; ...; A_K]^T [B_1; ...; B_K], and the sum is read and
written once instead of K times. Linear operations after a product, such as a transposition or a sum over
devices, are applied once to the sum over all steps, instead of in each step.

If a mesh spreads the rows of a product over devices, each device adds up its own part of the sum. The devices
add up these parts once, after all steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
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
    split,
    varying_axes,
)
from ckptplan.jax.tapes import Recording, Tape, TracedGradient

#: Operations over devices, operations that change shapes, and all that are linear in their operands together.
_COMMUNICATES = frozenset(("psum", "psum_invariant"))
_LINEAR = _COMMUNICATES | {
    "add_any",
    "broadcast_in_dim",
    "neg",
    "pad",
    "reduce_sum",
    "reshape",
    "squeeze",
    "transpose",
}
#: The number of steps whose products are formed at once if memory allows it.
STEPS_PER_MATMUL = 8
#: Totals before their final linear operations, and the stored factors of a group of steps.
Sums = tuple[Arrays, Arrays]


class _Factor(NamedTuple):
    """An array of a step from which a term is formed, with its axes of rows, which the term adds up.

    It is stored with the rows in front. If there are several ``parts``, the first axis of rows is split into
    this number of parts.
    """

    variable: Any
    rows: tuple[int, ...] = ()
    parts: int = 1

    def arrange(self, value: Any) -> Any:
        """Return the value of the variable as it is stored."""
        if not self.rows:
            return value
        others = (axis for axis in range(value.ndim) if axis not in self.rows)
        value = lax.transpose(value, (*self.rows, *others))
        return value.reshape((self.parts, -1, *value.shape[1:])) if self.parts > 1 else value


class _Term(NamedTuple):
    """What a step adds to a total: a product of two factors, a sum over the rows of one, or the factor itself.

    If the factors have several parts, the total has an axis of parts in front.
    """

    variable: Any
    factors: tuple[_Factor, ...]
    #: The operation of a product, None for other terms.
    product: Any = None

    @property
    def parts(self) -> int:
        """The number of parts in which rows are added up."""
        return self.factors[0].parts

    def finish(self, total: Any) -> Any:
        """Return a total whose parts are added up."""
        if self.parts == 1:
            return total
        total, sharding = lax.reduce_sum(total, (0,)), self.variable.aval.sharding
        return jax.reshard(total, sharding) if sharding.mesh.explicit_axes else total

    def form(self, stacks: Sequence[Any]) -> Any:
        """Return the sum of the terms of several steps, given their factors with a first axis of steps."""
        parted, sharding = self.parts > 1, None
        axes = (0, *(1 + parted + axis for axis in range(len(self.factors[0].rows))))
        if self.product is None:
            return lax.reduce_sum(stacks[0], axes)
        params = self.product.params
        if not parted:
            sharding = params.get("out_sharding")
        if not parted and sharding is None:
            # Merge the axes of rows: the compiler would copy factors with two. Mesh axes cannot be merged.
            stacks = [factor.reshape((-1, *factor.shape[len(axes) :])) for factor in stacks]
            axes = (0,)
        batch = (1,) if parted else ()
        left, right = stacks
        return lax.dot_general(
            left,
            right,
            ((axes, axes), (batch, batch)),
            precision=params["precision"],
            preferred_element_type=params["preferred_element_type"],
            out_sharding=sharding,
        )


class GradientSums(Recording):
    """Adds up the gradients of constants while steps are reversed, from the last step to the first.

    The products of ``steps_per_matmul`` steps are formed at once: ``reverse`` stores the factors of a step in
    the slot of the step in its group, and ``join`` forms the products of a group. The first group to be
    reversed may have zeros in place of missing steps.
    """

    steps_per_matmul = 1

    def __init__(self, traced: TracedGradient, kind: Tape) -> None:
        super().__init__(traced, kind)
        jaxpr = _absorb_transposes(self.reversing)
        count, fixed = len(traced.wanted_constants), jaxpr.invars[: len(traced.fixed)]
        outputs = jaxpr.outvars[:count]
        # A gradient may be a number in each step, mostly zero. It is added up like others, under a new name.
        gradients = [core.Var(atom.aval) if isinstance(atom, core.Literal) else atom for atom in outputs]
        terms = _find_terms(jaxpr, dict(zip(gradients, outputs, strict=True)), fixed)
        #: Terms that each step adds to totals, and products.
        self._added = [term for term in terms.values() if term.product is None]
        self._joined = [term for term in terms.values() if term.product is not None]
        #: The stored factors of products.
        self._factors = list(dict.fromkeys(factor for term in self._joined for factor in term.factors))
        operands = [term.factors[0].variable for term in self._added]
        values = [*operands, *(factor.variable for factor in self._factors)]
        #: Maps constants, a tape, an input and incoming gradients to terms, factors and other gradients.
        self.each = slice_jaxpr(jaxpr, [*values, *jaxpr.outvars[count:]], jaxpr.invars, effects=True)
        sums = [term.variable for term in (*self._added, *self._joined)]
        #: Maps constants and totals to gradients of constants.
        self._end = slice_jaxpr(jaxpr, gradients, (*fixed, *sums), effects=False)
        self.products = [term.product for term in self._joined]
        self._counts = len(self._added), len(self._factors), len(differentiable(traced.step.state))
        #: The types of the stored factors and of the totals.
        self._stored, self._totals = self._find_kinds()
        #: The bytes of the factors of a step, and of the arrays that each step adds to sums.
        self.factor_bytes = byte_size(self._stored)
        self.added_bytes = byte_size(self._totals[: len(self._added)])

    def group(self) -> GradientSums:
        """Return the same sums, with products of several steps at once."""
        grouped = copy(self)
        grouped.steps_per_matmul = STEPS_PER_MATMUL
        return grouped

    def start(self, *, as_words: bool = True) -> Sums:
        """Return sums of zero, with room for factors (``make_room``)."""
        if self.steps_per_matmul == 1:
            return make_zeros(self._totals), ()
        return make_zeros(self._totals), make_room(self._stored, self.steps_per_matmul, as_words=as_words)

    def reverse(self, sums: Sums, arguments: tuple[Any, ...], slot: Any) -> tuple[Sums, Arrays, Arrays]:
        """Reverse a step, and return the new sums, and the gradients of the state and of the input.

        Arguments:
            sums: the sums so far. In a group of steps, the factors of the step are stored in them for ``join``.
            arguments: the arguments of ``Recording.reversing`` as trees.
            slot: the index of the step in its group.
        """
        totals, kept = sums
        results = evaluate(self.each, (*self.traced.values, *jax.tree.leaves(arguments)))
        operands, factors, of_state, of_input = split(results, *self._counts)
        added, stored = self._arrange(operands, factors)
        first, joined = split(totals, len(added))
        first = tuple(total + term for total, term in zip(first, added, strict=True))
        if self.steps_per_matmul > 1:
            kept = put(kept, stored, slot)
        else:
            joined = self._join(joined, _stack(stored))
        return ((*first, *joined), kept), of_state, of_input

    def join(self, sums: Sums, count: int) -> Sums:
        """Add the products of the steps in the first ``count`` slots, which are not used afterwards.

        Compilers compute loop invariants before a loop, even if the loop has no round. A barrier ties each
        factor to the totals of its products, which change in the loop, and so keeps the products inside.
        """
        totals, kept = sums
        first, joined = split(totals, len(self._added))
        behind = []
        for factor, leaf in zip(self._factors, kept, strict=True):
            # Only the totals of its own products, since on a mesh other totals may vary along other axes.
            pairs = zip(self._joined, joined, strict=True)
            others = [total for term, total in pairs if factor in term.factors]
            behind.append(lax.optimization_barrier((leaf[:count], *others))[0])
        return (*first, *self._join(joined, behind)), kept

    def finish(self, sums: Sums, constants: Arrays) -> Arrays:
        """Return the gradients of the constants."""
        terms = zip((*self._added, *self._joined), sums[0], strict=True)
        given = *self.traced.values, *constants
        return evaluate(self._end, (*given, *(term.finish(total) for term, total in terms)))

    def _find_kinds(self) -> tuple[Arrays, Arrays]:
        """Return the types of the stored factors and of the totals."""

        def form_step(operands: Arrays, factors: Arrays) -> list[Any]:
            added, stored = self._arrange(operands, factors)
            return [*stored, *added, *self._form(_stack(stored))]

        values = split([variable.aval for variable in self.each.outvars], *self._counts)[:2]
        kinds = describe(jax.make_jaxpr(form_step)(*values).out_avals)
        stored, totals = split(kinds, len(self._factors))
        return stored, totals

    def _arrange(self, operands: Arrays, factors: Arrays) -> tuple[list[Any], list[Any]]:
        """Return the terms that a step adds, and its stored factors, given their variables."""
        pairs = zip(self._added, operands, strict=True)
        added = [term.form(_stack([term.factors[0].arrange(value)])) for term, value in pairs]
        return added, [factor.arrange(value) for factor, value in zip(self._factors, factors, strict=True)]

    def _form(self, stacks: Sequence[Any]) -> list[Any]:
        """Return the products of the steps whose factors are stacked."""
        by_factor = dict(zip(self._factors, stacks, strict=True))
        return [term.form([by_factor[factor] for factor in term.factors]) for term in self._joined]

    def _join(self, totals: Arrays, kept: Sequence[Any]) -> Arrays:
        """Add the products of the steps whose factors are kept."""
        formed = self._form(release(kept, self._stored))
        return tuple(total + term for total, term in zip(totals, formed, strict=True))


def _stack(factors: Sequence[Any]) -> list[Any]:
    """Return the factors of one step with a first axis of steps."""
    return [lax.expand_dims(factor, (0,)) for factor in factors]


def _absorb_transposes(jaxpr: core.Jaxpr) -> core.Jaxpr:
    """Replace each transposed product, as in a weight's gradient, by the product of the swapped factors."""
    makers: dict[Any, Any] = {equation.outvars[0]: equation for equation in jaxpr.eqns if equation.outvars}

    def absorb(equation: Any) -> Any:
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

    absorbed: core.Jaxpr = jaxpr.replace(eqns=tuple(map(absorb, jaxpr.eqns)))
    return absorbed


def _find_terms(jaxpr: core.Jaxpr, gradients: dict[Any, Any], fixed: Sequence[Any]) -> dict[Any, _Term]:
    """Return the terms to add up for gradients of constants, by their variables.

    Linear operations lead from terms to gradients. A gradient that needs several terms is added up itself,
    unless devices would communicate for it in each step.

    Arguments:
        jaxpr: the reverse of a step.
        gradients: the gradients by their names, which differ from the gradients for numbers.
        fixed: the variables that are the same in each step.
    """
    known = find_known(jaxpr, fixed)
    makers = {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}
    terms: dict[Any, _Term] = {}
    for name, gradient in gradients.items():
        needed, is_spread = _find_sources(name, makers, known)
        if name is not gradient or (len(needed) != 1 and not is_spread):
            needed = [_Term(name, (_Factor(gradient),))]
        terms |= {term.variable: term for term in needed}
    return terms


def _find_sources(gradient: Any, makers: dict[Any, Any], known: set[Any]) -> tuple[list[_Term], bool]:
    """Return the terms from which linear operations lead to a gradient, and whether devices communicate for it.

    Devices communicate to add up rows in parts, and by operations.
    """
    sources: list[_Term] = []
    pending, communicates = [gradient], False
    while pending:
        variable = pending.pop()
        term = _make_term(variable, makers, known)
        if term is None:
            equation = makers[variable]
            communicates |= equation.primitive.name in _COMMUNICATES
            pending += [operand for operand in variables(equation.invars) if operand not in known]
        else:
            sources.append(term)
    return sources, communicates or any(term.parts > 1 for term in sources)


def _is_linear(equation: Any, makers: dict[Any, Any], known: set[Any]) -> bool:
    """Return whether an operation is linear in those of its operands together that are not ``known``."""
    given = [
        not _is_zero(operand, makers) and (isinstance(operand, core.Literal) or operand in known)
        for operand in equation.invars
    ]
    match equation.primitive.name:
        case "mul":
            return given.count(False) == 1
        case "div":
            return given == [False, True]
        case "select_n":
            return given[0] and not any(given[1:])
    return equation.primitive.name in _LINEAR and not any(given)


def _is_zero(atom: Any, makers: dict[Any, Any]) -> bool:
    """Return whether a variable or literal is known to be zero."""
    if isinstance(atom, core.Literal):
        return not atom.val
    equation = makers.get(atom)
    if equation is None or equation.primitive.name != "broadcast_in_dim":
        return False
    return _is_zero(equation.invars[0], makers)


def _make_term(variable: Any, makers: dict[Any, Any], known: set[Any]) -> _Term | None:
    """Return a variable as a term, None if its operation is linear, so that other terms lead to it.

    Products of single rows are not formed from factors: compilers add them to a sum directly, which is quicker
    than a group.
    """
    itself = _Term(variable, (_Factor(variable),))
    equation: Any = makers.get(variable)
    if equation is None or not variables(equation.invars):
        return itself
    rows: tuple[tuple[int, ...], ...] = ()
    operands, params = variables(equation.invars), equation.params
    first = operands[0].aval
    match equation.primitive.name:
        case "reduce_sum" if variable.aval.size < first.size:
            rows = (tuple(params["axes"]),)
        case "dot_general" if len(operands) == 2 and known.isdisjoint(operands):
            contracted, (batch, _) = params["dimension_numbers"]
            second = operands[1].aval
            # The factors of a group must vary over the same devices.
            are_alike = varying_axes(first) == varying_axes(second)
            has_rows = math.prod(first.shape[axis] for axis in contracted[0]) > 1
            if has_rows and not batch and are_alike and first.size * second.size:
                rows = tuple(contracted)
    parts = _count_parts(first, rows[0]) if rows else 1
    if rows and (parts > 1 or len(operands) == 2):
        factors = tuple(_Factor(operand, axes, parts) for operand, axes in zip(operands, rows, strict=True))
        return _Term(variable, factors, equation if len(operands) == 2 else None)
    return None if not rows and _is_linear(equation, makers, known) else itself


def _count_parts(kind: Any, rows: tuple[int, ...]) -> int:
    """Return the number of devices over which a mesh spreads rows. Each device adds up a part of the sum."""
    mesh, spec = kind.sharding.mesh, kind.sharding.spec.partitions
    if any(spec[axis] for axis in rows[1:]):
        return 1
    names = spec[rows[0]]
    if names is None:
        # Compilers choose how to spread an array over automatic axes: assume that they spread its rows.
        names = mesh.auto_axes
    parts = math.prod(mesh.shape[name] for name in (names if isinstance(names, tuple) else (names,)))
    return 1 if kind.shape[rows[0]] % parts else parts
