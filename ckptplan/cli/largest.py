"""``ckptplan largest``: how long, how wide and how big a job fits at all."""

from typing import Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.options import Effort, Model, Objective
from ckptplan.cli.output import note, write_view
from ckptplan.cli.wording import as_option, named_by_option
from ckptplan.errors import Infeasible, InputError


def command(
    quantity: Annotated[
        str, typer.Argument(metavar="T|batch|neurons", help="What to make as large as possible.")
    ],
    steps: options.Steps = None,
    profile: options.Profile = "ipu-mk2",
    workload: options.WorkloadName = "paper-snn",
    batch: options.Batch = None,
    neurons: options.Neurons = None,
    local_bytes: options.LocalBytes = None,
    remote_bytes: options.RemoteBytes = None,
    strategies: options.Strategies = None,
    max_overhead: options.MaxOverhead = None,
    effort: options.EffortOption = Effort.quick,
    format_: options.FormatOption = "table",
    output: options.Output = None,
) -> None:
    """Find the largest T, batch or network that fits, for each strategy, with the plan at that value.

    What fits at twenty times base's time helps nobody: set --max-overhead. Exits 3 if nothing fits at all.
    Ctrl-C ends the search with the largest values found so far.
    """
    from ckptplan.cli.progress import progress_bar
    from ckptplan.cost.case import Case
    from ckptplan.report.largest import view_reaches
    from ckptplan.studies.largest import largest

    given = {"T": steps, "batch": batch, "neurons": neurons}
    if given.get(quantity) is not None:
        raise InputError("is what is looked for", field=f"--{quantity}", value=given[quantity])
    options.keep_inputs({"--output": output}, profile, workload)
    with named_by_option():
        task, hardware = options.job(
            steps=steps, batch=batch, neurons=neurons, workload=workload, profile=profile
        )
        wishes = options.wishes(
            strategies=strategies,
            objective=Objective.time,
            model=Model.exact,
            max_overhead=max_overhead,
            local_bytes=local_bytes,
            remote_bytes=remote_bytes,
            effort=effort,
        )
        del wishes["objective"], wishes["model"]
        with progress_bar(f"looking for the largest {quantity}") as progress:
            reaches = largest(quantity, task, hardware, **wishes, progress=progress)
    if any(reach.interrupted for reach in reaches.values()):
        note("interrupted: the largest values found so far")
    view = view_reaches(
        reaches,
        Case(workload=task, profile=hardware),
        quantity=quantity,
        max_overhead=wishes["max_overhead"],
        wording=as_option,
    )
    write_view(view, format_=options.format_by_name(format_, output), output=output)
    if output not in (None, "-"):
        note(f"plans written to {output}")
    if all(reach.plan is None for reach in reaches.values()):
        raise typer.Exit(Infeasible.exit_code)
