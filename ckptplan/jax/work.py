"""Estimates the seconds of a jaxpr at assumed rates, and its live bytes, from shapes alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from jax.extend import core

from ckptplan.jax.jaxprs import slice_jaxpr, variables
from ckptplan.jax.leaves import bytes_of

#: Assumed rates of one core. Plans depend only on the ratios of times.
FLOPS_PER_SECOND, BYTES_PER_SECOND = 5e10, 1e10


_KERNELS, _VIEWS, _SLOW, _PLAIN = (
    frozenset(names.split())
    for names in (
        # Operations with kernels of their own, whose arguments and results are arrays in memory.
        "dot_general conv_general_dilated sort gather scatter scatter-add fft cumsum scan while cond",
        # Operations that change only the view of an array. Other operations read their arguments through it.
        "transpose reshape squeeze expand_dims",
        # Operations too slow to repeat in several fused kernels, so that their results are arrays in memory.
        "atan2 cbrt cos cosh erf erf_inv erfc exp exp2 expm1 lgamma log log1p logistic pow rsqrt sin sinh "
        "sqrt tan tanh",
        # Other elementwise operations, changes of shape and reductions.
        "abs acos acosh add add_any and argmax argmin asin asinh atan atanh bitcast_convert_type "
        "broadcast_in_dim ceil clamp complex concatenate conj convert_element_type copy copy_p digamma "
        "div dynamic_slice dynamic_update_slice eq floor ge gt imag integer_pow iota is_finite le lt max "
        "min mul ne neg nextafter not or pad population_count pvary random_unwrap random_wrap real "
        "reduce_and reduce_max reduce_min reduce_or reduce_precision reduce_prod reduce_sum rem rev round "
        "select_n shift_left shift_right_arithmetic shift_right_logical sign slice split square "
        "stop_gradient sub xor",
    )
)
#: Operations that may be recomputed. Operations that are not known may be costly.
CHEAP = _VIEWS | _SLOW | _PLAIN
#: Parts of the names of operations that draw random numbers, and the number of arrays that they work in.
_RANDOM, _RANDOM_ARRAYS = ("random_bits", "threefry", "rng"), 4
#: The least seconds of an operation.
_EACH_SECONDS = 2e-7


def estimate_seconds(jaxpr: core.Jaxpr) -> float:
    """Return the seconds of the needed operations of a jaxpr, at the assumed rates."""
    return sum(_seconds_of(equation) for equation in _select_needed(jaxpr))


def estimate_live_bytes(jaxpr: core.Jaxpr, *, with_results: bool = True) -> int:
    """Return the peak bytes of intermediate results, if the operations run in their listed order.

    Arguments and results of operations with their own kernels are held, and results of slow operations with
    several uses. Compilers fuse the other operations. Results of the jaxpr are held if ``with_results``.
    """
    equations = _select_needed(jaxpr)
    views: dict[Any, Any] = {}
    last: dict[Any, int] = {}
    uses: Counter[Any] = Counter()
    held: set[Any] = set()
    for number, equation in enumerate(equations):
        used = [views.get(variable, variable) for variable in variables(equation.invars)]
        last.update(dict.fromkeys(used, number))
        uses.update(set(used))
        if equation.primitive.name in _VIEWS and used:
            views[equation.outvars[0]] = used[0]
        elif equation.primitive.name in _KERNELS or _is_random(equation):
            held.update((*used, *equation.outvars))
    held.update(
        variable
        for equation in filter(_is_slow, equations)
        for variable in equation.outvars
        if uses[variable] > 1
    )
    ends = variables(jaxpr.outvars) if with_results else []
    results = {views.get(variable, variable) for variable in ends}
    held |= results
    last.update(dict.fromkeys(results, len(equations)))
    # The numbers of the operations that make a variable and that use it last, and its bytes.
    spans = [
        (number, last.get(variable, number), variable_bytes(variable))
        for number, equation in enumerate(equations)
        for variable in equation.outvars
        if variable in held and variable not in views
    ]
    return max(
        (
            _bytes_inside(equation) + sum(size for made, end, size in spans if made <= number <= end)
            for number, equation in enumerate(equations)
        ),
        default=0,
    )


def _bytes_inside(equation: Any) -> int:
    """Return the bytes of intermediate results within an operation."""
    inside = [
        estimate_live_bytes(jaxpr, with_results=False) for jaxpr in core.jaxprs_in_params(equation.params)
    ]
    if _is_random(equation):
        inside.append(_RANDOM_ARRAYS * sum(map(variable_bytes, equation.outvars)))
    return max(inside, default=0)


def estimate_product_seconds(equation: Any, *, steps_per_matmul: int) -> float:
    """Return the seconds of a product per step if it is formed for ``steps_per_matmul`` steps at once."""
    moved = sum(map(variable_bytes, equation.outvars)) / BYTES_PER_SECOND
    return _seconds_of(equation) - moved * (1 - 1 / steps_per_matmul)


def _select_needed(jaxpr: core.Jaxpr) -> Sequence[Any]:
    """Return the operations that the results depend on."""
    return slice_jaxpr(jaxpr, jaxpr.outvars, jaxpr.invars, effects=True).eqns


def _is_random(equation: Any) -> bool:
    """Return whether an operation draws random numbers."""
    return any(part in equation.primitive.name for part in _RANDOM)


def _is_slow(equation: Any) -> bool:
    inner = (equation for jaxpr in core.jaxprs_in_params(equation.params) for equation in jaxpr.eqns)
    return equation.primitive.name in _SLOW or any(map(_is_slow, inner))


def _seconds_of(equation: Any) -> float:
    inner = list(core.jaxprs_in_params(equation.params))
    if inner:
        # The number of rounds of an inner loop is known only for a scan.
        rounds = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        return float(rounds * sum(map(estimate_seconds, inner)))
    moved = sum(map(variable_bytes, equation.outvars))
    seconds = _EACH_SECONDS + moved / BYTES_PER_SECOND
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        terms = 1
        for axis in contracted:
            terms *= equation.invars[0].aval.shape[axis]
        seconds += 2 * terms * sum(variable.aval.size for variable in equation.outvars) / FLOPS_PER_SECOND
    elif equation.primitive.name == "conv_general_dilated":
        kernel = equation.invars[1].aval
        seconds += 2 * kernel.size * sum(variable.aval.size for variable in equation.outvars) / FLOPS_PER_SECOND
    return seconds


def variable_bytes(variable: Any) -> int:
    """Return the bytes of a variable of a jaxpr."""
    return bytes_of(variable.aval) if hasattr(variable.aval, "dtype") else 0
