"""Times transfers that overlap compute (docs/equations.md; after Kukreja, Hückelheim, Gorman 2018).

One write engine and one read engine run in parallel with compute. Each has its own buffer in local memory,
as large as the largest message. A state to be written is copied into the buffer; compute waits only while
the buffer is in use. A read starts as soon as its buffer is free and its state is in remote memory, one
message ahead of need; compute waits only until it has arrived. So a write is hidden if it takes no longer
than the compute until the next write, and a read if it takes no longer than reversing the steps that the
previous read made possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import SUM_ROUNDING, Integers, Quantity
from ckptplan.cost.exact import Counts
from ckptplan.model.step_costs import StepCosts

Seconds: TypeAlias = npt.NDArray[np.floating[Any]]


class Transfers(NamedTuple):
    """``number`` messages of ``states`` states, and ``seconds`` of compute after each; arrays of shape (n,).

    A message also has the caches of ``caches`` steps.
    """

    number: Integers
    states: Integers
    seconds: Seconds
    caches: Integers | int = 0


@dataclass(frozen=True, kw_only=True)
class TransferTiming:
    """When transfers are due: groups of messages, and the seconds of compute after them, without any wait.

    ``writes`` are followed by the compute until the next write, the ``turn`` is the last write, followed by the
    compute until its own state is read first, and ``reads`` are followed by compute that needs their states.
    """

    writes: tuple[Transfers, ...]
    turn: Transfers
    reads: tuple[Transfers, ...]


def overlapped_seconds(timing: TransferTiming, *, counts: Counts, costs: StepCosts) -> npt.NDArray[np.float64]:
    """Return the seconds of one batch: compute, and the waits of compute for transfers.

    With n messages of a group, w and r the seconds of writing and of reading one, c those of the compute that
    hides it, and x+ for max(0, x), compute waits

        for writes    n (w - c)+ of each group
        at the turn   n (w + r - c)+, where n is 1, or 0 if nothing moves
        for reads     n (r - c)+ of each group

    Transfers that are hidden add exactly nothing, so settings with the same compute take the same time to the
    last bit.
    """

    def write(group: Transfers) -> Seconds:
        return (
            costs.message_seconds
            + group.states * costs.write_seconds
            + group.caches * costs.cache_write_seconds
        )

    def read(group: Transfers) -> Seconds:
        return (
            costs.message_seconds + group.states * costs.read_seconds + group.caches * costs.cache_read_seconds
        )

    turn = timing.turn
    waits = turn.number * wait_for(write(turn) + read(turn), turn.seconds)
    for group in timing.writes:
        waits = waits + group.number * wait_for(write(group), group.seconds)
    for group in timing.reads:
        waits = waits + group.number * wait_for(read(group), group.seconds)
    seconds: npt.NDArray[np.float64] = costs.compute_seconds(counts) + waits
    return seconds


def wait_for(transfer: Quantity, compute: Quantity) -> Seconds:
    """Return the seconds by which a transfer takes longer than the compute that overlaps it; at least 0."""
    waits: Seconds = np.maximum(0.0, transfer - compute)
    return waits


def least_overlapped_seconds(
    counts: Counts, costs: StepCosts, *, last_states: Integers, last_caches: Integers
) -> Seconds:
    """Return a lower bound for a box of settings.

    Arguments:
        counts: lower bounds of the counts; arrays of shape (n,).
        costs: the costs of the elementary actions.
        last_states: the most states that the last write moves, of shape (n,).
        last_caches: the most steps whose caches the last write moves, of shape (n,).

    Only the forward sweep runs before the last write starts, and no read ends before it. With B the compute
    of reversing all steps, w and r the times of the message that is written last and read first, W and R those
    of all writes and all reads,

        seconds >= max(T f + R - r, W - w + B, W + R, all compute)

    The first two terms are close if only writes, or only reads, are hidden.
    """
    messages = 0.5 * counts.messages
    writes = (
        counts.remote_writes * costs.write_seconds
        + counts.offloaded_caches * costs.cache_write_seconds
        + messages * costs.message_seconds
    )
    reads = (
        counts.remote_reads * costs.read_seconds
        + counts.offloaded_caches * costs.cache_read_seconds
        + messages * costs.message_seconds
    )
    # W - w and R - r: the last write is assumed to be as large as it can be.
    other_states = np.maximum(0, counts.remote_writes - last_states)
    other_caches = np.maximum(0, counts.offloaded_caches - last_caches)
    latency = np.maximum(0.0, messages - 1) * costs.message_seconds
    # Nothing is recorded, loaded or run again before the last write starts.
    reversal = (
        costs.steps * (costs.record_overhead_seconds + costs.backward_seconds)
        + costs.again_seconds(counts)
        + counts.chunks * costs.chunk_seconds
        + counts.local_loads * costs.load_seconds
    )
    bounds: list[Quantity] = [
        costs.steps * costs.forward_seconds
        + other_states * costs.read_seconds
        + other_caches * costs.cache_read_seconds
        + latency,
        other_states * costs.write_seconds + other_caches * costs.cache_write_seconds + latency + reversal,
        writes + reads,
    ]
    # Slightly less, since the sums of a point are rounded in another order.
    least: Seconds = reduce(np.maximum, bounds, costs.compute_seconds(counts)) * (1 - SUM_ROUNDING)
    return least
