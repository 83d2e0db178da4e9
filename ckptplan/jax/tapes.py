"""Tapes of a step: what its backward needs, kept in one of three ways.

``residuals`` keeps what JAX's reverse mode keeps of a step, less what depends on constants and inputs only.
``products`` keeps the fewest bytes that spare every matrix product of the step, and computes the rest again.
``states`` keeps the state alone, and runs the step again before it is reversed.

A step and its backward are traced once, one after the other. A kind of tape is a cut through both: what is
before it is recorded, and what is not kept runs again in reverse. That of the products has the fewest bytes:
every path from what must not run again (the state, and the results of costly operations) to a residual has to
pass something that is kept. The fewest such bytes are a minimum cut of the operations of the step, as in the
partitioner of Chen et al. 2016 and of PyTorch's compiler.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from ckptplan.errors import InputError, quote_value
from ckptplan.jax.jaxprs import evaluate, find_known, inline_calls, slice_jaxpr, walk
from ckptplan.jax.leaves import Arrays, shapes_of, split
from ckptplan.jax.step import TracedStep, check_repeatable, differentiable
from ckptplan.jax.table import Leaves
from ckptplan.jax.work import OperationKind, bytes_of, kind_of

Tape = Literal["residuals", "products", "states"]
TAPES: tuple[Tape, ...] = get_args(Tape)
#: Operations that run others.
_CALLS = frozenset(("checkpoint", "closed_call", "custom_jvp_call", "custom_vjp_call", "jit", "pjit", "remat2"))
#: Capacities are 32-bit integers: those of all variables together, and one that no cut takes.
_ALL, _NEVER = 2**29, 2**30


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
    operations = (equation for jaxpr in walk(step.jaxpr) for equation in jaxpr.eqns)
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


#: Passes on the gradients that come in; what is traced after it is the backward of a step.
_turn = core.Primitive("turn_of_a_step")
_turn.multiple_results = True
_turn.def_abstract_eval(lambda *kinds: kinds)


class TracedGradient:
    """A step and its backward, traced one after the other as one jaxpr."""

    def __init__(self, step: TracedStep, wanted: Wanted) -> None:
        self.step, self.wanted = step, wanted
        moving, outputs = differentiable(step.state), differentiable(step.outputs)

        def run(constants: Arrays, state: Arrays, x: Arrays, t: Any, incoming: Any) -> Any:
            def of_moved(some: Arrays, moved: Arrays, seen: Arrays) -> tuple[Any, Any]:
                filled = _fill(constants, wanted.constants, some), _fill(state, moving, moved)
                after, stacked, terms = step.run(*filled, _fill(x, wanted.inputs, seen), t)
                return (_pick(after, moving), _pick(stacked, outputs), terms), (after, stacked)

            given = _pick(constants, wanted.constants), _pick(state, moving), _pick(x, wanted.inputs)
            results, backward, whole = jax.vjp(of_moved, *given, has_aux=True)
            leaves, tree = jax.tree.flatten(incoming)
            return *whole, results[2], backward(jax.tree.unflatten(tree, _turn.bind(*leaves)))

        incoming = _pick(step.state, moving), _pick(step.outputs, outputs), step.terms
        t = jax.ShapeDtypeStruct((), jnp.int32)
        closed = jax.make_jaxpr(run)(step.constants, step.state, step.inputs, t, incoming)
        # A custom derivative may call back where the step itself does not.
        check_repeatable(closed)
        #: The operations, and arrays that the derivatives hold.
        jaxpr, self.values = inline_calls(closed)
        turn = next(place for place, one in enumerate(jaxpr.eqns) if one.primitive is _turn)
        self.incoming = jaxpr.eqns[turn].outvars
        #: The variables of these and of what the step is given.
        self.given = jaxpr.invars[: len(jaxpr.invars) - len(self.incoming)]
        #: Those of the former and of constants; of the state; and of inputs and t.
        counts = len(self.values) + len(step.constants), len(step.state)
        self.fixed, self.state, self.inputs = split(self.given, *counts)
        kept = len(step.state) + len(step.outputs) + len(step.terms)
        self.results, gradients = jaxpr.outvars[:kept], jaxpr.outvars[kept:]
        #: The operations of the backward, and the variables of the step that they use.
        self.after = jaxpr.eqns[turn + 1 :]
        made = {one for equation in self.after for one in equation.outvars} | set(self.incoming)
        used = (one for equation in self.after for one in equation.invars)
        self.residuals = [one for one in _variables((*used, *gradients)) if one not in made]
        spaces = {getattr(one.aval, "memory_space", None) for one in self.residuals}
        if jax.memory.Space.Host in spaces:
            raise InputError(
                "keeps arrays in host memory for its gradient, as a loop under a plan in it or an offloading "
                "policy of jax.checkpoint does, and a tape is in device memory",
                field="f",
                accepted="local checkpoints in that loop or jax.checkpoint around it; a policy without offload",
            )
        self.before = jaxpr.replace(
            invars=self.given, outvars=(*self.results, *self.residuals), eqns=jaxpr.eqns[:turn]
        )
        self.whole = self.before.replace(
            invars=(*self.given, *self.incoming), outvars=gradients, eqns=(*self.before.eqns, *self.after)
        )


class Recording:
    """How a step is recorded and reversed with one kind of tape.

    What depends on constants only is computed in each step, and so by compilers once, before the loop.
    """

    def __init__(self, traced: TracedGradient, kind: Tape) -> None:
        self.kind, self.traced = kind, traced
        before, state, inputs = traced.before, traced.state, traced.inputs
        known = {*find_known(before, traced.fixed), *inputs}
        tape = [one for one in traced.residuals if one not in known]
        if kind == "products":
            tape = _find_smallest_cut(before, state=state, residuals=tape, known=known)
        elif kind == "states":
            tape = list(state)
        given = (*traced.fixed, *tape, *inputs)
        again = slice_jaxpr(before, traced.residuals, given, effects=False)
        #: Of constants, a tape, an input, t and incoming gradients: the gradients.
        self.reverse = traced.whole.replace(
            invars=(*given, *traced.incoming), eqns=(*again.eqns, *traced.after)
        )
        #: Of constants, a state, an input and t: the results of a step and its tape.
        self.each = slice_jaxpr(before, (*traced.results, *tape), traced.given, effects=True)
        self.tape: Leaves = shapes_of([one.aval for one in tape])

    def record(
        self, constants: Arrays, state: Arrays, x: Arrays, t: Any
    ) -> tuple[Arrays, Arrays, Arrays, Arrays]:
        """Return the next state, the outputs, the terms and the tape of a step."""
        flat = evaluate(self.each, (*self.traced.values, *constants, *state, *x, t))
        results, tape = split(flat, len(self.traced.results))
        return *self.traced.step.split_results(results), tape


def _find_smallest_cut(
    jaxpr: core.Jaxpr, *, state: Sequence[Any], residuals: Iterable[Any], known: Collection[Any]
) -> list[Any]:
    """Return the variables with the fewest bytes that spare all costly operations before the residuals.

    ``state`` are variables of the arguments; what is ``known`` need not be kept. Of equal cuts it is the one
    after which the least is computed again.
    """
    # A network of flow: two nodes for each variable, joined by an edge with its bytes.
    source, sink = 0, 1
    nodes: dict[Any, int] = {}

    def enter(variable: Any) -> int:
        return nodes.setdefault(variable, 2 + 2 * len(nodes))

    def leave(variable: Any) -> int:
        return enter(variable) + 1

    edges = {(source, enter(one)) for one in state}
    for equation in jaxpr.eqns:
        costly = _is_costly(equation)
        used = [one for one in equation.invars if not isinstance(one, core.Literal) and one not in known]
        for made in (one for one in equation.outvars if one not in known):
            edges |= {(source, enter(made))} if costly else {(leave(one), enter(made)) for one in used}
    edges |= {(leave(one), sink) for one in residuals}
    sizes = list(map(bytes_of, nodes))
    unit = max(1, -(-sum(sizes) // _ALL))
    # Empty arrays cost something, too, so that a cut has no more variables than it needs.
    weights = [max(1, -(-size // unit)) for size in sizes]
    inner = [(one, one + 1) for one in nodes.values()]
    rows, columns = np.array([*inner, *sorted(edges)], np.int32).reshape(-1, 2).T
    capacity = np.array([*weights, *itertools.repeat(_NEVER, len(edges))], np.int32)
    count = 2 + 2 * len(nodes)
    network = csr_array((capacity, (rows, columns)), shape=(count, count))
    left = (network - maximum_flow(network, source, sink).flow).tocsr()
    left.eliminate_zeros()
    # Edges with capacity left, backward: from where the sink can still be reached.
    reached = set(breadth_first_order(left.T.tocsr(), sink, return_predecessors=False).tolist())
    return [one for one, node in nodes.items() if node + 1 in reached and node not in reached]


def _is_costly(equation: Any) -> bool:
    """Return whether an operation should not run again: whatever is not known to be cheap."""
    inner = [one for jaxpr in core.jaxprs_in_params(equation.params) for one in jaxpr.eqns]
    if equation.effects or any(map(_is_costly, inner)):
        return True
    if inner:
        return equation.primitive.name not in _CALLS
    return kind_of(equation) in {None, OperationKind.KERNEL}


def _variables(atoms: Iterable[Any]) -> list[Any]:
    """Return the variables among some atoms, each once."""
    return list(dict.fromkeys(one for one in atoms if not isinstance(one, core.Literal)))


def _pick(leaves: Sequence[Any], places: Sequence[int]) -> Arrays:
    return tuple(leaves[place] for place in places)


def _fill(leaves: Sequence[Any], places: Sequence[int], values: Sequence[Any]) -> Arrays:
    filled = list(leaves)
    for place, value in zip(places, values, strict=True):
        filled[place] = value
    return tuple(filled)
