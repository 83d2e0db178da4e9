"""Equations (1) to (13) of Bencheikh, Finkbeiner, Neftci 2024 (arXiv 2412.11810), as printed.

Names are the paper's. Arguments and results are scalars or numpy arrays; bytes are per unit, times are in
seconds. If a chunk does not divide T, quotients are rounded up. Where the paper leaves something open, the
decision is documented at the equation concerned; D0 to D5 are the numbers of docs/equations.md. Plans are
chosen by the exact model (``cost/exact.py``) by default.

All functions rise with every size and count, so that lower bounds of the arguments give lower bounds of the
results. The search relies on this.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ckptplan.cost.arrays import Integers, Quantity, at_least, ceil_div
from ckptplan.cost.exact import Cost
from ckptplan.model.step_costs import StepCosts


def nb_checkpoints(*, T: Quantity, chunk_size: Quantity) -> Any:
    """Eq. (1): the number of checkpoints, rounded up where chunk_size does not divide T.

    D5: the paper counts one for each chunk. A schedule needs none for the last chunk, which it records in the
    first sweep: the exact model has one fewer, and recomputes T - chunk_size steps instead of T.
    """
    return ceil_div(T, chunk_size)


def memory_base(*, T: Quantity, M_a: Quantity, M_others: Quantity) -> Any:
    """Eq. (2): M_s T + M_others.

    D0: the paper has one size, M_s. The T states that base keeps are the tapes of its steps, so they
    are charged at M_a, which the paper's network makes equal to M_s.
    """
    return M_a * T + M_others


def state_bytes(*, batch_size: Quantity, num_neurons: Quantity, value_bytes: Quantity) -> Any:
    """Eq. (3): M_s = O(batch_size num_neurons), the constant being the bytes of one value."""
    return batch_size * num_neurons * value_bytes


def memory(
    *, chunk_size: Quantity, checkpoints: Quantity, M_s: Quantity, M_a: Quantity, M_others: Quantity
) -> Any:
    """Return the memory of a chunk and of the checkpoints beside it.

    - Eq. (4): M_s (chunk_size + nb_checkpoints) + M_others of Standard.
    - Eq. (6): M_s (chunk_size + 1) + M_others of Remote. D4: the paper does not explain the 1; here it is
      the checkpoint that is being moved. The exact model has none: saves and loads of remote states
      pass through the working state, part of the workspace.
    - Eq. (8): M_s (chunk_size + nb_local) + M_others of Hierarchical.
    - Eq. (11): M_s (chunk_size + remote_chunk_size / chunk_size) + M_others of Double.

    D0: the chunk's states are tapes, charged at M_a, else a plan would overrun its budget.
    """
    return chunk_size * M_a + checkpoints * M_s + M_others


def time(
    *,
    T_standard: Quantity,
    T_c: Quantity,
    T_s: Quantity,
    states: Quantity,
    N_c: Quantity,
    T_refwd: Quantity = 0,
) -> Any:
    """Return the time with ``N_c`` messages, in which ``states`` move, both ways together.

    - Eq. (7): T_standard + 2 (T_c + T_s) nb_checkpoints of Remote. D2: the text calls T_c the time "to and
      from" streaming memory, but (7) doubles it: T_c is one way, and (7), (12) and (13) agree. Where writing
      and reading differ, T_c is their mean. T_s holds the synchronisation and the latency of one message.
    - Eq. (9): T_standard + (T_c nb_local + T_s) N_c of Hierarchical. D1: with (10) mended, not every message
      is full: if nb_local does not divide nb_checkpoints, the first batch is short. So T_c is charged for the
      states that move (``states_hierarchical``) and not for nb_local N_c of them, and T_s for each message,
      the short one included.
    - Eq. (12): T_standard + T_refwd + (T_c + T_s) N_c of Double.
    """
    return T_standard + T_refwd + T_c * states + T_s * N_c


def communications_hierarchical(*, nb_checkpoints: Quantity, nb_local: Quantity) -> Any:
    """Eq. (10): the number of communications N_c, mended to 2 (ceil(nb_checkpoints / nb_local) - 1).

    D1: printed is 2 (nb_checkpoints / nb_local - nb_local), whose dimensions do not match
    (nb_checkpoints = 64, nb_local = 16 gives -24). The text says that the last nb_local checkpoints stay
    local, which is one batch of the nb_checkpoints / nb_local.
    """
    return 2 * at_least(ceil_div(nb_checkpoints, nb_local) - 1, 0)


def states_hierarchical(*, nb_checkpoints: Quantity, nb_local: Quantity) -> Any:
    """D1, used in (9): the states moved both ways, all but the last nb_local checkpoints."""
    return 2 * at_least(nb_checkpoints - nb_local, 0)


def communications_double(*, T: Quantity, remote_chunk_size: Quantity) -> Any:
    """Eq. (13): N_c = 2 T / remote_chunk_size, rounded up."""
    return 2 * ceil_div(T, remote_chunk_size)


def base_seconds(costs: StepCosts) -> float:
    """T_fwd + T_bwd: the forward pass records its tapes, T_fwd = T (f + o), and T_bwd = T b."""
    forward = costs.steps * (costs.forward_seconds + costs.record_overhead_seconds)
    return forward + costs.steps * costs.backward_seconds


def recompute_seconds(costs: StepCosts) -> float:
    """T_refwd = T r (see D3 at eq. 5)."""
    return costs.steps * costs.recompute_seconds


def standard_seconds(costs: StepCosts) -> float:
    """Eq. (5): T_fwd + T_bwd + T_refwd.

    D3: the paper gives T_refwd as about 30 % and as less than 10 % of a forward. It is an input here:
    T_refwd = T r. Its reported +5 % for Standard means r = 0.1 f where b = f.
    """
    return base_seconds(costs) + recompute_seconds(costs)


def times(costs: StepCosts) -> dict[str, float]:
    """Return T_standard, T_s, and T_c of one state one way, the mean of writing and reading (D2 at eq. 7)."""
    one_way = (costs.write_seconds + costs.read_seconds) / 2
    return {"T_standard": standard_seconds(costs), "T_c": one_way, "T_s": costs.message_seconds}


def price(
    costs: StepCosts,
    *,
    chunk_size: Integers,
    checkpoints: Quantity,
    states: Integers | int = 0,
    N_c: Quantity = 0,
    T_refwd: float = 0.0,
) -> Cost:
    """Return the cost by the equations; arguments are as for ``memory`` and ``time``, of shape (n,)."""
    moved: Integers = states + np.zeros_like(chunk_size)
    sizes = {"M_s": costs.state_bytes, "M_a": costs.tape_bytes, "M_others": costs.resident_bytes}
    return Cost(
        seconds=time(states=moved, N_c=N_c, T_refwd=T_refwd, **times(costs)),
        local_peak_bytes=memory(chunk_size=chunk_size, checkpoints=checkpoints, **sizes),
        remote_peak_bytes=moved // 2 * costs.remote_state_bytes,
    )
