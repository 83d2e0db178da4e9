"""Tapes of a step: what its backward needs, kept in one of three ways.

``residuals`` keeps what JAX's reverse mode keeps of a step, less what depends on constants and inputs only.
``products`` keeps the fewest bytes that spare every matrix product of the step, and computes the rest again.
``states`` keeps the state alone, and runs the step again before it is reversed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax.extend import core

from ckptplan.errors import InputError, quote_value
from ckptplan.jax.cut import find_smallest_cut, is_costly
from ckptplan.jax.jaxprs import evaluate, find_known, slice_jaxpr, walk
from ckptplan.jax.leaves import Arrays, byte_size, shapes_of
from ckptplan.jax.step import TracedStep, check_repeatable, differentiable
from ckptplan.jax.table import Leaves

Tape = Literal["residuals", "products", "states"]
TAPES: tuple[Tape, ...] = get_args(Tape)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The places of the constants and inputs whose gradients are wanted."""

    constants: tuple[int, ...]
    inputs: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """How a step is recorded and reversed, with constants at hand.

    ``record`` returns the next state, the outputs, the terms and the tape of a step; ``reverse`` the gradients
    of wanted constants, of the state and of wanted inputs.
    """

    #: Shapes and types of the leaves of a tape.
    tape: Leaves
    #: What is computed once: the part of residuals that depends on constants only, with its shapes.
    prepare: Callable[[Arrays], Arrays]
    prepared: Leaves
    record: Callable[[Arrays, Arrays, Arrays, Any], tuple[Arrays, Arrays, Arrays, Arrays]]
    reverse: Callable[..., tuple[Arrays, Arrays, Arrays]]

    @property
    def tape_bytes(self) -> int:
        """Return the bytes of the tape of one step."""
        return byte_size(self.tape)


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

    def run(constants: Arrays, state: Arrays, x: Arrays, t: Any) -> Arrays:
        wanted = Wanted(constants=places, inputs=())
        return _differentiate(step, wanted, constants=constants, state=state, x=x, t=t)[2]

    shapes = step.constant_shapes, step.state_shapes, step.inputs, jax.ShapeDtypeStruct((), jnp.int32)
    try:
        jax.eval_shape(run, *shapes)
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


def make_recording(step: TracedStep, kind: Tape, wanted: Wanted) -> Recording:
    """Return how a step is recorded with a kind of tape."""
    if kind == "states":
        return _record_states(step, wanted)
    return _Linear(step, wanted, products=kind == "products").recording()


def _differentiate(
    step: TracedStep,
    wanted: Wanted,
    *,
    constants: Sequence[Any],
    state: Sequence[Any],
    x: Sequence[Any],
    t: Any,
) -> tuple[Arrays, Any, Arrays]:
    """Return the differentiable results of a step, its backward, and its other results."""
    states, outputs = differentiable(step.state), differentiable(step.outputs)

    def run(some: Arrays, moved: Arrays, seen: Arrays) -> tuple[Any, Any]:
        filled = _fill(constants, wanted.constants, some), _fill(state, states, moved)
        after, stacked, terms = step.run(*filled, _fill(x, wanted.inputs, seen), t)
        return (_pick(after, states), _pick(stacked, outputs), terms), (after, stacked)

    given = _pick(constants, wanted.constants), _pick(state, states), _pick(x, wanted.inputs)
    results, backward, whole = jax.vjp(run, *given, has_aux=True)
    return results, backward, whole


def _record_states(step: TracedStep, wanted: Wanted) -> Recording:
    def record(constants: Arrays, state: Arrays, x: Arrays, t: Any) -> tuple[Arrays, Arrays, Arrays, Arrays]:
        return (*step.run(constants, state, x, t), state)

    def reverse(
        constants: Arrays, prepared: Arrays, tape: Arrays, given: tuple[Any, Arrays], gradients: Any
    ) -> tuple[Arrays, Arrays, Arrays]:
        t, x = given
        _, backward, _ = _differentiate(step, wanted, constants=constants, state=tape, x=x, t=t)
        found: tuple[Arrays, Arrays, Arrays] = backward(gradients)
        return found

    return Recording(tape=step.state_shapes, prepare=lambda _: (), prepared=(), record=record, reverse=reverse)


class _Linear:
    """A step traced with its reverse mode; each of the residuals has an origin."""

    def __init__(self, step: TracedStep, wanted: Wanted, *, products: bool) -> None:
        self.step = step
        notes: dict[str, Any] = {}

        def run(constants: Arrays, state: Arrays, x: Arrays, t: Any) -> tuple[Any, Any, Any, Any]:
            results, backward, whole = _differentiate(step, wanted, constants=constants, state=state, x=x, t=t)
            leaves, notes["tree"] = jax.tree.flatten(backward)
            return whole[0], whole[1], results[2], tuple(leaves)

        shapes = step.constant_shapes, step.state_shapes, step.inputs
        closed = jax.make_jaxpr(run)(*shapes, jax.ShapeDtypeStruct((), jnp.int32))
        self.tree = notes["tree"]
        # A custom derivative may call back where the step itself does not.
        check_repeatable(closed)
        self.jaxpr, self.inner = closed.jaxpr, tuple(closed.consts)
        self._sort(products=products)

    def _sort(self, *, products: bool) -> None:
        """Find the source of each residual: constants, what is computed from them, inputs, t, or a step."""
        jaxpr, step = self.jaxpr, self.step
        count, states, inputs = len(step.constants), len(step.state), len(step.inputs)
        kept = states + len(step.outputs) + len(step.terms)
        residuals = jaxpr.outvars[kept:]
        constants, xs = jaxpr.invars[:count], jaxpr.invars[count + states : count + states + inputs]
        known = find_known(jaxpr, {*jaxpr.constvars, *constants})
        #: For each residual, the source and the place in it.
        self.origins: list[tuple[str, int]] = []
        once: list[Any] = []
        each: list[Any] = []
        for residual in residuals:
            if isinstance(residual, core.Literal):
                self.origins.append(("once", _place(once, residual)))
            elif residual in constants:
                self.origins.append(("constants", constants.index(residual)))
            elif residual in xs:
                self.origins.append(("inputs", xs.index(residual)))
            elif residual is jaxpr.invars[-1]:
                self.origins.append(("t", 0))
            elif residual in known:
                self.origins.append(("once", _place(once, residual)))
            else:
                self.origins.append(("step", _place(each, residual)))
        self.again: _Again | None = None
        if products:
            state = jaxpr.invars[count : count + states]
            cut = find_smallest_cut(jaxpr, state=state, residuals=each, known={*known, *xs, jaxpr.invars[-1]})
            self.again = _Again(jaxpr, each, cut=cut, constants=constants, inputs=xs, known=known, once=once)
            each = cut
        self.once = slice_jaxpr(jaxpr, once, (*jaxpr.constvars, *constants), effects=False)
        results = (*jaxpr.outvars[:kept], *each)
        self.each = slice_jaxpr(jaxpr, results, (*jaxpr.constvars, *jaxpr.invars), effects=True)
        self.kept = kept

    def recording(self) -> Recording:
        tape: tuple[Any, ...] = tuple(variable.aval for variable in self.each.outvars[self.kept :])
        return Recording(
            tape=shapes_of(tape),
            prepare=self.prepare,
            prepared=shapes_of(jax.eval_shape(self.prepare, self.step.constant_shapes)),
            record=self.record,
            reverse=self.reverse,
        )

    def prepare(self, constants: Arrays) -> Arrays:
        return evaluate(self.once, (*self.inner, *constants))

    def record(
        self, constants: Arrays, state: Arrays, x: Arrays, t: Any
    ) -> tuple[Arrays, Arrays, Arrays, Arrays]:
        flat = evaluate(self.each, (*self.inner, *constants, *state, *x, t))
        states = len(self.step.state)
        outputs = states + len(self.step.outputs)
        return flat[:states], flat[states:outputs], flat[outputs : self.kept], flat[self.kept :]

    def reverse(
        self,
        constants: Arrays,
        prepared: Arrays,
        tape: Arrays,
        given: tuple[Any, Arrays],
        gradients: Any,
    ) -> tuple[Arrays, Arrays, Arrays]:
        t, x = given
        if self.again is not None:
            tape = self.again.compute((*self.inner, *constants), prepared, (*tape, *x, t))
        sources = {"constants": constants, "once": prepared, "step": tape, "inputs": x, "t": (t,)}
        backward = jax.tree.unflatten(self.tree, [sources[name][place] for name, place in self.origins])
        found: tuple[Arrays, Arrays, Arrays] = backward(gradients)
        return found


class _Again:
    """Computes residuals of a step again from a cut, by the operations after it."""

    def __init__(
        self,
        jaxpr: core.Jaxpr,
        residuals: Sequence[Any],
        *,
        cut: Sequence[Any],
        constants: Sequence[Any],
        inputs: Sequence[Any],
        known: set[Any],
        once: list[Any],
    ) -> None:
        """``once`` gets what costly operations make of ``known`` constants."""
        before, after = (*jaxpr.constvars, *constants), (*cut, *inputs, jaxpr.invars[-1])
        costly = [
            one for equation in jaxpr.eqns if is_costly(equation) for one in equation.outvars if one in known
        ]
        whole = slice_jaxpr(jaxpr, residuals, (*before, *costly, *after), effects=False)
        used = {id(one) for equation in whole.eqns for one in equation.invars}
        hoisted = [one for one in costly if id(one) in used]
        self._places = [_place(once, one) for one in hoisted]
        self._jaxpr = slice_jaxpr(jaxpr, residuals, (*before, *hoisted, *after), effects=False)

    def compute(self, constants: Arrays, prepared: Arrays, given: Arrays) -> Arrays:
        """Return the residuals."""
        return evaluate(self._jaxpr, (*constants, *_pick(prepared, self._places), *given))


def _place(variables: list[Any], one: Any) -> int:
    for place, known in enumerate(variables):
        if known is one:
            return place
    variables.append(one)
    return len(variables) - 1


def _pick(leaves: Sequence[Any], places: Sequence[int]) -> Arrays:
    return tuple(leaves[place] for place in places)


def _fill(leaves: Sequence[Any], places: Sequence[int], values: Sequence[Any]) -> Arrays:
    filled = list(leaves)
    for place, value in zip(places, values, strict=True):
        filled[place] = value
    return tuple(filled)
