"""Commands that plan a job: ``optimize``, ``compare``, ``pareto``, ``largest`` and ``sensitivity``."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import ckptplan
from ckptplan.cli import options
from ckptplan.cli.options import BudgetOptions, JobOptions, LimitOptions, WishOptions, count, option
from ckptplan.cli.output import OutputOptions, PageOptions, PictureOptions, publish
from ckptplan.cli.progress import progress_bar
from ckptplan.errors import InputError, refuse
from ckptplan.model.goal import Model
from ckptplan.report.formats import make_view
from ckptplan.units import parse_bytes

if TYPE_CHECKING:
    from ckptplan.planning.optimize import Ranking


def optimize(*, job: JobOptions, wishes: WishOptions, page: PageOptions, output: OutputOptions) -> None:
    """Find the best strategy and its parameters within the memory budget.

    Prints a table; with -o FILE the plan is also written as JSON. With --format json or csv, only
    the plan is written.
    """
    ranked = _rank(job, wishes)
    plan = ranked.best()
    # The table and the page show the other strategies. JSON and CSV need not wait for them.
    view = make_view(plan, compared=cache(ranked.by_strategy), unsearched=ranked.unsearched)
    interrupted = "only the best plan so far, without a bound" if ranked.interrupted else None
    publish(view, output, page, interrupted=interrupted)


def _rank(job: JobOptions, wishes: WishOptions, *, every: bool = False) -> Ranking:
    """Search for the best plan of a job, or of ``every`` strategy. Raises InputError."""
    from ckptplan.planning.optimize import rank_strategies
    from ckptplan.planning.request import Request

    with progress_bar("looking for the optimum") as progress:
        case = job.load()
        request = Request.of(case.workload, case.profile, **wishes.read(), progress=progress)
        return rank_strategies(request, every=every, keeps_best=True)


def _parse_prices(text: str) -> dict[str, float]:
    """Return prices by the name of the machine, '' for all machines. Raises InputError."""
    prices = {}
    for part in text.split(","):
        name, _, number = part.rpartition("=")
        try:
            prices[name.strip()] = float(number)
        except ValueError:
            accepted = "a number of zero or more, as 2.50, or name=2.50"
            raise refuse(number, "is not a price", accepted=accepted) from None
    return prices


def compare(
    *,
    job: JobOptions,
    wishes: WishOptions,
    regret: Annotated[bool, typer.Option(help="Show how far above the optimum each strategy is.")] = False,
    picture: PictureOptions,
    prices: Annotated[
        list[Any] | None,
        option("PRICES", "Price of an hour: 2.50, or name=2.50,...", "--price-per-hour", parser=_parse_prices),
    ] = None,
    deadline: Annotated[str | None, option("TIME", "Time that the run may take, as '8 h'.")] = None,
    batches: Annotated[int | None, count("Batches of the run (default: one).", most=10**12)] = None,
    output: OutputOptions,
) -> None:
    """Show the best plan of each strategy, or why it has none; exits 3 if none has one.

    With several profiles, compare machines: the best plan on each, its time, the longest sequence, and the
    price of a run. Times of machines that nobody measured are estimated, and say so.
    """
    profiles = job.load_profiles()
    if len(profiles) == 1 and not (prices or deadline or batches or picture.plot):
        ranked = _rank(job, wishes, every=True)
        view = make_view(ranked.by_strategy(), regret=regret)
        interrupted = "only the strategies found so far, without a bound" if ranked.interrupted else None
        publish(view, output, picture, interrupted=interrupted)
        return
    if regret:
        problem = "compares strategies on one machine"
        raise InputError(problem, field="--regret", value=True, accepted="one --profile")
    priced = {name: price for named in prices or () for name, price in named.items()}
    if "" in priced:
        priced = {**dict.fromkeys((profile.name for profile in profiles), priced.pop("")), **priced}
    with progress_bar("looking for the best plan on each machine") as progress:
        comparison = ckptplan.compare_machines(
            job.load_workload(),
            profiles,
            prices=priced,
            deadline=deadline,
            batches=batches or 1,
            **wishes.read(),
            progress=progress,
        )
    publish(make_view(comparison), output, picture)


def pareto(
    *,
    job: JobOptions,
    at: Annotated[
        int | None, option("SIZE", "Pick the best plan within this local memory.", parser=parse_bytes)
    ] = None,
    picture: PictureOptions,
    plot_all: Annotated[bool, typer.Option(help="Draw every strategy in colour.")] = False,
    bounds: LimitOptions,
    objective: options.Objective = "time",
    points: Annotated[int | None, option("NUMBER", "Number of budgets (default: 400).")] = None,
    exact: Annotated[bool, typer.Option(help="List every plan of the front, up to T = 100,000.")] = False,
    resolution: Annotated[str | None, option("SHARE", "Least difference of plans, as '1%'.")] = None,
    output: OutputOptions,
) -> None:
    """Show the front of local memory and time, of each strategy and of all together.

    The default strategies are those of optimize. With --strategies closed, only those whose cost is a closed
    form are compared, which takes a few seconds for a million steps. With --at, the plan is printed, and
    written with -o. Exits with status 3 if no plan fits the budget.
    """
    options.keep_apart({"--local-bytes": bounds.local_bytes, "--at": at})
    wishes = {**bounds.read(), "objective": objective}
    if at is not None:
        # The picture marks this budget, and solved strategies are solved for it.
        wishes["local_bytes"] = at
    case = job.load()
    with progress_bar("solving budget by budget") as progress:
        front = ckptplan.pareto(
            case.workload,
            case.profile,
            **wishes,
            points=points,
            exact=exact,
            resolution=resolution,
            progress=progress,
        )
    if not len(front):
        # No plan keeps the limits of remote memory or overhead. This call raises the reason.
        front.at(2**62)
    plan = None if at is None else front.best
    view = make_view(front, every=plot_all)
    if plan is None:
        publish(view, output, picture)
    else:
        compare_once = cache(partial(ckptplan.compare, case.workload, case.profile, **wishes))
        publish(make_view(plan, compared=compare_once), output)
        picture.draw(view)


def largest(
    *,
    quantity: Annotated[
        Literal["T", "batch", "neurons"],
        typer.Argument(metavar="T|batch|neurons", help="What to make as large as possible."),
    ],
    job: JobOptions,
    limits: LimitOptions,
    deadline: Annotated[str | None, option("TIME", "Time that a batch may take, as '2 min'.")] = None,
    picture: PictureOptions,
    output: OutputOptions,
) -> None:
    """Find the largest T, batch or network that fits, for each strategy, with the plan at that value.

    A job that fits only at twenty times the time of base is of little use: set --max-overhead, or --deadline.
    Exits 3 if nothing fits at all. Ctrl-C ends the search with the largest values found so far.
    """
    given = {"T": job.steps, "batch": job.batch, "neurons": job.neurons}[quantity]
    if given is not None:
        raise InputError(f"cannot be combined with `largest {quantity}`", field=f"--{quantity}", value=given)
    case = job.load()
    with progress_bar(f"looking for the largest {quantity}") as progress:
        reaches = ckptplan.largest(
            quantity, case.workload, case.profile, **limits.read(), deadline=deadline, progress=progress
        )
    is_interrupted = any(reach.interrupted for reach in reaches.values())
    interrupted = "only the largest values found so far" if is_interrupted else None
    publish(make_view(reaches), output, picture, interrupted=interrupted)


def sensitivity(
    *,
    plan: Annotated[str | None, options.PLAN] = None,
    job: JobOptions,
    budgets: BudgetOptions,
    model: Annotated[Model | None, typer.Option(help="As for optimize.")] = None,
    uncertainty: Annotated[str | None, option("SHARE", "Error bars if times are so uncertain: '10%'.")] = None,
    picture: PictureOptions,
    output: OutputOptions,
) -> None:
    """Show how the best plan's time changes with each input, and where another strategy is better.

    Each input is halved, doubled and so on by itself, and the job is planned again; the table compares this
    with the original plan: that of optimize, or PLAN. At scaled inputs, strategies are those that answer at
    once ('closed'), unless --strategies names others.
    """
    wishes = {**budgets.read(), "model": model, "uncertainty": uncertainty}
    if plan is None:
        case = job.load()
        wishes |= {"workload": case.workload, "profile": case.profile}
    else:
        given = {"--T" if name == "steps" else f"--{name}": value for name, value in vars(job).items()}
        options.keep_apart({**given, "PLAN": plan})
        wishes["plan"] = ckptplan.load_plan(plan)
    with progress_bar("varying the inputs") as progress:
        study = ckptplan.sensitivity(**wishes, progress=progress)
    publish(make_view(study), output, picture)
