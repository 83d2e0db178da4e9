"""A validation finds what is wrong with a plan, and names it; what it cannot judge it does not."""

import json
import math
import re
from typing import Any

import numpy as np
import pytest
import torch

import ckptplan
from ckptplan import HardwareProfile, InputError, Plan, Workload
from ckptplan.calibration.backend import Gradient
from ckptplan.calibration.calibrate import Calibrated, calibrate
from ckptplan.calibration.cell_spec import CellSpec
from ckptplan.calibration.torch_backend import TorchBackend, rounds
from ckptplan.calibration.torch_backend.cells import MeasuredNetwork, build_network
from ckptplan.calibration.torch_backend.runs import TorchProgram
from ckptplan.calibration.validate import validate
from ckptplan.calibration.validation import Row, Validation, Verdict, explain_difference, gradient_row
from ckptplan.model.workload import ACTION_TIMES
from ckptplan.paper.setting import load_paper_setting
from ckptplan.planning.playback import make_schedule
from ckptplan.report.formats import json_text
from ckptplan.report.validation import view_validation
from tests.calibration.shown import shown_table

STEPS = 120
#: What is counted, whatever the machine does meanwhile.
EXACT = (
    "state",
    "checkpoints and tapes",
    "remote peak",
    "steps run again",
    "states written",
    "states read",
    "messages",
)


def calibration_of(name: str) -> Calibrated:
    return calibrate(CellSpec(name=name, inputs=8, neurons=16), batch=4, steps=STEPS, repeats=2, thread_count=1)


@pytest.fixture(scope="module")
def calibrated() -> Calibrated:
    return calibration_of("gru")


@pytest.fixture(scope="module", params=["gru", "lif"])
def either(request: Any) -> Calibrated:
    """Of a cell under autograd, and of one that runs chunks itself."""
    return calibration_of(request.param)


def plan_for(
    found: Calibrated, *, strategies: tuple[str, ...] = ("double",), share: float = 0.3, **changes: Any
) -> Plan:
    """A plan with room for a share of base's tapes; the workload changed."""
    workload = Workload(**{**dict(found.workload), **changes})
    beside = workload.resident_bytes + workload.resident_bytes_per_step * STEPS
    beside += workload.workspace_bytes + workload.chunk_workspace_bytes
    room = beside + int(share * STEPS * workload.tape_bytes)
    return ckptplan.optimize(workload, found.profile, strategies=strategies, local_bytes=room)


def row(found: Validation, quantity: str) -> Row:
    return next(one for one in found.rows if one.quantity == quantity)


@pytest.mark.parametrize("strategy", ["base", "standard", "remote", "hierarchical", "double", "optimal"])
def test_bytes_counts_and_gradients_of_a_right_plan_hold(either: Calibrated, strategy: str) -> None:
    plan = plan_for(either, strategies=(strategy,), share=1 if strategy == "base" else 0.3)
    found = validate(plan, repeats=1, memory_tolerance=0.1)
    for quantity in (*EXACT, "local peak", "gradient difference"):
        assert row(found, quantity).verdict is Verdict.OK, row(found, quantity)
    assert all(row(found, quantity).bias == 0 for quantity in EXACT)
    assert found.not_comparable is None
    assert row(found, "total").measured > 0
    assert row(found, "base").noise is not None


def test_half_the_bytes_of_a_state_are_named(calibrated: Calibrated) -> None:
    state = calibrated.workload.state_bytes
    found = validate(plan_for(calibrated, strategies=("remote",), state_bytes=state // 2), repeats=1)
    assert {"state", "remote peak"} <= set(found.off)
    assert row(found, "state").bias == -0.5
    assert any("another cell" in note for note in found.notes)


def test_a_tape_of_another_size_is_named(calibrated: Calibrated) -> None:
    tape = calibrated.workload.tape_bytes
    found = validate(plan_for(calibrated, tape_bytes=2 * tape), repeats=1)
    assert "checkpoints and tapes" in found.off
    assert row(found, "state").verdict is Verdict.OK


def test_a_hundred_times_the_bandwidth_is_named(calibrated: Calibrated) -> None:
    """Though the plan itself moves next to nothing."""
    profile = calibrated.profile
    wrong = HardwareProfile(
        **{
            **dict(profile),
            "write_bytes_per_second": 100 * profile.write_bytes_per_second,
            "read_bytes_per_second": 100 * profile.read_bytes_per_second,
        }
    )
    plan = ckptplan.optimize(calibrated.workload, wrong, strategies=["remote"])
    assert {"write bandwidth", "read bandwidth"} <= set(validate(plan, repeats=1).off)


def test_a_latency_that_is_wrong_is_named(calibrated: Calibrated) -> None:
    """Whether the plan moves anything or not."""
    wrong = HardwareProfile(
        **{**dict(calibrated.profile), "latency_seconds": 100 * calibrated.profile.latency_seconds}
    )
    plan = ckptplan.optimize(calibrated.workload, wrong, strategies=["base"])
    assert {"write of one state", "read of one state"} <= set(validate(plan, repeats=1).off)


def test_what_does_not_fit_here_is_not_run(calibrated: Calibrated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither base, nor plain BPTT, nor the plan itself: the system would end the process."""
    plan = plan_for(calibrated)
    module = "ckptplan.calibration.torch_backend.available_bytes"
    monkeypatch.setattr(module, lambda _: 2 * plan.predicted.local_peak_bytes)
    big = plan_for(calibrated, resident_bytes_per_step=10**5)
    with pytest.raises(InputError, match=r"plan: needs .* but only"):
        validate(big, repeats=1)
    monkeypatch.setattr(module, lambda _: int(plan.predicted.local_peak_bytes / 0.69))
    found = validate(plan, repeats=1)
    assert all(one.quantity != "base" for one in found.rows)
    assert row(found, "gradient difference").verdict is Verdict.UNCHECKED
    assert any("base needs" in note for note in found.notes)


def test_gradients_are_judged_each_by_the_digits_of_its_type() -> None:
    """A coarse parameter does not excuse a fine one; what is no number is off."""

    def fine(value: float = 1.0) -> Gradient:
        return np.full(3, value), torch.finfo(torch.float32).eps

    def coarse(value: float = 1.0) -> Gradient:
        return np.full(3, value), torch.finfo(torch.bfloat16).eps

    right = [fine(), coarse()]
    assert gradient_row(right, [fine(1 + 1e-4), coarse(1.05)], plain=True).verdict is Verdict.OK
    assert gradient_row(right, [fine(1.01), coarse()], plain=True).verdict is Verdict.OFF
    assert gradient_row([fine()], [fine(float("nan"))], plain=True).verdict is Verdict.OFF
    assert gradient_row([fine()], [fine()], plain=False).verdict is Verdict.UNCHECKED


def test_gradients_that_overflow_in_plain_backpropagation_are_told_of() -> None:
    """Where double precision agrees, single precision differs by rounding only if it has numbers at all."""
    assert "a neuron at its threshold" in explain_difference([(np.ones(3), 1e-7)])
    assert "plain backpropagation are not finite" in explain_difference([(np.array([1, np.inf]), 1e-7)])


def plan_of_other_hardware() -> Plan:
    workload = load_paper_setting().workload.with_batch(2).with_neurons(64).with_steps(40)
    return ckptplan.optimize(workload, ckptplan.load_profile("nvidia-h200"), strategies=["remote", "base"])


def test_of_a_plan_for_other_hardware_only_counts_bytes_and_gradients_are_compared() -> None:
    """Nothing is timed, not for the regret either, and this is said before anything runs."""
    told: list[str] = []
    found = validate(plan_of_other_hardware(), repeats=3, regret=True, tell=told.append)
    assert found.off == found.noisy == []
    assert found.not_comparable is not None
    assert row(found, "local peak").verdict is Verdict.OTHER_MACHINE
    assert row(found, "gradient difference").verdict is Verdict.OK
    assert {one.unit for one in found.rows} <= {"bytes", "count", "share"}
    assert (found.regret, found.repeats) == (None, 0)
    assert "times cannot be compared here: its times were not measured" in told[0]
    assert told[1].startswith("4 runs, ")
    assert any("regret was not measured" in one for one in found.notes)


def test_a_validation_that_would_take_too_long_is_refused_with_the_estimate_and_the_ways_out() -> None:
    with pytest.raises(InputError, match=r"max_seconds: 4 runs of 40 steps take .*limit is 1e-06 s") as error:
        validate(plan_of_other_hardware(), max_seconds=1e-6)
    spare = r"max_seconds=\d+ \(half as much again, as estimates may be off\)"
    assert re.search(f"{spare}, or a plan for at most 1 steps, a smaller batch", str(error.value))


def test_a_validation_of_long_steps_is_refused_before_a_schedule_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """After two steps that run forward."""
    monkeypatch.setattr(TorchProgram, "_run", lambda *_, **__: pytest.fail("a schedule ran"))
    monkeypatch.setattr(rounds, "_LONG_STEP", 0.0)
    with pytest.raises(InputError, match=r"max_seconds: 4 runs of 40 steps take .*limit is 1e-06 s"):
        validate(plan_of_other_hardware(), max_seconds=1e-6)


def test_times_may_take_ten_minutes_unless_another_limit_is_given(
    calibrated: Calibrated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What calibrated times say is known at once: nothing runs first."""

    def run(*_: object, **__: object) -> None:
        raise AssertionError("a step ran")

    monkeypatch.setattr(TorchBackend, "pilot", run)
    plan = plan_for(calibrated)
    with pytest.raises(InputError, match="max_seconds: 12 runs of 120 steps"):
        validate(plan, repeats=1, max_seconds=1e-6)
    rounds = int(9000 / plan.predicted.seconds)
    with pytest.raises(InputError, match=r"runs of 120 steps take about .* and the limit is 600 s"):
        validate(plan, repeats=rounds)


def test_ctrl_c_leaves_what_was_compared_before(
    calibrated: Calibrated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds that were not completed do not count; before the first row there is nothing to show."""
    plan = plan_for(calibrated)
    measure = TorchProgram.seconds

    def stop(*_: Any, **__: Any) -> float:
        raise KeyboardInterrupt

    def stop_after(number: int) -> Any:
        left = iter(range(number))
        return lambda *one, **more: measure(*one, **more) if next(left, None) is not None else stop()

    # A round is the plan and base, and the first warms up.
    for completed, repeats in ((2 * 3 + 1, 2), (1, 0)):
        monkeypatch.setattr(TorchProgram, "seconds", stop_after(completed))
        found = validate(plan, repeats=4)
        assert (found.interrupted, found.repeats) == (True, repeats)
        assert ("total" in [one.quantity for one in found.rows]) == bool(repeats)
        assert "the rest was not measured" in shown_table(found)
        assert view_validation(found).document()["holds"] is False
    monkeypatch.undo()
    monkeypatch.setattr(TorchProgram, "counted", stop)
    with pytest.raises(KeyboardInterrupt):
        validate(plan, repeats=1)


def test_bytes_of_many_units_are_those_of_all_of_them() -> None:
    workload = ckptplan.load_workload("paper-snn").with_batch(2).with_steps(20)
    plan = ckptplan.optimize(workload, ckptplan.load_profile("ipu-mk2"), strategies=["standard"])
    found = validate(plan, repeats=1)
    assert row(found, "state").measured == 2 * 2944 * 4
    assert found.off == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"timed_on": "other", "operations": None}, "its times belong to other"),
        # Those of another machine are estimated from the operations of a step.
        ({"timed_on": "other"}, "not measured by `ckptplan calibrate`"),
        ({"calibration": None}, "not measured by `ckptplan calibrate`"),
    ],
)
def test_why_times_are_not_compared(calibrated: Calibrated, changes: dict[str, Any], told: str) -> None:
    found = validate(plan_for(calibrated, **changes), repeats=1)
    assert told in str(found.not_comparable)


def test_another_machine_or_number_of_threads_is_not_the_same(calibrated: Calibrated) -> None:
    workload = calibrated.workload
    assert workload.calibration is not None
    elsewhere = workload.calibration.model_copy(update={"machine": "another one"})
    found = validate(plan_for(calibrated, calibration=elsewhere), repeats=1)
    assert "another machine (another one" in str(found.not_comparable)
    assert "runs with 2" in str(validate(plan_for(calibrated), repeats=1, thread_count=2).not_comparable)


def test_the_regret_is_over_all_that_could_have_been_chosen(calibrated: Calibrated) -> None:
    plan = plan_for(calibrated, strategies=("standard", "remote", "double", "base"))
    found = validate(plan, repeats=2, regret=True).regret
    assert found is not None
    names = [name for one in found.contenders for name in (one.strategy, *one.same)]
    assert sorted(names) == ["double", "remote", "standard"]
    ratios = [mine / best for mine, best in zip(found.own.seconds, found.best.seconds, strict=True)]
    assert found.row.measured == pytest.approx(sum(ratios) / 2)
    assert all(one.row.verdict in (Verdict.OK, Verdict.OFF, Verdict.NOISY) for one in found.contenders)


def test_base_runs_once_where_it_is_a_rival_too(calibrated: Calibrated) -> None:
    plan = ckptplan.optimize(
        calibrated.workload,
        calibrated.profile,
        strategies=("standard", "base"),
        objective="memory",
        local_bytes=2**40,
    )
    assert plan.strategy == "standard"
    told: list[str] = []
    alone, together = (
        validate(plan, repeats=1, regret=regret, tell=told.append).regret for regret in (False, True)
    )
    runs = [line.partition(" runs, ")[0] for line in told if " runs, " in line]
    assert runs[0] == runs[1]
    assert alone is None
    assert together is not None
    assert sorted(one.strategy for one in together.contenders) == ["base", "standard"]


def test_without_a_choice_there_is_no_regret(calibrated: Calibrated) -> None:
    with pytest.raises(InputError, match="there was no choice"):
        validate(plan_for(calibrated), regret=True)


def test_a_calibration_without_the_costs_of_actions_is_told(calibrated: Calibrated) -> None:
    """They count as 0, so that its times are not compared."""
    calibration = calibrated.workload.calibration
    assert calibration is not None
    free: dict[str, Any] = dict.fromkeys(ACTION_TIMES, 0.0)
    earlier = calibration.model_copy(update={"shortest_chunk": 1000, "chunk_overhead_seconds": 0.001})
    found = validate(plan_for(calibrated, calibration=earlier, **free), repeats=1)
    assert "count as 0; calibrate again" in str(found.not_comparable)
    assert row(found, "gradient difference").verdict is Verdict.OK
    assert all(one.unit != "seconds" for one in found.rows)


def test_the_costs_of_actions_are_judged_as_kinds_of_their_own(calibrated: Calibrated) -> None:
    """Local saves and loads that are said to take a second are off."""
    slow: dict[str, Any] = dict.fromkeys(ACTION_TIMES, 1.0)
    found = validate(plan_for(calibrated, strategies=("standard",), **slow), repeats=2)
    for quantity in ("save locally", "load locally", "total", "overhead"):
        # Rounds of microseconds may be noisy on a busy machine.
        assert row(found, quantity).verdict in (Verdict.OFF, Verdict.NOISY)
        assert (row(found, quantity).bias or 0) > 0
    assert row(found, "outside the actions").measured >= 0


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
def test_numbers_that_would_leave_nothing_to_compare_are_refused(
    calibrated: Calibrated, numbers: dict[str, Any], field: str
) -> None:
    with pytest.raises(InputError, match=f"^{field}: "):
        validate(ckptplan.optimize(calibrated.workload, calibrated.profile), **numbers)


def test_a_network_in_double_precision_is_a_copy() -> None:
    """Rounding decides whether a neuron at its threshold fires; in double precision that is rare."""
    network = build_network(CellSpec(name="lif", inputs=8, neurons=16), batch=4, device="cpu", seed=0)
    with network.in_double() as double:
        assert {one.dtype for one in double.parameters} == {torch.float64}
        assert {one.dtype for one in network.parameters} == {torch.float32}
        expected = TorchProgram(double, None, steps=20).gradients()
        found = TorchProgram(double, make_schedule("standard", steps=20, chunk_size=6)).gradients()
    for (one, _), (other, _) in zip(expected, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_a_workload_without_batch_cannot_be_run(calibrated: Calibrated) -> None:
    with pytest.raises(InputError, match="has no batch"):
        validate(plan_for(calibrated, batch=None))


def test_another_cell_can_be_run_and_is_found_out(calibrated: Calibrated) -> None:
    found = validate(plan_for(calibrated), cell="gru(inputs=8, neurons=32)", repeats=1)
    assert found.cell == "gru(inputs=8, neurons=32)"
    assert "state" in found.off


class Dropping(torch.nn.Module):
    """Draws random numbers in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(8, 16)

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = self.cell(torch.nn.functional.dropout(x), state)
        return state, state


def test_a_cell_that_draws_random_numbers_draws_the_same_in_plain_backpropagation() -> None:
    torch.manual_seed(0)
    cell = Dropping()
    network = MeasuredNetwork(
        cell=cell,
        state=torch.zeros(4, 16),
        device=torch.device("cpu"),
        make_inputs=lambda steps: torch.randn(steps, 4, 8),
        parameters=tuple(cell.parameters()),
        seed=0,
    )
    for (one, _), (other, _) in zip(
        TorchProgram(network, None, steps=30).gradients(),
        TorchProgram(network, make_schedule("standard", steps=30, chunk_size=7)).gradients(),
        strict=True,
    ):
        assert np.abs(one).max() > 0
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_gradients_that_are_no_numbers_are_off_and_can_be_written_as_json(
    calibrated: Calibrated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TorchProgram, "gradients", lambda *_: [(np.array([math.nan]), 1e-7)])
    plan = plan_for(calibrated)
    found = validate(plan, repeats=1)
    assert row(found, "gradient difference").verdict is Verdict.OFF
    quantities = json.loads(json_text(view_validation(found).document()))["quantities"]
    assert next(one["measured"] for one in quantities if one["quantity"] == "gradient difference") is None


def test_progress_ends_where_it_was_said_to(calibrated: Calibrated) -> None:
    seen: list[tuple[int, int]] = []
    validate(plan_for(calibrated), repeats=2, progress=lambda *one: seen.append(one))
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    # It moves within the first run, which may take long.
    assert len(seen) > 12


def test_the_table_fits_a_terminal_of_eighty_columns(calibrated: Calibrated) -> None:
    plan = plan_for(calibrated, strategies=("standard", "remote", "double", "optimal"))
    shown = shown_table(validate(plan, repeats=2, regret=True))
    # Names are folded where times are wide.
    for text in ("checkpoints", "and tapes", "gradient", "outside", "(chosen)"):
        assert text in shown
    assert "\u2026" not in shown
