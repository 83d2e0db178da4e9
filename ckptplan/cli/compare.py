"""``ckptplan compare``: each strategy at its best, side by side."""

from typing import Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.groups import takes_groups
from ckptplan.cli.options import JobOptions, OutputOptions, WishOptions
from ckptplan.cli.output import note, write_view
from ckptplan.cli.wording import as_option, named_by_option
from ckptplan.errors import Infeasible


@takes_groups
def command(
    *,
    job: JobOptions,
    wishes: WishOptions,
    regret: Annotated[
        bool, typer.Option("--regret", help="Show how far above the optimum each strategy is.")
    ] = False,
    output: OutputOptions,
) -> None:
    """Show the best plan of each strategy, or why it has none; exits 3 if none has one."""
    from ckptplan.cli.progress import progress_bar
    from ckptplan.planning.ranking import rank_strategies
    from ckptplan.report.comparison import view_comparison

    options.keep_inputs({"--output": output.file}, job.profile, job.workload)
    with named_by_option(), progress_bar("looking for the optimum") as progress:
        ranked = rank_strategies(options.make_request(job, wishes, progress=progress))
    if ranked.interrupted:
        note("interrupted: the strategies found so far, without a bound")
    results = ranked.by_strategy()
    write_view(view_comparison(results, ranked.request.case, regret=regret, wording=as_option), output)
    if all(isinstance(result, Infeasible) for result in results.values()):
        if output.file is not None:
            note(f"ckptplan: no strategy fits: the reasons are in {output.file}")
        raise typer.Exit(Infeasible.exit_code)
