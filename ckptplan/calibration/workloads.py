"""Makes workloads of counted sizes with measured or assumed times, whatever runs the cell.

Times of steps of which only some were given are completed.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from ckptplan.calibration.action_times import ActionTimes
from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.errors import InputError
from ckptplan.model.workload import ACTION_TIMES, TIMES, Basis, Calibration, Measured, Workload

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


#: A step takes at least a nanosecond: these times must be above zero.
_LEAST_SECONDS, _POSITIVE = 1e-9, ("forward_seconds", "recompute_seconds", "backward_seconds")


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


def make_measured(
    spec: CellSpec,
    sizes: CountedSizes,
    times: ActionTimes,
    calibration: Calibration,
    *,
    basis: Mapping[str, Basis],
    batch: int,
    steps: int,
    name: str,
    timed_on: str,
    remark: str = "",
) -> Workload:
    """Return a workload of counted sizes and measured times.

    Arguments:
        spec: the cell.
        sizes: its bytes.
        times: its times, which are rounded to four digits.
        calibration: how they were measured.
        basis: where each time comes from.
        batch: the number of samples.
        steps: T of the workload.
        name: the name of the workload.
        timed_on: the name of the profile of the machine.
        remark: what else the description says of the cell.
    """
    seconds = {field: getattr(times, field) for field in (*TIMES, *ACTION_TIMES)}
    seconds |= {field: max(seconds[field], _LEAST_SECONDS) for field in _POSITIVE}
    rounded: dict[str, Any] = {field: round_digits(value) for field, value in seconds.items()}
    parts = (f"{spec}", f"batch {batch}", *((remark,) if remark else ()), f"measured on {calibration.machine}")
    return Workload(
        name=name,
        description=", ".join(parts),
        steps=steps,
        batch=batch,
        units=1,
        **sizes.fields(),
        **rounded,
        timed_on=timed_on,
        cell=str(spec),
        calibration=calibration,
        basis={**sizes.basis(), **basis},
    )


def make_calibration(
    times: ActionTimes,
    *,
    transfer_uncertainty: float,
    machine: str,
    device: Literal["cpu", "cuda"],
    repeats: int,
    least: float = 0.0,
    **found: Any,
) -> Calibration:
    """Return the record of a measurement that ends now.

    Arguments:
        times: the measured times, with their accuracy.
        transfer_uncertainty: that of the times of transfers, as a share.
        machine: the name of the machine.
        device: what ran the cell.
        repeats: the number of rounds.
        least: the least uncertainty, whatever the rounds say.
        found: other fields of the record, as the version of what ran the cell.
    """
    return Calibration(
        machine=machine,
        device=device,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        uncertainty=max(least, round_digits(times.uncertainty)),
        transfer_uncertainty=max(least, round_digits(transfer_uncertainty)),
        measured={
            field: Measured(
                repeats=repeats,
                spread=round_digits(spread),
                fit=None if field not in times.fit else round_digits(times.fit[field], digits=5),
            )
            for field, spread in times.spread.items()
        },
        **found,
    )


def round_digits(value: float, *, digits: int = 4) -> float:
    """Return a number rounded to significant digits."""
    return float(f"{value:.{digits}g}")
