"""Combines a workload and a profile into a case, and derives the costs of its elementary actions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ckptplan.cost.roofline import estimate_times
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.step_costs import StepCosts
from ckptplan.model.workload import ACTION_TIMES, DERIVED, TIMES, WORKSPACES, Workload
from ckptplan.units import format_count

#: The sizes of a workload that ``StepCosts`` takes over.
_SIZES = ("state_bytes", "tape_bytes", "cache_bytes")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A workload on a hardware profile."""

    workload: Workload
    profile: HardwareProfile

    def __str__(self) -> str:
        """Return the names of the job in one line: 'paper-snn on ipu-mk2, T = 4,096'."""
        return f"{self.workload.name} on {self.profile.name}, T = {format_count(self.workload.steps)}"

    @cached_property
    def costs(self) -> StepCosts:
        """The costs of the elementary actions (``count_costs``). Raises InputError."""
        return self.count_costs(self.workload.steps)

    def count_costs(self, steps: int) -> StepCosts:
        """Return the costs of the elementary actions if the job had ``steps`` time steps.

        A message costs T_s and the latency once, regardless of its size (docs/schedule-format.md). Raises
        InputError if the job is too large to be counted exactly.
        """
        spread = self.spread
        write, read = self.transfer_seconds
        # T_r of the cache of a step: its share of the time that a state takes.
        share = spread.cache_bytes / spread.state_bytes
        return StepCosts(
            steps=steps,
            resident_bytes=(
                spread.resident_bytes + spread.resident_bytes_per_step * steps + spread.workspace_bytes
            ),
            chunk_bytes=spread.chunk_workspace_bytes,
            remote_state_bytes=spread.state_bytes * self.profile.units,
            write_seconds=write,
            read_seconds=read,
            remote_cache_bytes=spread.cache_bytes * self.profile.units,
            cache_write_seconds=share * write,
            cache_read_seconds=share * read,
            overlaps_compute=self.profile.overlaps_compute,
            message_seconds=self.profile.synchronisation_seconds + self.profile.latency_seconds,
            **{name: getattr(spread, name) for name in (*_SIZES, *TIMES, *ACTION_TIMES)},
        )

    @property
    def resident_parts(self) -> dict[str, int]:
        """The parts of ``costs.resident_bytes`` by name, the largest first; parts of no bytes are left out.

        Only a network tells inputs from spikes and weights from code. If sizes were measured or given as
        numbers, the names of their parts are joint ones.
        """
        job, units = self.spread, self.profile.units
        network, of_all_steps = job.network, job.resident_bytes_per_step * job.steps
        if network is None:
            parts = {
                "weights, code and optimizer": job.resident_bytes,
                "inputs, outputs and spikes of all steps": of_all_steps,
            }
        else:
            weights = network.count_weight_bytes(units=units)
            inputs, outputs = (size * job.steps for size in network.count_data_bytes(units=units))
            parts = {
                "weights, gradients and optimizer" if network.trains_with_adam else "weights": weights,
                "code and buffers": job.resident_bytes - weights,
                "inputs of all steps": inputs,
                "outputs of all steps": outputs,
                "spikes of all steps": of_all_steps - inputs - outputs,
            }
        parts["workspace"] = job.workspace_bytes
        return {name: parts[name] for name in sorted(parts, key=lambda name: -parts[name]) if parts[name]}

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
        """Return the case with other numbers of the workload. Raises InputError.

        Other bytes are bytes per unit of the profile, and the network no longer derives any. If a time is
        replaced, the other times stay as estimated for this machine.
        """
        workload = self.workload
        if changes.keys() & {*DERIVED, *WORKSPACES}:
            workload, changes = self.spread, {"network": None, **changes}
        elif changes.keys() & {*TIMES, *ACTION_TIMES}:
            workload = self.timed
        return Case(workload=workload.replace_numbers(**changes), profile=self.profile)

    @cached_property
    def timed(self) -> Workload:
        """The workload with the times of the profile: its own, or estimated by a roofline.

        Without the numbers for an estimate, times of another machine are carried over, and plans say so.
        """
        return estimate_times(self.workload, self.profile)

    @cached_property
    def spread(self) -> Workload:
        """The workload with its times and its sizes per unit of the profile."""
        return self.timed.spread_over(self.profile.units)
