"""The limits that a plan must keep."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Most bytes of each tier: local per unit, remote in all. ``None`` means unbounded."""

    local_bytes: int | None = None
    remote_bytes: int | None = None
