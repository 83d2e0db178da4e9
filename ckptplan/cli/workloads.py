"""``ckptplan workloads list|show``: training jobs."""

from typing import Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.output import write_view

app = typer.Typer(help="List and show workloads.", no_args_is_help=True)


@app.command("list")
def list_(format_: options.FormatOption = "table", output: options.Output = None) -> None:
    """List the built-in workloads."""
    from ckptplan.report.workloads import view_workloads
    from ckptplan.storage.library import names
    from ckptplan.storage.workloads import load_workload

    workloads = [load_workload(name) for name in names("workloads")]
    write_view(view_workloads(workloads), format_=format_, output=output)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|PATH", help="A built-in name, or a .toml file.")],
    format_: options.FormatOption = "table",
    output: options.Output = None,
) -> None:
    """Show every number of a workload, and how it was obtained."""
    from ckptplan.report.workloads import view_workload
    from ckptplan.storage.workloads import load_workload

    workload = load_workload(name)
    write_view(view_workload(workload), format_=format_, output=output)
