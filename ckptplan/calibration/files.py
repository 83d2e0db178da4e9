"""Makes the files of a calibration: a workload with counted sizes and measured times, and a profile."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ckptplan.calibration.estimate import Estimate
from ckptplan.calibration.fit import STEPS, Times, state_rate
from ckptplan.cost.roofline import find_ideal, split_origins
from ckptplan.execution.backend import CountedSizes, Environment, Roofline
from ckptplan.model.cell_spec import CellSpec
from ckptplan.model.profile import HardwareProfile, Source
from ckptplan.model.workload import ACTION_TIMES, TIMES, Basis, Calibration, Measured, Workload
from ckptplan.schedule.timeline import READ, WRITE
from ckptplan.units import format_bytes, format_share

#: The least seconds of times that must be above zero, and the fields of these times.
_LEAST_SECONDS, _POSITIVE = 1e-9, ("forward_seconds", "recompute_seconds", "backward_seconds")
#: The share of a measured machine's memory that plans leave free, and the reason.
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
    """Return a workload of counted sizes, with given times or else the assumed times of ``sizes``."""
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


@dataclass(frozen=True, kw_only=True)
class MeasuredCell:
    """The measurements of a cell on a machine. Numbers in files are rounded to four digits."""

    #: The workload with counted sizes and assumed times.
    counted: Workload
    seed: int
    environment: Environment
    sizes: CountedSizes
    times: Times
    #: Peak rates of the machine and operations of a step, to estimate times on other machines.
    roofline: Roofline | None
    #: The number of rounds, and by field: how the time was obtained.
    rounds: int
    ways: Mapping[str, str]
    #: The parts of the measurement that were left out. The basis of each time mentions them.
    left_out: Sequence[str]

    def make_workload(self, profile: HardwareProfile) -> Workload:
        """Return the workload with the measured times. ``profile`` is the profile of the machine."""
        counted, calibration, times = self.counted, self.calibration, self.times
        seconds = {field: times[field].value for field in (*TIMES, *ACTION_TIMES)}
        seconds |= {field: max(seconds[field], _LEAST_SECONDS) for field in _POSITIVE}
        rounded: dict[str, Any] = {field: _round_digits(value) for field, value in seconds.items()}
        basis = {**self.sizes.basis, **self._explain_times()}
        if self.roofline is not None and self.roofline.operations is not None:
            operations = self.roofline.operations
            measured = rounded["forward_seconds"] + rounded["backward_seconds"]
            ideal = find_ideal(operations, profile)
            share = min(1.0, (ideal["forward_seconds"] + ideal["backward_seconds"]) / measured)
            efficiency = {"efficiency": _round_digits(share), "measured_on": profile.name}
            rounded["operations"] = operations.model_copy(update=efficiency)
            basis["operations"] = Basis(kind="measured", why=self.roofline.why)
        remark = self.environment.remark
        parts = (counted.cell, f"batch {counted.batch}", remark, f"measured on {calibration.machine}")
        left_out = f" ({'; '.join(self.left_out)})" if self.left_out else ""
        return counted.replace(
            description=", ".join(filter(None, parts)) + left_out,
            **rounded,
            timed_on=profile.name,
            calibration=calibration,
            basis=basis,
        )

    def _explain_times(self) -> dict[str, Basis]:
        measured = f"lower quartile of rounds, {self.calibration.clock} on {self.calibration.threads_text}"
        limits = {field: f"known to within {format_share(self.times[field].farthest)}" for field in self.ways}
        return {
            field: Basis(kind="measured", why="; ".join((f"{way}, {measured}", limits[field], *self.left_out)))
            for field, way in self.ways.items()
        }

    @cached_property
    def calibration(self) -> Calibration:
        """The record of the measurement, dated at its first use, which is right after the measurement."""
        here, times = self.environment, self.times
        return Calibration(
            machine=here.machine,
            device=here.device,
            threads=here.threads,
            **here.versions,
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            seed=self.seed,
            clock=here.clock,
            # The uncertainty of the least certain time of a step.
            uncertainty=_round_digits(max(times[field].farthest for field in STEPS)),
            transfer_uncertainty=_round_digits(
                max(times["write_seconds"].farthest, times["read_seconds"].farthest)
            ),
            tape_bytes_once=self.sizes.tape_bytes_once,
            measured={
                field: Measured(repeats=self.rounds, spread=_round_digits(time.spread), **_list_factors(time))
                for field, time in times.items()
                if field in (*TIMES, *ACTION_TIMES)
            },
        )

    def make_profile(self, name: str) -> HardwareProfile:
        """Return the profile of the machine."""
        here, times, size = self.environment, self.times, self.sizes.state_bytes
        today = self.calibration.date[:10]
        shared = here.remote_bytes == here.memory_bytes
        message_text = here.messages.format(state=format_bytes(size))
        latency = times["message_seconds"]
        when, within = "once a message, either way", "contained in the latency"
        if not latency.value:
            within = "contained in the rates"
            when = f"{within}: each state is a message"

        def source(text: str, note: str | None = None, estimate: Estimate | None = None) -> Source:
            factors: dict[str, Any] = {} if estimate is None else _list_factors(estimate)
            return Source(grade="M", source=text, date=today, note=note, **factors)

        numbers: dict[str, Any] = {
            "local_bytes": here.memory_bytes,
            "remote_bytes": here.remote_bytes,
            "latency_seconds": _round_digits(latency.value),
            "synchronisation_seconds": 0.0,
        }
        sources = {
            "local_bytes": source("as the system reports"),
            "headroom": Source(grade="X", assumption=_HEADROOM_ASSUMPTION, date=today),
            "remote_bytes": source(
                here.remote_source,
                "the local memory once more: both count together" if shared else None,
            ),
        }
        for way in (WRITE, READ):
            field, moving = f"{way}_bytes_per_second", state_rate(times, way, state_bytes=size)
            numbers[field] = _round_digits(moving.value)
            sources[field] = source(message_text, "effective at this size", moving)
        sources["latency_seconds"] = source(message_text, when, latency)
        sources["synchronisation_seconds"] = source(message_text, within)
        for field, (peak, how) in {} if self.roofline is None else self.roofline.peaks.items():
            numbers[field], sources[field] = _round_digits(peak), source(how)
        return HardwareProfile(
            name=name,
            description=f"{here.machine}, {self.calibration.threads_text}, {here.framework}; "
            f"remote memory is {here.remote}",
            headroom=_HEADROOM,
            overlaps_compute=here.device == "cuda",
            **numbers,
            sources=sources,
        )


def _list_factors(estimate: Estimate) -> dict[str, float]:
    """Return the ends of an interval divided by its value."""
    low, high = estimate.factors
    return {"low": min(1.0, _round_digits(low)), "high": max(1.0, _round_digits(high))}


def _round_digits(value: float, *, digits: int = 4) -> float:
    """Return a number rounded to significant digits."""
    return float(f"{value:.{digits}g}")
