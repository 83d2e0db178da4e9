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
    # A network of flow: two nodes for each variable, joined by an edge with its bytes.
    source, sink = 0, 1
    nodes: dict[Any, int] = {}

    def enter(variable: Any) -> int:
        return nodes.setdefault(variable, 2 + 2 * len(nodes))

    def leave(variable: Any) -> int:
        return enter(variable) + 1

    edges = {(source, enter(one)) for one in state}
    for equation in jaxpr.eqns:
        costly = is_costly(equation)
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
