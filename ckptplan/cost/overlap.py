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

    def write(group: Transfers) -> Quantity:
        return _write_seconds(_Moved(1, group.states, group.caches), costs)

    def read(group: Transfers) -> Quantity:
        return _read_seconds(_Moved(1, group.states, group.caches), costs)

    turn = timing.turn
    waits = turn.number * wait_for(write(turn) + read(turn), turn.seconds)
    for group in timing.writes:
        waits = waits + group.number * wait_for(write(group), group.seconds)
    for group in timing.reads:
        waits = waits + group.number * wait_for(read(group), group.seconds)
    seconds: npt.NDArray[np.float64] = costs.compute_seconds(counts) + waits
    return seconds


class _Moved(NamedTuple):
    """What some messages of one direction move: their number, states, and steps whose caches they move."""

    messages: Quantity
    states: Quantity
    caches: Quantity


def _write_seconds(moved: _Moved, costs: StepCosts) -> Quantity:
    return (
        moved.messages * costs.message_seconds
        + moved.states * costs.write_seconds
        + moved.caches * costs.cache_write_seconds
    )


def _read_seconds(moved: _Moved, costs: StepCosts) -> Quantity:
    return (
        moved.messages * costs.message_seconds
        + moved.states * costs.read_seconds
        + moved.caches * costs.cache_read_seconds
    )


def wait_for(transfer: Quantity, compute: Quantity) -> Seconds:
    """Return the seconds by which a transfer takes longer than the compute that overlaps it; at least 0."""
    waits: Seconds = np.maximum(0.0, transfer - compute)
    return waits


class SweepEnds(NamedTuple):
    """Bounds on both ends of the forward sweep, over all settings of each box; arrays of shape (n,).

    The first three are upper bounds: of the states that a message moves, and of the steps whose caches the
    first and the last write move. The others are lower bounds of numbers of steps: those that run before the
    first, the second and the last write starts; those that run, and are reversed, between the start of the last
    write and that of the second read; those that are reversed after the first read, the last two, and the last.
    """

    states: Integers | int = 1
    first_caches: Integers | int = 0
    last_caches: Integers | int = 0
    before_first: Integers | int = 0
    before_second: Integers | int = 0
    before_last: Integers | int = 0
    at_turn: Integers | int = 0
    after_first: Integers | int = 0
    after_last_two: Integers | int = 0
    after_last: Integers | int = 0


def least_overlapped_seconds(counts: Counts, costs: StepCosts, ends: SweepEnds) -> Seconds:
    """Return a lower bound for a box of settings, from lower bounds of the counts, of shape (n,).

    Compute waits for a write at least by the write's time less the compute until the next one, and for a read
    likewise. Let B be the compute of reversing all steps, y those ``at_turn``, w and r the times of the message
    that is written last and read first, and w1 and r1 those of the message that is written first and read last.
    With W and R the times of all writes and all reads, the sums

        W' = max(before_first f + W, before_second f + W - w1)
        R' = max(after_last (r + o + b) + R, after_last_two (r + o + b) + R - r1)

    are the compute and the transfers from the start until the last write ends, and from the first read on:

        seconds >= max(T f + y (o + b) + R' - r,  before_last f + w + R',
                       W' - w + y f + B,  W' + r + after_first (r + o + b),
                       W' + R',  all compute)

    In the first row all writes are hidden, or all but the last one; in the second row, reads are.
    """
    messages = 0.5 * counts.messages
    every = _Moved(messages, counts.remote_writes, counts.offloaded_caches)
    last = _Moved(np.minimum(messages, 1.0), counts.largest_message, counts.moving_caches)
    # All messages but the last, which is as large as it may be.
    others = _Moved(
        np.maximum(0.0, messages - 1),
        np.maximum(0, every.states - ends.states),
        np.maximum(0, every.caches - ends.last_caches),
    )
    first = _Moved(1.0, ends.states, ends.first_caches)
    backward = costs.record_overhead_seconds + costs.backward_seconds
    # A step without its cache runs again in f.
    reversing = min(costs.recompute_seconds, costs.forward_seconds) + backward
    # By how much the sums without the first message are larger, if there are several.
    beside_writes = (ends.before_second - ends.before_first) * costs.forward_seconds
    beside_reads = (ends.after_last_two - ends.after_last) * reversing
    gained_writes = np.where(messages > 1, np.maximum(0.0, beside_writes - _write_seconds(first, costs)), 0.0)
    gained_reads = np.where(messages > 1, np.maximum(0.0, beside_reads - _read_seconds(first, costs)), 0.0)
    before = ends.before_first * costs.forward_seconds + gained_writes
    after = ends.after_last * reversing + gained_reads
    # Nothing is recorded, loaded or run again before the last write starts.
    reversal = (
        costs.steps * backward
        + costs.again_seconds(counts)
        + counts.chunks * costs.chunk_seconds
        + counts.local_loads * costs.load_seconds
    )
    sweep, turn = costs.steps * costs.forward_seconds, ends.at_turn
    until_last = ends.before_last * costs.forward_seconds
    bounds: list[Quantity] = [
        sweep + turn * backward + _read_seconds(others, costs) + after,
        until_last + _write_seconds(last, costs) + _read_seconds(every, costs) + after,
        before + _write_seconds(others, costs) + turn * costs.forward_seconds + reversal,
        before + _write_seconds(every, costs) + _read_seconds(last, costs) + ends.after_first * reversing,
        before + _write_seconds(every, costs) + _read_seconds(every, costs) + after,
    ]
    # Slightly less, since the sums of a point are rounded in another order.
    least: Seconds = reduce(np.maximum, bounds, costs.compute_seconds(counts)) * (1 - SUM_ROUNDING)
    return least
