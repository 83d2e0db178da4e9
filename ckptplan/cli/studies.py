"""``ckptplan pareto``, ``largest`` and ``sensitivity``: how the best plan changes with its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ckptplan.cli import options
from ckptplan.cli.options import BudgetOptions, JobOptions, LimitOptions, option
from ckptplan.cli.output import OutputOptions, PictureOptions, explained, note, publish, write_plan
from ckptplan.cli.progress import progress_bar
from ckptplan.errors import Infeasible, InputError
from ckptplan.units import parse_bytes

if TYPE_CHECKING:
    from ckptplan.model.plan import Plan
    from ckptplan.studies.pareto import ParetoFront


def pareto(
    *,
    job: JobOptions,
    at: Annotated[
        int | None, option("SIZE", "Pick the best plan within this local memory.", parser=parse_bytes)
    ] = None,
    picture: PictureOptions,
    plot_all: Annotated[
        bool, typer.Option(help="Draw strategies in colour that are best nowhere, too.")
    ] = False,
    bounds: LimitOptions,
    resolution: Annotated[
        str | None,
        option("SHARE", "Leave out plans that differ by less, as '1%' (default: none, up to 2,000,000 steps)."),
    ] = None,
    output: OutputOptions,
) -> None:
    """Show the front of local memory and time, of each strategy and of all together.

    The default strategies are those of optimize. With --strategies closed, only those whose cost is a closed
    form are compared, which takes a few seconds for a million steps. With --at, the plan is printed, and
    written with -o. Exits 3 if no plan keeps the budget.
    """
    from ckptplan.report.front import view_front
    from ckptplan.report.plan import view_plan

    options.keep_apart({"--local-bytes": bounds.local_bytes, "--at": at})
    with explained(picture.html, job.load):
        front = _find_front(job, {**bounds.read(), "resolution": resolution}, at)
        plan = None if at is None else front.best
    view = view_front(front, every=plot_all)
    if plan is None:
        publish(view, output, picture, unnamed=job.workload is None)
    else:
        write_plan(plan, view_plan(plan, lambda: _rank(front)), output, unnamed=job.workload is None)
        picture.draw(view)


def _find_front(job: JobOptions, wishes: dict[str, Any], at: int | None) -> ParetoFront:
    """Return the front. Raises InputError, and Infeasible if it has no point."""
    from ckptplan.studies.pareto import pareto as find

    case = job.load()
    if at is not None:
        # The budget that the picture marks; strategies that are solved are solved for it, too.
        wishes["local_bytes"] = at
    with progress_bar("solving budget by budget") as progress:
        front = find(case.workload, case.profile, **wishes, progress=progress)
    if not len(front):
        # No plan keeps the limits of remote memory or overhead: asking for one raises the reason.
        front.at(2**62)
    return front


def _rank(front: ParetoFront) -> dict[str, Plan | Infeasible]:
    """Return the plan of each strategy within the budget, the quickest first, then why others have none."""
    from ckptplan.model.plan import Plan

    found = {name: one.lacks(one.budget_bytes) or one.best for name, one in front.by_strategy.items()}
    plans = {name: result for name, result in found.items() if isinstance(result, Plan)}
    ranked = sorted(plans, key=lambda name: plans[name].predicted.seconds)
    return {name: found[name] for name in (*ranked, *(name for name in found if name not in plans))}


def largest(
    *,
    quantity: Annotated[
        Literal["T", "batch", "neurons"],
        typer.Argument(metavar="T|batch|neurons", help="What to make as large as possible."),
    ],
    job: JobOptions,
    limits: LimitOptions,
    output: OutputOptions,
) -> None:
    """Find the largest T, batch or network that fits, for each strategy, with the plan at that value.

    A job that fits only at twenty times the time of base is of little use: set --max-overhead. Exits 3 if
    nothing fits at all. Ctrl-C ends the search with the largest values found so far.
    """
    from ckptplan.report.largest import view_reaches
    from ckptplan.studies.largest import largest as find

    given = {"T": job.steps, "batch": job.batch, "neurons": job.neurons}[quantity]
    if given is not None:
        raise InputError(f"cannot be combined with `largest {quantity}`", field=f"--{quantity}", value=given)
    case, wishes = job.load(), limits.read()
    with progress_bar(f"looking for the largest {quantity}") as progress:
        reaches = find(quantity, case.workload, case.profile, **wishes, progress=progress)
    view = view_reaches(reaches, case, quantity, wishes["max_overhead"])
    publish(view, output, unnamed=job.workload is None)
    if any(reach.interrupted for reach in reaches.values()):
        note("only the largest values found so far")
        raise KeyboardInterrupt


def sensitivity(
    *,
    job: JobOptions,
    budgets: BudgetOptions,
    model: options.Model = "exact",
    uncertainty: Annotated[
        str | None, option("SHARE", "Add error bars: the uncertainty of every time, as '10%'.")
    ] = None,
    picture: PictureOptions,
    output: OutputOptions,
) -> None:
    """Show how the best plan's time changes with each input, and where another strategy is better.

    Each input is halved, doubled and so on by itself, and the job is planned again; the table compares this
    with the original plan. Strategies are those that answer at once ('closed'), unless --strategies names
    others.
    """
    from ckptplan.report.sensitivity import view_sensitivity
    from ckptplan.studies.sensitivity import sensitivity as vary

    with explained(picture.html, job.load), progress_bar("varying the inputs") as progress:
        case = job.load()
        study = vary(
            case.workload,
            case.profile,
            **budgets.read(),
            model=model,
            uncertainty=uncertainty,
            progress=progress,
        )
    publish(view_sensitivity(study), output, picture, unnamed=job.workload is None)
