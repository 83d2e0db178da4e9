"""The exact cost model: prices a schedule by the counts of its actions (docs/equations.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import Integers
from ckptplan.model.budget import Budget
from ckptplan.model.prediction import Totals
from ckptplan.model.step_costs import StepCosts


def _zero() -> Integers:
    return np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How often each action occurs, and how much is stored at the peak.

    Arrays of shape (n,), with one entry per parameter setting, or (1,) if all are equal. Counts that are not
    given are 0. ``messages`` counts both directions; ``largest_message`` is the number of states in the
    largest message, and ``moving_caches`` is the number of steps whose caches it moves. A checkpoint waits for
    these caches in local memory. All ``offloaded_caches`` are in remote memory at a time.
    """

    recomputed_steps: Integers
    recomputed_without_cache: Integers = field(default_factory=_zero)
    remote_writes: Integers = field(default_factory=_zero)
    remote_reads: Integers = field(default_factory=_zero)
    offloaded_caches: Integers = field(default_factory=_zero)
    messages: Integers = field(default_factory=_zero)
    advances: Integers = field(default_factory=_zero)
    chunks: Integers
    local_saves: Integers = field(default_factory=_zero)
    local_loads: Integers = field(default_factory=_zero)
    largest_message: Integers = field(default_factory=_zero)
    tapes: Integers
    caches: Integers = field(default_factory=_zero)
    moving_caches: Integers = field(default_factory=_zero)
    local_checkpoints: Integers = field(default_factory=_zero)
    remote_checkpoints: Integers = field(default_factory=_zero)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds, peak bytes of local memory on one unit, and of remote memory in total; shape (n,)."""

    seconds: npt.NDArray[np.float64]
    local_peak_bytes: Integers
    remote_peak_bytes: Integers

    def take(self, places: npt.NDArray[Any]) -> Cost:
        """Return the costs at ``places``, which are indices or a mask."""
        return Cost(**{name: column[places] for name, column in vars(self).items()})

    def within(self, budget: Budget) -> npt.NDArray[np.bool_]:
        """Return a mask of the costs that keep a budget, shape (n,)."""
        keeps = np.ones(len(self.seconds), dtype=np.bool_)
        if budget.local_bytes is not None:
            keeps &= self.local_peak_bytes <= budget.local_bytes
        if budget.remote_bytes is not None:
            keeps &= self.remote_peak_bytes <= budget.remote_bytes
        return keeps


def cost_of(totals: Totals) -> Cost:
    """Return totals as arrays of one element."""
    return Cost(
        seconds=np.array([totals.seconds]),
        local_peak_bytes=np.array([totals.local_peak_bytes], dtype=np.int64),
        remote_peak_bytes=np.array([totals.remote_peak_bytes], dtype=np.int64),
    )


def join_costs(costs: Sequence[Cost]) -> Cost:
    """Concatenate one or more groups of costs."""
    return Cost(**{name: np.concatenate([vars(cost)[name] for cost in costs]) for name in vars(costs[0])})


def price(counts: Counts, costs: StepCosts) -> Cost:
    """Return the cost of ``counts``, with transfers and compute in sequence.

    Every term grows with its count, in floating point too. So lower bounds on counts give lower bounds on
    costs, which the search uses to prune. If transfers overlap compute, the local peak includes two buffers
    (``cost/overlap.py``, which then also gives the seconds).
    """
    # local peak = M_others + checkpoints M_s + tapes M_a + caches M_r, or M_s + moving M_r before that,
    # (+ 2 (largest_message M_s + moving M_r), the buffers)
    moving = counts.moving_caches * costs.cache_bytes
    local = np.maximum(
        counts.local_checkpoints * costs.state_bytes
        + counts.tapes * costs.tape_bytes
        + counts.caches * costs.cache_bytes,
        (counts.moving_caches > 0) * costs.state_bytes + moving,
    )
    if costs.overlaps_compute:
        local = local + 2 * (counts.largest_message * costs.state_bytes + moving)
    remote = counts.remote_checkpoints * costs.remote_state_bytes
    return Cost(
        seconds=costs.serial_seconds(counts),
        local_peak_bytes=costs.resident_bytes + local,
        remote_peak_bytes=remote
        + counts.offloaded_caches * costs.remote_cache_bytes
        + np.zeros_like(counts.tapes),
    )


def overhead(seconds: Any, base_seconds: float) -> Any:
    """Return seconds / base_seconds - 1, for scalars and arrays; it rises with ``seconds``."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return seconds / np.float64(base_seconds) - 1
