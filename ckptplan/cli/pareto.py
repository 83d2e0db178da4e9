"""``ckptplan pareto``: the time that more local memory saves."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.groups import takes_groups
from ckptplan.cli.html import Html, check_html, explained, write_page
from ckptplan.cli.options import BudgetOptions, JobOptions, OutputOptions
from ckptplan.cli.output import note, write_plan, write_view
from ckptplan.cli.wording import named_by_option
from ckptplan.errors import Infeasible, InputError

if TYPE_CHECKING:
    from ckptplan.model.plan import Plan
    from ckptplan.report.html.page import Page
    from ckptplan.studies.pareto import ParetoFront


@dataclass(frozen=True, kw_only=True)
class FrontOptions(BudgetOptions):
    """What bounds a front, and how finely it is listed."""

    max_overhead: options.MaxOverhead = None
    resolution: Annotated[
        str | None,
        typer.Option(
            "--resolution",
            metavar="SHARE",
            help="Leave out plans that differ by less, as '1%' (default: none, up to 2,000,000 steps).",
        ),
    ] = None
    effort: options.Effort = "quick"


@takes_groups
def command(
    *,
    job: JobOptions,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="SIZE", help="Pick the best plan within this local memory."),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw the fronts, as .png, .svg or .pdf.",
            callback=options.named_file,
        ),
    ] = None,
    size: options.PictureSize = "page",
    html: Html = None,
    bounds: FrontOptions,
    output: OutputOptions,
) -> None:
    """Show the front of local memory and time, of each strategy and of all together.

    The default strategies are those of optimize. With --strategies closed, only those whose cost is a closed
    form are compared, which takes a few seconds for a million steps. With --at, the plan is printed, and
    written with -o.
    """
    from ckptplan.report.style import picture_format

    if plot:
        picture_format(plot, option="--plot")
    if at is not None and bounds.local_bytes is not None:
        raise InputError(
            "cannot be combined with --at, which is also a budget",
            field="--local-bytes",
            value=bounds.local_bytes,
        )
    check_html(html)
    outputs = {"--output": output.file, "--plot": plot, "--html": html}
    options.keep_inputs(outputs, job.profile, job.workload)
    with explained(html, job.load):
        front = _find(job, bounds, at)
        if at is not None:
            front.best  # noqa: B018 - raises the reason, which the page gives, too
    if at is None:
        _show(front, output.by_name(), job.workload)
    else:
        _pick(front, output, job.workload)
    if plot:
        _draw(front, plot, size)
    write_page(html, lambda: _make_page(front))


def _find(job: JobOptions, bounds: FrontOptions, at: str | None) -> "ParetoFront":
    """Return the front. Raises InputError, and Infeasible if it has no point."""
    from ckptplan.cli.progress import progress_bar
    from ckptplan.studies.pareto import pareto
    from ckptplan.units import parse_bytes

    with named_by_option():
        case, wishes = job.load(), bounds.read()
        if at is not None:
            # The budget that the picture marks; strategies that are solved are solved for it, too.
            wishes["local_bytes"] = options.parsed("--at", parse_bytes, at)
        with progress_bar("solving budget by budget") as progress:
            front = pareto(case.workload, case.profile, **wishes, progress=progress)
    if not len(front):
        # No plan keeps the limits of remote memory or overhead: asking for one raises the reason.
        front.at(2**62)
    return front


def _pick(front: "ParetoFront", output: OutputOptions, workload: str | None) -> None:
    from ckptplan.report.plan import PlanView

    plan = front.best
    write_plan(plan, PlanView(plan, lambda: _rank(front)), output, unnamed=workload is None)


def _rank(front: "ParetoFront") -> "dict[str, Plan | Infeasible]":
    """Return the plan of each strategy within the budget, the quickest first, then why others have none."""
    from ckptplan.model.plan import Plan

    found = {name: one.lacks(one.budget_bytes) or one.best for name, one in front.by_strategy.items()}
    plans = {name: result for name, result in found.items() if isinstance(result, Plan)}
    ranked = sorted(plans, key=lambda name: plans[name].predicted.seconds)
    return {name: found[name] for name in (*ranked, *(name for name in found if name not in plans))}


def _show(front: "ParetoFront", output: OutputOptions, workload: str | None) -> None:
    from ckptplan.report.front import FrontView

    write_view(FrontView(front), output, unnamed=workload is None)
    if output.format != "table" and output.file not in (None, "-"):
        note(f"front written to {output.file}")


def _make_page(front: "ParetoFront") -> "Page":
    from ckptplan.report.front import FrontView
    from ckptplan.report.html.pages import make_front_page

    return make_front_page(FrontView(front))


def _draw(front: "ParetoFront", path: str, size: str) -> None:
    from ckptplan.report.front_plot import draw_front
    from ckptplan.report.style import SIZES, save_picture, styled

    with styled(SIZES[size]):
        save_picture(draw_front(front, SIZES[size]), path, option="--plot")
    note(f"picture written to {path}")
