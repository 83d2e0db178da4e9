"""Combines a workload and a profile into a case, and derives the costs of its elementary actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from ckptplan.cost.roofline import estimate_times
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.step_costs import StepCosts
from ckptplan.model.workload import ACTION_TIMES, DERIVED, TIMES, Workload

_Numbers = TypeVar("_Numbers", Workload, HardwareProfile)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A workload on a hardware profile."""

    workload: Workload
    profile: HardwareProfile

    @cached_property
    def costs(self) -> StepCosts:
        """The costs of the elementary actions.

        A message costs T_s and the latency once, regardless of its size (docs/schedule-format.md). Raises
        InputError if the job is too large to be counted exactly.
        """
        spread = self.spread
        write, read = self.transfer_seconds
        return StepCosts(
            steps=spread.steps,
            state_bytes=spread.state_bytes,
            tape_bytes=spread.tape_bytes,
            resident_bytes=(
                spread.resident_bytes + spread.resident_bytes_per_step * spread.steps + spread.workspace_bytes
            ),
            remote_state_bytes=spread.state_bytes * self.profile.units,
            forward_seconds=spread.forward_seconds,
            backward_seconds=spread.backward_seconds,
            recompute_seconds=spread.recompute_seconds,
            record_overhead_seconds=spread.record_overhead_seconds,
            write_seconds=write,
            read_seconds=read,
            overlaps_compute=self.profile.overlaps_compute,
            message_seconds=self.profile.synchronisation_seconds + self.profile.latency_seconds,
            **{name: getattr(spread, name) for name in ACTION_TIMES},
        )

    @cached_property
    def transfer_seconds(self) -> tuple[float, float]:
        """T_c of one state, in seconds, to remote memory and back.

        Each is the state's bytes on all units over the bandwidth, unless the profile gives the time itself.
        """
        profile = self.profile
        size = self.spread.state_bytes * profile.units
        write, read = profile.transfer_write_seconds, profile.transfer_read_seconds
        return (
            size / profile.write_bytes_per_second if write is None else write,
            size / profile.read_bytes_per_second if read is None else read,
        )

    def with_workload(self, **changes: Any) -> Case:
        """Return the case with other numbers of the workload. Raises InputError."""
        # Estimated times stay as they are where others are replaced: they are this machine's.
        timed = self.timed if set(changes) & {*TIMES, *ACTION_TIMES} else self.workload
        return Case(workload=replace_numbers(timed, changes), profile=self.profile)

    def with_profile(self, **changes: Any) -> Case:
        """Return the case with other numbers of the profile. Raises InputError."""
        return Case(workload=self.workload, profile=replace_numbers(self.profile, changes))

    def with_sizes(self, **changes: Any) -> Case:
        """Return the case with other bytes per unit of the profile, no longer derived from a network."""
        spread = Case(workload=self.spread, profile=self.profile)
        return spread.with_workload(network=None, **changes)

    @cached_property
    def timed(self) -> Workload:
        """The workload with the times of the profile: its own, or estimated by a roofline.

        Without the numbers for an estimate, times of another machine are carried over, and plans say so.
        """
        return estimate_times(self.workload, self.profile)

    @cached_property
    def spread(self) -> Workload:
        """Return the workload with its times and its sizes per unit of the profile."""
        return self.timed.spread_over(self.profile.units)


def replace_numbers(model: _Numbers, changes: Mapping[str, Any]) -> _Numbers:
    """Return a model with other numbers, validated like a new one, and without the origins of the old ones.

    Raises InputError.
    """
    fields: dict[str, Any] = {name: getattr(model, name) for name in type(model).model_fields}
    if fields.get("network") is not None and changes.get("network", model) is not None:
        # The network derives the sizes, also for another number of units.
        fields = {name: value for name, value in fields.items() if name not in DERIVED}
    origins = "sources" if "sources" in fields else "basis"
    known = {name: origin for name, origin in fields[origins].items() if name not in changes}
    return type(model)(**{**fields, origins: known, **changes})
