"""``ckptplan optimize``: the best plan, and how the other strategies compare."""

from typing import TYPE_CHECKING

from ckptplan.cli import options
from ckptplan.cli.groups import takes_groups
from ckptplan.cli.html import Html, check_html, explained, write_page
from ckptplan.cli.options import JobOptions, OutputOptions, WishOptions
from ckptplan.cli.output import note, write_plan
from ckptplan.cli.wording import as_option, named_by_option

if TYPE_CHECKING:
    from ckptplan.model.plan import Plan
    from ckptplan.planning.ranking import Ranking
    from ckptplan.report.formats import View
    from ckptplan.report.html.page import Page


@takes_groups
def command(*, job: JobOptions, wishes: WishOptions, html: Html = None, output: OutputOptions) -> None:
    """Find the best strategy and its parameters within the memory budget.

    Prints a table; with -o FILE the plan is also written as JSON. With --format json or csv, only
    the plan is written.
    """
    from ckptplan.cli.progress import progress_bar
    from ckptplan.planning.ranking import rank_strategies
    from ckptplan.report.plan import view_plan

    check_html(html)
    options.keep_inputs({"--output": output.file, "--html": html}, job.profile, job.workload)
    with named_by_option(), progress_bar("looking for the optimum") as progress:
        ranked = rank_strategies(options.make_request(job, wishes, progress=progress))
    if ranked.interrupted:
        note("interrupted: the best plan so far, without a bound")
    with explained(html, lambda: ranked.request.case):
        plan = ranked.best()
    view = view_plan(plan, ranked.by_strategy, unsearched=ranked.unsearched, wording=as_option)
    write_plan(plan, view, output, workload=job.workload)
    write_page(html, lambda: _make_page(plan, view, ranked))


def _make_page(plan: "Plan", view: "View", ranked: "Ranking") -> "Page":
    from ckptplan.report.html.pages import make_plan_page

    return make_plan_page(plan, view, ranked.by_strategy(), command=options.command_line())
