"""Machines side by side: prices, deadlines and energy, and times that are not known."""

from typing import Any, NoReturn

import pytest

import ckptplan
from ckptplan import HardwareProfile, InputError
from ckptplan.cost.case import Case
from ckptplan.strategies.optimal import Optimal
from ckptplan.studies.machines import MachineComparison, compare_machines
from tests.cost.test_roofline import job, machine

#: Strategies that answer at once.
CHOSEN = ["base", "standard"]


def own(name: str, **changes: Any) -> HardwareProfile:
    """A machine of some name, with peaks."""
    return machine(name=name, power_watts=100, **changes)


def compared(*profiles: HardwareProfile, **wishes: Any) -> MachineComparison:
    return compare_machines(job(), profiles, strategies=CHOSEN, **wishes)


def test_the_quickest_is_first_then_unknown_times_and_last_what_does_not_fit() -> None:
    found = compared(
        own("small", local_bytes=1),
        own("unknown", launch_seconds=None),
        own("slow", launch_seconds=9),
        own("quick"),
    )
    assert [one.profile.name for one in found.machines] == ["quick", "slow", "unknown", "small"]
    assert [one.times for one in found.machines] == ["estimated", "estimated", "carried over", "estimated"]
    assert found.quickest is found.machines[0]


def test_a_machine_without_a_peak_shows_what_is_missing_and_its_memory_all_the_same() -> None:
    (one,) = compared(own("unknown", launch_seconds=None)).machines
    assert one.missing == ("profile.launch_seconds",)
    assert (one.seconds, one.run_price, one.most_joules) == (None, None, None)
    assert one.plan is not None
    assert one.plan.predicted.local_peak_bytes > 0
    assert one.largest_steps > job().steps


def test_times_that_are_an_estimate_for_another_machine_say_nothing_of_one_without_a_peak() -> None:
    elsewhere = Case(workload=job(), profile=own("first")).timed
    assert elsewhere.is_estimated
    found = compare_machines(elsewhere, [own("first"), own("unknown", launch_seconds=None)], strategies=CHOSEN)
    first, unknown = found.machines
    assert (first.times, first.interval is None) == ("estimated", False)
    assert (unknown.times, unknown.seconds, unknown.interval) == ("carried over", None, None)
    assert unknown.missing == ("profile.launch_seconds",)


def test_the_interval_is_that_of_the_same_plan_at_the_ends_of_its_times() -> None:
    """No transfers in this plan: all of its time is estimated, within a factor of three."""
    (one,) = compared(own("new")).machines
    assert one.seconds is not None
    assert one.interval is not None
    assert one.interval == pytest.approx((one.seconds / 3, one.seconds * 3))


def test_times_of_the_machine_itself_have_no_interval() -> None:
    (one,) = compared(own("old")).machines
    assert (one.times, one.interval) == ("own", None)


def test_a_run_has_its_time_its_price_and_its_energy() -> None:
    (one,) = compared(own("old"), batches=60, prices=36.0).machines
    assert one.seconds == pytest.approx(10 * (2 + 4))
    assert one.run_seconds == pytest.approx(3600)
    assert one.run_price == pytest.approx(36)
    assert one.most_joules == pytest.approx(3600 * 100)


def test_the_cheapest_meets_the_deadline() -> None:
    """The quick machine takes 960 s for the job and costs more than the slow one."""
    quick, slow = own("quick", price_per_hour=9.0), own("slow", launch_seconds=2, price_per_hour=1.0)
    free = compared(quick, slow)
    assert free.cheapest is not None
    assert free.cheapest.profile.name == "slow"
    times = [one.run_seconds for one in free.machines]
    assert times == [pytest.approx(960), pytest.approx(1140)]
    bound = compared(quick, slow, deadline=1000)
    assert bound.cheapest is not None
    assert bound.cheapest.profile.name == "quick"
    assert not bound.cheapest.surely_meets(1000)
    assert bound.cheapest.surely_meets(3000)
    assert compared(quick, slow, deadline=10).cheapest is None


@pytest.mark.parametrize("deadline", [7200, 7200.0, "7200", "2 h", "120 min"])
def test_a_deadline_is_a_number_of_seconds_or_has_a_unit(deadline: float | str) -> None:
    assert compared(own("old"), deadline=deadline).deadline == 7200.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"deadline": "12 parsecs"}, "deadline: .*'8 h'"),
        ({"deadline": 0}, "deadline: 0 is out of range .*more than 0 s"),
        ({"batches": 0}, "batches: 0 is out of range"),
        ({"prices": -1.0}, "prices: -1.0 is not accepted"),
        ({"prices": {"old": float("nan")}}, "prices: nan is not accepted"),
        ({"prices": {"old": None}}, "prices: None is not a price .*a number from 0"),
        ({"prices": {"older": 1.0}}, "prices: 'older' is not among the machines"),
    ],
)
def test_wrong_numbers_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        compared(own("old"), **wrong)


def test_a_price_by_name_replaces_that_of_the_profile() -> None:
    found = compared(own("a", price_per_hour=5.0), own("b", price_per_hour=5.0), prices={"b": 0.0})
    assert {one.profile.name: one.price_per_hour for one in found.machines} == {"a": 5.0, "b": 0.0}


def test_the_longest_sequence_is_that_of_largest() -> None:
    workload, profile = job(), own("new", local_bytes=500)
    (one,) = compare_machines(workload, [profile], strategies=CHOSEN, max_overhead=0.5).machines
    reaches = ckptplan.largest("T", workload, profile, strategies=CHOSEN, max_overhead=0.5)
    assert one.largest_steps == max(reach.value for reach in reaches.values())


def test_machines_are_named_once_and_prices_name_machines() -> None:
    with pytest.raises(InputError, match="profiles: 'a' is given twice"):
        compared(own("a"), own("a", local_bytes=5))
    with pytest.raises(InputError, match="'c' is not among the machines"):
        compared(own("a"), prices={"c": 1.0})
    with pytest.raises(InputError, match="profiles: has none"):
        compared()


def interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


@pytest.mark.parametrize("study", ["plan", "largest T"])
def test_ctrl_c_ends_the_study_instead_of_leaving_one_machine_with_the_best_so_far(
    monkeypatch: pytest.MonkeyPatch, study: str
) -> None:
    """It comes while a strategy is solved, after a closed form has answered."""
    monkeypatch.setattr(Optimal, "solve" if study == "plan" else "has_schedule", interrupt)
    with pytest.raises(KeyboardInterrupt):
        compare_machines(job(), [own("one", local_bytes=100)], strategies=["standard", "optimal"])


def test_ctrl_c_ends_a_call_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Optimal, "solve", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ckptplan.optimize(job(), own("one"), strategies=["standard", "optimal"], objective="memory")
