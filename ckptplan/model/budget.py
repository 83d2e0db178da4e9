"""Defines the byte budgets that a plan must keep."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Upper limits in bytes: local memory per unit, remote memory in total. ``None`` means unbounded."""

    local_bytes: int | None = None
    remote_bytes: int | None = None
