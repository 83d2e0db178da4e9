"""Finds the fewest bytes of a step from which its residuals can be computed again without matrix products.

Every path from what must not run again (the state, and the results of costly operations) to a residual has to
pass something that is kept. The fewest such bytes are a minimum cut of the operations of the step, as in the
partitioner of Chen et al. 2016 and of PyTorch's compiler.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
from jax.extend import core
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from ckptplan.jax.work import OperationKind, bytes_of, kind_of

#: Operations that run others.
_CALLS = frozenset(("checkpoint", "closed_call", "custom_jvp_call", "custom_vjp_call", "jit", "pjit", "remat2"))
#: Capacities are 32-bit integers: those of all variables together, and one that no cut takes.
_ALL, _NEVER = 2**29, 2**30


def is_costly(equation: Any) -> bool:
    """Return whether an operation should not run again: whatever is not known to be cheap."""
    inner = [one for jaxpr in core.jaxprs_in_params(equation.params) for one in jaxpr.eqns]
    if equation.effects or any(map(is_costly, inner)):
        return True
    if inner:
        return equation.primitive.name not in _CALLS
    return kind_of(equation) in {None, OperationKind.KERNEL}


def find_smallest_cut(
    jaxpr: core.Jaxpr, *, state: Sequence[Any], residuals: Iterable[Any], known: Collection[Any]
) -> list[Any]:
    """Return the variables with the fewest bytes that spare all costly operations before the residuals.

    ``state`` are variables of the arguments; what is ``known`` need not be kept. Of equal cuts it is the one
    after which the least is computed again.
    """
    graph = _Graph()
    for variable in state:
        graph.start_at(variable)
    for equation in jaxpr.eqns:
        costly = is_costly(equation)
        used = [one for one in equation.invars if not isinstance(one, core.Literal) and one not in known]
        for made in (one for one in equation.outvars if one not in known):
            if costly:
                graph.start_at(made)
            for one in () if costly else used:
                graph.lead(one, made)
    for residual in residuals:
        graph.end_at(residual)
    return graph.cut()


class _Graph:
    """A network of flow with two nodes for each variable, joined by an edge with its bytes."""

    _SOURCE, _SINK = 0, 1

    def __init__(self) -> None:
        self._variables: list[Any] = []
        self._nodes: dict[Any, int] = {}
        self._edges: set[tuple[int, int]] = set()

    def _enter(self, variable: Any) -> int:
        if variable not in self._nodes:
            self._nodes[variable] = 2 + 2 * len(self._variables)
            self._variables.append(variable)
        return self._nodes[variable]

    def _leave(self, variable: Any) -> int:
        return self._enter(variable) + 1

    def start_at(self, variable: Any) -> None:
        self._edges.add((self._SOURCE, self._enter(variable)))

    def lead(self, variable: Any, to: Any) -> None:
        self._edges.add((self._leave(variable), self._enter(to)))

    def end_at(self, variable: Any) -> None:
        self._edges.add((self._leave(variable), self._SINK))

    def cut(self) -> list[Any]:
        """Return the variables of the smallest cut, the one that is nearest to the sink."""
        sizes = [bytes_of(one) for one in self._variables]
        unit = max(1, -(-sum(sizes) // _ALL))
        inner = [(self._enter(one), self._leave(one)) for one in self._variables]
        edges = np.array([*inner, *sorted(self._edges)], np.int32).reshape(-1, 2)
        # Empty arrays cost something, too, so that a cut has no more variables than it needs.
        weights = [max(1, -(-size // unit)) for size in sizes]
        capacity = np.array([*weights, *itertools.repeat(_NEVER, len(self._edges))], np.int32)
        count = 2 + 2 * len(self._variables)
        network = csr_array((capacity, (edges[:, 0], edges[:, 1])), shape=(count, count))
        left = (network - maximum_flow(network, self._SOURCE, self._SINK).flow).tocsr()
        left.eliminate_zeros()
        # Edges with capacity left, backward: from where the sink can still be reached.
        reached = set(breadth_first_order(left.T.tocsr(), self._SINK, return_predecessors=False).tolist())
        nodes = zip(self._variables, inner, strict=True)
        return [one for one, (enter, leave) in nodes if leave in reached and enter not in reached]
