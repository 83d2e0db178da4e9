"""``ckptplan optimize``: the best plan, and how the other strategies compare."""

from ckptplan.cli import options
from ckptplan.cli.groups import takes_groups
from ckptplan.cli.options import JobOptions, OutputOptions, WishOptions
from ckptplan.cli.output import note, write_plan
from ckptplan.cli.wording import as_option, named_by_option


@takes_groups
def command(*, job: JobOptions, wishes: WishOptions, output: OutputOptions) -> None:
    """Find the best strategy and its parameters within the memory budget.

    Prints a table; with -o FILE the plan is also written as JSON. With --format json or csv, only
    the plan is written.
    """
    from ckptplan.cli.progress import progress_bar
    from ckptplan.planning.ranking import rank_strategies
    from ckptplan.report.plan import view_plan

    options.keep_inputs({"--output": output.file}, job.profile, job.workload)
    with named_by_option(), progress_bar("looking for the optimum") as progress:
        ranked = rank_strategies(options.make_request(job, wishes, progress=progress))
    if ranked.interrupted:
        note("interrupted: the best plan so far, without a bound")
    plan = ranked.best()
    write_plan(plan, view_plan(plan, ranked.by_strategy, wording=as_option), output)
