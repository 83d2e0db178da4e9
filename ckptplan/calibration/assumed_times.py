"""Makes workloads of counted sizes and assumed times, whatever counted the sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.errors import InputError
from ckptplan.model.workload import Basis, Workload

#: A time that is not given -> how many times a given ``forward_seconds`` it is, and in words.
_RATIOS = {
    "recompute_seconds": (1.0, "as forward_seconds"),
    "record_overhead_seconds": (0.0, "recording is free"),
    "backward_seconds": (2.0, "twice forward_seconds"),
}


class CountedSizes(Protocol):
    """Bytes as the fields of a workload of one unit."""

    def fields(self) -> dict[str, Any]:
        """Return the bytes by the fields of a workload."""

    def basis(self) -> dict[str, Basis]:
        """Return how each field was counted."""


def make_counted(
    spec: CellSpec,
    sizes: CountedSizes,
    times: Mapping[str, tuple[float, str]],
    *,
    batch: int,
    steps: int,
    name: str,
) -> Workload:
    """Return a workload of counted sizes and assumed times; each time comes with its origin."""
    seconds: dict[str, Any] = {field: value for field, (value, _) in times.items()}
    assumed = {field: Basis(kind="assumed", why=why) for field, (_, why) in times.items()}
    return Workload(
        name=name,
        description=f"{spec}, batch {batch}: sizes counted, times assumed",
        steps=steps,
        batch=batch,
        units=1,
        **sizes.fields(),
        **seconds,
        cell=str(spec),
        basis={**sizes.basis(), **assumed},
    )


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
