"""``ckptplan.pareto``: a sequence of plans; each is the one that ``optimize`` finds within its memory."""

import pickle
from itertools import pairwise
from typing import Any

import pytest

import ckptplan
from ckptplan import Infeasible, InputError, ParetoFront, Plan
from ckptplan.paper.setting import load_paper_setting
from ckptplan.planning.request import RESOLUTION
from ckptplan.recursion import problem as problems

WORKLOAD = load_paper_setting().workload.with_steps(64)
IPU = ckptplan.load_profile("ipu-mk2")


@pytest.fixture(scope="module")
def front() -> ParetoFront:
    return ckptplan.pareto(WORKLOAD, IPU, local_bytes="230 kB")


def test_no_plan_of_the_front_is_beaten_within_its_memory(front: ParetoFront) -> None:
    """Optimize takes it, or a simpler one that cannot be told from it."""
    assert len(front) == len(list(front)) > 20
    for plan in front:
        best = ckptplan.optimize(WORKLOAD, IPU, local_bytes=plan.predicted.local_peak_bytes)
        assert best.predicted.seconds * (1 - RESOLUTION) <= plan.predicted.seconds <= best.predicted.seconds
        named = ckptplan.compare(
            WORKLOAD, IPU, strategies=[plan.strategy], local_bytes=plan.predicted.local_peak_bytes
        )[plan.strategy]
        assert isinstance(named, Plan)
        assert (named.parameters, named.predicted) == (plan.parameters, plan.predicted)


def test_memory_rises_and_time_falls_along_the_front(front: ParetoFront) -> None:
    for one, other in pairwise(front):
        assert one.predicted.local_peak_bytes < other.predicted.local_peak_bytes
        assert one.predicted.seconds > other.predicted.seconds


def test_columns_are_those_of_the_plans(front: ParetoFront) -> None:
    for place, plan in enumerate(front):
        assert plan.predicted.seconds == front.seconds[place]
        assert plan.predicted.overhead == pytest.approx(front.overhead[place])
        assert plan.predicted.local_peak_bytes == front.local_peak_bytes[place]
        assert plan.predicted.remote_peak_bytes == front.remote_peak_bytes[place]
        assert plan.strategy == front.strategies[place]
        assert {name: value for name, column in front.parameters.items() if (value := column[place])} == dict(
            plan.parameters
        )


def test_plans_of_the_front_are_played_at_their_cost(front: ParetoFront) -> None:
    for plan in front[::7]:
        trace = ckptplan.simulate(plan)
        assert trace.local_peak_bytes == plan.predicted.local_peak_bytes
        assert trace.seconds == pytest.approx(plan.predicted.seconds)


def test_it_is_a_sequence(front: ParetoFront) -> None:
    assert front[-1] == front[len(front) - 1]
    assert front[-1].strategy == "base"
    assert front[2:5] == [front[2], front[3], front[4]]
    with pytest.raises(IndexError, match="no point 1000"):
        front[1000]


def test_at_picks_the_quickest_within_a_budget(front: ParetoFront) -> None:
    plan = front.at("230 kB")
    assert plan == front.best
    assert plan.goal.local_bytes == 230_000
    best = ckptplan.optimize(WORKLOAD, IPU, local_bytes="230 kB")
    assert (plan.strategy, plan.parameters, plan.predicted) == (best.strategy, best.parameters, best.predicted)


@pytest.mark.parametrize("steps", [64, 300])
def test_a_point_is_the_plan_within_its_memory(steps: int) -> None:
    """Of schedules that cost the same, too: a table and what ``at`` returns have the same decisions."""
    found = ckptplan.pareto(WORKLOAD.with_steps(steps), IPU)
    points = [found[place] for place, name in enumerate(found.strategies) if name == "optimal"]
    assert len(points) > 5
    for point in points:
        plan = found.at(point.predicted.local_peak_bytes)
        assert (plan.parameters, plan.splits) == (point.parameters, point.splits)


def test_the_knee_is_that_of_optimize(front: ParetoFront) -> None:
    knee = ckptplan.optimize(WORKLOAD, IPU, objective="balanced", local_bytes="230 kB")
    assert front.knee.predicted == knee.predicted


def told_of_local_bytes(plan: Plan) -> tuple[str, str]:
    (entry,) = [entry for entry in plan.estimate_basis if entry.field == "profile.local_bytes"]
    return entry.kind, entry.text


def test_a_plan_of_the_front_says_that_its_budget_is_its_own_peak() -> None:
    """Nobody sets a budget for a point of a front, whatever budget the front was asked for with."""
    for plain in (ckptplan.pareto(WORKLOAD, IPU), ckptplan.pareto(WORKLOAD, IPU, local_bytes="230 kB")):
        for plan in (plain[0], plain[-1], *plain[3:5], plain.by_strategy["standard"][0]):
            assert plan.goal.local_bytes == plan.predicted.local_peak_bytes
            kind, text = told_of_local_bytes(plan)
            assert (kind, "own peak" in text) == ("derived", True)


def test_a_plan_within_a_budget_says_who_set_it(front: ParetoFront) -> None:
    caller = ("stated", "budget set by the caller")
    assert told_of_local_bytes(front.at("300 kB")) == caller
    assert told_of_local_bytes(front.best) == told_of_local_bytes(front.knee) == caller
    for plan in (ckptplan.pareto(WORKLOAD, IPU).best, ckptplan.pareto(WORKLOAD, IPU).knee):
        assert plan.goal.local_bytes == IPU.local_bytes
        assert str(IPU.sources["local_bytes"].source) in told_of_local_bytes(plan)[1]


def test_where_no_plan_is_within_a_budget_it_says_what_would_help(front: ParetoFront) -> None:
    with pytest.raises(Infeasible) as raised:
        front.at("100 KiB")
    assert raised.value.binding == "local_bytes"
    assert raised.value.need == front.local_peak_bytes[0]
    assert raised.value.suggestions
    missing = front.by_strategy["base"].lacks("230 kB")
    assert missing is not None
    assert missing.subject == "base does not fit"
    assert front.lacks("230 kB") is None


def test_a_budget_below_the_whole_front_has_neither_best_nor_knee() -> None:
    front = ckptplan.pareto(WORKLOAD, IPU, local_bytes="100 KiB")
    assert front.knee_place is None
    for name in ("best", "knee"):
        with pytest.raises(Infeasible):
            getattr(front, name)


def test_a_limit_of_remote_memory_or_overhead_holds_on_the_whole_front() -> None:
    some = ckptplan.pareto(WORKLOAD, IPU, strategies="double,remote", remote_bytes="10 MB")
    assert max(plan.predicted.remote_peak_bytes for plan in some) <= 10_000_000
    quick = ckptplan.pareto(WORKLOAD, IPU, max_overhead="20%")
    assert quick.overhead.max() <= 0.2
    assert len(quick) < len(ckptplan.pareto(WORKLOAD, IPU))


def test_by_strategy_each_front_has_its_own_plans_alone(front: ParetoFront) -> None:
    for name, one in front.by_strategy.items():
        assert {plan.strategy for plan in one[:3]} == {name}
        assert set(one.local_peak_bytes[one.places_of(name)]) == set(one.local_peak_bytes)
        on_front = front.places_of(name)
        assert len(on_front) == front.strategies.count(name)


@pytest.mark.parametrize("name", ["optimal", "bptt-msm"])
def test_a_solved_strategy_has_the_quickest_plan_of_every_budget(name: str) -> None:
    """Few levels of memory: all are solved, and no plan between two of them is quicker than the lower one."""
    workload = WORKLOAD.with_steps(16)
    front = ckptplan.pareto(workload, IPU, strategies=[name])
    # Only of the optimum is it proved that no schedule is quicker, and where messages cost nothing.
    free = ckptplan.HardwareProfile(**{**dict(IPU), "synchronisation_seconds": 0, "sources": {}})
    assert ckptplan.pareto(workload, free, strategies=[name]).exact == (name == "optimal")
    least, most = int(front.local_peak_bytes[0]), int(front.local_peak_bytes[-1])
    for budget in range(least, most + 1, 480):
        best = ckptplan.optimize(workload, IPU, strategies=[name], local_bytes=budget)
        assert front.at(budget).predicted.seconds == best.predicted.seconds


def test_a_long_sequence_has_schedules_for_every_budget_the_wanted_one_among_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(problems.WORK, "quick", 64**2 * 10)
    told: list[tuple[int, int]] = []
    front = ckptplan.pareto(
        WORKLOAD,
        IPU,
        strategies=["optimal"],
        local_bytes="230 kB",
        progress=lambda done, total: told.append((done, total)),
    )
    assert not front.exact
    done = [work for work, _ in told]
    assert done == sorted(done)
    assert len(done) > 5
    best = ckptplan.optimize(WORKLOAD, IPU, strategies=["optimal"], local_bytes="230 kB")
    assert front.best.predicted == best.predicted
    assert front.best.splits == best.splits
    # Where its own schedules are slower, it has those of other strategies.
    closed = ckptplan.pareto(WORKLOAD, IPU, strategies="closed")
    for place, budget in enumerate(closed.local_peak_bytes.tolist()):
        within = front.place_within(budget)
        assert within is not None
        assert front.seconds[within] <= closed.seconds[place]


#: Sizes with a common unit, without one, and a sequence of which no table holds the whole.
SIZES = [(40, 800, 2400, 0.0), (3000, 800, 800, 0.0), (900, 700, 2300, 0.001), (60, 1000, 999, 0.0)]


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "state", "tape", "latency"), SIZES)
def test_no_plan_is_faster_than_the_bound_within_its_memory(
    steps: int, state: int, tape: int, latency: float
) -> None:
    """Where the front was solved, the plan of ``optimize`` is its point; elsewhere it is above the bound."""
    workload = ckptplan.Workload(
        name="random", steps=steps, state_bytes=state, tape_bytes=tape,
        forward_seconds=1, backward_seconds=2, recompute_seconds=1,
    )  # fmt: skip
    profile = ckptplan.HardwareProfile(
        name="random", local_bytes=12 * tape, remote_bytes=None, latency_seconds=latency,
        write_bytes_per_second=state / 9, read_bytes_per_second=state / 9,
    )  # fmt: skip
    front = ckptplan.pareto(workload, profile, strategies="closed,optimal")
    assert (front.least_seconds > 0).all()
    assert (front.least_seconds <= front.seconds).all()
    solved = set(front.places_of("optimal").tolist())
    assert solved
    for place in sorted({0, *range(1, len(front), max(1, len(front) // 5)), len(front) - 1}):
        budget = int(front.local_peak_bytes[place])
        best = ckptplan.optimize(workload, profile, strategies="closed,optimal", local_bytes=budget)
        seconds = best.predicted.seconds
        assert seconds >= front.least_seconds[place] * (1 - 1e-9)
        assert seconds * (1 - RESOLUTION) <= front.seconds[place]
        if front.strategies[place] == "optimal" and best.strategy == "optimal":
            assert seconds == front.seconds[place] or budget not in front.bounds.local_bytes


def test_a_front_without_optimal_has_no_bound() -> None:
    assert not ckptplan.pareto(WORKLOAD, IPU, strategies="closed").least_seconds.any()


@pytest.mark.parametrize(
    "wishes", [{"strategies": "nested", "resolution": "1%"}, {"strategies": "disk-revolve", "points": 40}]
)
def test_where_points_are_left_out_a_plan_is_searched_for(wishes: dict[str, Any]) -> None:
    """A budget between two listed points, or just below the first one, has the plan that ``optimize`` finds."""
    workload = WORKLOAD.with_steps(1500)
    front = ckptplan.pareto(workload, IPU, **wishes)
    assert not front.exact
    for budget in (391_700, 395_000, 400_000, int(front.local_peak_bytes[0])):
        best = ckptplan.optimize(workload, IPU, strategies=wishes["strategies"], local_bytes=budget)
        assert front.at(budget).predicted == best.predicted
        assert front.lacks(budget) is None
    knee = ckptplan.optimize(workload, IPU, strategies=wishes["strategies"], objective="balanced")
    assert front.knee.predicted == knee.predicted


def test_a_budget_that_is_no_size_is_refused(front: ParetoFront) -> None:
    with pytest.raises(InputError, match="local_bytes: 'foo' is not a number"):
        front.at("foo")


@pytest.mark.slow
def test_a_very_long_sequence_has_points_that_stand_for_others() -> None:
    front = ckptplan.pareto(WORKLOAD.with_steps(10**9), ckptplan.load_profile("cpu-nvme"), strategies="paper")
    assert front.at_budgets
    assert not front.exact
    assert 100 < len(front) <= 400


@pytest.mark.parametrize("named", ["closed", None])
def test_a_front_at_budgets_has_the_plan_of_each_and_says_what_lies_between(named: str | None) -> None:
    job, machine = ckptplan.load_workload("gru").with_steps(600), ckptplan.load_profile("ipu-mk2")
    wishes: dict[str, Any] = {"strategies": named, "local_bytes": "500 KiB"}
    few, exact = (
        ckptplan.pareto(job, machine, points=24, **wishes),
        ckptplan.pareto(job, machine, exact=True, **wishes),
    )
    assert len(few) <= 24 < len(exact)
    assert few.at_budgets
    assert not exact.at_budgets
    assert not exact.may_gain.any()
    for front in (few, exact):
        place = front.place_within(500 * 1024)
        assert place is not None
        best = front.best.predicted.seconds
        assert front.seconds[place] <= best <= front.seconds[place] / (1 - RESOLUTION)
    for place, local_bytes in enumerate(few.local_peak_bytes.tolist()):
        same = exact.place_within(local_bytes)
        assert same is not None
        assert few.seconds[place] == pytest.approx(exact.seconds[same], rel=RESOLUTION)
        plan = ckptplan.optimize(job, machine, **{**wishes, "local_bytes": local_bytes})
        assert few.at(local_bytes).predicted == plan.predicted
        end = few.local_peak_bytes[place + 1] - 1 if place + 1 < len(few) else local_bytes
        between = exact.place_within(int(end))
        assert between is not None
        assert exact.seconds[between] >= few.seconds[place] * (1 - few.may_gain[place]) * (1 - RESOLUTION)


def test_points_exact_and_resolution_exclude_each_other() -> None:
    for wishes in (
        {"points": 1},
        {"points": 10**6},
        {"points": 40, "exact": True},
        {"resolution": 0, "exact": True},
    ):
        with pytest.raises(InputError, match="points"):
            ckptplan.pareto(WORKLOAD, IPU, **wishes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("steps", "resolution", "message"),
    [
        (64, "70%", "resolution: 70% is out of range"),
        (64, "-1%", "negative"),
        (10**9, 0, "resolution: 0 is too fine for 1,000,000,000 steps"),
    ],
)
def test_a_resolution_that_cannot_be_had_is_refused(steps: int, resolution: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ckptplan.pareto(WORKLOAD.with_steps(steps), IPU, resolution=resolution)  # type: ignore[arg-type]


def test_a_front_can_be_pickled(front: ParetoFront) -> None:
    """As work that is spread over processes does; closed forms and solved strategies alike."""
    solved = ckptplan.pareto(WORKLOAD.with_steps(40), IPU, strategies=["optimal"])
    for one in (front, solved):
        copy = pickle.loads(pickle.dumps(one))  # noqa: S301 - its own
        assert [plan.predicted for plan in copy[:5]] == [plan.predicted for plan in one[:5]]


def test_plans_name_all_strategies_that_were_compared(front: ParetoFront) -> None:
    compared = tuple(strategy.name for strategy in front.compared)
    assert front[0].goal.strategies == compared
    for name, own in front.by_strategy.items():
        assert own[0].strategy == name
        assert own[0].goal.strategies == own.at(2**40).goal.strategies == compared
