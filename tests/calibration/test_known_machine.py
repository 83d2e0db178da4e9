"""On a machine whose costs are known, a calibration finds them, and a validation names what is wrong."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

import ckptplan
from ckptplan import InputError, Plan
from ckptplan.calibration.calibrate import Calibrated, calibrate, count_sizes
from ckptplan.calibration.validate import validate
from ckptplan.calibration.validation import Row, Validation, Verdict
from ckptplan.model.cell_spec import CellSpec
from ckptplan.model.workload import ACTION_TIMES, TIMES, Workload
from ckptplan.report.formats import json_text
from ckptplan.report.validation import view_validation
from tests.calibration.known import COSTS, PER_STEP, RESIDENT, WORKSPACE, KnownMachine, install, shown_table

SPEC, BATCH, STEPS = CellSpec(name="gru", inputs=8, neurons=16), 4, 300


def calibrate_known(**options: Any) -> Calibrated:
    return calibrate(SPEC, batch=BATCH, steps=STEPS, **options)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> KnownMachine:
    machine = KnownMachine()
    install(monkeypatch, machine)
    return machine


def plan_for(
    found: Calibrated, *, strategies: tuple[str, ...] = ("remote",), share: float = 0.3, **changes: Any
) -> Plan:
    """Plan with room for a share of base's tapes; fields of the workload or of the profile are changed."""
    profile = {name: changes.pop(name) for name in list(changes) if hasattr(found.profile, name)}
    workload = Workload(**{**dict(found.workload), **changes})
    room = RESIDENT + PER_STEP * STEPS + WORKSPACE + int(share * STEPS * COSTS["tape_bytes"])
    return ckptplan.optimize(
        workload, found.profile.replace(**profile), strategies=strategies, local_bytes=room
    )


def row(found: Validation, quantity: str) -> Row:
    return next(each for each in found.rows if each.quantity == quantity)


def test_a_calibration_finds_the_costs_of_the_machine() -> None:
    found = calibrate_known()
    for field in (*TIMES, *ACTION_TIMES):
        assert getattr(found.workload, field) == pytest.approx(COSTS[field], rel=1e-3), field
    rates = found.profile.write_bytes_per_second, found.profile.read_bytes_per_second
    assert rates == pytest.approx((40_000 / 400e-6, 40_000 / 200e-6), rel=0.01)
    assert found.profile.latency_seconds == pytest.approx(50e-6, rel=0.01)
    assert (found.noisy, found.left_out, found.ended_by) == (None, (), None)
    assert found.workload.calibration is not None
    assert found.workload.calibration.uncertainty < 0.01


def test_times_of_a_noisy_machine_are_near_with_wide_intervals(machine: KnownMachine) -> None:
    """Other programs lengthen every third run by up to a half."""
    draw = random.Random(0)  # noqa: S311 - noise
    machine.disturb = lambda: 1 + 0.03 * draw.random() + (draw.random() < 1 / 3) * draw.random() / 2
    found = calibrate_known(repeats=9, tolerance=1e-6)
    calibration = found.workload.calibration
    assert calibration is not None
    for field in ("forward_seconds", "recompute_seconds", "backward_seconds"):
        known, time = calibration.measured[field], getattr(found.workload, field)
        assert time == pytest.approx(COSTS[field], rel=0.05)
        assert (known.low or 0) * time <= 1.001 * COSTS[field] <= 1.002 * (known.high or 0) * time
    assert found.noisy is not None
    assert found.noisy.exit_code == 4
    assert found.noisy.details()["most"] == 5e-7
    text = found.explain_uncertainty(tolerance=0.01, budget=10**7)
    assert "known to within" in str(text)


def test_a_quick_calibration_knows_times_to_ten_percent_at_best() -> None:
    found = calibrate_known(quick=True)
    assert found.workload.calibration is not None
    assert found.workload.calibration.uncertainty >= 0.1
    assert found.workload.calibration.measured["backward_seconds"].repeats == 3
    assert "(quick: 3 rounds of few sizes)" in found.workload.description


def test_rounds_that_do_not_fit_are_refused_before_they_begin_with_what_would_fit() -> None:
    said: list[str] = []
    with pytest.raises(InputError, match=r"takes about \d+ s: 9 rounds of 8 schedules") as caught:
        calibrate_known(repeats=9, max_seconds=20, announce=said.append)
    assert said == []
    accepted = str(caught.value.accepted)
    assert caught.value.field == "max_seconds"
    for way in ("repeats=", "quick=True (", "bytes_only=True", "a smaller batch or fewer neurons"):
        assert way in accepted
    repeats = int(accepted.partition("repeats=")[2].partition(",")[0])
    calibrate_known(repeats=repeats, max_seconds=20)
    enough = int(accepted.partition("max_seconds=")[2])
    calibrate_known(repeats=9, max_seconds=enough, announce=said.append)
    assert "9 rounds of" in said[0]
    with pytest.raises(InputError, match=r"max_seconds: measuring this cell takes .*sizes in 1 runs"):
        count_sizes(SPEC, batch=BATCH, steps=STEPS, max_seconds=0.1)


class Stop(BaseException):
    """What a program makes of a signal."""


@pytest.mark.parametrize("rounds", [0, 2, 3])
def test_rounds_that_are_complete_survive_an_interruption(machine: KnownMachine, rounds: int) -> None:
    """After three of them the result is that of these rounds; before, the sizes are kept."""
    runs = itertools.count()

    def stop() -> float:
        if next(runs) == 8 * rounds + 4:
            raise Stop
        return 1.0

    machine.disturb = stop
    kept: list[Workload] = []
    if rounds < 3:
        with pytest.raises(Stop):
            calibrate_known(keep=kept.append)
        assert (kept[0].state_bytes, kept[0].calibration) == (COSTS["state_bytes"], None)
        return
    found = calibrate_known(keep=kept.append)
    assert isinstance(found.ended_by, Stop)
    assert found.left_out == ("interrupted after 3 of 5 rounds",)


def test_progress_rises_to_the_end_that_it_announces() -> None:
    seen: list[float] = []
    calibrate_known(quick=True, progress=lambda done, total: seen.append(done / total))
    assert (seen, seen[0], seen[-1]) == (sorted(seen), 0, 1)
    seen.clear()
    plan = plan_for(calibrate_known())
    validate(plan, repeats=2, progress=lambda done, total: seen.append(done / total))
    assert (seen, seen[-1]) == (sorted(seen), 1)


@pytest.mark.parametrize("strategy", ["base", "standard", "remote", "hierarchical", "double", "optimal"])
def test_a_right_plan_holds(strategy: str) -> None:
    share = 1.1 if strategy == "base" else 0.3
    found = validate(plan_for(calibrate_known(), strategies=(strategy,), share=share), repeats=2)
    assert (found.off, found.noisy, found.not_comparable) == ([], [], None)
    assert row(found, "total").bias == pytest.approx(0, abs=0.01)
    assert {"forward", "backward", "base", "overhead"} <= {each.quantity for each in found.rows}


@pytest.mark.parametrize(
    ("field", "factor", "named"),
    [
        ("write_bytes_per_second", 4, {"write bandwidth", "write of one state", "write"}),
        ("read_bytes_per_second", 4, {"read bandwidth", "read of one state", "read"}),
        (
            "latency_seconds",
            100,
            {"write of one state", "read of one state", "write", "read", "total", "overhead"},
        ),
        ("state_bytes", 0.5, {"state", "checkpoints and tapes", "remote peak"}),
        ("tape_bytes", 0.5, {"checkpoints and tapes", "local peak"}),
        ("workspace_bytes", 30, {"local peak"}),
        ("forward_seconds", 3, {"forward", "total", "base", "overhead"}),
        ("backward_seconds", 0.5, {"backward", "total", "base", "overhead"}),
    ],
)
def test_what_is_wrong_is_named(field: str, factor: float, named: set[str]) -> None:
    """A quantity that is wrong by a factor, and nothing that does not follow from it."""
    found = calibrate_known()
    value = getattr(found.workload, field, None) or getattr(found.profile, field)
    plan = plan_for(found, **{field: type(value)(factor * value)})
    off = set(validate(plan, repeats=2).off)
    assert off <= named
    assert named & off


def test_wrong_gradients_are_named_and_can_be_written_as_json(machine: KnownMachine) -> None:
    plan = plan_for(calibrate_known())
    for wrong in (1.1, math.nan):
        machine.gradients = itertools.cycle([1.0, wrong])
        found = validate(plan, repeats=1)
        assert found.off == ["gradient difference"]
        quantities = json.loads(json_text(view_validation(found).document()))["quantities"]
        (shown,) = (each for each in quantities if each["quantity"] == "gradient difference")
        assert (shown["measured"] is None) == math.isnan(wrong)
    # Rounding alone, if they agree in double precision.
    machine.gradients = iter([1.0, 1.1, 1.0, 1.0])
    found = validate(plan, repeats=1)
    assert found.off == []
    assert any("rounding decided whether a neuron at its threshold fires" in note for note in found.notes)


def test_a_plan_and_base_that_do_not_fit_are_not_run(machine: KnownMachine) -> None:
    """Neither base, nor plain BPTT, nor the plan itself: the system would end the process."""
    plan = plan_for(calibrate_known())
    machine._free = int(plan.predicted.local_peak_bytes / 0.69)
    found = validate(plan, repeats=1)
    assert all(each.quantity != "base" for each in found.rows)
    assert row(found, "gradient difference").verdict is Verdict.UNCHECKED
    assert any("base needs" in note for note in found.notes)
    machine._free = plan.predicted.local_peak_bytes
    with pytest.raises(InputError, match=r"plan: needs .* but only"):
        validate(plan, repeats=1)


def test_a_validation_that_would_take_too_long_is_refused_with_the_ways_out() -> None:
    plan = plan_for(calibrate_known())
    with pytest.raises(InputError, match=r"max_seconds: \d+ runs of 300 steps take .*limit is 0.1 s") as caught:
        validate(plan, repeats=1, max_seconds=0.1)
    for way in ("max_seconds=", "(half as much again", "a plan for at most", "a smaller batch"):
        assert way in str(caught.value.accepted)
    with pytest.raises(InputError, match="the limit is 600 s"):
        validate(plan, repeats=1000)


def headline_plan() -> Plan:
    return ckptplan.optimize(
        "paper-snn", "ipu-mk2", steps=600, local_bytes="300 kB", strategies=["standard", "nested"]
    )


def test_a_plan_for_other_hardware_is_shrunk_to_what_runs_here() -> None:
    """Its schedule and its counts stay; bytes that depend on the width are not judged, and nothing is timed."""
    said: list[str] = []
    found = validate(headline_plan(), regret=True, tell=said.append)
    assert (found.cell, found.batch) == ("lif(inputs=64, neurons=32)", 2)
    assert found.off == found.noisy == []
    assert {each.unit for each in found.rows} == {"bytes", "count", "share"}
    assert {"steps run again", "checkpoints and tapes"} <= {each.quantity for each in found.rows}
    assert "local peak" not in {each.quantity for each in found.rows}
    assert (found.regret, found.repeats) == (None, 0)
    assert "times cannot be compared here: its times were not measured" in said[0]
    assert "the cell was shrunk from lif(inputs=64, neurons=2944) with batch 120 to" in said[1]
    assert said[2].startswith("3 runs, ")
    assert "batch 2 " in shown_table(found)
    with pytest.raises(InputError, match=r"max_seconds: 3 runs of 600 steps"):
        validate(headline_plan(), max_seconds=1e-6)


def test_a_plan_for_other_hardware_that_fits_is_not_shrunk() -> None:
    found = validate(headline_plan(), max_seconds=10**9)
    assert (found.batch, row(found, "local peak").verdict) == (120, Verdict.OTHER_MACHINE)
    assert any("another cell" in note for note in found.notes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda _: {"timed_on": "other"}, "its times belong to other"),
        (lambda _: {"calibration": None}, "not measured by `ckptplan calibrate`"),
        (
            lambda found: {"calibration": found.model_copy(update={"machine": "another"})},
            "calibrated on another machine (another; this is known)",
        ),
        (
            lambda found: {"calibration": found.model_copy(update={"threads": 2})},
            "with 2 threads, and runs with 1",
        ),
        (
            lambda found: {"calibration": found.model_copy(update={"chunk_overhead_seconds": 0.1})},
            "count as 0; calibrate again",
        ),
    ],
)
def test_why_times_are_not_compared(change: Callable[[Any], dict[str, Any]], reason: str) -> None:
    calibrated = calibrate_known()
    found = validate(plan_for(calibrated, **change(calibrated.workload.calibration)), repeats=1)
    assert reason in str(found.not_comparable)
    assert all(each.unit != "seconds" for each in found.rows)


def test_ctrl_c_leaves_what_was_compared_before(machine: KnownMachine) -> None:
    """Rounds that were not completed do not count; before the first row there is nothing to show."""
    plan = plan_for(calibrate_known())
    for runs, repeats in ((9 + 2 + 7, 2), (9 + 1, 0)):
        left = itertools.count(runs, -1)

        def stop() -> float:
            if next(left) <= 0:  # noqa: B023 - called within this turn of the loop
                raise KeyboardInterrupt
            return 1.0

        machine.disturb = stop
        found = validate(plan, repeats=4)
        assert (found.interrupted, found.repeats) == (True, repeats)
        assert ("total" in [each.quantity for each in found.rows]) == bool(repeats)
        assert "the rest was not measured" in shown_table(found)
        assert view_validation(found).document()["holds"] is False


def test_the_regret_is_over_all_that_could_have_been_chosen() -> None:
    plan = plan_for(calibrate_known(), strategies=("standard", "remote", "double", "base"))
    regret = validate(plan, repeats=2, regret=True).regret
    assert regret is not None
    assert regret.row.measured == pytest.approx(1, abs=0.03)
    names = [name for contender in regret.contenders for name in (contender.strategy, *contender.same)]
    assert sorted(names) == ["double", "remote", "standard"]
    with pytest.raises(InputError, match="there was no choice"):
        validate(plan_for(calibrate_known()), regret=True)


@pytest.mark.parametrize(
    ("numbers", "field"),
    [
        ({"repeats": 0}, "repeats"),
        ({"repeats": 2.5}, "repeats"),
        ({"thread_count": 0}, "thread_count"),
        ({"tolerance": float("nan")}, "tolerance"),
        ({"tolerance": "10%"}, "tolerance"),
        ({"overhead_tolerance": -1}, "overhead_tolerance"),
        ({"max_seconds": float("nan")}, "max_seconds"),
    ],
)
def test_numbers_that_would_leave_nothing_to_compare_are_refused(numbers: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=f"^{field}: "):
        validate(plan_for(calibrate_known()), **numbers)


def test_a_workload_without_batch_cannot_be_run() -> None:
    with pytest.raises(InputError, match="has no batch"):
        validate(plan_for(calibrate_known(), batch=None))


def test_given_times_are_kept_and_the_others_follow_from_them() -> None:
    times = {"forward_seconds": 0.002, "recompute_seconds": 0.001}
    found = count_sizes(SPEC, batch=1, steps=10, times=times)
    assert (found.forward_seconds, found.recompute_seconds) == (0.002, 0.001)
    assert (found.backward_seconds, found.record_overhead_seconds) == (0.004, 0)
    assert {found.basis[field].kind for field in TIMES} == {"assumed"}
    assert found.basis["backward_seconds"].why == "twice forward_seconds, for want of a measurement"
    with pytest.raises(InputError, match="forward_seconds: is missing"):
        count_sizes(SPEC, batch=1, steps=10, times={"backward_seconds": 1.0})
