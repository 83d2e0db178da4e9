"""``ckptplan workloads list|show``: training jobs."""

from typing import Annotated

import typer

from ckptplan.cli.groups import takes_groups
from ckptplan.cli.options import OutputOptions
from ckptplan.cli.output import write_view

app = typer.Typer(help="List and show workloads.", no_args_is_help=True)


@app.command("list")
@takes_groups
def list_(*, output: OutputOptions) -> None:
    """List the built-in workloads."""
    from ckptplan.report.workloads import view_workloads
    from ckptplan.storage.library import list_names
    from ckptplan.storage.workloads import load_workload

    workloads = [load_workload(name) for name in list_names("workloads")]
    write_view(view_workloads(workloads), output)


@app.command("show")
@takes_groups
def show(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME|PATH", help="A built-in name, or a .toml file.")],
    output: OutputOptions,
) -> None:
    """Show every number of a workload, and how it was obtained."""
    from ckptplan.report.workloads import view_workload
    from ckptplan.storage.workloads import load_workload

    workload = load_workload(name)
    write_view(view_workload(workload), output)
