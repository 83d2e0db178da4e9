"""Tapes of a step: what its backward needs, kept in one of three ways.

``residuals`` keeps what JAX's reverse mode keeps of a step, less what depends on constants and inputs only.
``products`` keeps the fewest bytes that spare every matrix product of the step, and computes the rest again.
``states`` keeps the state alone, and runs the step again before it is reversed.

A step and its backward are traced once, one after the other. A kind of tape is a cut through both: what is
before it is recorded, and what is not kept runs again in reverse.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax.extend import core

from ckptplan.errors import InputError, quote_value
from ckptplan.jax.cut import find_smallest_cut, is_costly
from ckptplan.jax.jaxprs import Splicer, evaluate, find_known, slice_jaxpr, unnamed, walk
from ckptplan.jax.leaves import Arrays, shapes_of, split
from ckptplan.jax.step import TracedStep, check_repeatable, differentiable
from ckptplan.jax.table import Leaves

Tape = Literal["residuals", "products", "states"]
TAPES: tuple[Tape, ...] = get_args(Tape)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The places of the constants and inputs whose gradients are wanted."""

    constants: tuple[int, ...]
    inputs: tuple[int, ...]


def find_wanted(step: TracedStep, *, inputs: tuple[int, ...] = ()) -> Wanted:
    """Return the gradients that may be wanted: those of all constants that JAX allows.

    It refuses those that a function with a ``jax.custom_vjp`` closes over: its rule has no gradient for them.
    """
    places = differentiable(step.constants)
    operations = (equation for jaxpr in walk(step.closed.jaxpr) for equation in jaxpr.eqns)
    if any(one.primitive.name == "custom_vjp_call" for one in operations) and not _is_allowed(step, places):
        places = tuple(place for place in places if _is_allowed(step, (place,)))
    return Wanted(constants=places, inputs=inputs)


def _is_allowed(step: TracedStep, places: tuple[int, ...]) -> bool:
    """Return whether JAX differentiates a step with respect to these constants."""
    try:
        TracedGradient(step, Wanted(constants=places, inputs=()))
    except Exception as error:
        # The type of this error is not public.
        if "with respect to a closed-over value" not in str(error):
            raise
        return False
    return True


def check_tape(tape: object) -> None:
    """Raise InputError unless this is a kind of tape."""
    if tape not in TAPES:
        raise InputError(
            f"{quote_value(tape)} is not a kind of tape", field="tape", value=tape, accepted=", ".join(TAPES)
        )


class TracedGradient:
    """A step and its backward, traced one after the other as one jaxpr."""

    def __init__(self, step: TracedStep, wanted: Wanted) -> None:
        self.step, self.wanted = step, wanted
        moving, outputs = differentiable(step.state), differentiable(step.outputs)
        tree: Any = None

        def run(constants: Arrays, state: Arrays, x: Arrays, t: Any) -> tuple[Any, Any, Any, Any]:
            def of_moved(some: Arrays, moved: Arrays, seen: Arrays) -> tuple[Any, Any]:
                filled = _fill(constants, wanted.constants, some), _fill(state, moving, moved)
                after, stacked, terms = step.run(*filled, _fill(x, wanted.inputs, seen), t)
                return (_pick(after, moving), _pick(stacked, outputs), terms), (after, stacked)

            nonlocal tree
            given = _pick(constants, wanted.constants), _pick(state, moving), _pick(x, wanted.inputs)
            results, backward, whole = jax.vjp(of_moved, *given, has_aux=True)
            leaves, tree = jax.tree.flatten(backward)
            return whole[0], whole[1], results[2], tuple(leaves)

        def reverse(leaves: Any, gradients: Any) -> Any:
            return jax.tree.unflatten(tree, leaves)(gradients)

        shapes = step.constants, step.state, step.inputs, jax.ShapeDtypeStruct((), jnp.int32)
        forward = jax.make_jaxpr(run)(*shapes)
        kept = len(step.state) + len(step.outputs) + len(step.terms)
        incoming = _pick(step.state, moving), _pick(step.outputs, outputs), step.terms
        backward = jax.make_jaxpr(reverse)(shapes_of(forward.out_avals[kept:]), incoming)
        operations = Splicer()
        self.given, self.incoming = forward.jaxpr.invars, backward.jaxpr.invars[len(forward.out_avals) - kept :]
        found = operations.add(forward, self.given)
        self.results, self.residuals = found[:kept], found[kept:]
        recorded = len(operations.equations)
        gradients = operations.add(backward, (*self.residuals, *self.incoming))
        #: The operations of the backward.
        self.after = operations.equations[recorded:]
        #: Arrays that the derivatives hold.
        self.values = tuple(operations.constants.values())
        constants, self.state, self.inputs = step.split_given(self.given)
        #: The variables of these and of constants; those of the state, and of inputs and t, are by themselves.
        self.fixed = (*operations.constants, *constants)
        self.whole = core.Jaxpr(
            tuple(operations.constants),
            (*self.given, *self.incoming),
            gradients,
            operations.equations,
            forward.effects | backward.effects,
            unnamed(forward.jaxpr.debug_info),
        )
        self.before = self.whole.replace(
            invars=self.given, outvars=found, eqns=operations.equations[:recorded], effects=forward.effects
        )
        # A custom derivative may call back where the step itself does not.
        check_repeatable(core.ClosedJaxpr(self.whole, self.values))


class Recording:
    """How a step is recorded and reversed with one kind of tape.

    What depends on constants only is computed once, if reversing needs it: it is ``prepared``.
    """

    def __init__(self, traced: TracedGradient, kind: Tape) -> None:
        self.kind, self.traced = kind, traced
        fixed, before, state, inputs = traced.fixed, traced.before, traced.state, traced.inputs
        known = find_known(before, fixed)
        residuals = list(dict.fromkeys(_variables(traced.residuals)))
        tape = [one for one in residuals if one not in known and one not in inputs]
        once = [one for one in residuals if one in known and one not in fixed]
        if kind == "products":
            tape = find_smallest_cut(before, state=state, residuals=tape, known={*known, *inputs})
            costly = [
                one
                for equation in before.eqns
                if is_costly(equation)
                for one in equation.outvars
                if one in known
            ]
            again = slice_jaxpr(before, residuals, (*fixed, *once, *costly, *tape, *inputs), effects=False)
            used = {one for equation in again.eqns for one in _variables(equation.invars)}
            once += [one for one in costly if one in used and one not in once]
        elif kind == "states":
            tape, once = list(state), []
        given = (*fixed, *once, *tape, *inputs)
        again = slice_jaxpr(before, residuals, given, effects=False)
        #: Of constants, what is prepared, a tape, an input, t and incoming gradients: the gradients.
        self.reverse = traced.whole.replace(
            constvars=(), invars=(*given, *traced.incoming), eqns=(*again.eqns, *traced.after)
        )
        self._once = slice_jaxpr(before, once, fixed, effects=False)
        #: Of constants, a state, an input and t: the results of a step and its tape.
        self.each = slice_jaxpr(
            before, (*traced.results, *tape), (*before.constvars, *traced.given), effects=True
        )
        self.tape: Leaves = shapes_of([one.aval for one in tape])
        self.prepared: Leaves = shapes_of([one.aval for one in once])

    def prepare(self, constants: Arrays) -> Arrays:
        """Return what is computed once."""
        return evaluate(self._once, (*self.traced.values, *constants))

    def record(
        self, constants: Arrays, state: Arrays, x: Arrays, t: Any
    ) -> tuple[Arrays, Arrays, Arrays, Arrays]:
        """Return the next state, the outputs, the terms and the tape of a step."""
        flat = evaluate(self.each, (*self.traced.values, *constants, *state, *x, t))
        results, tape = split(flat, len(self.traced.results))
        return *self.traced.step.split_results(results), tape


def _variables(atoms: Iterable[Any]) -> list[Any]:
    return [one for one in atoms if not isinstance(one, core.Literal)]


def _pick(leaves: Sequence[Any], places: Sequence[int]) -> Arrays:
    return tuple(leaves[place] for place in places)


def _fill(leaves: Sequence[Any], places: Sequence[int], values: Sequence[Any]) -> Arrays:
    filled = list(leaves)
    for place, value in zip(places, values, strict=True):
        filled[place] = value
    return tuple(filled)
