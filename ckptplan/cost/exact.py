"""The exact model: what a schedule costs, from the counts of its actions (theory.md, section 2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ckptplan.cost.arrays import Integers
from ckptplan.model.step_costs import StepCosts


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How often each action happens, and how much is stored at the worst moment.

    Arrays of equal shape (n,), one entry a parameter setting. What is written is read once:
    ``states_moved`` states go each way, in ``messages`` messages each way.
    """

    recomputed_steps: Integers
    states_moved: Integers
    messages: Integers
    tapes: Integers
    local_checkpoints: Integers
    remote_checkpoints: Integers


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds, peak bytes on one unit and peak bytes of remote memory in all; arrays of shape (n,)."""

    seconds: npt.NDArray[np.float64]
    local_peak_bytes: Integers
    remote_peak_bytes: Integers


def price(counts: Counts, costs: StepCosts) -> Cost:
    """Return the cost of ``counts``, transfers and compute one after the other.

    Every term grows with its count, in floating point too. So lower bounds on counts give lower
    bounds on costs, which is what the search prunes with.
    """
    transfer_seconds = costs.write_seconds + costs.read_seconds
    return Cost(
        seconds=costs.base_seconds
        + counts.recomputed_steps * costs.recompute_seconds
        + counts.states_moved * transfer_seconds
        + counts.messages * (2 * costs.message_seconds),
        local_peak_bytes=costs.resident_bytes
        + counts.local_checkpoints * costs.state_bytes
        + counts.tapes * costs.tape_bytes,
        remote_peak_bytes=counts.remote_checkpoints * costs.remote_state_bytes,
    )
