"""Verdicts: what is allowed, what is too noisy, and what a table and JSON say of it."""

from dataclasses import replace

import pytest

import ckptplan
from ckptplan.calibration.estimate import Estimate
from ckptplan.calibration.validation import (
    Contender,
    Regret,
    Row,
    Tolerances,
    Validation,
    Verdict,
    base_rows,
    time_rows,
)
from ckptplan.cost.case import Case
from ckptplan.execution.backend import Environment, Report
from ckptplan.report.validation import view_validation
from ckptplan.schedule.simulator import play
from ckptplan.schedule.timeline import Event, kind_of
from tests.calibration.known import shown_table
from tests.support import small_plan


def known(low: float, value: float, high: float) -> Estimate:
    return Estimate(low=low, value=value, high=high)


def exactly(value: float) -> Estimate:
    return Estimate.exactly(value)


@pytest.mark.parametrize(
    ("predicted", "measured", "tolerance", "verdict"),
    [
        (10, 10, 0.0, Verdict.OK),
        (10, 11, 0.0, Verdict.OFF),
        (0, 0, 0.0, Verdict.OK),
        (0, 1, 0.5, Verdict.OFF),
        (104, 100, 0.05, Verdict.OK),
        (94, 100, 0.05, Verdict.OFF),
    ],
)
def test_what_is_counted_is_equal_or_off(
    predicted: int, measured: int, tolerance: float, verdict: Verdict
) -> None:
    found = Row.judged("q", predicted=predicted, measured=measured, unit="bytes", tolerance=tolerance)
    assert (found.verdict, found.noise) == (verdict, None)


@pytest.mark.parametrize(
    ("predicted", "measured", "verdict"),
    [
        (exactly(1.09), exactly(1.0), Verdict.OK),
        (exactly(1.11), exactly(1.0), Verdict.OFF),
        (exactly(0.92), exactly(1.0), Verdict.OK),
        (exactly(0.89), exactly(1.0), Verdict.OFF),
        # What rounds differ by themselves is no fault of the model.
        (exactly(1.14), known(0.95, 1.0, 1.05), Verdict.OK),
        (exactly(1.17), known(0.95, 1.0, 1.05), Verdict.OFF),
        # Rounds that differ by more than the tolerance say nothing, unless all of them are off.
        (exactly(1.0), known(0.8, 1.0, 1.3), Verdict.NOISY),
        (exactly(2.0), known(0.8, 1.0, 1.3), Verdict.OFF),
        # Neither does a calibration that knows its times too badly for the difference that was measured.
        (known(1.02, 1.15, 1.3), exactly(1.0), Verdict.NOISY),
        (known(1.12, 1.15, 1.3), exactly(1.0), Verdict.OFF),
        # But what agrees as measured holds, whatever else it might have been.
        (known(0.8, 1.05, 1.4), exactly(1.0), Verdict.OK),
    ],
)
def test_a_time_is_judged_by_the_joint_interval(
    predicted: Estimate, measured: Estimate, verdict: Verdict
) -> None:
    """Off: all of it is outside of the tolerance. Ok: the measurement alone shows that it is not."""
    found = Row.judged("q", predicted=predicted, measured=measured, tolerance=0.1)
    assert found.verdict is verdict
    # Either way: a prediction that is as much too low.
    other = Row.judged("q", predicted=measured, measured=predicted, tolerance=0.1)
    assert (other.verdict is Verdict.OFF) == (verdict is Verdict.OFF)


@pytest.mark.parametrize(("share", "verdict"), [(0.004, Verdict.SMALL), (0.05, Verdict.OFF)])
def test_a_small_part_of_a_run_is_not_judged(share: float, verdict: Verdict) -> None:
    """Writes that take much longer than predicted: below half a percent of a run it does not matter."""
    plan, events = small_plan(), list[Event]()
    quick = {"write_bytes_per_second": 1e15, "latency_seconds": 0.0, "synchronisation_seconds": 0.0}
    plan = plan.model_copy(update={"profile": plan.profile.replace(**quick)})
    costs = Case(workload=plan.workload, profile=plan.profile).costs
    seconds = play(ckptplan.actions(plan), costs=costs, budget=None, sink=events.append).seconds
    writes = [event for event in events if kind_of(event) == "write"]
    each = share * seconds / len(writes)
    timed = [replace(event, end=event.start + each) if event in writes else event for event in events]
    rows = time_rows(plan, [Report(events=timed, seconds=seconds)], [seconds], tolerance=0.1)
    assert {row.quantity: row.verdict for row in rows}["write"] is verdict


@pytest.mark.parametrize(
    ("predicted", "measured", "verdict"),
    [
        # +18 % and +7.5 %: times within 10 % of each other, and a different decision.
        (exactly(0.18), exactly(0.075), Verdict.OFF),
        (exactly(0.0), exactly(0.075), Verdict.OFF),
        (exactly(0.10), exactly(0.075), Verdict.OK),
        # A point of noise allows a point more, four say nothing.
        (exactly(0.138), known(0.09, 0.10, 0.11), Verdict.OK),
        (exactly(0.11), known(0.06, 0.10, 0.14), Verdict.NOISY),
        (known(0.12, 0.2, 0.3), exactly(0.1), Verdict.NOISY),
        # The quicker of the two is not base.
        (exactly(0.01), exactly(-0.01), Verdict.OK),
    ],
)
def test_the_overhead_is_judged_in_points(predicted: Estimate, measured: Estimate, verdict: Verdict) -> None:
    found = Row.judged("q", predicted=predicted, measured=measured, tolerance=0.03, unit="share")
    assert found.verdict is verdict
    assert found.bias == pytest.approx(predicted.value - found.measured)
    assert found.in_points


def contender(name: str, *seconds: float, predicted: float = 1.0) -> Contender:
    return Contender(
        strategy=name,
        parameters={},
        seconds=seconds,
        row=Row.judged(
            f"time of {name}", predicted=exactly(predicted), measured=Estimate.of(seconds), tolerance=0.1
        ),
        same=(),
    )


@pytest.mark.parametrize(
    ("own", "best", "verdict"),
    [
        ((1.02, 1.02, 1.02), (1.0, 1.0, 1.0), Verdict.OK),
        ((1.04, 1.04, 1.04), (1.0, 1.0, 1.0), Verdict.OFF),
        ((1.01, 1.035, 1.05), (1.0, 1.0, 1.0), Verdict.OK),
        ((1.0, 1.04, 1.4), (1.0, 1.0, 1.0), Verdict.NOISY),
        # Pairs of the same round: a slow round is slow for both.
        ((2.0, 1.0, 1.5), (1.99, 0.99, 1.49), Verdict.OK),
        ((2.0, 1.0, 1.5), (1.8, 0.9, 1.35), Verdict.OFF),
        ((0.9, 0.9, 0.9), (1.0, 1.0, 1.0), Verdict.OK),
    ],
)
def test_the_regret_may_be_three_percent_and_the_noise(
    own: tuple[float, ...], best: tuple[float, ...], verdict: Verdict
) -> None:
    found = Regret(contenders=(contender("mine", *own), contender("other", *best)))
    assert found.row.verdict is verdict
    assert found.rows[-1] == found.row


def made(*rows: Row, regret: Regret | None = None) -> Validation:
    return Validation(
        plan=small_plan(),
        cell="gru(inputs=1, neurons=1)",
        batch=1,
        environment=Environment(
            machine="here",
            device="cpu",
            threads=1,
            clock="processor time",
            versions={"torch": "2"},
            memory_bytes=2**30,
            remote="a copy",
            remote_bytes=2**30,
            remote_source="",
            messages="",
        ),
        repeats=3,
        tolerances=Tolerances(),
        not_comparable=None,
        rows=rows,
        notes=(),
        regret=regret,
        timeline=(),
    )


def test_every_plan_of_the_regret_is_judged_and_the_wrong_ones_are_named() -> None:
    regret = Regret(
        contenders=(
            contender("mine", 1.0, 1.0, 1.0, predicted=1.5),
            contender("right", 1.05, 1.05, 1.05),
            contender("slow", 2.0, 2.0, 2.0),
            contender("wild", 1.05, 2.0, 3.0),
        ),
    )
    found = made(regret=regret)
    # The chosen plan's own time is the row `total`.
    assert found.off == ["time of slow"]
    assert found.noisy == ["time of wild"]
    document = view_validation(found).document()
    assert document["holds"] is False
    assert [one["verdict"] for one in document["regret"]["contenders"]] == [
        "off", "ok", "off", "too noisy to judge"
    ]  # fmt: skip
    assert (document["regret"]["verdict"], document["regret"]["allowed"]) == ("ok", pytest.approx(0.03))
    shown = shown_table(found)
    assert "Outside what is allowed: time of slow." in shown
    assert "time of wild; calibrate again, or more --repeats, may help" in shown


@pytest.mark.parametrize(
    ("total", "base", "told"),
    [
        (1.3, 1.3, "Everything took 1.3 times as long as calibrated; if it stays so, calibrate again."),
        (0.7, 0.72, "Everything took 0.7 times as long as calibrated; if it stays so, calibrate again."),
        (1.3, 1.0, None),
        (1.6, 1.3, None),
        (1.05, 1.05, None),
    ],
)  # fmt: skip
def test_a_machine_that_became_slower_is_told_from_a_wrong_prediction(
    total: float, base: float, told: str | None
) -> None:
    """By the pace of the plan and of base, which differs otherwise."""
    added = 1.2 * total / base - 1
    found = made(
        Row.judged("total", predicted=exactly(1.2), measured=exactly(1.2 * total), tolerance=0.1),
        Row.judged("base", predicted=exactly(1.0), measured=exactly(base), tolerance=0.1),
        Row.judged("overhead", predicted=exactly(0.2), measured=exactly(added), tolerance=0.04, unit="share"),
    )
    shown = " ".join(shown_table(found).split())
    if told is None:
        assert found.pace is None
        assert "calibrate again" not in shown
    else:
        assert found.pace == pytest.approx(total)
        assert told in shown
        assert found.off == ["total", "base"]


def test_a_wrong_overhead_is_named_with_its_numbers() -> None:
    """The prediction does not hold, though the times do."""
    found = made(
        Row.judged("total", predicted=exactly(1.18), measured=exactly(1.075), tolerance=0.1),
        Row.judged(
            "overhead", predicted=exactly(0.18), measured=exactly(0.075), tolerance=0.03 * 1.075, unit="share"
        ),
        Row.judged("base", predicted=exactly(1.0), measured=exactly(1.0), tolerance=0.1),
    )
    assert found.off == ["overhead"]
    shown = shown_table(found)
    assert "Outside what is allowed: overhead." in shown
    assert "overhead +18.0 % +7.5 % +10.5 pt 3.2 pt 0.0 pt off" in shown
    rows = {one["quantity"]: one for one in view_validation(found).document()["quantities"]}
    assert (rows["overhead"]["unit"], rows["overhead"]["predicted"]) == ("share", 0.18)
    assert rows["overhead"]["bias"] == pytest.approx(0.105)


@pytest.mark.parametrize(("ratio", "points"), [(0.5, 0.03), (1.0, 0.03), (2.0, 0.06)])
def test_an_overhead_may_be_off_by_a_share_of_the_longer_of_both_times(ratio: float, points: float) -> None:
    """In points, which are of base's time, and besides what the intervals allow."""
    plan = small_plan()

    def allow(tolerance: float) -> float:
        allowed = Tolerances(overhead_tolerance=tolerance)
        return base_rows(plan, plan, [ratio, ratio], [1.0, 1.0], allowed=allowed)[1].allowed or 0.0

    assert allow(0.03) - allow(0.0) == pytest.approx(points)


def test_the_bias_is_above_zero_where_too_much_was_predicted() -> None:
    found = Row.judged("q", predicted=exactly(1.2), measured=exactly(1.0), tolerance=0.1)
    assert found.bias == pytest.approx(0.2)


def test_what_is_too_noisy_is_no_failure() -> None:
    """It is said, and the prediction holds as far as it can be judged."""
    found = made(Row.judged("total", predicted=exactly(1.0), measured=known(0.5, 1.0, 2.0), tolerance=0.1))
    assert (found.off, found.noisy) == ([], ["total"])
    assert view_validation(found).document()["holds"] is True
    shown = shown_table(found)
    assert "The prediction holds, as far as it can be judged. Too noisy to judge: total" in shown


def test_a_bias_that_much_noise_hides_is_beside_what_it_would_be_off_above() -> None:
    """A wide interval leaves room for a large bias: the column is no promise that so much is fine."""
    found = made(Row.judged("total", predicted=known(0.4, 1.0, 3.0), measured=exactly(1.0), tolerance=0.1))
    shown = shown_table(found, width=100)
    assert "bias off above noise verdict" in shown
    assert "total 1 s 1 s equal 76.7 % 0.0 % ok" in shown
    assert "allowed" not in shown
