"""What the claims of section V share: the study at T = 4096, and its numbers in words."""

from __future__ import annotations

from ckptplan.paper.figures.study import STUDY_STEPS
from ckptplan.paper.setting import PaperSetting, Point
from ckptplan.units import format_seconds


def count_states(setting: PaperSetting, held: Point | int) -> float:
    """Return a point's local peak, or local bytes, without the resident ones, in states."""
    local = held if isinstance(held, int) else held.local_peak_bytes
    return (local - setting.costs.resident_bytes) / setting.costs.state_bytes


def count_checkpoints(chunk: int) -> int:
    """Return how many checkpoints chunks of ``chunk`` steps need at the study's length."""
    return -(-STUDY_STEPS // chunk) - 1


def describe_point(point: Point) -> str:
    """Return 'Double with chunk_size 16, remote_chunk_size 256 (34.42 ms)'."""
    parameters = ", ".join(f"{name} {value}" for name, value in point.parameters.items())
    return f"{point.strategy.capitalize()} with {parameters} ({format_seconds(point.seconds)})"
