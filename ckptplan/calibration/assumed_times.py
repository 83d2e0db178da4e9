"""Completes times of steps of which only some were given."""

from __future__ import annotations

from collections.abc import Mapping

from ckptplan.errors import InputError

#: A time that is not given -> how many times a given ``forward_seconds`` it is, and in words.
_RATIOS = {
    "recompute_seconds": (1.0, "as forward_seconds"),
    "record_overhead_seconds": (0.0, "recording is free"),
    "backward_seconds": (2.0, "twice forward_seconds"),
}


def complete_times(given: Mapping[str, float]) -> dict[str, tuple[float, str]]:
    """Return all times with their origin. Raises InputError unless those given are enough."""
    if "forward_seconds" not in given:
        raise InputError(
            "is missing, and the other times are for the same machine",
            field="forward_seconds",
            accepted="a time above 0 s, from which those that are not given follow",
        )
    times = {"forward_seconds": (given["forward_seconds"], "given")}
    for field, (ratio, text) in _RATIOS.items():
        times[field] = (
            (given[field], "given")
            if field in given
            else (ratio * given["forward_seconds"], f"{text}, for want of a measurement")
        )
    return times
