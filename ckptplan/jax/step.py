"""One step of a loop that JAX has traced, as a function of flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend import core

from ckptplan.errors import InputError
from ckptplan.jax.jaxprs import evaluate, variables, walk
from ckptplan.jax.leaves import Arrays, describe, split

#: Operations that a loop under a plan does not support, since a step may run more than once: the problem, and
#: what is accepted.
_UNSUPPORTED = {
    "check": (
        "calls checkify.check, which is not supported under a plan",
        "a check of outputs after the call, or jax.lax.scan",
    ),
    "io_callback": (
        "uses what io_callback returns, and a step may run more than once",
        "values that are part of the state or the inputs, or jax.pure_callback of a function that always "
        "returns the same for the same arguments",
    ),
    "new_ref": (
        "makes a jax.Ref, which is not supported under a plan",
        "arrays that are replaced, as by x.at[0].set(y)",
    ),
}


class Step:
    """A step: constants, state and input -> next state and outputs.

    Constants are the arrays that the step closes over. All leaves are abstract values.
    """

    def __init__(self, closed: core.ClosedJaxpr, *, constants: int, states: int) -> None:
        """Take the body of a JAX loop, and the numbers of its arguments that are constants and states."""
        self.closed, self._counts = closed, (constants, states)
        self.constants, self.state, self.inputs = self.split_given(describe(closed.in_avals))
        self.outputs = describe(closed.out_avals)[states:]

    def run(self, constants: Sequence[Any], state: Sequence[Any], x: Sequence[Any]) -> tuple[Arrays, Arrays]:
        """Return the next state and the outputs of a step."""
        next_state, outputs = split(evaluate(self.closed, (*constants, *state, *x)), len(self.state))
        return next_state, outputs

    def split_given(self, leaves: Sequence[Any]) -> tuple[Arrays, Arrays, Arrays]:
        """Split flat leaves into constants, state and inputs."""
        constants, state, inputs = split(leaves, *self._counts)
        return constants, state, inputs


def check_repeatable(closed: core.ClosedJaxpr, *, field: str = "f") -> None:
    """Raise InputError if a step may give other results when it is recomputed.

    A step may not use mutable arrays, results of callbacks with effects, or ``checkify.check``.
    """
    for jaxpr in walk(closed.jaxpr):
        used = set(variables((*jaxpr.outvars, *(atom for equation in jaxpr.eqns for atom in equation.invars))))
        for equation in jaxpr.eqns:
            name = equation.primitive.name
            if name in _UNSUPPORTED and (name != "io_callback" or not used.isdisjoint(equation.outvars)):
                problem, accepted = _UNSUPPORTED[name]
                raise InputError(problem, field=field, accepted=accepted)
    if any(isinstance(constant, jax.Ref) for constant in closed.consts):
        raise InputError(
            "reads or writes a jax.Ref from outside, and a step may run more than once",
            field=field,
            accepted="a step whose changing arrays are part of its state",
        )
