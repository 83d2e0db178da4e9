"""Makes the schedules that a calibration times: every kind of action, in chunks of several sizes."""

from __future__ import annotations

from ckptplan.planning.playback import make_schedule
from ckptplan.schedule.schedule import Schedule

#: The least number of steps of a schedule: single steps are timed several times in each round.
_LEAST_STEPS = 32


def make_schedules(chunks: tuple[int, ...]) -> list[Schedule]:
    """Return schedules that run every kind of action with each size of a chunk.

    For each size, there is a schedule of two segments of four or more chunks. A further one records all steps
    at once, as plain backpropagation does.
    """
    nested = []
    for chunk in chunks:
        segment = chunk * max(4, _LEAST_STEPS // 2 // chunk)
        nested.append(make_schedule("nested", steps=2 * segment, chunk_size=chunk, segment_size=segment))
    return [*nested, make_schedule("base", steps=3 * chunks[-1])]
