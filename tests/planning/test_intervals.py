"""Times that are known within intervals: what an interval says of the costs of a plan."""

from typing import Any

import pytest

import ckptplan
from ckptplan.cost.case import Case
from ckptplan.model.profile import Source
from ckptplan.model.workload import Calibration, Measured
from ckptplan.planning.intervals import bound_costs, describe_undecided, find_undecided
from ckptplan.planning.request import Request

MEASURED: dict[str, Any] = {"repeats": 3, "spread": 0.5}


def _case(*, forward: Measured, **sources: Source) -> Case:
    calibration = Calibration(
        machine="any", device="cpu", threads=1, date="2026-01-01T00:00:00Z", seed=0, uncertainty=0.1,
        transfer_uncertainty=0.1,
        measured={"forward_seconds": forward, "backward_seconds": Measured(**MEASURED, low=0.5, high=1.5)},
    )  # fmt: skip
    times: dict[str, Any] = dict.fromkeys(("forward_seconds", "backward_seconds", "recompute_seconds"), 1.0)
    workload = ckptplan.Workload(
        name="job", steps=9, state_bytes=100, tape_bytes=300, calibration=calibration, **times
    )
    profile = ckptplan.HardwareProfile(
        name="any", local_bytes=5000, remote_bytes=5000, sources=sources,
        write_bytes_per_second=1000, read_bytes_per_second=1000,
    )  # fmt: skip
    return Case(workload=workload, profile=profile)


@pytest.mark.parametrize(
    ("interval", "ends"),
    [({"low": 0.0, "high": 2.0}, (0.0, 2.0)), ({"low": 0.9, "high": 1.2}, (0.9, 1.2)), ({}, (1.0, 1.0))],
)
def test_a_time_is_within_its_interval_also_from_zero(interval: Any, ends: tuple[float, float]) -> None:
    """One without an interval is known exactly."""
    bounds = bound_costs(_case(forward=Measured(**MEASURED, **interval)))
    assert bounds is not None
    assert tuple(costs.forward_seconds for costs in bounds) == ends


def test_a_rate_that_may_be_zero_is_not_known_exactly() -> None:
    rate = Source(grade="M", source="measured", low=0.0, high=2.0)
    bounds = bound_costs(_case(forward=Measured(**MEASURED), write_bytes_per_second=rate))
    assert bounds is not None
    least, most = (costs.write_seconds for costs in bounds)
    assert least == pytest.approx(0.05)
    assert 1e6 < most < float("inf")


@pytest.mark.parametrize(
    ("rivals", "most", "text"),
    [
        (["remote"], 0.021, "remote may be just as quick as standard, or quicker by up to 2.1 %"),
        ([], 0.0036, "another strategy may be quicker by up to 0.36 %, which is too little to tell"),
        ([], 0.00001, "another strategy may be quicker by less than 0.01 %, which is too little to tell"),
        ([], 0.0, "no other strategy may be quicker"),
    ],
)
def test_a_plan_says_by_how_much_another_strategy_may_be_quicker(
    rivals: list[str], most: float, text: str
) -> None:
    assert describe_undecided("standard", rivals, most) == text


def test_a_plan_predicted_to_be_quicker_is_not_denied_by_the_intervals_of_times() -> None:
    """The search and the intervals name the same lead, where no interval makes it larger."""
    case = _case(forward=Measured(**MEASURED, low=0.9, high=1.1))
    question = Request.of(case.workload, case.profile, command="", local_bytes=1200).question()
    answers = question.replace(resolution=0.0).rank()
    undecided = find_undecided(answers[::-1], question, case)
    assert undecided is not None
    mine, least = (answer.totals(question.costs).seconds for answer in (answers[-1], answers[0]))
    assert undecided[1] >= 1 - least / mine - 1e-12 > 0
    assert find_undecided(answers, question, case) == ([], 0.0)
