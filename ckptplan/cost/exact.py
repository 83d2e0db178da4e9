"""The exact model: what a schedule costs, from the counts of its actions (docs/equations.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import Integers, Quantity
from ckptplan.model.step_costs import StepCosts
from ckptplan.model.totals import Totals


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How often each action happens, and how much is stored at the worst moment.

    Arrays of equal shape (n,), one entry a parameter setting. ``messages`` counts both ways;
    ``largest_message`` is the number of states in the largest one.
    """

    recomputed_steps: Integers
    remote_writes: Integers
    remote_reads: Integers
    messages: Integers
    largest_message: Integers
    tapes: Integers
    local_checkpoints: Integers
    remote_checkpoints: Integers


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds, peak bytes on one unit and peak bytes of remote memory in all; arrays of shape (n,)."""

    seconds: npt.NDArray[np.float64]
    local_peak_bytes: Integers
    remote_peak_bytes: Integers


def cost_of(totals: Totals) -> Cost:
    """Return totals as arrays of one element."""
    return Cost(
        seconds=np.array([totals.seconds]),
        local_peak_bytes=np.array([totals.local_peak_bytes], dtype=np.int64),
        remote_peak_bytes=np.array([totals.remote_peak_bytes], dtype=np.int64),
    )


def price(counts: Counts, costs: StepCosts) -> Cost:
    """Return the cost of ``counts``, transfers and compute one after the other.

    Every term grows with its count, in floating point too. So lower bounds on counts give lower
    bounds on costs, which is what the search prunes with. Where transfers overlap compute, the local
    peak holds two buffers (``cost/overlap.py``, which also gives the seconds then).
    """
    local = costs.resident_bytes + counts.local_checkpoints * costs.state_bytes
    if costs.overlaps_compute:
        local = local + 2 * counts.largest_message * costs.state_bytes
    return Cost(
        seconds=serial_seconds(
            costs,
            recomputed_steps=counts.recomputed_steps,
            remote_writes=counts.remote_writes,
            remote_reads=counts.remote_reads,
            messages=counts.messages,
        ),
        local_peak_bytes=local + counts.tapes * costs.tape_bytes,
        remote_peak_bytes=counts.remote_checkpoints * costs.remote_state_bytes,
    )


def overhead(seconds: Any, base_seconds: float) -> Any:
    """Return the share of base's time that is added; rises with ``seconds``, scalars or arrays."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return seconds / np.float64(base_seconds) - 1


def serial_seconds(
    costs: StepCosts,
    *,
    recomputed_steps: Quantity,
    remote_writes: Quantity,
    remote_reads: Quantity,
    messages: Quantity,
) -> Any:
    """Return counts times their costs, for scalars and arrays (docs/equations.md)."""
    return (
        costs.base_seconds
        + recomputed_steps * costs.recompute_seconds
        + remote_writes * costs.write_seconds
        + remote_reads * costs.read_seconds
        + messages * costs.message_seconds
    )
