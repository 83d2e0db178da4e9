"""A plan as a flat row, with the same columns for every plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptplan.model.plan import Plan
from ckptplan.storage.tables import Columns
from ckptplan.studies.rows import DETAIL_COLUMNS, JOB_COLUMNS, cost_columns


def list_plan_columns() -> Columns:
    """Return the columns of a plan, the same for every plan."""
    return {**JOB_COLUMNS, **cost_columns(), **DETAIL_COLUMNS}


def make_plan_row(plan: Plan) -> dict[str, Any]:
    """Return the cells of a plan's columns; parameters that its strategy lacks are left out."""
    paper: Mapping[str, Any] = dict(plan.predicted.paper or {})
    return {
        "workload": plan.workload.name,
        "profile": plan.profile.name,
        "steps": plan.steps,
        "strategy": plan.strategy,
        **plan.parameters,
        **{key: plan.predicted[key] for key in plan.predicted if key != "paper"},
        "regular": plan.regular,
        "least_seconds": None if plan.bound is None else plan.bound.least_seconds,
        "gap": None if plan.bound is None else plan.bound.gap,
        **{f"paper_{key}": paper.get(key) for key in ("seconds", "overhead", "local_peak_bytes")},
    }
