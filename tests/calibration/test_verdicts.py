"""Verdicts: what is allowed, what is too noisy, and what a table and JSON say of it."""

import pytest

from ckptplan.calibration.backend import Environment, PilotTimes, TimedRun
from ckptplan.calibration.compared import note_meter
from ckptplan.calibration.fit import Sample, count_actions
from ckptplan.calibration.validation import Contender, Regret, Row, Tolerances, Validation, Verdict
from ckptplan.planning.playback import make_schedule, schedule_of
from ckptplan.report.validation import view_validation
from tests.calibration.shown import shown_table
from tests.support import small_plan


def sample(*values: float) -> Sample:
    return Sample(values=values)


def test_what_is_counted_is_equal_or_off() -> None:
    assert Row.exact("q", predicted=10, measured=10, unit="bytes").verdict is Verdict.OK
    assert Row.exact("q", predicted=10, measured=11, unit="bytes").verdict is Verdict.OFF
    assert Row.exact("q", predicted=105, measured=100, unit="bytes", slack=0.05).verdict is Verdict.OK
    assert Row.exact("q", predicted=94, measured=100, unit="bytes", slack=0.05).verdict is Verdict.OFF


@pytest.mark.parametrize(
    ("predicted", "values", "verdict"),
    [
        (1.09, (1.0, 1.0, 1.0), Verdict.OK),
        (1.11, (1.0, 1.0, 1.0), Verdict.OFF),
        (0.89, (1.0, 1.0, 1.0), Verdict.OFF),
        # What the rounds differ by themselves is no fault of the model: half of it between quartiles.
        (1.14, (0.9, 1.0, 1.1), Verdict.OK),
        (1.16, (0.9, 1.0, 1.1), Verdict.OFF),
        # One round that was disturbed does not excuse it.
        (1.11, (1.0, 1.0, 1.0, 1.0, 9.0), Verdict.OFF),
        # Rounds that differ by more than the tolerance say nothing.
        (1.0, (0.5, 1.0, 1.5), Verdict.NOISY),
        # Half a percent of the run and less.
        (0.04, (0.001, 0.001, 0.001), Verdict.SMALL),
        # Small as measured, but not as predicted.
        (0.06, (0.001, 0.001, 0.001), Verdict.OFF),
    ],
)
def test_a_time_is_judged_by_tolerance_and_noise(
    predicted: float, values: tuple[float, ...], verdict: Verdict
) -> None:
    found = Row.timed("q", predicted=predicted, sample=sample(*values), tolerance=0.1, whole=10)
    assert found.verdict is verdict


def test_seconds_that_may_count_in_either_of_two_rows_are_allowed_in_both() -> None:
    """A chunk's own time: the model charges it when it is recorded, a run also when it is reversed."""
    for predicted, verdict in ((1.35, Verdict.OK), (0.65, Verdict.OK), (1.45, Verdict.OFF)):
        found = Row.timed(
            "q", predicted=predicted, sample=sample(1.0), tolerance=0.1, whole=10, shared_seconds=0.3
        )
        assert found.verdict is verdict
        assert found.allowed == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("predicted", "ratios", "verdict"),
    [
        # +18 % and +7.5 %: times within 10 % of each other, and a different decision.
        (0.18, (1.075, 1.075, 1.075), Verdict.OFF),
        (0.0, (1.075, 1.075, 1.075), Verdict.OFF),
        (0.107, (1.075, 1.075, 1.075), Verdict.OK),
        (0.108, (1.075, 1.075, 1.075), Verdict.OFF),
        # A point of noise allows a point more, four say nothing.
        (0.138, (1.08, 1.10, 1.12), Verdict.OK),
        (0.14, (1.02, 1.10, 1.18), Verdict.NOISY),
        # A plan that takes twice as long may be off by twice as many points.
        (1.05, (2.0, 2.0, 2.0), Verdict.OK),
        (1.07, (2.0, 2.0, 2.0), Verdict.OFF),
        # The quicker of the two is not base.
        (0.01, (0.99, 0.99, 0.99), Verdict.OK),
    ],
)
def test_the_overhead_is_judged_in_points(
    predicted: float, ratios: tuple[float, ...], verdict: Verdict
) -> None:
    found = Row.overhead(predicted=predicted, ratios=sample(*ratios), tolerance=0.03)
    assert found.verdict is verdict
    assert found.bias == pytest.approx(predicted - found.measured)
    assert found.unit == "share"


def contender(name: str, *seconds: float, predicted: float = 1.0) -> Contender:
    return Contender(
        strategy=name,
        parameters={},
        seconds=sample(*seconds),
        row=Row.timed(
            f"time of {name}",
            predicted=predicted,
            sample=sample(*seconds),
            tolerance=0.1,
            whole=sample(*seconds).median,
        ),
        same=(),
    )


@pytest.mark.parametrize(
    ("own", "best", "verdict"),
    [
        ((1.02, 1.02, 1.02), (1.0, 1.0, 1.0), Verdict.OK),
        ((1.04, 1.04, 1.04), (1.0, 1.0, 1.0), Verdict.OFF),
        ((1.01, 1.04, 1.07), (1.0, 1.0, 1.0), Verdict.OK),
        ((0.7, 1.04, 1.4), (1.0, 1.0, 1.0), Verdict.NOISY),
        ((0.9, 0.9, 0.9), (1.0, 1.0, 1.0), Verdict.OK),
    ],
)
def test_the_regret_may_be_three_percent_and_the_noise(
    own: tuple[float, ...], best: tuple[float, ...], verdict: Verdict
) -> None:
    found = Regret(chosen="mine", contenders=(contender("mine", *own), contender("other", *best)))
    assert found.verdict is verdict
    assert ("decision regret" in found.named(verdict)) is True


def made(*rows: Row, regret: Regret | None = None) -> Validation:
    return Validation(
        cell="gru(inputs=1, neurons=1)",
        environment=Environment(
            machine="here",
            device="cpu",
            threads=1,
            clock="processor time",
            versions={"torch": "2"},
            memory_bytes=2**30,
            remote="a copy",
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
        chosen="mine",
        contenders=(
            contender("mine", 1.0, 1.0, 1.0, predicted=1.5),
            contender("right", 1.05, 1.05, 1.05),
            contender("slow", 2.0, 2.0, 2.0),
            contender("wild", 1.1, 2.0, 3.0),
        ),
    )
    found = made(regret=regret)
    # The chosen plan's own time is the row `total`.
    assert found.off == ["time of slow"]
    assert found.noisy == ["time of wild"]
    document = view_validation(small_plan(), found).document()
    assert document["holds"] is False
    assert [one["verdict"] for one in document["regret"]["contenders"]] == [
        "off", "ok", "off", "too noisy to judge"
    ]  # fmt: skip
    assert (document["regret"]["verdict"], document["regret"]["allowed"]) == ("ok", pytest.approx(1.03))
    shown = shown_table(small_plan(), found)
    assert "Outside what is allowed: time of slow." in shown
    assert "time of wild; more --repeats may help" in shown


def test_a_wrong_overhead_is_named_with_its_numbers() -> None:
    """The prediction does not hold, though the times do."""
    bases, plans = sample(1.0, 1.0, 1.0), sample(1.075, 1.075, 1.075)
    found = made(
        Row.timed("total", predicted=1.18, sample=plans, tolerance=0.1, whole=1),
        Row.overhead(predicted=0.18, ratios=plans, tolerance=0.03),
        Row.timed("base", predicted=1.0, sample=bases, tolerance=0.1, whole=1),
    )
    assert found.off == ["overhead"]
    shown = shown_table(small_plan(), found)
    assert "overhead (+18.0 % predicted, +7.5 % measured: 10.5 points off)" in shown
    assert "overhead +18.0 % +7.5 % +10.5 pt 3.2 pt 0.0 pt off" in shown
    rows = {one["quantity"]: one for one in view_validation(small_plan(), found).document()["quantities"]}
    assert (rows["overhead"]["unit"], rows["overhead"]["predicted"]) == ("share", 0.18)
    assert rows["overhead"]["bias"] == pytest.approx(0.105)


def test_the_estimate_counts_the_steps_of_every_run() -> None:
    """Of a schedule and of a plan, by what it predicts."""
    pilot = PilotTimes(
        forward_seconds=1,
        recompute_seconds=10,
        record_overhead_seconds=100,
        backward_seconds=1000,
        run_seconds=0.5,
        steps=8,
    )
    schedule = make_schedule("nested", steps=16, chunk_size=2, segment_size=8)
    again = count_actions(schedule)["recompute"]
    assert pilot.run(schedule) == 0.5 + 16 * 1101 + 10 * again
    plan = small_plan()
    assert pilot.run(plan) == 0.5 + plan.steps * 1101 + 10 * plan.predicted.recomputed_steps
    assert pilot.run(schedule_of(plan)) == pilot.run(plan)
    assert pilot.scaled(2).run(schedule) == 2 * pilot.run(schedule)


@pytest.mark.parametrize(("predicted", "agrees"), [(1.9, True), (0.55, True), (2.1, False), (0.45, False)])
def test_a_bandwidth_is_judged_within_a_factor_of_two(predicted: float, agrees: bool) -> None:
    found = Row.bandwidth("q", predicted=predicted, measured=1.0, unit="bytes per second")
    assert (found.verdict is Verdict.OK) == agrees


def test_the_bias_is_above_zero_where_too_much_was_predicted() -> None:
    found = Row.timed("q", predicted=1.2, sample=sample(1.0), tolerance=0.1, whole=1)
    assert found.bias == pytest.approx(0.2)


def test_runs_that_take_longer_when_they_are_timed_action_by_action_are_explained() -> None:
    timed = [TimedRun(events=[], seconds=seconds) for seconds in (1.03, 1.05, 1.04)]
    assert "took 40 ms (4 %) longer" in str(note_meter(timed, sample(1.0)))
    assert "took 60 ms (5.5 %) less" in str(note_meter(timed, sample(1.1)))
    assert note_meter(timed, sample(1.035)) is None
