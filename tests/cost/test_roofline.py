"""Step times of machines that nobody measured: the roofline, and when it is used."""

from typing import Any

import pytest

import ckptplan
from ckptplan import HardwareProfile, Infeasible, InputError, Workload
from ckptplan.cost.case import Case
from ckptplan.cost.roofline import find_ideal, find_missing
from ckptplan.model.network import Operations
from ckptplan.model.workload import Basis
from ckptplan.storage.plans import load_plan, save_plan
from ckptplan.studies.axes import find_axis

#: 600 operations at 100 a second take longer than 80 bytes at 20 a second; backwards it is the other way round.
OPERATIONS = Operations(
    forward_flops=600.0,
    backward_flops=1200.0,
    forward_bytes=80.0,
    backward_bytes=400.0,
    forward_kernels=2.0,
    backward_kernels=4.0,
)


def test_a_step_that_runs_again_with_less_work_takes_less_time() -> None:
    """With its cache: 60 operations in place of 600, and 20 bytes."""
    cached = OPERATIONS.model_copy(update={"recompute_flops": 60.0, "recompute_bytes": 20.0})
    assert find_ideal(OPERATIONS, machine()) == {"forward_seconds": 8.0, "backward_seconds": 24.0}
    assert find_ideal(cached, machine())["recompute_seconds"] == 3.0


def machine(**changes: Any) -> HardwareProfile:
    """A machine whose roofline a person can work out."""
    return HardwareProfile(
        **{
            "name": "new",
            "local_bytes": 2000,
            "remote_bytes": 0,
            "float32_flops_per_second": 100,
            "local_bytes_per_second": 20,
            "launch_seconds": 1,
            **changes,
        }
    )


def job(**changes: Any) -> Workload:
    """A job that was timed on another machine."""
    return Workload(
        **{
            "name": "job",
            "steps": 10,
            "state_bytes": 10,
            "tape_bytes": 30,
            "forward_seconds": 2.0,
            "backward_seconds": 4.0,
            "recompute_seconds": 1.0,
            "save_seconds": 0.5,
            "timed_on": "old",
            "operations": OPERATIONS,
            **changes,
        }
    )


def test_a_step_takes_the_longer_of_its_work_and_its_bytes_and_starting_its_kernels() -> None:
    """Forward 6 s + 2 kernels, backward 20 s + 4 kernels; a third of that rate is reached."""
    costs = Case(workload=job(), profile=machine()).costs
    assert costs.forward_seconds == pytest.approx(3 * (6 + 2))
    assert costs.backward_seconds == pytest.approx(3 * (20 + 4))


def test_other_times_keep_their_share_of_a_forward_step() -> None:
    costs = Case(workload=job(), profile=machine()).costs
    assert costs.recompute_seconds / costs.forward_seconds == pytest.approx(1.0 / 2.0)
    assert costs.save_seconds / costs.forward_seconds == pytest.approx(0.5 / 2.0)
    assert costs.record_overhead_seconds == 0


def test_an_efficiency_that_a_calibration_found_replaces_the_assumed_one() -> None:
    found = OPERATIONS.model_copy(update={"efficiency": 0.5, "measured_on": "old"})
    timed = Case(workload=job(operations=found), profile=machine()).timed
    assert timed.forward_seconds == pytest.approx(2 * (6 + 2))
    assert "calibrated on old" in timed.basis["forward_seconds"].why


@pytest.mark.parametrize("owner", ["new", None])
def test_times_of_the_machine_itself_and_of_no_machine_always_win(owner: str | None) -> None:
    case = Case(workload=job(timed_on=owner), profile=machine())
    assert case.timed is case.workload
    assert case.costs.forward_seconds == 2.0


@pytest.mark.parametrize("field", ["float32_flops_per_second", "local_bytes_per_second", "launch_seconds"])
def test_without_one_of_its_numbers_nothing_is_estimated_and_the_plan_says_so(field: str) -> None:
    profile = machine(**{field: None})
    assert find_missing(job(), profile) == (f"profile.{field}",)
    plan = ckptplan.optimize(job(), profile)
    assert plan.workload.forward_seconds == 2.0
    (entry,) = [entry for entry in plan.estimate_basis if entry.field == "workload.times"]
    assert (entry.kind, "carried over to new" in entry.text) == ("assumed", True)


def test_a_workload_without_operations_or_network_is_not_estimated() -> None:
    assert find_missing(job(operations=None), machine()) == ("workload.operations",)


@pytest.mark.parametrize(("dtype", "field"), [("bfloat16", "float16"), ("float64", "float64")])
def test_the_peak_is_that_of_the_type_of_numbers(dtype: str, field: str) -> None:
    other = OPERATIONS.model_copy(update={"dtype": dtype})
    assert find_missing(job(operations=other), machine()) == (f"profile.{field}_flops_per_second",)
    profile = machine(**{f"{field}_flops_per_second": 50})
    assert Case(workload=job(operations=other), profile=profile).costs.forward_seconds == pytest.approx(42)


def test_every_estimated_time_is_marked_with_its_interval() -> None:
    plan = ckptplan.optimize(job(), machine())
    assert plan.workload.timed_on == "new"
    for field in ("forward_seconds", "backward_seconds", "recompute_seconds", "save_seconds"):
        basis, value = plan.workload.basis[field], getattr(plan.workload, field)
        assert basis.kind == "estimated"
        assert basis.low == pytest.approx(value / 3)
        assert basis.high == pytest.approx(value * 3)
    marked = {entry.field for entry in plan.estimate_basis if entry.kind == "estimated"}
    assert {"workload.forward_seconds", "workload.backward_seconds"} <= marked


def test_a_plan_with_estimated_times_reads_back_as_it_was(tmp_path: Any) -> None:
    plan = ckptplan.optimize(job(), machine())
    save_plan(plan, tmp_path / "plan.json")
    again = load_plan(tmp_path / "plan.json")
    assert again == plan
    assert ckptplan.simulate(again).seconds == pytest.approx(plan.predicted.seconds)


def test_a_time_that_a_study_sets_is_not_estimated_again() -> None:
    case = Case(workload=job(), profile=machine())
    axis = find_axis("forward-seconds")
    (value,) = axis.now(case)
    assert value == pytest.approx(24)
    doubled = axis.scale(case, 2)
    assert doubled.costs.forward_seconds == pytest.approx(48)
    assert doubled.costs.backward_seconds == case.costs.backward_seconds


def test_an_estimate_follows_the_batch_and_the_network() -> None:
    network = {"neurons": 4, "batch": 8}
    fields = {"state_bytes": None, "tape_bytes": None, "operations": None, "units": 1, "network": network}
    ideal = {"launch_seconds": 0, "local_bytes_per_second": 1e9}
    once = Case(workload=job(**fields), profile=machine(**ideal)).timed
    twice = Case(workload=once.with_batch(16), profile=machine(**ideal)).timed
    assert twice.is_estimated
    # Operations grow with the batch, and bytes do not count at this rate.
    assert twice.forward_seconds == pytest.approx(2 * once.forward_seconds)


def test_another_machine_that_is_suggested_has_times_of_its_own() -> None:
    with pytest.raises(Infeasible) as caught:
        ckptplan.optimize(ckptplan.load_workload("paper-snn"), ckptplan.load_profile("ipu-mk1"))
    assert any(one["change"] == "profile" for one in caught.value.suggestions)


def test_hashes_are_those_of_before_there_were_peaks_and_operations() -> None:
    bare = machine(float32_flops_per_second=None, local_bytes_per_second=None, launch_seconds=None)
    assert bare.hash == machine().hash
    assert job().hash == job(operations=None).hash


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("float32_flops_per_second", "19.5 TB/s"),
        ("float32_flops_per_second", 0),
        ("launch_seconds", -1),
        ("price_per_hour", -0.5),
        ("price_per_hour", "2 EUR"),
    ],
)
def test_a_wrong_peak_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InputError) as caught:
        machine(**{field: value})
    assert caught.value.field == field


def test_an_efficiency_above_one_is_refused() -> None:
    with pytest.raises(InputError, match="efficiency"):
        Operations(**{**dict(OPERATIONS), "efficiency": 1.5})


def test_a_basis_without_interval_is_written_as_before() -> None:
    assert Basis(kind="assumed", why="so").model_dump() == {"kind": "assumed", "why": "so"}
