"""Estimates the step times of a machine that nobody measured, by its roofline, also of a new workload.

A step takes at least the longer of two times: its operations at the peak rate of the machine, and the bytes
that it moves at the peak rate of local memory. Starting its kernels comes on top (Williams, Waterman and
Patterson 2009, "Roofline: an insightful visual performance model for multicore architectures"). Real steps
reach a share of that, the efficiency, which a calibration on any machine finds; without one, it is assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ckptplan.errors import InputError
from ckptplan.model.checked import MAX_SECONDS
from ckptplan.model.network import Network, Operations
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import ACTION_TIMES, TIMES, Basis, Workload
from ckptplan.units import format_seconds, format_share, format_things
from ckptplan.wording import Argument

#: The efficiency that is assumed where none was found, and the factor within which it is taken to be known.
#: A third, between one (nothing is quicker than the roofline) and a ninth.
_ASSUMED, _ASSUMED_SPREAD = 1 / 3, 3.0
#: The factor within which an efficiency that one machine has is taken to hold on another.
_CARRIED_SPREAD = 2.0
#: The least time of a step that a workload can have, seconds.
_LEAST = 1e-18
#: A time that is not given -> how many times a given ``forward_seconds`` it is, and in words.
_RATIOS = {
    "backward_seconds": (2.0, "twice forward_seconds"),
    "recompute_seconds": (1.0, "as forward_seconds"),
    "record_overhead_seconds": (0.0, "recording is free"),
}
#: The value of ``timed_on`` until the times are estimated.
_NO_MACHINE = "no machine"


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """The share of the roofline that steps reach, and the factor within which it is known."""

    share: float
    spread: float
    why: str


def find_missing(workload: Workload, profile: HardwareProfile) -> tuple[str, ...]:
    """Return the fields that an estimate needs and that are missing, as 'profile.launch_seconds'."""
    operations = workload.step_operations
    if operations is None:
        return ("workload.operations",)
    return tuple(f"profile.{name}" for name in list_missing_peaks(profile, operations.dtype))


def list_missing_peaks(profile: HardwareProfile, dtype: str) -> tuple[str, ...]:
    """Return the fields that an estimate of step times needs and that the profile leaves out."""
    needed = (name_peak(dtype), "local_bytes_per_second", "launch_seconds")
    return tuple(name for name in needed if getattr(profile, name) is None)


def name_peak(dtype: str) -> str:
    """Return the field of a profile that has the peak rate for a type of numbers."""
    return f"{'float16' if dtype == 'bfloat16' else dtype}_flops_per_second"


def belongs_elsewhere(workload: Workload, profile: HardwareProfile) -> bool:
    """Return whether the times of a workload belong to another machine than the profile."""
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


def find_ideal(operations: Operations, profile: HardwareProfile) -> dict[str, float]:
    """Return the least seconds of each kind of step by field, including the launch of kernels.

    The result has ``recompute_seconds`` only if a step that runs again does other work than a forward step.

    The profile has all peaks (``find_missing``).
    """
    peak = getattr(profile, name_peak(operations.dtype))
    rate, launch = profile.local_bytes_per_second, profile.launch_seconds
    assert rate is not None and launch is not None  # noqa: S101, PT018 - callers check
    work = {
        "forward_seconds": (operations.forward_flops, operations.forward_bytes, operations.forward_kernels),
        "backward_seconds": (operations.backward_flops, operations.backward_bytes, operations.backward_kernels),
        "recompute_seconds": (
            operations.recompute_flops, operations.recompute_bytes, operations.forward_kernels,
        ),
    }  # fmt: skip
    return {
        name: max(_LEAST, max(flops / peak, size / rate) + kernels * launch)
        for name, (flops, size, kernels) in work.items()
        if flops is not None and size is not None
    }


def estimate_times(workload: Workload, profile: HardwareProfile) -> Workload:
    """Return the workload with times that are estimated for the profile.

    It is returned unchanged if its times belong to the profile or to no machine in particular, or if a number
    for the estimate is missing (``find_missing``). A measured time always wins. Recomputing a step (unless its
    work is known), recording its tape and the actions keep their shares of a forward step.
    """
    if not belongs_elsewhere(workload, profile) or find_missing(workload, profile):
        return workload
    operations = workload.step_operations
    assert operations is not None  # noqa: S101 - nothing is missing
    efficiency = find_efficiency(operations)
    estimated = {name: ideal / efficiency.share for name, ideal in find_ideal(operations, profile).items()}
    scale = estimated["forward_seconds"] / workload.forward_seconds
    seconds = {
        name: max(getattr(workload, name) * scale, _LEAST if name == "recompute_seconds" else 0.0)
        for name in (*TIMES, *ACTION_TIMES)
        if getattr(workload, name)
    }
    seconds |= estimated
    _check_countable(seconds, workload, profile, spread=efficiency.spread)
    basis = {
        name: _explain(value, efficiency, profile, is_share=name not in estimated)
        for name, value in seconds.items()
    }
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


def _explain(seconds: float, efficiency: Efficiency, profile: HardwareProfile, *, is_share: bool) -> Basis:
    low, high = seconds / efficiency.spread, seconds * efficiency.spread
    by = f"by the roofline of {profile.name}, {efficiency.why}"
    if is_share:
        by += "; the share of a forward step that it has on the machine that was timed"
    return Basis(
        kind="estimated",
        why=f"between {format_seconds(low)} and {format_seconds(high)}, {by}",
        low=low,
        high=high,
    )


def make_workload(
    network: Network,
    *,
    name: str,
    steps: int,
    profile: HardwareProfile,
    times: Mapping[str, float] | None = None,
) -> Workload:
    """Return a workload of a network, with sizes per unit of a profile.

    Arguments:
        network: the network, with a kind.
        name: the name of the workload.
        steps: T of the workload.
        profile: the machine whose units the network is spread over, and for which times are estimated.
        times: step times in seconds by field, at least ``forward_seconds``; without them, all are estimated.

    Raises InputError, also if the profile lacks a number for the estimate.
    """
    sizes = network.sizes(units=profile.units)
    bare = Workload(
        name=name,
        description=describe_network(network),
        steps=steps,
        units=profile.units,
        network=network,
        state_bytes=sizes["state_bytes"],
        tape_bytes=sizes["tape_bytes"],
        forward_seconds=1.0,
        backward_seconds=2.0,
        recompute_seconds=1.0,
    )
    return time_workload(bare, profile, times)


def time_workload(
    workload: Workload, profile: HardwareProfile, times: Mapping[str, float] | None = None
) -> Workload:
    """Return a workload with ``times`` in seconds in place of its unknown times, or else with estimates.

    Raises InputError if ``times`` lacks ``forward_seconds``, or if the profile lacks a number for the
    estimate.
    """
    bare = workload.replace(timed_on=_NO_MACHINE)
    seconds, basis = split_origins(complete_times(times)) if times else _estimate_rounded(bare, profile)
    return bare.retimed(seconds, basis=basis, timed_on=profile.name)


def describe_network(network: Network) -> str:
    """Return 'LSTM, 3 layers, 1,536 neurons, batch 64, float32'."""
    kind = {None: "the paper's network", "convlstm": "ConvLSTM"}.get(network.kind, str(network.kind).upper())
    noun = "channels" if network.kind == "convlstm" else "neurons"
    image = f" of {network.height} x {network.width}" if network.height else ""
    layers = format_things(network.layers, "layer")
    return f"{kind}, {layers}, {network.neurons:,} {noun}{image}, batch {network.batch}, {network.dtype}"


def complete_times(given: Mapping[str, float]) -> dict[str, tuple[float, str]]:
    """Return all times with their origin. Raises InputError if ``forward_seconds`` is not given."""
    if "forward_seconds" not in given:
        raise InputError(
            "is missing, but other times of the machine are given",
            field="forward_seconds",
            accepted="a time above 0 s; times that are not given are derived from it",
        )
    forward = given["forward_seconds"]
    follow = {
        field: (ratio * forward, f"{text}, for want of a measurement")
        for field, (ratio, text) in _RATIOS.items()
    }
    return {"forward_seconds": (forward, "given")} | {
        field: (given[field], "given") if field in given else derived for field, derived in follow.items()
    }


def split_origins(times: Mapping[str, tuple[float, str]]) -> tuple[dict[str, float], dict[str, Basis]]:
    """Return the times without their origins, and the origins as a basis."""
    basis = {field: Basis(kind="assumed", why=why) for field, (_, why) in times.items()}
    return {field: value for field, (value, _) in times.items()}, basis


def _estimate_rounded(
    workload: Workload, profile: HardwareProfile
) -> tuple[dict[str, float], dict[str, Basis]]:
    """Return the estimated times of a workload, rounded. Raises InputError if a number is missing."""
    missing = find_missing(workload, profile)
    if missing:
        names = ", ".join(name.removeprefix("profile.") for name in missing)
        raise InputError(
            f"{profile.name} has no {names}. A profile may leave these fields out, but step times are "
            "estimated from them",
            field="profile",
            value=profile.name,
            accepted=f"a profile with these fields, or times of your own: {Argument('forward_seconds')}",
        )
    timed = estimate_times(workload, profile)
    fields = ("forward_seconds", "backward_seconds", "recompute_seconds")
    # More digits would pretend that an estimate is known well.
    seconds = {field: _round(getattr(timed, field)) for field in fields}
    ends = {
        field: (_round(value / _ASSUMED_SPREAD), _round(value * _ASSUMED_SPREAD))
        for field, value in seconds.items()
    }
    basis = {
        field: Basis(
            kind="estimated",
            why=f"between {format_seconds(low)} and {format_seconds(high)}, by the roofline of {profile.name}, "
            "a third of which is assumed to be reached; calibrate to replace it",
            low=low,
            high=high,
        )
        for field, (low, high) in ends.items()
    }
    return seconds, basis


def _round(seconds: float) -> float:
    return float(f"{seconds:.3g}")
