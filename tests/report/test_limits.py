"""Each limit that can be in a plan's way is named in every report."""

from __future__ import annotations

from typing import get_args

import pytest

import ckptplan
from ckptplan.cli.command import as_option, option_of
from ckptplan.cost.case import Case
from ckptplan.errors import Infeasible, Limit
from ckptplan.report.infeasible import LIMITS, format_infeasible
from ckptplan.report.largest import view_reaches
from ckptplan.report.plan import view_comparison
from ckptplan.report.sweep import Summary
from ckptplan.studies.largest import Reach
from ckptplan.studies.sweep import make_sweep
from ckptplan.wording import arguments_as
from tests.support import run, told

every_limit = pytest.mark.parametrize("limit", get_args(Limit))
WORKLOAD = ckptplan.load_workload("paper-snn")
PROFILE = ckptplan.load_profile("ipu-mk2")
CASE = Case(workload=WORKLOAD, profile=PROFILE)


def error(limit: Limit) -> Infeasible:
    return Infeasible(
        binding=limit,
        need=0.5 if limit == "max_overhead" else 4096,
        have=0.25 if limit == "max_overhead" else 2048,
        subject="nothing fits",
        suggestions=[{"change": limit, "value": 4096, "strategy": "double", "overhead": 0.5}],
    )


@every_limit
def test_the_message_tells_what_is_needed_what_there_is_and_the_option(limit: Limit) -> None:
    words = LIMITS[limit]
    with arguments_as(as_option):
        text = format_infeasible(error(limit))
    for part in (
        words.broken,
        words.exact(error(limit).need, have=error(limit).have),
        words.exact(error(limit).have, have=error(limit).have),
        option_of(limit),
    ):
        assert part in text


@every_limit
def test_a_comparison_gives_the_reason(limit: Limit) -> None:
    view = view_comparison({"double": error(limit)}, CASE)
    assert LIMITS[limit].verdict.split("{")[0] in told(view.blocks())
    (row,) = view.rows()
    assert (row["strategy"], row["binding"]) == ("double", limit)


@every_limit
def test_the_largest_value_of_each_strategy_names_what_bounds_it(limit: Limit) -> None:
    reach = Reach(strategy="double", value=0, plan=None, bound_by=limit, proved=True, infeasible=error(limit))
    view = view_reaches({"double": reach}, CASE, quantity="T")
    assert LIMITS[limit].name in told(view.blocks())
    assert view.document()["strategies"]["double"]["bound_by"] == limit
    assert [row["bound_by"] for row in view.rows()] == [limit]


@every_limit
def test_a_sweep_shows_need_and_have_in_the_unit_of_the_limit(limit: Limit) -> None:
    sweep, reason, words = (
        make_sweep({"T": [64]}, workloads=WORKLOAD, profiles=PROFILE),
        error(limit),
        LIMITS[limit],
    )
    summary = Summary(sweep)
    summary.add(
        [
            {
                **dict.fromkeys(sweep.columns),
                "steps": 64,
                "fits": False,
                "binding": limit,
                "need": reason.need,
                "have": reason.have,
            }
        ]
    )
    text = told(summary.blocks())
    assert f"{words.name}: " in text
    assert f"{words.short(reason.need)}, has {words.short(reason.have)}" in text


def test_a_count_reads_well_for_one() -> None:
    assert LIMITS["local_bytes"].exact(1, have=1) == "1 B (1 byte)"
    assert LIMITS["steps"].exact(1, have=1) == "1 step"


def test_no_two_limits_are_confused() -> None:
    assert len({LIMITS[limit].name for limit in LIMITS}) == len(LIMITS)
    assert len({option_of(limit) for limit in LIMITS}) == len(LIMITS)


def test_a_sweep_past_what_a_strategy_can_be_solved_for_says_so() -> None:
    done = run(
        *("sweep", "--over", "T=256,200000", "--strategies", "bptt-msm", "--local-bytes", "25 MiB"),
        *("--jobs", "1"),
        COLUMNS="200",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "solvable length: at most about " in done.stdout
    assert "has 200,000 steps" in done.stdout
