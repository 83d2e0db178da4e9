"""Profile and workload become step costs."""

import pytest

from ckptplan import HardwareProfile, InputError, Workload
from ckptplan.cost.case import Case
from ckptplan.model.step_costs import StepCosts

WORKLOAD = Workload(
    name="w",
    steps=100,
    units=4,
    state_bytes=10,
    tape_bytes=30,
    resident_bytes_per_step=2,
    resident_bytes=1000,
    workspace_bytes=50,
    forward_seconds=1.0,
    backward_seconds=2.0,
    recompute_seconds=0.5,
)
PROFILE = HardwareProfile(
    name="p",
    units=4,
    local_bytes="1 MiB",  # type: ignore[arg-type]
    write_bytes_per_second=20,
    read_bytes_per_second=40,
    latency_seconds=0.25,
    synchronisation_seconds=0.5,
)


def test_resident_bytes_are_fixed_and_per_step_and_workspace() -> None:
    assert Case(workload=WORKLOAD, profile=PROFILE).costs.resident_bytes == 1000 + 100 * 2 + 50


def test_a_transfer_moves_the_state_of_all_units() -> None:
    costs = Case(workload=WORKLOAD, profile=PROFILE).costs
    assert costs.remote_state_bytes == 40
    assert (costs.write_seconds, costs.read_seconds) == (2.0, 1.0)


def test_a_message_costs_synchronisation_and_latency() -> None:
    assert Case(workload=WORKLOAD, profile=PROFILE).costs.message_seconds == 0.75


def test_a_profile_can_pin_the_transfer_time() -> None:
    pinned = HardwareProfile(**{**dict(PROFILE), "transfer_write_seconds": "7 ms", "transfer_read_seconds": 0})
    costs = Case(workload=WORKLOAD, profile=pinned).costs
    assert (costs.write_seconds, costs.read_seconds) == (0.007, 0.0)


def test_bytes_are_rescaled_to_other_units_and_rounded_up() -> None:
    other = HardwareProfile(**{**dict(PROFILE), "units": 3})
    costs = Case(workload=WORKLOAD, profile=other).costs
    assert (costs.state_bytes, costs.tape_bytes) == (14, 40)
    assert costs.resident_bytes == 1334 + 100 * 3 + 67
    assert costs.remote_state_bytes == 42


def test_without_units_the_bytes_are_those_of_the_profile() -> None:
    anywhere = Workload(**{**dict(WORKLOAD), "units": None})
    assert Case(workload=anywhere, profile=PROFILE).costs == Case(workload=WORKLOAD, profile=PROFILE).costs


def test_what_cannot_be_counted_exactly_is_refused() -> None:
    case = Case(
        workload=WORKLOAD.with_steps(10**12),
        profile=HardwareProfile(**{**dict(PROFILE), "units": 1}).model_copy(update={"units": 10**9}),
    )
    with pytest.raises(InputError, match=r"2\*\*62"):
        _ = case.costs
    with pytest.raises(InputError, match=r"2\*\*62"):
        StepCosts(
            steps=10**12,
            state_bytes=10**12,
            tape_bytes=1,
            remote_state_bytes=1,
            forward_seconds=1,
            backward_seconds=1,
            recompute_seconds=1,
        )
