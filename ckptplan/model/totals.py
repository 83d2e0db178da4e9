"""Defines the total cost of a schedule: one record, whether simulated, counted or from a formula."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Seconds, peaks and counts of a whole schedule.

    Local bytes are per unit and include the resident ones; remote bytes count all units.
    ``recomputed_steps`` counts steps that run again, ``remote_writes`` and ``remote_reads`` count states,
    and ``messages`` counts both directions together. ``advances``, ``chunks`` (recorded runs of steps),
    ``local_saves`` and ``local_loads`` count actions.
    """

    seconds: float
    local_peak_bytes: int
    remote_peak_bytes: int
    recomputed_steps: int
    remote_writes: int
    remote_reads: int
    messages: int
    advances: int
    chunks: int
    local_saves: int
    local_loads: int
