"""Every report takes every kind of result: nothing fits, one point, closed forms, a solved schedule."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

import ckptplan
from ckptplan.cost.case import Case
from ckptplan.errors import Infeasible
from ckptplan.model.plan import Plan
from ckptplan.planning.playback import simulate
from ckptplan.report.formats import json_text
from ckptplan.report.front import draw_front, view_front
from ckptplan.report.infeasible import format_infeasible
from ckptplan.report.largest import view_reaches
from ckptplan.report.plan import view_comparison, view_plan
from ckptplan.report.sensitivity import draw_tornado, view_sensitivity
from ckptplan.report.simulation import view_simulation
from ckptplan.report.sweep import Summary
from ckptplan.storage.tables import Row, csv_text
from ckptplan.studies.largest import Reach
from ckptplan.studies.pareto import ParetoFront
from ckptplan.studies.sensitivity import sensitivity
from ckptplan.studies.sweep import iterate_rows, make_sweep
from tests.report.jobs import JETSON
from tests.report.measured import words_of
from tests.support import told

PROFILE = ckptplan.load_profile("ipu-mk2")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job of few steps, and which strategies it is planned with."""

    strategies: str
    steps: int = 64
    local_bytes: str = "1 GB"
    limits: dict[str, Any] = field(default_factory=dict)

    @property
    def workload(self) -> ckptplan.Workload:
        return ckptplan.load_workload("paper-snn").with_steps(self.steps)

    @property
    def case(self) -> Case:
        return Case(workload=self.workload, profile=PROFILE)

    @property
    def wishes(self) -> dict[str, Any]:
        return {"strategies": self.strategies, "local_bytes": self.local_bytes, **self.limits}


#: One tape at a time cannot be as quick as base, whatever the memory.
INFEASIBLE = Job(strategies="disk-revolve", limits={"max_overhead": 0})
FEASIBLE = {
    "one point": Job(strategies="base"),
    "one point, whose memory geomspace rounds up": Job(strategies="base", steps=4096),
    "closed forms": Job(strategies="closed", local_bytes="230 kB"),
    "a solved schedule": Job(strategies="optimal", steps=12, local_bytes="222 kB"),
}
every_job = pytest.mark.parametrize("job", [INFEASIBLE, *FEASIBLE.values()], ids=["infeasible", *FEASIBLE])
every_feasible_job = pytest.mark.parametrize("job", FEASIBLE.values(), ids=FEASIBLE)


def is_data(document: Any, rows: Iterable[Row]) -> None:
    """Both can be written as JSON, which has no numbers that are none."""
    json.dumps([document, list(rows)], allow_nan=False)


def front_of(job: Job) -> ParetoFront:
    return ckptplan.pareto(job.workload, PROFILE, **job.wishes)


@every_job
def test_front_as_table_and_data(job: Job) -> None:
    front = front_of(job)
    view = view_front(front)
    assert ("that no other" in told(view.blocks())) == (job is not INFEASIBLE)
    header, *rows = csv_text(view.rows()).splitlines()
    assert header.startswith("workload,profile,steps,strategy,chunk_size,")
    assert len(rows) == sum(map(len, front.by_strategy.values()))
    document = json.loads(json_text(view.document()))
    assert len(document["front"]["seconds"]) == len(front)


def test_an_empty_front_says_why() -> None:
    front = front_of(INFEASIBLE)
    assert len(front) == 0
    assert "no plan is quick enough" in told(view_front(front).blocks())
    with pytest.raises(Infeasible, match="max_overhead"):
        draw_front(front)


@every_feasible_job
def test_front_as_picture(job: Job) -> None:
    names = {text.partition(" (")[0] for text in words_of(draw_front(front_of(job)))}
    assert names >= {name for name in front_of(job).by_strategy if len(front_of(job).places_of(name))}


@every_feasible_job
def test_plan_and_simulation(job: Job) -> None:
    plan = ckptplan.optimize(job.workload, PROFILE, **job.wishes)
    results: dict[str, Plan | Infeasible] = {plan.strategy: plan, "another": _missing()}
    view = view_plan(plan, lambda: results)
    assert plan.strategy in told(view.blocks())
    is_data(view.document(), rows := list(view.rows()))
    assert [row["strategy"] for row in rows] == [plan.strategy]
    played = view_simulation(plan, simulate(plan))
    assert "difference" in told(played.blocks())
    is_data(document := played.document(), played.rows())
    assert document["agrees"] is True


def test_a_count_reads_well_for_one() -> None:
    workload = ckptplan.Workload(
        name="short",
        steps=3,
        units=1,
        state_bytes=10,
        tape_bytes=100,
        forward_seconds=1e-6,
        backward_seconds=2e-6,
        recompute_seconds=1e-6,
    )
    plan = ckptplan.optimize(workload, JETSON, strategies=["remote"], local_bytes=250, headroom=0)
    text = told(view_plan(plan, dict).blocks())
    assert "1 step run again" in text
    assert "1 state out, 1 back, in 2 messages" in text


def _missing() -> Infeasible:
    with pytest.raises(Infeasible) as raised:
        ckptplan.optimize(INFEASIBLE.workload, PROFILE, **INFEASIBLE.wishes)
    return raised.value


def test_infeasible_as_message() -> None:
    assert "no plan is quick enough" in format_infeasible(_missing())


@every_job
@pytest.mark.parametrize("regret", [False, True])
def test_comparison(job: Job, regret: bool) -> None:
    results = ckptplan.compare(job.workload, PROFILE, **job.wishes)
    view = view_comparison(results, job.case, regret=regret)
    text = told(view.blocks())
    assert ("too slow" in text) == (job is INFEASIBLE)
    assert all(name in text for name in results)
    is_data(view.document(), rows := list(view.rows()))
    assert [row["strategy"] for row in rows] == list(results)


@every_job
def test_largest(job: Job) -> None:
    reaches: dict[str, Reach] = ckptplan.largest(
        "batch",
        job.workload,
        PROFILE,
        **{**job.wishes, **({"local_bytes": "1 kB"} if job is INFEASIBLE else {})},
    )
    view = view_reaches(reaches, job.case, quantity="batch")
    text = told(view.blocks())
    assert all(name in text for name in reaches)
    is_data(view.document(), rows := list(view.rows()))
    assert [row["strategy"] for row in rows] == list(reaches)
    assert [row["value"] == 0 for row in rows] == [job is INFEASIBLE] * len(reaches)


@every_job
def test_sweep(job: Job) -> None:
    sweep = make_sweep(
        {"T": [job.steps, 2 * job.steps]},
        workloads=job.workload,
        profiles=PROFILE,
        **job.wishes,
    )
    summary = Summary(sweep)
    for rows in iterate_rows(sweep):
        is_data({}, rows)
        summary.add(rows)
    assert f"best of 2: {'nothing fits 2' if job is INFEASIBLE else ''}" in told(summary.blocks())


@every_feasible_job
def test_sensitivity(job: Job) -> None:
    """With hardly more memory than is needed, so that nothing fits at some of the points."""
    plan = ckptplan.optimize(job.workload, PROFILE, **job.wishes)
    tight = {"local_bytes": plan.predicted.local_peak_bytes}
    study = sensitivity(job.workload, PROFILE, uncertainty=0.1, **{**job.wishes, **tight})
    assert any(point.best is None for one in study.influences for point in one.points)
    view = view_sensitivity(study)
    assert f"best: {plan.strategy}" in told(view.blocks())
    is_data(view.document(), view.rows())
    assert words_of(draw_tornado(study))
