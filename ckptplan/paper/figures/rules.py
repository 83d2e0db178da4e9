"""Rules that choose parameters for the curves over sequence length and model size.

The paper names few settings. Where it does not, the text around the figure decides, and the caption says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ckptplan.paper.setting import PaperSetting, nearest_root

#: Section V's range of Double's remote chunk, as squares of integers.
_SEGMENTS = tuple(chunk * chunk for chunk in range(16, 7, -1))
#: Chooses a strategy's parameters; None where it has no setting.
Rule = Callable[[PaperSetting], Mapping[str, int] | None]


def two_level_setting(steps: int) -> dict[str, int]:
    """Return Double's setting behind O(T^(1/4)) of section VI: T^(1/4), rounded down, and its square."""
    chunk = math.isqrt(math.isqrt(steps))
    return {"chunk_size": chunk, "remote_chunk_size": chunk * chunk}


def _standard(setting: PaperSetting) -> Mapping[str, int]:
    return {"chunk_size": nearest_root(setting.workload.steps)}


def _remote(setting: PaperSetting) -> Mapping[str, int] | None:
    free = count_free_states(setting)
    return {"chunk_size": min(free, setting.workload.steps)} if free > 0 else None


def _hierarchical(setting: PaperSetting) -> Mapping[str, int] | None:
    """Choose Standard's chunk, or the largest that leaves room for a checkpoint; the rest holds checkpoints."""
    free, steps = count_free_states(setting), setting.workload.steps
    if free < 2:
        return None
    chunk = min(nearest_root(steps), free - 1)
    return {"chunk_size": chunk, "nb_local": min(free - chunk, steps)}


def _double(setting: PaperSetting) -> Mapping[str, int]:
    """Choose the largest recommended remote chunk that fits, the smallest if none does."""
    settings = [{"chunk_size": nearest_root(segment), "remote_chunk_size": segment} for segment in _SEGMENTS]
    points = setting.evaluate_all("double", settings)
    return next((dict(point.parameters) for point in points if point.fits), settings[-1])


def fourth_root(setting: PaperSetting) -> Mapping[str, int]:
    """Choose Double's setting of section VI for the setting's T."""
    return two_level_setting(setting.workload.steps)


#: By strategy.
RULES: Mapping[str, Rule] = {
    "base": lambda _: {},
    "standard": _standard,
    "remote": _remote,
    "hierarchical": _hierarchical,
    "double": _double,
}


def count_free_states(setting: PaperSetting) -> int:
    """Return the number of states that fit besides the resident bytes; a tape counts as one."""
    costs = setting.costs
    free = setting.profile.local_bytes - costs.resident_bytes
    return max(0, free // max(costs.state_bytes, costs.tape_bytes))
