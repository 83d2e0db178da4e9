"""Headroom: the share of local memory that plans leave free, the same in every use case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptplan
from ckptplan import Infeasible, InputError, Plan
from ckptplan.model.budget import add_headroom, find_memory, take_headroom
from ckptplan.storage.plans import plan_document, plan_text
from ckptplan.storage.schemas import file_schema

HERE = Path(__file__).parent
#: In thousandths, so that integers can check it.
shares = st.integers(0, 999)
WISHES: dict[str, dict[str, Any]] = {
    "none": {},
    "a headroom": {"headroom": "25%"},
    "no headroom": {"headroom": 0},
    "a budget": {"local_bytes": 3_777},
    "a budget and a headroom": {"local_bytes": 3_777, "headroom": 0.1},
}
every_wish = pytest.mark.parametrize("wishes", WISHES.values(), ids=list(WISHES))
#: The budgets that these wishes leave on ``machine()``.
BUDGETS = {"none": 4_500, "a headroom": 3_750, "no headroom": 5_000, "a budget": 3_777}
BUDGETS["a budget and a headroom"] = 3_399


def job(**changes: Any) -> ckptplan.Workload:
    fields = {
        "name": "job",
        "steps": 40,
        "state_bytes": 100,
        "tape_bytes": 300,
        "forward_seconds": 1.0,
        "backward_seconds": 1.0,
        "recompute_seconds": 0.5,
    }
    return ckptplan.Workload(**{**fields, **changes})


def machine(name: str = "machine", **changes: Any) -> ckptplan.HardwareProfile:
    fields = {
        "name": name,
        "local_bytes": 5_000,
        "headroom": "10%",
        "remote_bytes": 2_000,
        "write_bytes_per_second": 1_000,
        "read_bytes_per_second": 1_000,
    }
    return ckptplan.HardwareProfile(**{**fields, **changes})


# Arithmetic


@given(memory=st.integers(1_000, 2**62), thousandths=shares)
def test_what_remains_is_rounded_down_and_exact_at_any_size(memory: int, thousandths: int) -> None:
    assert take_headroom(memory, thousandths / 1000) == memory * (1000 - thousandths) // 1000


@given(budget=st.integers(1, 2**61), thousandths=shares)
def test_the_memory_named_for_a_budget_is_the_least_that_leaves_it(budget: int, thousandths: int) -> None:
    share = thousandths / 1000
    memory = add_headroom(budget, share)
    assert take_headroom(memory, share) >= budget
    assert (memory - 1) * (1000 - thousandths) // 1000 < budget


def test_the_memory_of_a_budget_is_the_machines_where_that_leaves_it() -> None:
    assert find_memory(4_500, 0.1, machine=5_001) == 5_001
    assert find_memory(3_399, 0.1, machine=5_000) == 3_777


# Budgets


@pytest.mark.parametrize("name", WISHES)
def test_a_plan_keeps_what_the_headroom_leaves_and_says_so(name: str) -> None:
    plan = ckptplan.optimize(job(), machine(), **WISHES[name])
    assert plan.goal.local_bytes == BUDGETS[name]
    assert plan.predicted.local_peak_bytes <= BUDGETS[name]


@given(
    steps=st.integers(1, 40),
    tape=st.integers(1, 300),
    resident=st.integers(0, 3_000),
    thousandths=st.integers(0, 990),
    name=st.sampled_from(["base", "standard", "remote", "double", "revolve", "optimal"]),
)
def test_no_plan_exceeds_what_the_headroom_leaves(
    steps: int, tape: int, resident: int, thousandths: int, name: str
) -> None:
    """And it is the plan for that budget."""
    workload, share = job(steps=steps, tape_bytes=tape, resident_bytes=resident), thousandths / 1000
    budget = 5_000 * (1000 - thousandths) // 1000

    def planned(**wishes: Any) -> Any:
        try:
            found = ckptplan.optimize(workload, machine(), strategies=[name], **wishes)
        except Infeasible as error:
            return (error.binding, error.need, error.have)
        assert found.predicted.local_peak_bytes <= budget
        assert found.goal.local_bytes == budget
        return (found.strategy, found.parameters, found.predicted, found.splits, found.bound)

    assert planned(headroom=share) == planned(local_bytes=budget)


def test_a_named_budget_has_no_headroom_unless_it_is_named_too() -> None:
    goal = ckptplan.optimize(job(), machine(), local_bytes=5_000).goal
    assert (goal.local_bytes, goal.headroom) == (5_000, 0)
    goal = ckptplan.optimize(job(), machine(), local_bytes=5_000, headroom="10%").goal
    assert (goal.local_bytes, goal.headroom) == (4_500, 0.1)


def test_without_headroom_plans_are_those_of_a_profile_that_has_none() -> None:
    none, zero = machine(headroom=0), ckptplan.optimize(job(), machine(), headroom=0)
    plain = ckptplan.optimize(job(), none)
    assert (zero.goal, zero.predicted, zero.parameters) == (plain.goal, plain.predicted, plain.parameters)


# All use cases agree


@every_wish
def test_every_use_case_gives_the_same_answer(wishes: dict[str, Any]) -> None:
    workload, profile = job(), machine()
    plan = ckptplan.optimize(workload, profile, strategies="closed", **wishes)
    compared = ckptplan.compare(workload, profile, strategies="closed", **wishes)
    assert compared[plan.strategy] == plan.model_copy(
        update={"provenance": compared[plan.strategy].provenance}  # type: ignore[union-attr]
    )
    front = ckptplan.pareto(workload, profile, strategies="closed", **wishes)
    assert (front.best.goal, front.best.predicted) == (plan.goal, plan.predicted)
    assert front.budget_bytes == plan.goal.local_bytes
    balanced = ckptplan.optimize(workload, profile, strategies="closed", objective="balanced", **wishes)
    assert front.knee.predicted == balanced.predicted
    assert front.knee.goal.headroom == balanced.goal.headroom
    (row,) = ckptplan.sweep({"T": [workload.steps]}, workloads=workload, profiles=profile, **wishes)
    assert (row["strategy"], row["seconds"]) == (plan.strategy, plan.predicted.seconds)
    assert row["local_peak_bytes"] == plan.predicted.local_peak_bytes
    assert ckptplan.sensitivity(workload, profile, **wishes).best.seconds == plan.predicted.seconds
    # disk-revolve and periodic search for seconds where no sequence is too long.
    quick = "regular,growing,double-growing,revolve"
    for name, reach in ckptplan.largest("T", workload, profile, strategies=quick, **wishes).items():
        longest = workload.with_steps(reach.value)
        assert isinstance(reach.plan, Plan)
        same = ckptplan.optimize(longest, profile, strategies=[name], **wishes)
        assert reach.plan.predicted == same.predicted
        assert reach.plan.goal.local_bytes == same.goal.local_bytes == plan.goal.local_bytes
        assert reach.plan.goal.headroom == same.goal.headroom


@every_wish
def test_every_use_case_needs_and_has_the_same_where_nothing_fits(wishes: dict[str, Any]) -> None:
    workload, profile = job(resident_bytes=4_900), machine()
    with pytest.raises(Infeasible) as raised:
        ckptplan.optimize(workload, profile, strategies="closed", **wishes)
    reason = raised.value
    (row,) = ckptplan.sweep({"T": [workload.steps]}, workloads=workload, profiles=profile, **wishes)
    assert (row["binding"], row["need"], row["have"]) == (reason.binding, reason.need, reason.have)
    with pytest.raises(Infeasible) as raised:
        ckptplan.sensitivity(workload, profile, strategies="closed", **wishes)
    assert raised.value.details() == reason.details()
    with pytest.raises(Infeasible) as raised:
        _ = ckptplan.pareto(workload, profile, strategies="closed", **wishes).best
    assert (raised.value.need, raised.value.have) == (reason.need, reason.have)


def test_a_budget_named_to_a_front_has_no_headroom() -> None:
    front = ckptplan.pareto(job(), machine())
    assert (front.at(4_900).goal.local_bytes, front.at(4_900).goal.headroom) == (4_900, 0)
    assert (front.best.goal.local_bytes, front.best.goal.headroom) == (4_500, 0.1)
    assert front[0].goal.headroom == 0


def test_a_sweep_leaves_free_what_each_profile_says() -> None:
    """``local-bytes`` is the memory of the machine there, so headroom is taken off it."""
    profiles = [machine("roomy", headroom="30%"), machine("full", headroom=0)]
    workload = job(resident_bytes=10_000)

    def budgets(over: dict[str, Any], **wishes: Any) -> list[float]:
        return [row["have"] for row in ckptplan.sweep(over, workloads=workload, profiles=profiles, **wishes)]

    assert budgets({"T": [40]}) == [3_500, 5_000]
    assert budgets({"T": [40]}, headroom="1%") == [4_950, 4_950]
    assert budgets({"T": [40]}, local_bytes=4_000) == [4_000, 4_000]
    assert budgets({"local-bytes": [1_000, 2_000]}) == [700, 1_400, 1_000, 2_000]
    assert budgets({"headroom": ["0%", 0.5]}) == [5_000, 2_500, 5_000, 2_500]
    assert budgets({"headroom": [0.5]}, local_bytes=4_000) == [2_000, 2_000]
    with pytest.raises(InputError, match="headroom: is both varied by the grid and set to one value"):
        budgets({"headroom": [0.5]}, headroom=0)


# What a plan carries


@every_wish
def test_a_plan_in_a_file_keeps_its_headroom_and_its_answer(wishes: dict[str, Any], tmp_path: Path) -> None:
    plan = ckptplan.optimize(job(), machine(), **wishes)
    ckptplan.save_plan(plan, tmp_path / "plan.json")
    read = ckptplan.load_plan(tmp_path / "plan.json")
    assert read == plan
    jsonschema.validate(json.loads(plan_text(plan)), file_schema("plan"))
    assert ckptplan.simulate(read).local_peak_bytes == plan.predicted.local_peak_bytes
    again = ckptplan.optimize(read.workload, read.profile, local_bytes=read.goal.local_bytes)
    assert (again.predicted, again.parameters) == (plan.predicted, plan.parameters)


def test_without_headroom_profiles_and_plans_are_written_and_hashed_as_before_there_was_any() -> None:
    plan = ckptplan.optimize(job(), machine(headroom=0))
    document = plan_document(plan)
    assert "headroom" not in document["goal"]
    assert "headroom" not in document["profile"]
    assert ckptplan.load_profile("ipu-mk2").hash == (
        "sha256:350f003f202f09744c2f8565a6d7ca467a9118b1c2ce1af2d3256607e7075bc7"
    )
    assert machine().hash != machine(headroom=0).hash


def test_a_plan_from_before_headroom_has_none() -> None:
    old = ckptplan.load_plan(HERE.parent / "storage" / "version_1" / "double.json")
    assert (old.goal.headroom, old.profile.headroom) == (0, 0)


def test_a_profile_keeps_its_headroom_in_a_file(tmp_path: Path) -> None:
    h200 = ckptplan.load_profile("nvidia-h200")
    ckptplan.save_profile(h200, tmp_path / "p.toml")
    assert ckptplan.load_profile(tmp_path / "p.toml") == h200
    assert h200.headroom == 0.1


def test_gpus_and_hosts_have_a_headroom_and_sram_tiles_have_none() -> None:
    for name in ("nvidia-a100-80gb", "nvidia-gh200", "nvidia-h100-sxm", "nvidia-h200", "cpu-nvme"):
        assert ckptplan.load_profile(name).headroom == 0.1
    for name in (
        "ipu-mk1", "ipu-mk2", "ipu-bow", "tenstorrent-wormhole-n300", "tenstorrent-blackhole-p150",
        "aws-trainium2", "aws-trainium3", "amd-xdna2", "spinnaker2",
    ):  # fmt: skip
        assert ckptplan.load_profile(name).headroom == 0


def basis(profile: ckptplan.HardwareProfile, **wishes: Any) -> dict[str, tuple[str, str]]:
    plan = ckptplan.optimize(job(), profile, **wishes)
    entries = {entry.field: (entry.kind, entry.text) for entry in plan.estimate_basis}
    return {field: entries[field] for field in ("profile.local_bytes", "profile.headroom") if field in entries}


def test_the_basis_says_where_budget_and_headroom_come_from() -> None:
    unsourced, named = ("stated", "given without a source"), ("stated", "budget set by the caller")
    assert basis(machine()) == {"profile.local_bytes": unsourced, "profile.headroom": unsourced}
    assert basis(machine(), headroom="25%") == {
        "profile.local_bytes": unsourced,
        "profile.headroom": ("stated", "25 % of local memory left free, set by the caller"),
    }
    assert basis(machine(), local_bytes=4_000) == {"profile.local_bytes": named}
    assert basis(machine(), local_bytes=4_000, headroom=0.1) == {
        "profile.local_bytes": named,
        "profile.headroom": ("stated", "10 % of local memory left free, set by the caller"),
    }
    assert basis(ckptplan.load_profile("nvidia-h200"))["profile.headroom"][0] == "assumed"


# Suggestions


@pytest.mark.parametrize(
    "wishes",
    [
        {},
        {"headroom": 0.4},
        {"local_bytes": 2_000, "headroom": 0.7},
        {"local_bytes": 1_000},
        {"headroom": 0.9, "strategies": ["remote"]},
    ],
    ids=str,
)
@pytest.mark.parametrize("resident", [4_250, 4_900])
def test_each_suggested_change_alone_makes_a_plan_possible(resident: int, wishes: dict[str, Any]) -> None:
    workload = job(resident_bytes=resident)
    with pytest.raises(Infeasible) as raised:
        ckptplan.optimize(workload, machine(), **wishes)
    assert raised.value.suggestions
    for one in raised.value.suggestions:
        change, value = one["change"], one["value"]
        if change == "steps":
            plan = ckptplan.optimize(workload.with_steps(value), machine(), **wishes)
        elif change == "profile":
            plan = ckptplan.optimize(workload, ckptplan.load_profile(value), **wishes)
        else:
            changed = [value] if change == "strategies" else value
            plan = ckptplan.optimize(workload, machine(), **{**wishes, change: changed})
        # Changes are found with closed forms, which the optimum may beat.
        assert plan.predicted.overhead <= one["overhead"] * (1 + 1e-9)


def test_leaving_nothing_free_is_suggested_where_that_alone_is_enough() -> None:
    with pytest.raises(Infeasible) as raised:
        ckptplan.optimize(job(resident_bytes=4_250), machine())
    error = raised.value
    assert (error.have, error.headroom) == (4_500, 0.1)
    assert ("headroom", 0) in [(one["change"], one["value"]) for one in error.suggestions]
    with pytest.raises(Infeasible) as raised:
        ckptplan.optimize(job(resident_bytes=5_000), machine())
    assert "headroom" not in [one["change"] for one in raised.value.suggestions]


# Bad input


@pytest.mark.parametrize(
    "value", [1, 1.5, -0.1, "100%", "-5%", "10", "a lot", "", True, None, float("nan"), "1 GB"]
)
def test_a_share_that_cannot_be_left_free_is_refused_by_name(value: object) -> None:
    with pytest.raises(InputError) as raised:
        machine(headroom=value)
    assert raised.value.field == "headroom"
    if value is None:  # is what is left out, for a caller
        return
    with pytest.raises(InputError) as raised:
        ckptplan.optimize(job(), machine(), headroom=value)  # type: ignore[arg-type]
    assert raised.value.field == "headroom"
    assert "from 0 to below 1" in (raised.value.accepted or "")


def test_a_headroom_that_leaves_not_a_byte_is_refused() -> None:
    for make in (
        lambda: machine(local_bytes=9, headroom=0.9),
        lambda: ckptplan.optimize(job(), machine(), local_bytes=9, headroom=0.9),
    ):
        with pytest.raises(InputError, match="headroom: 90 % of 9 B leaves nothing to plan with"):
            make()
