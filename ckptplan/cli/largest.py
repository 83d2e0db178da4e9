"""``ckptplan largest``: the largest T, batch or network that fits."""

from dataclasses import dataclass
from typing import Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.completion import complete_quantity
from ckptplan.cli.groups import takes_groups
from ckptplan.cli.options import BudgetOptions, JobOptions, OutputOptions
from ckptplan.cli.output import note, write_view
from ckptplan.cli.wording import named_by_option
from ckptplan.errors import Infeasible, InputError


@dataclass(frozen=True, kw_only=True)
class LimitOptions(BudgetOptions):
    """Limits that the largest value must keep."""

    max_overhead: options.MaxOverhead = None
    effort: options.Effort = "quick"


@takes_groups
def command(
    *,
    quantity: Annotated[
        str,
        typer.Argument(
            metavar="T|batch|neurons",
            help="What to make as large as possible.",
            autocompletion=complete_quantity,
        ),
    ],
    job: JobOptions,
    limits: LimitOptions,
    output: OutputOptions,
) -> None:
    """Find the largest T, batch or network that fits, for each strategy, with the plan at that value.

    A job that fits only at twenty times the time of base is of little use: set --max-overhead. Exits 3 if
    nothing fits at all. Ctrl-C ends the search with the largest values found so far.
    """
    from ckptplan.cli.progress import progress_bar
    from ckptplan.report.largest import ReachesView
    from ckptplan.studies.largest import largest

    given = {"T": job.steps, "batch": job.batch, "neurons": job.neurons}.get(quantity)
    if given is not None:
        raise InputError(f"cannot be combined with `largest {quantity}`", field=f"--{quantity}", value=given)
    options.keep_inputs({"--output": output.file}, job.profile, job.workload)
    with named_by_option():
        case, wishes = job.load(), limits.read()
        with progress_bar(f"looking for the largest {quantity}") as progress:
            reaches = largest(quantity, case.workload, case.profile, **wishes, progress=progress)
    if any(reach.interrupted for reach in reaches.values()):
        note("interrupted: the largest values found so far")
    view = ReachesView(reaches, case, quantity, wishes["max_overhead"])
    write_view(view, output.by_name(), unnamed=job.workload is None)
    if output.file not in (None, "-"):
        note(f"plans written to {output.file}")
    if all(reach.plan is None for reach in reaches.values()):
        raise typer.Exit(Infeasible.exit_code)
