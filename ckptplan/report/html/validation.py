"""The page of a validation: what was measured beside what was predicted, and the schedule that ran."""

from __future__ import annotations

from ckptplan.calibration.validation import Validation
from ckptplan.model.plan import Plan
from ckptplan.report.formats import View
from ckptplan.report.html.blocks import collect_blocks
from ckptplan.report.html.page import Page, PlanPanel, Section
from ckptplan.report.html.pages import label_plan, name_job, section_of_basis
from ckptplan.report.html.plans import offer_plan, show_plans


def make_validation_page(plan: Plan, found: Validation, view: View, *, command: str = "") -> Page:
    """Return the page of a validation."""
    panel = PlanPanel(plans=show_plans([label_plan(plan)]))
    return Page(
        title=f"Predicted and measured: {name_job(plan.workload, plan.profile)}",
        lede=f"{plan.strategy} with {found.cell}, on {found.machine}.",
        sections=(
            Section(
                name="numbers",
                title="Predicted and measured",
                blocks=(*collect_blocks(view.table), *offer_plan(plan)),
            ),
            Section(name="schedule", title="The schedule as it was predicted", blocks=(panel,)),
            section_of_basis(view),
        ),
        command=command,
    ).tidied()
