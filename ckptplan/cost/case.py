"""Profile and workload to step costs: the only place where physics meets combinatorics."""

from __future__ import annotations

from ckptplan.model.profile import HardwareProfile
from ckptplan.model.step_costs import StepCosts
from ckptplan.model.workload import Workload


def step_costs(workload: Workload, profile: HardwareProfile) -> StepCosts:
    """Return what each action of ``workload`` costs on ``profile``.

    T_c of one state is its bytes on all units over the bandwidth of the direction, unless the profile
    pins it. A message costs T_s and the latency once, whatever it carries (docs/schedule-format.md).
    Raises InputError where the job is too large to be counted exactly.
    """
    spread = workload.spread_over(profile.units)
    state_in_all = spread.state_bytes * profile.units
    return StepCosts(
        steps=spread.steps,
        state_bytes=spread.state_bytes,
        tape_bytes=spread.tape_bytes,
        resident_bytes=(
            spread.resident_bytes + spread.resident_bytes_per_step * spread.steps + spread.workspace_bytes
        ),
        remote_state_bytes=state_in_all,
        forward_seconds=spread.forward_seconds,
        backward_seconds=spread.backward_seconds,
        recompute_seconds=spread.recompute_seconds,
        record_overhead_seconds=spread.record_overhead_seconds,
        write_seconds=_transfer(profile.transfer_write_seconds, state_in_all, profile.write_bytes_per_second),
        read_seconds=_transfer(profile.transfer_read_seconds, state_in_all, profile.read_bytes_per_second),
        overlaps_compute=profile.overlaps_compute,
        message_seconds=profile.synchronisation_seconds + profile.latency_seconds,
    )


def _transfer(pinned: float | None, size_bytes: int, bytes_per_second: float) -> float:
    return size_bytes / bytes_per_second if pinned is None else pinned
