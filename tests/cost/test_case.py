"""Profile and workload become step costs."""

import pytest

import ckptplan
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


def test_resident_parts_of_plain_sizes_are_named_after_all_that_they_may_hold() -> None:
    assert list(Case(workload=WORKLOAD, profile=PROFILE).resident_parts.items()) == [
        ("weights, code and optimizer", 1000),
        ("inputs, outputs and spikes of all steps", 200),
        ("workspace", 50),
    ]


@pytest.mark.parametrize("workload", ["paper-snn", "gru", "lstm-stack", "snn-shd", "convlstm"])
@pytest.mark.parametrize("profile", ["ipu-mk2", "nvidia-h200", "tenstorrent-wormhole-n300"])
def test_resident_parts_add_up_to_the_resident_bytes(workload: str, profile: str) -> None:
    case = Case(workload=ckptplan.load_workload(workload), profile=ckptplan.load_profile(profile))
    assert sum(case.resident_parts.values()) == case.costs.resident_bytes


def test_a_network_tells_inputs_from_spikes_and_weights_from_code() -> None:
    paper = Case(workload=ckptplan.load_workload("paper-snn"), profile=ckptplan.load_profile("ipu-mk2"))
    always = {"code and buffers": 208_149, "weights": 7_851}
    assert paper.resident_parts == always
    assert paper.costs.cache_bytes == 96
    assert paper.workload.network is not None
    resident = paper.workload.network.replace(spikes="resident")
    kept = Case(workload=paper.workload.replace(network=resident, basis={}), profile=paper.profile)
    assert kept.resident_parts == {"spikes of all steps": 96 * 4096, **always}
    assert kept.costs.resident_bytes == paper.costs.with_resident_caches.resident_bytes
    assert kept.costs.cache_bytes == 0
    digits = Case(workload=ckptplan.load_workload("snn-shd"), profile=ckptplan.load_profile("nvidia-h200"))
    assert digits.resident_parts == {
        "inputs of all steps": 4 * 700 * 256 * 1000,
        "weights, gradients and optimizer": 6_029_312,
    }


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
