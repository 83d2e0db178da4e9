"""What every schedule needs of the local memory is listed part by part, with its share."""

from __future__ import annotations

from typing import Any

import pytest

import ckptplan
from ckptplan.cost.case import Case
from ckptplan.report.fields import list_memory
from ckptplan.report.plots.figures import render

#: Its inputs fill a third of 2 GiB.
DIGITS = ckptplan.load_workload("snn-shd")
GPU = ckptplan.load_profile("nvidia-h200")


def list_shares(
    workload: ckptplan.Workload, budget: int, plan: ckptplan.Plan | None = None
) -> dict[str, float]:
    case = Case(workload=workload, profile=GPU)
    table = list_memory(case, budget=budget, headroom=0.0, plan=plan)
    return {str(part): float(share or 0) for part, _, share, _ in table.rows}


def test_the_parts_of_a_plan_fill_its_budget() -> None:
    plan = ckptplan.optimize(DIGITS, GPU, local_bytes="2 GiB")
    shares = list_shares(DIGITS, 2**31, plan)
    assert next(iter(shares)) == "inputs of all steps"
    assert shares["inputs of all steps"] == pytest.approx(716_800_000 / 2**31)
    assert sum(shares.values()) == pytest.approx(1)


def test_without_a_plan_the_rest_is_left_for_one_or_missing() -> None:
    assert list_shares(DIGITS, 2**31)["left for checkpoints, tapes and caches"] == pytest.approx(0.66, abs=0.01)
    assert list_shares(DIGITS, 2**29)["missing"] == pytest.approx(0.35, abs=0.01)


@pytest.mark.parametrize(("memory", "unit", "other"), [("800 kB", "kB", "KiB"), ("624 KiB", "KiB", "kB")])
def test_people_read_sizes_in_the_units_of_the_memory_that_they_gave(
    memory: str, unit: str, other: str
) -> None:
    """In tables and in pictures, also in those that are saved later."""
    wishes: Any = {"steps": 1024, "local_bytes": memory, "strategies": "closed"}
    plan = ckptplan.optimize("paper-snn", "ipu-mk2", **wishes)
    table = str(plan._repr_html_()).partition("</pre>")[0]
    assert f"Local memory of one unit: {memory}" in table
    assert other not in table
    ax = ckptplan.pareto("paper-snn", "ipu-mk2", **wishes).plot()
    render(ax.get_figure(root=True), "png", dots=50)
    words = [ax.get_xlabel(), *(label.get_text() for label in (*ax.get_xticklabels(), *ax.texts))]
    assert f"budget: {memory}" in " ".join(words)
    assert any(word.endswith(f" {unit}") for word in words)
    assert not [word for word in words if other in word]
