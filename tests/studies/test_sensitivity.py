"""Sensitivity: what is planned anew, what is kept, where another strategy is better, how sure a time is."""

from typing import Any

import numpy as np
import pytest

import ckptplan
from ckptplan.cost.case import Case
from ckptplan.errors import InputError
from ckptplan.model.budget import Budget
from ckptplan.paper.setting import load_paper_setting
from ckptplan.planning.request import RESOLUTION, Request
from ckptplan.report.formats import TEXT
from ckptplan.report.sensitivity import view_sensitivity
from ckptplan.strategies.registry import select_strategies
from ckptplan.studies.axes import find_axis
from ckptplan.studies.sensitivity import (
    FACTORS,
    INPUTS,
    SEED,
    Influence,
    Sensitivity,
    _make_answer,
    _select_contenders,
    _vary_times,
    compute_error_bars,
    price_kept,
)
from tests.support import ask

SNN = load_paper_setting().workload
IPU = ckptplan.load_profile("ipu-mk2")


@pytest.fixture(scope="module")
def study() -> Sensitivity:
    return ckptplan.sensitivity(SNN, IPU, strategies="closed")


def influence(study: Sensitivity, name: str) -> Influence:
    return next(one for one in study.influences if one.name == name)


def planned(name: str, factor: float, **wishes: Any) -> ckptplan.Plan | None:
    """What ``optimize`` says with one input scaled."""
    case = find_axis(name).scale(Case(workload=SNN, profile=IPU), factor)
    try:
        return ckptplan.optimize(case.workload, case.profile, strategies=["closed"], **wishes)
    except ckptplan.Infeasible:
        return None


def test_every_input_is_varied_by_every_factor(study: Sensitivity) -> None:
    zero = ("cache", "workspace", "advance", "chunk", "save", "load")
    expected = [name for name in INPUTS if not name.startswith(zero)]
    assert [influence.name for influence in study.influences] == expected
    for one in study.influences:
        assert one.no_effect or tuple(point.factor for point in one.points) == FACTORS


@pytest.mark.parametrize(
    "name",
    ["bandwidth", "recompute-ratio", "forward-seconds", "local-bytes", "tape-bytes", "resident-bytes-per-step"],
)
def test_planned_anew_is_what_optimize_says(name: str, study: Sensitivity) -> None:
    for point in influence(study, name).points:
        plan = planned(name, point.factor)
        if plan is None or point.best is None:
            assert plan is None
            assert point.best is None
        else:
            assert point.best.seconds == pytest.approx(plan.predicted.seconds, rel=RESOLUTION)


def test_costs_of_actions_are_varied_if_there_are_any() -> None:
    costly = ckptplan.Workload(**{**dict(SNN.with_steps(300)), "chunk_seconds": 1e-4, "load_seconds": 1e-6})
    study = ckptplan.sensitivity(costly, IPU, strategies=["standard", "nested"], local_bytes="300 kB")
    assert [one.name for one in study.influences][-2:] == ["chunk-seconds", "load-seconds"]
    dearer = influence(study, "chunk-seconds").points
    assert dearer[0].kept_seconds < study.best.seconds < dearer[-1].kept_seconds


def test_a_kept_plan_costs_what_its_schedule_costs(study: Sensitivity) -> None:
    """Played at the changed costs: its time, and whether it fits."""
    for name in ("transfer-seconds", "recompute-ratio", "state-bytes", "tape-bytes", "local-bytes"):
        for point in influence(study, name).points:
            plan = ckptplan.optimize(SNN, IPU, strategies=["closed"])
            case = find_axis(name).scale(Case(workload=SNN, profile=IPU), point.factor)
            trace = play_at(plan, case)
            assert point.kept_seconds == pytest.approx(trace.seconds)
            assert point.kept_fits == (trace.local_peak_bytes <= case.profile.local_bytes)


def play_at(plan: ckptplan.Plan, case: Case) -> ckptplan.Trace:
    from ckptplan.schedule.simulator import play

    return play(ckptplan.actions(plan), costs=case.costs)


@pytest.mark.parametrize("name", ["growing", "double-growing"])
@pytest.mark.parametrize(("sizes", "factor"), [("state-bytes", 0.5), ("tape-bytes", 2.0), ("tape-bytes", 0.5)])
def test_growing_chunks_that_outgrow_their_checkpoints_are_seen(name: str, sizes: str, factor: float) -> None:
    """Their closed form holds for chunks that grow as fast as checkpoints make room, and no faster."""
    plan = ckptplan.optimize(SNN, IPU, strategies=[name], local_bytes="1 MiB")
    case = find_axis(sizes).scale(Case(workload=SNN, profile=IPU), factor)
    costs = case.costs
    answer = ask(
        costs=Case(workload=SNN, profile=IPU).costs,
        budget=Budget(local_bytes=2**20),
        strategies=tuple(select_strategies([name])),
    ).best()
    assert answer is not None
    peak = play_at(plan, case).local_peak_bytes
    fits = [price_kept(answer, ask(costs=costs, budget=Budget(local_bytes=peak + more)))[1] for more in (0, -1)]
    assert fits == [True, False]


def test_an_input_that_is_zero_has_no_effect(study: Sensitivity) -> None:
    latency = influence(study, "latency")
    assert latency.no_effect == "is zero, which no factor changes"
    assert (latency.points, latency.break_evens) == ((), ())


def test_a_bandwidth_has_no_effect_where_transfers_are_pinned() -> None:
    pinned = ckptplan.HardwareProfile(
        name="pinned", local_bytes=300_000, write_bytes_per_second=1, read_bytes_per_second=1,
        transfer_write_seconds=1e-5, transfer_read_seconds=1e-5, units=1472,
    )  # fmt: skip
    study = ckptplan.sensitivity(SNN.with_steps(300), pinned, strategies=["double", "nested"])
    assert influence(study, "bandwidth").no_effect == "the profile pins the time of a transfer"
    assert influence(study, "transfer-seconds").no_effect is None


def test_on_either_side_of_a_break_even_another_strategy_is_best(study: Sensitivity) -> None:
    """Two per mille to either side, planned by ``optimize``; it is told with its unit."""
    found = [(one, each) for one in study.influences for each in one.break_evens]
    assert {one.name for one, _ in found} >= {"bandwidth", "recompute-ratio", "local-bytes"}
    for one, each in found:
        for factor, strategy in ((each.factor / 1.002, each.below), (each.factor * 1.002, each.above)):
            plan = planned(one.name, factor)
            if strategy is None:
                assert plan is None
            else:
                assert plan is not None
                case = find_axis(one.name).scale(Case(workload=SNN, profile=IPU), factor)
                alone = ckptplan.optimize(case.workload, case.profile, strategies=[strategy])
                assert alone.predicted.seconds <= plan.predicted.seconds * (1 + 2 * RESOLUTION)


def test_a_dearer_transfer_is_a_slower_bandwidth(study: Sensitivity) -> None:
    """The same break-even, seen from both."""
    (slower,) = influence(study, "transfer-seconds").break_evens
    (faster,) = influence(study, "bandwidth").break_evens
    assert slower.factor * faster.factor == pytest.approx(1, rel=2e-3)
    assert (slower.below, slower.above) == (faster.above, faster.below)


def test_error_bars_hold_what_they_say() -> None:
    """Against a plain search for each sample, where choices are close."""
    costs = Case(workload=SNN.with_steps(700), profile=IPU).costs
    budget = Budget(local_bytes=300_000)
    asked = ask(costs=costs, budget=budget, strategies=tuple(select_strategies(["closed"])))
    answer = asked.best()
    assert answer is not None
    bars = compute_error_bars(asked, answer, profile=IPU, share=0.5, samples=60, seed=3)
    random = np.random.default_rng(3)
    names = ("forward_seconds", "backward_seconds", "recompute_seconds", "record_overhead_seconds",
             "write_seconds", "read_seconds")  # fmt: skip
    factors = {name: np.exp(random.uniform(-np.log1p(0.5), np.log1p(0.5), 60)) for name in names}
    factors["message_seconds"] = np.exp(random.uniform(-np.log1p(0.5), np.log1p(0.5), 60))
    times, regrets, others = [], [], 0
    for i in range(60):
        changes = {name: getattr(costs, name) * float(factors[name][i]) for name in factors}
        question = asked.replace(costs=type(costs)(**{**dict(costs), **changes}))
        best = question.best()
        assert best is not None
        seconds = answer.seconds(question.costs)
        times.append(seconds)
        regrets.append(seconds / best.key[0] - 1)
        others += best.strategy.name != answer.strategy.name
    assert bars.low_seconds == pytest.approx(np.quantile(times, 0.05))
    assert bars.high_seconds == pytest.approx(np.quantile(times, 0.95))
    assert bars.regret == pytest.approx(np.quantile(regrets, 0.95), abs=1e-9)
    assert bars.better_chance == pytest.approx(others / 60)
    assert sum(bars.better.values()) == pytest.approx(bars.better_chance)


@pytest.mark.parametrize(
    ("strategies", "local_bytes", "chance"),
    [
        (["remote", "double"], 288_000, 0),  # one tape, chunks of one: double with c = rc is remote
        (["standard", "hierarchical"], 294_720, None),
        (["double", "double-growing"], 288_000, None),
        (["double", "hierarchical"], 300_000, None),
    ],
)
def test_only_what_beats_every_setting_of_the_plans_strategy_is_better(
    strategies: list[str], local_bytes: int, chance: float | None
) -> None:
    """Against the best of each strategy for each sample; what ties is no better."""
    machine = IPU.replace_numbers(
        transfer_write_seconds=2.16e-7,
        transfer_read_seconds=2.16e-7,
        synchronisation_seconds=0,
        latency_seconds=0,
        local_bytes=local_bytes,
    )
    costs = Case(workload=SNN.with_steps(300), profile=machine).costs
    asked = ask(
        costs=costs, budget=Budget(local_bytes=local_bytes), strategies=tuple(select_strategies(strategies))
    )
    answer = asked.best()
    assert answer is not None
    bars = compute_error_bars(asked, answer, profile=machine, share=0.2, samples=80)
    others = 0
    for here in _vary_times(costs, machine, share=0.2, samples=80, seed=SEED):
        best = {one.strategy.name: one.key[0] for one in asked.replace(costs=here).rank()}
        own = best.pop(answer.strategy.name)
        others += any(own > seconds * (1 + 1e-9) for seconds in best.values())
    assert bars.better_chance == pytest.approx(others / 80)
    assert sum(bars.better.values()) == pytest.approx(bars.better_chance)
    assert chance is None or bars.better_chance == chance


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_samples_search_only_what_may_be_best_in_one_of_them(share: float) -> None:
    """Fewer strategies than were asked for, and the best of every sample among them."""
    costs = Case(workload=SNN.with_steps(300), profile=IPU).costs
    asked = ask(
        costs=costs, budget=Budget(local_bytes=300_000), strategies=tuple(select_strategies(["closed"]))
    )
    contenders = _select_contenders(asked, share)
    assert set(contenders) < {answer.strategy.name for answer in asked.rank()}
    for here in _vary_times(costs, IPU, share=share, samples=40, seed=SEED):
        best = asked.replace(costs=here).best()
        assert best is not None
        assert best.strategy.name in contenders


def test_error_bars_are_the_same_each_time() -> None:
    found = [ckptplan.sensitivity(SNN.with_steps(300), IPU, uncertainty="10%").error_bars for _ in range(2)]
    assert found[0] == found[1]
    assert found[0] is not None
    assert found[0].low_seconds < found[0].high_seconds


def test_plans_keep_the_caches_that_are_named() -> None:
    job = ckptplan.load_workload("paper-snn").with_steps(30)
    assert ckptplan.sensitivity(job, IPU, strategies="standard", cache="all").goal.cache == "all"


def test_solved_strategies_are_studied_as_well() -> None:
    study = ckptplan.sensitivity(SNN.with_steps(24), IPU, strategies=["optimal"], local_bytes="224 kB")
    plan = ckptplan.optimize(SNN.with_steps(24), IPU, strategies=["optimal"], local_bytes="224 kB")
    assert isinstance(plan, ckptplan.Plan)
    for point in influence(study, "recompute-ratio").points:
        case = find_axis("recompute-ratio").scale(Case(workload=SNN.with_steps(24), profile=IPU), point.factor)
        assert point.kept_seconds == pytest.approx(play_at(plan, case).seconds)


def test_transfers_beside_compute_are_studied_as_well() -> None:
    h200 = ckptplan.load_profile("nvidia-h200")
    study = ckptplan.sensitivity(
        SNN.with_steps(64), h200, strategies=["double", "nested"], local_bytes="345 MB", uncertainty=0.01
    )
    assert study.error_bars is not None
    assert study.error_bars.low_seconds <= study.best.seconds <= study.error_bars.high_seconds


@pytest.mark.parametrize(
    ("wishes", "error", "message"),
    [
        ({"local_bytes": "300 KiB"}, ckptplan.Infeasible, "fits: needs local_bytes"),
        ({"uncertainty": -1}, InputError, "uncertainty: -1 is negative (accepted: a share above 0 and up to 1"),
        (
            {"uncertainty": "foo"},
            InputError,
            "uncertainty: 'foo' is not a number with a unit (accepted: a share",
        ),
        ({"uncertainty": 0}, InputError, "uncertainty: 0 is out of range (accepted: a share above 0"),
        ({"uncertainty": "101%"}, InputError, "uncertainty: '101%' is out of range"),
        ({"uncertainty": True}, InputError, "uncertainty: True is not a number"),
        ({"uncertainty": float("nan")}, InputError, "uncertainty: nan is not a finite number"),
        ({"model": "papre"}, InputError, "'papre'"),
        ({"strategies": ["doubel"]}, InputError, "Did you mean 'double'?"),
    ],
)
def test_wrong_wishes_are_told(wishes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        ckptplan.sensitivity(SNN, IPU, **wishes)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("workload", "profile", "name", "factors"),
    [
        # A bandwidth is at least one byte a second; a quarter of two is less.
        ({}, {"write_bytes_per_second": 2, "read_bytes_per_second": 2}, "bandwidth", FACTORS),
        ({}, {"write_bytes_per_second": 1, "read_bytes_per_second": 1}, "bandwidth", FACTORS[2:]),
        # Bytes are counted exactly up to 2**62 in all.
        (
            {"state_bytes": 10**18, "tape_bytes": 10**18},
            {"local_bytes": 4 * 10**18},
            "tape-bytes",
            FACTORS[:-1],
        ),
    ],
)
def test_an_input_near_the_end_of_its_range_is_varied_as_far_as_files_may_have_it(
    workload: dict[str, Any], profile: dict[str, Any], name: str, factors: tuple[float, ...]
) -> None:
    job = {
        "name": "edge", "steps": 2, "state_bytes": 1, "tape_bytes": 1, "forward_seconds": 10.0,
        "backward_seconds": 2.0, "recompute_seconds": 3.0, **workload,
    }  # fmt: skip
    machine = {
        "name": "m", "local_bytes": 100, "write_bytes_per_second": 2e10, "read_bytes_per_second": 2e10,
        **profile,
    }  # fmt: skip
    study = ckptplan.sensitivity(ckptplan.Workload(**job), ckptplan.HardwareProfile(**machine))
    found = influence(study, name)
    assert tuple(point.factor for point in found.points) == factors
    assert found.scanned != (0.25, 4.0)
    text = "".join(TEXT.render(view_sensitivity(study)))
    assert ("n/a" in text) == (factors != FACTORS)


@pytest.fixture(scope="module")
def plan() -> ckptplan.Plan:
    """A solved plan, quicker than every closed form beyond doubt."""
    return ckptplan.optimize(SNN.with_steps(4096), IPU)


@pytest.fixture(scope="module")
def default_study(plan: ckptplan.Plan) -> Sensitivity:
    return ckptplan.sensitivity(plan.workload, plan.profile)


def test_the_plan_that_is_varied_is_that_of_optimize(default_study: Sensitivity, plan: ckptplan.Plan) -> None:
    best, compared = default_study.best, default_study.best_compared
    assert (best.strategy, best.seconds) == (plan.strategy, plan.predicted.seconds)
    assert best.strategy in default_study.left_out
    assert not set(default_study.left_out) & set(default_study.goal.strategies)
    assert compared is not None
    assert compared.seconds > best.seconds
    words = "".join(TEXT.render(view_sensitivity(default_study))).split()
    assert f"without {', '.join(default_study.left_out)}" in " ".join(words)


def test_a_plan_is_varied_as_the_workload_and_profile_that_it_is_of(
    default_study: Sensitivity, plan: ckptplan.Plan
) -> None:
    given = ckptplan.sensitivity(plan=plan)
    assert given.best == default_study.best
    assert given.left_out == default_study.left_out
    for mine, other in zip(given.influences, default_study.influences, strict=True):
        assert (mine.name, mine.values) == (other.name, other.values)
        assert [point.kept_seconds for point in mine.points] == [point.kept_seconds for point in other.points]


def test_a_plan_is_kept_although_another_one_is_better() -> None:
    """The plan of the least memory is slow: replanning for time is quicker at every factor."""
    smallest = ckptplan.optimize(SNN, IPU, objective="memory", strategies=["remote", "standard"])
    study = ckptplan.sensitivity(plan=smallest)
    assert study.best.parameters == dict(smallest.parameters)
    assert study.best.seconds == smallest.predicted.seconds
    assert all(point.change < 0 for point in influence(study, "latency").points if point.change is not None)


@pytest.mark.parametrize("field", ["workload", "profile", "model", "strategies"])
def test_a_plan_does_not_go_together_with_what_it_has_itself(field: str, plan: ckptplan.Plan) -> None:
    values = {"workload": SNN, "profile": IPU, "model": "exact", "strategies": ["base"]}
    with pytest.raises(InputError, match=f"{field}: .*does not go together with a plan"):
        ckptplan.sensitivity(plan=plan, **{field: values[field]})  # type: ignore[arg-type]


def test_a_lead_that_is_concave_is_not_searched_between_its_ends(
    default_study: Sensitivity, plan: ckptplan.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search of every factor finds the same."""
    monkeypatch.setattr("ckptplan.studies.sensitivity._Scan._stays_best", lambda *_: False)
    searched = ckptplan.sensitivity(plan.workload, plan.profile)
    assert searched.influences == default_study.influences


def test_a_solved_plan_that_is_kept_costs_what_its_schedule_costs(plan: ckptplan.Plan) -> None:
    """Where only times or smaller sizes differ, it is not played again."""
    case = Case(workload=plan.workload, profile=plan.profile)
    question = Request.of_plan(plan, command="").question()
    kept = _make_answer(plan, question)
    for name in ("forward-seconds", "state-bytes", "tape-bytes", "resident-bytes", "cache-bytes"):
        for factor in (0.5, 0.9, 1.0, 1.01):
            costs = find_axis(name).scale(case, factor).costs
            totals = kept.strategy.totals(kept.parameters, costs=costs, splits=kept.splits)
            seconds, fits = price_kept(kept, question.replace(costs=costs))
            assert seconds == pytest.approx(totals.seconds, rel=1e-12)
            assert fits == (totals.local_peak_bytes <= (question.goal.local_bytes or 0))
