"""``ckptplan optimize``: the best plan, and why the others are not."""

from ckptplan.cli import options
from ckptplan.cli.options import Effort, Model, Objective
from ckptplan.cli.output import note, write_plan
from ckptplan.cli.wording import as_option, named_by_option


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
    format_: options.FormatOption = "table",
    output: options.Output = None,
) -> None:
    """Find the best strategy and its parameters within the memory budget.

    Prints a table; with -o FILE the plan is also written as JSON. With --format json or csv, only
    the plan is written.
    """
    from ckptplan.cli.progress import progress_bar
    from ckptplan.planning.ranking import rank_strategies
    from ckptplan.planning.request import Request
    from ckptplan.report.plan import view_plan

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
        note("interrupted: the best plan so far, without a bound")
    plan = ranked.best()
    view = view_plan(plan, ranked.by_strategy, wording=as_option)
    write_plan(plan, view, format_=format_, output=output)
