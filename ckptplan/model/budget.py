"""Defines the byte budgets of a plan, and subtracts the headroom from a memory size, in exact integers.

The headroom is the share of a local memory that plans leave free.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ckptplan.errors import InputError
from ckptplan.units import ACCEPTED_HEADROOM, format_bytes, format_share


def take_headroom(memory: int, headroom: float) -> int:
    """Return the bytes of ``memory`` that the headroom leaves, rounded down.

    ``headroom`` counts as the decimal number that is written: 10 % of 80 GB leave 72,000,000,000 bytes.
    Raises InputError if less than a byte remains.
    """
    remaining = remaining_bytes(memory, headroom)
    if remaining < 1:
        raise InputError(
            f"{format_share(headroom)} of {format_bytes(memory)} leaves nothing to plan with",
            field="headroom",
            value=headroom,
            accepted=f"{ACCEPTED_HEADROOM}, that leaves at least a byte",
        )
    return remaining


def remaining_bytes(memory: int, headroom: float) -> int:
    """Return the bytes of ``memory`` that the headroom leaves, rounded down; may be 0."""
    return memory * _remaining_share(headroom) // 1


def add_headroom(budget: int, headroom: float) -> int:
    """Return the least bytes of memory that leave at least ``budget`` bytes beside the headroom."""
    return -(-budget // _remaining_share(headroom))


def find_memory(budget: int, headroom: float, *, machine: int) -> int:
    """Return ``machine`` if its headroom leaves ``budget`` bytes, else the least memory that leaves so many."""
    return machine if remaining_bytes(machine, headroom) == budget else add_headroom(budget, headroom)


def _remaining_share(headroom: float) -> Fraction:
    return 1 - Fraction(repr(float(headroom)))


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Upper limits in bytes: local memory per unit, remote memory in total. ``None`` means unbounded."""

    local_bytes: int | None = None
    remote_bytes: int | None = None
