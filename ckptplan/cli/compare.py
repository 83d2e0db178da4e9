"""``ckptplan optimize``: the best plan. ``ckptplan compare``: each strategy at its best, or each machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptplan.cli import options
from ckptplan.cli.options import JobOptions, MachinesOptions, WishOptions, count, option
from ckptplan.cli.output import (
    OutputOptions,
    PageOptions,
    PictureOptions,
    explained,
    note,
    publish,
    write_plan,
)
from ckptplan.cli.progress import progress_bar
from ckptplan.errors import InputError, refuse

if TYPE_CHECKING:
    from ckptplan.model.profile import HardwareProfile


def optimize(*, job: JobOptions, wishes: WishOptions, page: PageOptions, output: OutputOptions) -> None:
    """Find the best strategy and its parameters within the memory budget.

    Prints a table; with -o FILE the plan is also written as JSON. With --format json or csv, only
    the plan is written.
    """
    from ckptplan.planning.optimize import rank_strategies
    from ckptplan.report.plan import view_plan

    with progress_bar("looking for the optimum") as progress:
        request = options.make_request(job, wishes, progress=progress)
        ranked = rank_strategies(request, keeps_best=True)
    with explained(page.html, lambda: ranked.request.case):
        plan = ranked.best()
    # The table and the page show the other strategies; JSON and CSV do without.
    view = view_plan(plan, cache(ranked.by_strategy), unsearched=ranked.unsearched)
    write_plan(plan, view, output, unnamed=job.workload is None)
    page.draw(view)
    if ranked.interrupted:
        note("only the best plan so far, without a bound")
        raise KeyboardInterrupt


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


@dataclass(frozen=True, kw_only=True)
class MachineOptions(PictureOptions):
    """What is asked about machines, besides their best plans."""

    prices: Annotated[
        list[Any] | None,
        option(
            "PRICES",
            "Price of an hour, for all machines or as name=price, separated by commas.",
            "--price-per-hour",
            parser=_parse_prices,
        ),
    ] = None
    deadline: Annotated[str | None, option("TIME", "Time that the run may take, as '8 h'.")] = None
    batches: Annotated[int | None, count("Batches of the run (default: one).", most=10**12)] = None


def compare(
    *,
    job: MachinesOptions,
    wishes: WishOptions,
    regret: Annotated[bool, typer.Option(help="Show how far above the optimum each strategy is.")] = False,
    machines: MachineOptions,
    output: OutputOptions,
) -> None:
    """Show the best plan of each strategy, or why it has none; exits 3 if none has one.

    With several profiles, compare machines: the best plan on each, its time, the longest sequence, and the
    price of a run. Times of machines that nobody measured are estimated, and say so.
    """
    named = job.profiles
    if len(named) == 1 and not any((machines.prices, machines.deadline, machines.batches, machines.plot)):
        only = JobOptions(**{**vars(job), "profile": named[0]})
        _compare_strategies(only, wishes, machines, output, regret=regret)
        return
    if regret:
        raise InputError(
            "compares strategies on one machine", field="--regret", value=True, accepted="one --profile"
        )
    _compare_machines(job, wishes, machines, output)


def _compare_strategies(
    job: JobOptions, wishes: WishOptions, page: PageOptions, output: OutputOptions, *, regret: bool
) -> None:
    from ckptplan.planning.optimize import rank_strategies
    from ckptplan.report.plan import view_comparison

    with progress_bar("looking for the optimum") as progress:
        request = options.make_request(job, wishes, progress=progress)
        ranked = rank_strategies(request, every=True, keeps_best=True)
    view = view_comparison(ranked.by_strategy(), ranked.request.case, regret=regret)
    publish(view, output, page, unnamed=job.workload is None)
    if ranked.interrupted:
        note("only the strategies found so far, without a bound")
        raise KeyboardInterrupt


def _compare_machines(
    job: MachinesOptions, wishes: WishOptions, machines: MachineOptions, output: OutputOptions
) -> None:
    from ckptplan.report.machines import view_machines
    from ckptplan.storage.toml_files import load_profile
    from ckptplan.studies.machines import compare_machines

    profiles = [load_profile(name) for name in job.profiles]
    with progress_bar("looking for the best plan on each machine") as progress:
        comparison = compare_machines(
            job.load_workload(job.workload),
            profiles,
            prices=_price_machines(machines.prices, profiles),
            deadline=machines.deadline,
            batches=machines.batches or 1,
            **wishes.read(),
            progress=progress,
        )
    publish(view_machines(comparison), output, machines, unnamed=job.workload is None)


def _price_machines(
    given: list[dict[str, float]] | None, profiles: list[HardwareProfile]
) -> dict[str, float] | None:
    """Return the price of an hour by machine, None if no option gives one."""
    if given is None:
        return None
    prices = {name: price for one in given for name, price in one.items()}
    general = prices.pop("", None)
    return prices if general is None else {**{profile.name: general for profile in profiles}, **prices}
