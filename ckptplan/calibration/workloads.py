"""Makes what a calibration writes: a workload of counted sizes with its times, and the profile of a machine."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from ckptplan.calibration.backend import CountedSizes, Environment, Roofline
from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.calibration.estimate import Estimate
from ckptplan.calibration.fit import STEPS, Times, state_rate
from ckptplan.cost.roofline import find_ideal, split_origins
from ckptplan.model.profile import HardwareProfile, Source
from ckptplan.model.workload import ACTION_TIMES, TIMES, Basis, Calibration, Measured, Workload
from ckptplan.schedule.timeline import READ, WRITE
from ckptplan.units import format_bytes, format_share

#: A step takes at least a nanosecond: these times must be above zero.
_LEAST_SECONDS, _POSITIVE = 1e-9, ("forward_seconds", "recompute_seconds", "backward_seconds")
#: Share of a measured machine's memory that plans leave free, and why.
_HEADROOM = 0.1
_HEADROOM_ASSUMPTION = (
    "10 %: other programs, the driver and holes of the allocator take a part that was not measured."
)


def make_counted(
    spec: CellSpec,
    sizes: CountedSizes,
    given: Mapping[str, tuple[float, str]] | None = None,
    *,
    batch: int,
    steps: int,
    name: str,
) -> Workload:
    """Return a workload of counted sizes and of times that are given, or those of the sizes."""
    seconds, basis = split_origins(given or sizes.assumed)
    return Workload(
        name=name,
        description=f"{spec}, batch {batch}: sizes counted, times assumed",
        steps=steps,
        batch=batch,
        units=1,
        **sizes.fields(),
        **seconds,  # type: ignore[arg-type] # by their names
        timed_on=None if given else sizes.timed_on,
        cell=str(spec),
        basis={**sizes.basis, **basis},
    )


def make_measured(
    spec: CellSpec,
    sizes: CountedSizes,
    times: Times,
    calibration: Calibration,
    *,
    ways: Mapping[str, str],
    profile: HardwareProfile,
    roofline: Roofline | None,
    left_out: Sequence[str],
    batch: int,
    steps: int,
    name: str,
    remark: str,
) -> Workload:
    """Return a workload of counted sizes and measured times.

    Arguments:
        spec: the cell.
        sizes: its bytes.
        times: its times, which are rounded to four digits.
        calibration: how they were measured.
        ways: by the fields of times, how each was obtained.
        profile: the profile of the machine.
        roofline: what a step computes, for an estimate of its times on other machines.
        left_out: what was left out of the measurement; the basis of each time says it.
        batch: the number of samples.
        steps: T of the workload.
        name: the name of the workload.
        remark: what else the description says of the cell.
    """
    seconds = {field: times[field].value for field in (*TIMES, *ACTION_TIMES)}
    seconds |= {field: max(seconds[field], _LEAST_SECONDS) for field in _POSITIVE}
    rounded: dict[str, Any] = {field: _round_digits(value) for field, value in seconds.items()}
    basis = {**sizes.basis, **_explain_times(times, calibration, ways, left_out)}
    if roofline is not None and roofline.operations is not None:
        measured = rounded["forward_seconds"] + rounded["backward_seconds"]
        share = min(1.0, sum(find_ideal(roofline.operations, profile)) / measured)
        found = {"efficiency": _round_digits(share), "measured_on": profile.name}
        rounded["operations"] = roofline.operations.model_copy(update=found)
        basis["operations"] = Basis(kind="measured", why=roofline.why)
    parts = (f"{spec}", f"batch {batch}", *((remark,) if remark else ()), f"measured on {calibration.machine}")
    return Workload(
        name=name,
        description=", ".join(parts) + (f" ({'; '.join(left_out)})" if left_out else ""),
        steps=steps,
        batch=batch,
        units=1,
        **sizes.fields(),
        **rounded,
        timed_on=profile.name,
        cell=str(spec),
        calibration=calibration,
        basis=basis,
    )


def _explain_times(
    times: Times, calibration: Calibration, ways: Mapping[str, str], left_out: Sequence[str]
) -> dict[str, Basis]:
    measured = f"lower quartile of rounds, {calibration.clock} on {calibration.threads_text}"
    return {
        field: Basis(
            kind="measured",
            why="; ".join((f"{way}, {measured}", f"known to {format_share(times[field].spread)}", *left_out)),
        )
        for field, way in ways.items()
    }


def make_calibration(
    environment: Environment, sizes: CountedSizes, times: Times, *, repeats: int, seed: int
) -> Calibration:
    """Return the record of a measurement of so many rounds that ends now."""
    return Calibration(
        machine=environment.machine,
        device=environment.device,
        threads=environment.threads,
        **environment.versions,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seed=seed,
        clock=environment.clock,
        # That of the worst time of a step.
        uncertainty=_round_digits(max(times[field].spread for field in STEPS)),
        transfer_uncertainty=_round_digits(max(times["write_seconds"].spread, times["read_seconds"].spread)),
        tape_bytes_once=sizes.tape_bytes_once,
        measured={
            field: Measured(repeats=repeats, spread=_round_digits(one.spread), **_list_factors(one))
            for field, one in times.items()
            if field in (*TIMES, *ACTION_TIMES)
        },
    )


def _list_factors(one: Estimate) -> dict[str, float]:
    """Return the ends of an interval as factors of the number."""
    low, high = one.factors
    return {"low": min(1.0, _round_digits(low)), "high": max(1.0, _round_digits(high))}


def make_profile(
    environment: Environment,
    sizes: CountedSizes,
    times: Times,
    calibration: Calibration,
    roofline: Roofline | None,
    *,
    name: str,
) -> HardwareProfile:
    """Return the profile of the machine that a cell was measured on."""
    today = calibration.date[:10]
    overlaps = environment.device == "cuda"
    shared = environment.remote_bytes == environment.memory_bytes
    moved = environment.messages.format(state=format_bytes(sizes.state_bytes))
    latency = times["message_seconds"]
    told, within = "once a message, either way", "contained in the latency"
    if not latency.value:
        within = "contained in the rates"
        told = f"{within}: each state is a message"

    def source(text: str, note: str | None = None, known: Estimate | None = None) -> Source:
        factors: dict[str, Any] = {} if known is None else _list_factors(known)
        return Source(grade="M", source=text, date=today, note=note, **factors)

    numbers: dict[str, Any] = {
        "local_bytes": environment.memory_bytes,
        "remote_bytes": environment.remote_bytes,
        "latency_seconds": _round_digits(latency.value),
        "synchronisation_seconds": 0.0,
    }
    sources = {
        "local_bytes": source("as the system reports"),
        "headroom": Source(grade="X", assumption=_HEADROOM_ASSUMPTION, date=today),
        "remote_bytes": source(
            environment.remote_source,
            "the local memory once more: both count together" if shared else None,
        ),
    }
    for way in (WRITE, READ):
        field, moving = f"{way}_bytes_per_second", state_rate(times, way, state_bytes=sizes.state_bytes)
        numbers[field] = _round_digits(moving.value)
        sources[field] = source(moved, "effective at this size", moving)
    sources["latency_seconds"] = source(moved, told, latency)
    sources["synchronisation_seconds"] = source(moved, within)
    for field, (peak, how) in {} if roofline is None else roofline.peaks.items():
        numbers[field], sources[field] = _round_digits(peak), source(how)
    return HardwareProfile(
        name=name,
        description=f"{calibration.machine}, {calibration.threads_text}, {calibration.framework}; "
        f"remote memory is {environment.remote}",
        headroom=_HEADROOM,
        overlaps_compute=overlaps,
        **numbers,
        sources=sources,
    )


def _round_digits(value: float, *, digits: int = 4) -> float:
    """Return a number rounded to significant digits."""
    return float(f"{value:.{digits}g}")
