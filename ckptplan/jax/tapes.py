"""Tapes of a step: the arrays that its backward needs, of one of three kinds.

``residuals`` keeps the residuals of JAX's reverse mode, except those that depend on constants and inputs only.
``products`` keeps the fewest bytes with which no matrix product of the step is recomputed.
``states`` keeps only the state, and recomputes the whole step before it is reversed.

A step and its backward are traced once, one after the other. A kind of tape is a cut through the operations:
variables on the cut are kept, and the operations between the cut and the residuals are recomputed in the
backward. For ``products``, every path from the state, or from the result of a costly operation, to a residual
has to pass a kept variable. The fewest such bytes are a minimum cut of the operations of the step, as in the
partitioner of Chen et al. 2016 and of PyTorch's compiler.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, get_args

import jax
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from ckptplan.errors import InputError, quote_value
from ckptplan.jax.jaxprs import (
    Step,
    check_repeatable,
    evaluate,
    find_known,
    inline_calls,
    lift_constants,
    slice_jaxpr,
    variables,
)
from ckptplan.jax.leaves import Arrays, describe, differentiable, fill, pick, split
from ckptplan.jax.work import CHEAP, variable_bytes

Tape = Literal["residuals", "products", "states"]
TAPES: tuple[Tape, ...] = get_args(Tape)
#: Operations that call other operations, and are as cheap as these.
_CALLS = frozenset(("checkpoint", "closed_call", "custom_jvp_call", "custom_vjp_call", "jit", "pjit", "remat2"))
#: Capacities are 32-bit integers: the limit on all variables together, and the capacity that no cut contains.
_ALL, _NEVER = 2**29, 2**30


def check_tape(tape: object) -> None:
    """Raise InputError unless this is a kind of tape."""
    if tape not in TAPES:
        raise InputError(
            f"{quote_value(tape)} is not a kind of tape", field="tape", value=tape, accepted=", ".join(TAPES)
        )


#: An identity on the incoming gradients. The operations traced after it are the backward pass of a step.
_boundary = core.Primitive("forward_backward_boundary")
_boundary.multiple_results = True
_boundary.def_abstract_eval(lambda *kinds: kinds)


class TracedGradient:
    """A step and its backward pass, traced one after the other as one jaxpr.

    A state always has a gradient. Constants and inputs have one if their indices are ``wanted``. These indices
    count the constants, the states and the inputs of the step, and ascend.
    """

    def __init__(self, step: Step, wanted: tuple[int, ...]) -> None:
        self.step, self.wanted = step, wanted
        first, last = len(step.constants), len(step.constants) + len(step.state)
        #: The indices of the wanted constants among all constants, and of the wanted inputs among all inputs.
        self.wanted_constants = tuple(index for index in wanted if index < first)
        self.wanted_inputs = tuple(index - last for index in wanted if index >= last)
        varied = {*wanted, *(first + index for index in differentiable(step.state))}
        results = *step.state, *step.outputs

        def run(arguments: Arrays, incoming: Arrays) -> Any:
            def forward(*given: Any) -> tuple[Arrays, Arrays]:
                results = evaluate(step.closed, fill(arguments, sorted(varied), given))
                return pick(results, differentiable(results)), results

            _, backward, results = jax.vjp(forward, *pick(arguments, sorted(varied)), has_aux=True)
            return results, backward(tuple(_boundary.bind(*incoming)) if incoming else ())

        arguments = *step.constants, *step.state, *step.inputs
        incoming = tuple(leaf.to_ct_aval() for leaf in pick(results, differentiable(results)))
        closed = jax.make_jaxpr(run)(arguments, incoming)
        # A custom derivative may have callbacks that the step itself does not have.
        check_repeatable(closed)
        #: The operations, and the arrays that the derivatives contain.
        jaxpr, self.values = lift_constants(inline_calls(closed))
        turn = next(
            (number for number, equation in enumerate(jaxpr.eqns) if equation.primitive is _boundary),
            len(jaxpr.eqns),
        )
        self.incoming = jaxpr.eqns[turn].outvars if turn < len(jaxpr.eqns) else []
        #: The variables of these arrays and of the arguments of the step.
        self.given = jaxpr.invars[: len(jaxpr.invars) - len(self.incoming)]
        #: The variables of these arrays and constants, of the state, and of the inputs.
        counts = len(self.values) + len(step.constants), len(step.state)
        self.fixed, self.state, self.inputs = split(self.given, *counts)
        count = len(step.state) + len(step.outputs)
        self.results, self.gradients = jaxpr.outvars[:count], jaxpr.outvars[count:]
        #: The operations of the backward pass, and the variables of the step that they use.
        self.after = jaxpr.eqns[turn + 1 :]
        made = {*self.incoming, *(variable for equation in self.after for variable in equation.outvars)}
        used = (*(atom for equation in self.after for atom in equation.invars), *self.gradients)
        self.residuals = [variable for variable in variables(used) if variable not in made]
        spaces = {getattr(variable.aval, "memory_space", None) for variable in self.residuals}
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
        #: The step as it is recorded: functions with a ``jax.custom_vjp`` run by their forward rules.
        forward = slice_jaxpr(self.before, self.results, self.given, effects=True)
        self.forward, _ = partial_eval.dce_jaxpr(forward, True, instantiate=True)

    def order(self, constants: Arrays, state: Arrays, inputs: Arrays) -> Arrays:
        """Return the gradients of the wanted arguments, given those of constants, states and inputs."""
        first = len(self.step.constants)
        pairs = zip(differentiable(self.step.state), state, strict=True)
        return (*constants, *(gradient for index, gradient in pairs if first + index in self.wanted), *inputs)

    def run(self, constants: Arrays, state: Arrays, x: Arrays) -> tuple[Arrays, Arrays]:
        """Return the next state and the outputs of a step, computed as in its recording."""
        results = evaluate(self.forward, (*self.values, *constants, *state, *x))
        after, outputs = split(results, len(self.step.state))
        return after, outputs


def trace_gradient(step: Step, *, inputs: tuple[int, ...] = ()) -> TracedGradient:
    """Return a step and its backward pass with the gradients of all constants that JAX can differentiate.

    JAX refuses the gradient of an array that a function with a ``jax.custom_vjp`` closes over.

    Arguments:
        step: the step.
        inputs: the indices of the inputs whose gradients are wanted.
    """
    constants, first = differentiable(step.constants), len(step.constants) + len(step.state)
    if not _is_allowed(step, constants):
        constants = tuple(index for index in constants if _is_allowed(step, (index,)))
    return TracedGradient(step, (*constants, *(first + index for index in inputs)))


def _is_allowed(step: Step, constants: tuple[int, ...]) -> bool:
    """Return whether JAX differentiates a step with respect to these constants."""
    try:
        TracedGradient(step, constants)
    except Exception as error:
        # The type of this error is not public, so check its text.
        if "with respect to a closed-over value" not in str(error):
            raise
        return False
    return True


class Recording:
    """Records and reverses a step with one kind of tape.

    Values that depend on constants only are computed in each step. Compilers hoist them out of the loop.
    """

    def __init__(self, traced: TracedGradient, kind: Tape) -> None:
        self.kind, self.traced = kind, traced
        before, state, inputs = traced.before, traced.state, traced.inputs
        known = {*find_known(before, traced.fixed), *inputs}
        tape = [variable for variable in traced.residuals if variable not in known]
        if kind == "products":
            tape = _find_smallest_cut(before, state=state, residuals=tape, known=known)
        elif kind == "states":
            tape = list(state)
        given = (*traced.fixed, *tape, *inputs)
        recompute = slice_jaxpr(before, traced.residuals, given, effects=False)
        #: Maps constants, a tape, an input and incoming gradients to gradients.
        self.reversing = recompute.replace(
            invars=(*given, *traced.incoming),
            outvars=traced.gradients,
            eqns=(*recompute.eqns, *traced.after),
            effects=traced.before.effects,
        )
        #: Maps constants, a state and an input to the results of a step and its tape.
        self.recording = slice_jaxpr(before, (*traced.results, *tape), traced.given, effects=True)
        self.tape = describe([variable.aval for variable in tape])

    def record(self, constants: Arrays, state: Arrays, x: Arrays) -> tuple[Arrays, Arrays, Arrays]:
        """Return the next state, the outputs and the tape of a step."""
        step = self.traced.step
        flat = evaluate(self.recording, (*self.traced.values, *constants, *state, *x))
        after, outputs, tape = split(flat, len(step.state), len(step.outputs))
        return after, outputs, tape


def _find_smallest_cut(
    jaxpr: core.Jaxpr, *, state: Sequence[Any], residuals: Iterable[Any], known: Collection[Any]
) -> list[Any]:
    """Return the variables with the fewest bytes from which no costly operation needs to be recomputed.

    ``state`` are variables of the arguments. Variables that are ``known`` need not be kept. Among equal cuts,
    the one nearest to the residuals is chosen, after which the least is recomputed.
    """
    # A flow network: each variable is an edge between two nodes, with its bytes as the capacity.
    source, sink = 0, 1
    nodes: dict[Any, int] = {}

    def enter(variable: Any) -> int:
        return nodes.setdefault(variable, 2 + 2 * len(nodes))

    def leave(variable: Any) -> int:
        return enter(variable) + 1

    edges = {(source, enter(variable)) for variable in state}
    for equation in jaxpr.eqns:
        costly = _is_costly(equation)
        used = [variable for variable in variables(equation.invars) if variable not in known]
        for output in (variable for variable in equation.outvars if variable not in known):
            edges |= (
                {(source, enter(output))} if costly else {(leave(variable), enter(output)) for variable in used}
            )
    edges |= {(leave(variable), sink) for variable in residuals}
    sizes = list(map(variable_bytes, nodes))
    unit = max(1, -(-sum(sizes) // _ALL))
    # Empty arrays have a weight, too, so that a cut has no unnecessary variables.
    weights = [max(1, -(-size // unit)) for size in sizes]
    inner = [(node, node + 1) for node in nodes.values()]
    rows, columns = np.array([*inner, *sorted(edges)], np.int32).reshape(-1, 2).T
    capacity = np.array([*weights, *itertools.repeat(_NEVER, len(edges))], np.int32)
    count = 2 + 2 * len(nodes)
    network = csr_array((capacity, (rows, columns)), shape=(count, count))
    remaining = (network - maximum_flow(network, source, sink).flow).tocsr()
    remaining.eliminate_zeros()
    # Search backward along edges with remaining capacity, for the nodes that can still reach the sink.
    reached = set(breadth_first_order(remaining.T.tocsr(), sink, return_predecessors=False).tolist())
    return [variable for variable, node in nodes.items() if node + 1 in reached and node not in reached]


def _is_costly(equation: Any) -> bool:
    """Return whether an operation should not be recomputed. Operations not known to be cheap are costly."""
    inner = [operation for jaxpr in core.jaxprs_in_params(equation.params) for operation in jaxpr.eqns]
    if equation.effects or any(map(_is_costly, inner)):
        return True
    if inner:
        return equation.primitive.name not in _CALLS
    return equation.primitive.name not in CHEAP
