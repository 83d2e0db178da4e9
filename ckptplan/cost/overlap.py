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
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import Integers
from ckptplan.cost.exact import Counts, action_seconds
from ckptplan.model.step_costs import StepCosts

Seconds: TypeAlias = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class TransferTiming:
    """When transfers are due: the seconds of compute between them, without any wait.

    Arrays of shape (n,). The first message to remote memory holds ``first_states`` (it is ragged), all others
    hold ``states``; messages return in reverse order. ``before_writes`` precedes the first write,
    ``first_gap`` and ``gap`` separate the writes, ``turn`` separates the last write from the first read,
    ``between_reads`` separates the reads, and ``after_reads`` follows the last one.
    """

    messages: Integers
    first_states: Integers
    states: Integers
    before_writes: Seconds
    first_gap: Seconds
    gap: Seconds
    turn: Seconds
    between_reads: Seconds
    after_reads: Seconds


def overlapped_seconds(timing: TransferTiming, *, counts: Counts, costs: StepCosts) -> Seconds:
    """Return the time of one batch in seconds; compute alone if nothing is moved.

    With n messages, w_1 and w the seconds of writing the first and any other message, r_1 and r those of
    reading them:

        last write starts = before_writes + max(first_gap, w_1) + (n - 2) max(gap, w)
        first read ends   = last write starts + max(turn, w + r)
        last read ends    = first read ends + (n - 2) max(between_reads, r) + max(between_reads, r_1)
        seconds           = last read ends + after_reads

    The terms of the first message drop out for n = 1, where w_1 + r_1 replaces w + r.
    """
    n = timing.messages
    first_write = costs.message_seconds + timing.first_states * costs.write_seconds
    write = costs.message_seconds + timing.states * costs.write_seconds
    first_read = costs.message_seconds + timing.first_states * costs.read_seconds
    read = costs.message_seconds + timing.states * costs.read_seconds
    several = n > 1
    last_write_starts = (
        timing.before_writes
        + np.where(several, np.maximum(timing.first_gap, first_write), 0)
        + np.maximum(n - 2, 0) * np.maximum(timing.gap, write)
    )
    # The message that was written last is read first.
    there_and_back = np.where(several, write + read, first_write + first_read)
    first_load = last_write_starts + np.maximum(timing.turn, there_and_back)
    last_load = (
        first_load
        + np.maximum(n - 2, 0) * np.maximum(timing.between_reads, read)
        + np.where(several, np.maximum(timing.between_reads, first_read), 0)
    )
    compute = _compute_seconds(counts, costs)
    seconds: Seconds = np.where(n > 0, last_load + timing.after_reads, compute)
    return seconds


def least_overlapped_seconds(counts: Counts, costs: StepCosts) -> Seconds:
    """Return a lower bound for a box of settings: the longer of compute alone and all transfers alone.

    Transfers alone are a bound because the first read waits for the last write: the engines do not overlap.
    """
    compute = _compute_seconds(counts, costs)
    transfers = (
        counts.remote_writes * costs.write_seconds
        + counts.remote_reads * costs.read_seconds
        + counts.messages * costs.message_seconds
    )
    # Slightly less, since the sums of a point are rounded in another order.
    least: Seconds = np.maximum(compute, transfers) * (1 - 1e-12)
    return least


def _compute_seconds(counts: Counts, costs: StepCosts) -> Seconds:
    """Return the time of a schedule whose transfers take no time."""
    seconds: Seconds = (
        costs.sweep_seconds + counts.recomputed_steps * costs.recompute_seconds + action_seconds(counts, costs)
    )
    return seconds
