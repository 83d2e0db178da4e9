"""``ckptplan compare``: each strategy at its best, side by side."""

from typing import Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.options import Effort, Model, Objective
from ckptplan.cli.output import note, write_view
from ckptplan.cli.wording import as_option, named_by_option
from ckptplan.errors import Infeasible


def command(
    steps: options.Steps = None,
    profile: options.Profile = "ipu-mk2",
    workload: options.WorkloadName = "paper-snn",
    batch: options.Batch = None,
    neurons: options.Neurons = None,
    local_bytes: options.LocalBytes = None,
    remote_bytes: options.RemoteBytes = None,
    strategies: options.Strategies = None,
    objective: options.ObjectiveOption = Objective.time,
    model: options.ModelOption = Model.exact,
    max_overhead: options.MaxOverhead = None,
    effort: options.EffortOption = Effort.quick,
    regret: Annotated[
        bool, typer.Option("--regret", help="Show how far above the optimum each strategy is.")
    ] = False,
    format_: options.FormatOption = "table",
    output: options.Output = None,
) -> None:
    """Show the best plan of each strategy, or why it has none; exits 3 if none has one."""
    from ckptplan.cli.progress import progress_bar
    from ckptplan.cost.case import Case
    from ckptplan.planning.ranking import rank_strategies
    from ckptplan.planning.request import Request
    from ckptplan.report.comparison import view_comparison

    options.keep_inputs({"--output": output}, profile, workload)
    with named_by_option():
        task, hardware = options.job(
            steps=steps, batch=batch, neurons=neurons, workload=workload, profile=profile
        )
        wishes = options.wishes(
            strategies=strategies,
            objective=objective,
            model=model,
            max_overhead=max_overhead,
            local_bytes=local_bytes,
            remote_bytes=remote_bytes,
            effort=effort,
        )
        with progress_bar("looking for the optimum") as progress:
            ranked = rank_strategies(Request.of(task, hardware, **wishes, progress=progress))
    if ranked.interrupted:
        note("interrupted: the strategies found so far, without a bound")
    results = ranked.by_strategy()
    case = Case(workload=task, profile=hardware)
    write_view(view_comparison(results, case, regret=regret, wording=as_option), format_=format_, output=output)
    if all(isinstance(result, Infeasible) for result in results.values()):
        raise typer.Exit(Infeasible.exit_code)
