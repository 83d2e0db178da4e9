"""Counts and descriptions that the claims of section V share, at its length T = 4096."""

from __future__ import annotations

from ckptplan.paper.figures.study import STUDY_STEPS
from ckptplan.paper.setting import PaperSetting, Point
from ckptplan.units import format_seconds


def count_states(setting: PaperSetting, held: Point | int) -> float:
    """Return a point's local peak, or ``held`` bytes, less the resident bytes, in states."""
    local = held if isinstance(held, int) else held.local_peak_bytes
    return (local - setting.costs.resident_bytes) / setting.costs.state_bytes


def count_checkpoints(chunk: int) -> int:
    """Return the number of checkpoints for chunks of ``chunk`` steps: one before each chunk but the first."""
    return -(-STUDY_STEPS // chunk) - 1


def describe_point(point: Point) -> str:
    """Return 'Double with chunk_size 16, remote_chunk_size 256 (34.42 ms)'."""
    parameters = ", ".join(f"{name} {value}" for name, value in point.parameters.items())
    return f"{point.strategy.capitalize()} with {parameters} ({format_seconds(point.seconds)})"
