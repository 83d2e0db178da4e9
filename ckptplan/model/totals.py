"""What a whole schedule costs: one record with one vocabulary, however the numbers were found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Seconds, peaks and counts of a whole schedule.

    Local bytes are per unit, resident ones included; remote bytes count all units. ``recomputed_steps`` are
    steps run again, ``remote_writes`` and ``remote_reads`` states moved, ``messages`` both ways together.
    """

    seconds: float
    local_peak_bytes: int
    remote_peak_bytes: int
    recomputed_steps: int
    remote_writes: int
    remote_reads: int
    messages: int
