"""``ckptplan report``: all that is known about a plan, as one page."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptplan.cli import options
from ckptplan.cli.html import check_html, explained, write_page
from ckptplan.cli.options import command_line
from ckptplan.cli.wording import named_by_option

if TYPE_CHECKING:
    from ckptplan.model.plan import Plan
    from ckptplan.model.progress import Progress
    from ckptplan.report.html.page import Page


def command(
    *,
    plan: options.PlanFile,
    output: Annotated[
        str,
        typer.Option("-o", "--output", metavar="FILE", help="The page.", callback=options.named_file),
    ] = "report.html",
) -> None:
    """Write a page about a plan: its schedule, the front around it, its rivals, and its inputs.

    One file that works offline: zoom, hover, click a point of the front to see its schedule. Strategies
    of the front are those that answer at once ('closed').
    """
    from ckptplan.cli.progress import progress_bar
    from ckptplan.storage.plans import load_plan

    options.keep_inputs({"--output": output}, plan)
    check_html(None if output == "-" else output, option="--output")
    planned = load_plan(plan)

    def load() -> Any:
        from ckptplan.cost.case import Case

        return Case(workload=planned.workload, profile=planned.profile)

    with explained(output, load), named_by_option(), progress_bar("planning for the report") as progress:
        page = _make_page(planned, progress)
    write_page(output, lambda: page)


def _make_page(plan: "Plan", progress: "Progress | None") -> "Page":
    """Return the page. Raises Infeasible if the plan's own goal cannot be met."""
    from ckptplan.cost.case import Case
    from ckptplan.errors import Infeasible
    from ckptplan.planning.optimize import rank_strategies
    from ckptplan.planning.request import Request
    from ckptplan.report.front import FrontView
    from ckptplan.report.html.pages import make_report_page
    from ckptplan.report.plan import ComparisonView, PlanView
    from ckptplan.report.sensitivity import SensitivityView
    from ckptplan.studies.pareto import pareto
    from ckptplan.studies.sensitivity import sensitivity

    case = Case(workload=plan.workload, profile=plan.profile)
    request = Request.of_plan(plan, command=command_line(), progress=progress)
    ranked = rank_strategies(request, every=True)
    ranked.best()  # raises the reason, with suggestions, if the goal cannot be met
    results = ranked.by_strategy()
    budgets: dict[str, Any] = {
        "local_bytes": plan.goal.local_bytes,
        "remote_bytes": "unbounded" if plan.goal.remote_bytes is None else plan.goal.remote_bytes,
    }
    front = pareto(plan.workload, plan.profile, **budgets, progress=progress)
    try:
        study = sensitivity(plan.workload, plan.profile, **budgets, progress=progress)
    except Infeasible:
        # Strategies that answer at once may need more memory than the plan.
        study = None
    return make_report_page(
        PlanView(plan, lambda: results),
        front=FrontView(front),
        comparison=ComparisonView(results, case),
        sensitivity=None if study is None else SensitivityView(study),
    )
