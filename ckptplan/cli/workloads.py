"""``ckptplan workloads list|show``: training jobs."""

from typing import Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.options import Format
from ckptplan.cli.output import emit, enveloped

app = typer.Typer(help="List and show workloads.", no_args_is_help=True)


@app.command("list")
def list_(format_: options.FormatOption = Format.table, output: options.Output = None) -> None:
    """List the built-in workloads."""
    from ckptplan.report.workload_table import workload_list, workload_row
    from ckptplan.storage.library import list_names
    from ckptplan.storage.workloads import load_workload

    workloads = [load_workload(name) for name in list_names("workloads")]
    emit(
        format_=format_,
        output=output,
        table=lambda console: workload_list(console, workloads),
        document=lambda: enveloped(
            "workloads", {"workloads": [workload_row(workload) for workload in workloads]}
        ),
        rows=lambda: [workload_row(workload) for workload in workloads],
    )


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|PATH", help="A built-in name, or a .toml file.")],
    format_: options.FormatOption = Format.table,
    output: options.Output = None,
) -> None:
    """Show every number of a workload, and how it was obtained."""
    from ckptplan.report.workload_table import number_rows, workload_document, workload_table
    from ckptplan.storage.workloads import load_workload

    workload = load_workload(name)
    emit(
        format_=format_,
        output=output,
        table=lambda console: workload_table(console, workload),
        document=lambda: enveloped("workload", workload_document(workload)),
        rows=lambda: number_rows(workload),
    )
