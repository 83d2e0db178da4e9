"""``ckptplan optimize``: the best plan. ``ckptplan compare``: each strategy at its best, or each machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.groups import takes_groups
from ckptplan.cli.html import Html, check_html, explained, write_page
from ckptplan.cli.options import JobOptions, OutputOptions, WishOptions
from ckptplan.cli.output import note, write_plan, write_view
from ckptplan.cli.wording import named_by_option
from ckptplan.errors import Infeasible, InputError, quote_value

if TYPE_CHECKING:
    from ckptplan.model.profile import HardwareProfile


@takes_groups
def optimize(*, job: JobOptions, wishes: WishOptions, html: Html = None, output: OutputOptions) -> None:
    """Find the best strategy and its parameters within the memory budget.

    Prints a table; with -o FILE the plan is also written as JSON. With --format json or csv, only
    the plan is written.
    """
    from ckptplan.cli.progress import progress_bar
    from ckptplan.planning.optimize import rank_strategies
    from ckptplan.report.plan import PlanView

    check_html(html)
    options.keep_inputs({"--output": output.file, "--html": html}, job.profile, job.workload)
    with named_by_option(), progress_bar("looking for the optimum") as progress:
        ranked = rank_strategies(options.make_request(job, wishes, progress=progress))
    if ranked.interrupted:
        note("interrupted: the best plan so far, without a bound")
    with explained(html, lambda: ranked.request.case):
        plan = ranked.best()
    # The table and the page show the other strategies; JSON and CSV do without.
    by_strategy = cache(ranked.by_strategy)
    view = PlanView(plan, by_strategy, unsearched=ranked.unsearched)
    write_plan(plan, view, output, unnamed=job.workload is None)
    if html:
        from ckptplan.report.html.pages import make_plan_page

        write_page(html, lambda: make_plan_page(view))


@dataclass(frozen=True, kw_only=True)
class ComparedJobOptions:
    """A workload on one profile or several."""

    steps: options.Steps = None
    profile: Annotated[
        list[str] | None,
        typer.Option(
            "--profile",
            "--profiles",
            metavar="NAMES|PATHS",
            help="Hardware profiles, separated by commas, or 'all'; several compare machines.",
            autocompletion=options.complete_profile,
        ),
    ] = None
    workload: options.WorkloadName = None
    batch: options.Batch = None
    neurons: options.Neurons = None

    @property
    def profiles(self) -> list[str]:
        """The name of each profile, once."""
        from ckptplan.storage.library import list_names

        given = self.profile or ["ipu-mk2"]
        named = [name for text in given for name in options.split_names(text)]
        if "all" in named:
            named += list_names("hardware_profiles")
        names = list(dict.fromkeys(name for name in named if name != "all"))
        if not names:
            raise InputError("names no machine", field="--profile", value=",", accepted="names, paths or 'all'")
        return names

    def on(self, profile: str) -> JobOptions:
        """Return the job on one profile."""
        return JobOptions(
            steps=self.steps, profile=profile, workload=self.workload, batch=self.batch, neurons=self.neurons
        )


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """What is asked about machines, besides their best plans."""

    price_per_hour: Annotated[
        list[str] | None,
        typer.Option(
            "--price-per-hour",
            metavar="PRICES",
            help="Price of an hour, for all machines or as name=price, separated by commas.",
        ),
    ] = None
    deadline: Annotated[
        str | None,
        typer.Option("--deadline", metavar="TIME", help="Time that the run may take, as '8 h'."),
    ] = None
    batches: Annotated[
        str | None, typer.Option("--batches", metavar="INTEGER", help="Batches of the run (default: one).")
    ] = None
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw the machines, as .png, .svg or .pdf.",
            callback=options.named_file,
        ),
    ] = None
    size: options.PictureSize = "page"

    @property
    def given(self) -> bool:
        """Whether any of these options was given."""
        return any(value for value in (self.price_per_hour, self.deadline, self.batches, self.plot))


@takes_groups
def command(
    *,
    job: ComparedJobOptions,
    wishes: WishOptions,
    regret: Annotated[
        bool, typer.Option("--regret", help="Show how far above the optimum each strategy is.")
    ] = False,
    machines: MachineOptions,
    html: Html = None,
    output: OutputOptions,
) -> None:
    """Show the best plan of each strategy, or why it has none; exits 3 if none has one.

    With several profiles, compare machines: the best plan on each, its time, the longest sequence, and the
    price of a run. Times of machines that nobody measured are estimated, and say so.
    """
    named = job.profiles
    check_html(html)
    files = {"--output": output.file, "--plot": machines.plot, "--html": html}
    options.keep_inputs(files, *named, job.workload)
    if len(named) == 1 and not machines.given:
        _compare_strategies(job.on(named[0]), wishes, output, regret=regret, html=html)
        return
    if regret:
        raise InputError(
            "compares strategies on one machine", field="--regret", value=True, accepted="one --profile"
        )
    _compare_machines(job, named, wishes, machines, output, html=html)


def _compare_strategies(
    job: JobOptions, wishes: WishOptions, output: OutputOptions, *, regret: bool, html: str | None
) -> None:
    from ckptplan.cli.progress import progress_bar
    from ckptplan.planning.optimize import rank_strategies
    from ckptplan.report.plan import ComparisonView

    with named_by_option(), progress_bar("looking for the optimum") as progress:
        ranked = rank_strategies(options.make_request(job, wishes, progress=progress), every=True)
    if ranked.interrupted:
        note("interrupted: the strategies found so far, without a bound")
    results = ranked.by_strategy()
    view = ComparisonView(results, ranked.request.case, regret=regret)
    write_view(view, output, unnamed=job.workload is None)
    if html:
        from ckptplan.report.html.pages import make_comparison_page

        write_page(html, lambda: make_comparison_page(view))
    if all(isinstance(result, Infeasible) for result in results.values()):
        if output.file is not None:
            note(f"ckptplan: no strategy fits: the reasons are in {output.file}")
        raise typer.Exit(Infeasible.exit_code)


def _compare_machines(
    job: ComparedJobOptions,
    named: list[str],
    wishes: WishOptions,
    machines: MachineOptions,
    output: OutputOptions,
    *,
    html: str | None,
) -> None:
    from ckptplan.cli.progress import progress_bar
    from ckptplan.report.machines import MachinesView
    from ckptplan.report.style import picture_format
    from ckptplan.studies.machines import compare_machines

    if machines.plot:
        picture_format(machines.plot, option="--plot")
    profiles = [options.load_profile(name) for name in named]
    with named_by_option():
        workload = options.load_workload(job.workload, steps=job.steps, batch=job.batch, neurons=job.neurons)
        prices = _read_prices(machines.price_per_hour, profiles)
        batches = options.plain_integer(machines.batches or "1", option="--batches", most=10**12)
        with progress_bar("looking for the best plan on each machine") as progress:
            comparison = compare_machines(
                workload,
                profiles,
                prices=prices,
                deadline=machines.deadline,
                batches=batches,
                **wishes.read(),
                progress=progress,
            )
    view = MachinesView(comparison)
    write_view(view, output.by_name(), unnamed=job.workload is None)
    if html:
        from ckptplan.report.html.pages import make_machines_page

        write_page(html, lambda: make_machines_page(view))
    if machines.plot:
        from ckptplan.report.machines_plot import draw_machines
        from ckptplan.report.style import SIZES, save_picture, styled

        with styled(SIZES[machines.size]):
            save_picture(draw_machines(comparison, SIZES[machines.size]), machines.plot, option="--plot")
        note(f"picture written to {machines.plot}")
    if not comparison.fits:
        if output.file is not None:
            note(f"ckptplan: it fits on no machine: the reasons are in {output.file}")
        raise typer.Exit(Infeasible.exit_code)


def _read_prices(texts: list[str] | None, profiles: list[HardwareProfile]) -> dict[str, float] | None:
    """Return the price of an hour by machine, None if no option gives one. Raises InputError."""
    if texts is None:
        return None
    names = [profile.name for profile in profiles]
    general: float | None = None
    prices: dict[str, float] = {}
    for part in [part.strip() for text in texts for part in text.split(",")]:
        name, equals, number = part.rpartition("=")
        if equals and name not in names:
            raise InputError(
                f"{quote_value(name)} is not among the machines",
                field="--price-per-hour",
                value=name,
                accepted=", ".join(names),
            )
        price = _read_price(number)
        if equals:
            prices[name] = price
        else:
            general = price
    return prices if general is None else {**dict.fromkeys(names, general), **prices}


def _read_price(text: str) -> float:
    from ckptplan.studies.machines import MOST_PRICE

    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 <= price <= MOST_PRICE:
        raise InputError(
            f"{quote_value(text)} is not a price",
            field="--price-per-hour",
            value=text,
            accepted="a number of zero or more, as 2.50, or name=2.50",
        )
    return price
