"""Estimates the step times of a machine that nobody measured, by its roofline.

A step takes at least the longer of two times: its operations at the peak rate of the machine, and the bytes
that it moves at the peak rate of local memory. Starting its kernels comes on top (Williams, Waterman and
Patterson 2009, "Roofline: an insightful visual performance model for multicore architectures"). Real steps
reach a share of that, the efficiency, which a calibration on any machine finds; without one, it is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ckptplan.errors import InputError
from ckptplan.model.checked import MAX_SECONDS
from ckptplan.model.network import Operations
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import ACTION_TIMES, TIMES, Basis, Workload
from ckptplan.units import format_seconds, format_share

#: The efficiency that is assumed where none was found, and the factor within which it is taken to be known.
#: A third, between one (nothing is quicker than the roofline) and a ninth.
_ASSUMED, _ASSUMED_SPREAD = 1 / 3, 3.0
#: The factor within which an efficiency that one machine has is taken to hold on another.
_CARRIED_SPREAD = 2.0
#: The least time of a step that a workload can have, seconds.
_LEAST = 1e-18


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """The share of the roofline that steps reach, and the factor within which it is known."""

    share: float
    spread: float
    why: str


def find_missing(workload: Workload, profile: HardwareProfile) -> tuple[str, ...]:
    """Return the numbers that an estimate needs and that are not there, as 'profile.launch_seconds'."""
    operations = workload.step_operations
    if operations is None:
        return ("workload.operations",)
    return tuple(f"profile.{name}" for name in list_missing_peaks(profile, operations.dtype))


def list_missing_peaks(profile: HardwareProfile, dtype: str) -> tuple[str, ...]:
    """Return the fields that a profile may leave out, and that an estimate of step times needs."""
    needed = (name_peak(dtype), "local_bytes_per_second", "launch_seconds")
    return tuple(name for name in needed if getattr(profile, name) is None)


def name_peak(dtype: str) -> str:
    """Return the field of a profile that has the peak rate for a type of numbers."""
    return f"{'float16' if dtype == 'bfloat16' else dtype}_flops_per_second"


def belongs_elsewhere(workload: Workload, profile: HardwareProfile) -> bool:
    """Return whether the times of a workload are those of another machine than the profile's."""
    return workload.timed_on is not None and workload.timed_on != profile.name


def find_efficiency(operations: Operations) -> Efficiency:
    """Return the efficiency of a workload's steps: found by a calibration, or assumed."""
    if operations.efficiency is None:
        return Efficiency(
            share=_ASSUMED,
            spread=_ASSUMED_SPREAD,
            why="an efficiency of a third is assumed; calibrate on any machine to find it",
        )
    where = f", as calibrated on {operations.measured_on}" if operations.measured_on else ""
    return Efficiency(
        share=operations.efficiency,
        spread=_CARRIED_SPREAD,
        why=f"with an efficiency of {format_share(operations.efficiency)}{where}",
    )


def find_ideal(operations: Operations, profile: HardwareProfile) -> tuple[float, float]:
    """Return the least seconds of a forward and of a backward step, with starting their kernels.

    The profile has all peaks (``find_missing``).
    """
    peak = getattr(profile, name_peak(operations.dtype))
    rate, launch = profile.local_bytes_per_second, profile.launch_seconds
    assert rate is not None and launch is not None  # noqa: S101, PT018 - the caller's promise
    forward, backward = (
        max(flops / peak, size / rate) + kernels * launch
        for flops, size, kernels in (
            (operations.forward_flops, operations.forward_bytes, operations.forward_kernels),
            (operations.backward_flops, operations.backward_bytes, operations.backward_kernels),
        )
    )
    return max(_LEAST, forward), max(_LEAST, backward)


def estimate_times(workload: Workload, profile: HardwareProfile) -> Workload:
    """Return the workload with the times that it is estimated to have on the profile.

    It is returned unchanged if its times are the profile's own, or no machine's in particular, or if a number
    for the estimate is missing (``find_missing``): a measured time always wins. Recomputing a step, recording
    its tape and the actions keep their shares of a forward step.
    """
    if not belongs_elsewhere(workload, profile) or find_missing(workload, profile):
        return workload
    operations = workload.step_operations
    assert operations is not None  # noqa: S101 - nothing is missing
    efficiency = find_efficiency(operations)
    forward, backward = (ideal / efficiency.share for ideal in find_ideal(operations, profile))
    scale = forward / workload.forward_seconds
    seconds = {
        name: max(getattr(workload, name) * scale, _LEAST if name == "recompute_seconds" else 0.0)
        for name in (*TIMES, *ACTION_TIMES)
        if getattr(workload, name)
    }
    seconds |= {"forward_seconds": forward, "backward_seconds": backward}
    _check_countable(seconds, workload, profile, spread=efficiency.spread)
    basis = {name: _explain(name, value, efficiency, profile) for name, value in seconds.items()}
    return workload.retimed(seconds, basis=basis, timed_on=profile.name)


def _check_countable(
    seconds: dict[str, float], workload: Workload, profile: HardwareProfile, *, spread: float
) -> None:
    """Raise InputError if a step may take longer than any time that a workload can have."""
    longest = max(seconds.values()) * spread
    if longest > MAX_SECONDS:
        raise InputError(
            f"a step of {workload.name} on {profile.name} may take {longest:.3g} s, over {MAX_SECONDS:g} s",
            field="network" if workload.network is not None else "operations",
            accepted="a smaller network or batch",
        )


def _explain(name: str, seconds: float, efficiency: Efficiency, profile: HardwareProfile) -> Basis:
    low, high = seconds / efficiency.spread, seconds * efficiency.spread
    by = f"by the roofline of {profile.name}, {efficiency.why}"
    if name not in ("forward_seconds", "backward_seconds"):
        by += "; the share of a forward step that it has on the machine that was timed"
    return Basis(
        kind="estimated",
        why=f"between {format_seconds(low)} and {format_seconds(high)}, {by}",
        low=low,
        high=high,
    )
