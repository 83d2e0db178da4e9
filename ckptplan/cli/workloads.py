"""``ckptplan workloads list|show|new``: training jobs."""

from typing import Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.cells import write_counted
from ckptplan.cli.completion import complete_workload
from ckptplan.cli.groups import takes_groups
from ckptplan.cli.help import HelpfulCommand, HelpfulGroup
from ckptplan.cli.options import OutputOptions
from ckptplan.cli.output import write_view
from ckptplan.cli.starters import KindOptions, NewCellOptions, ask_for_network, write_network
from ckptplan.cli.wording import option_of
from ckptplan.errors import InputError, quote_value
from ckptplan.units import parse_seconds

app = typer.Typer(cls=HelpfulGroup, help="List, show and make workloads.", no_args_is_help=True)


@app.command("list", cls=HelpfulCommand)
@takes_groups
def list_(*, output: OutputOptions) -> None:
    """List the built-in workloads."""
    from ckptplan.report.inputs import view_workloads
    from ckptplan.storage.library import list_names
    from ckptplan.storage.toml_files import load_workload

    workloads = [load_workload(name) for name in list_names("workloads")]
    write_view(view_workloads(workloads), output)


@app.command("show", cls=HelpfulCommand)
@takes_groups
def show(
    *,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|PATH", help="A built-in name, or a .toml file.", autocompletion=complete_workload
        ),
    ],
    output: OutputOptions,
) -> None:
    """Show every number of a workload, and how it was obtained."""
    from ckptplan.report.inputs import view_workload
    from ckptplan.storage.toml_files import load_workload

    workload = load_workload(name)
    write_view(view_workload(workload), output)


@app.command("new", cls=HelpfulCommand)
@takes_groups
def new(
    *,
    cell: NewCellOptions,
    kind: KindOptions,
    forward_seconds: Annotated[
        str | None, typer.Option("--forward-seconds", metavar="TIME", help="A forward step, as '80 us'.")
    ] = None,
    backward_seconds: Annotated[
        str | None, typer.Option("--backward-seconds", metavar="TIME", help="A backward step (default: twice).")
    ] = None,
    recompute_seconds: Annotated[
        str | None,
        typer.Option("--recompute-seconds", metavar="TIME", help="A step again (default: the same)."),
    ] = None,
    record_overhead_seconds: Annotated[
        str | None,
        typer.Option("--record-overhead-seconds", metavar="TIME", help="What recording adds (default: 0)."),
    ] = None,
    format_: options.FormatOption = "table",
    output: Annotated[
        str,
        typer.Option("-o", "--output", metavar="FILE", help="The workload.", callback=options.named_file),
    ] = "my-workload.toml",
) -> None:
    """Write a workload to plan with at once: of a kind of network (--kind), or of a cell (--cell).

    The sizes of a kind follow by formulas, and its times are estimated for --profile. The sizes of a cell are
    counted, and its times are those of a few steps that are timed once. Times that are given replace both.
    ckptplan calibrate measures them. Without --kind and --cell, questions are asked on a terminal.
    """
    given = {
        "forward_seconds": forward_seconds,
        "backward_seconds": backward_seconds,
        "recompute_seconds": recompute_seconds,
        "record_overhead_seconds": record_overhead_seconds,
    }
    times = {field: _read_time(field, text) for field, text in given.items() if text is not None}
    if cell.cell and kind.kind:
        raise InputError(
            "does not go together with --cell", field="--kind", value=kind.kind, accepted="one of them"
        )
    if cell.cell:
        write_counted(cell, output=output, format_=format_, times=times)
        return
    if not kind.kind:
        cell, kind = ask_for_network(cell, kind)
    write_network(cell, kind, times=times, output=output, format_=format_)


def _read_time(field: str, text: str) -> float:
    """Return the seconds of an option. Raises InputError that names it."""
    option = option_of(field)
    seconds: float = options.parsed(option, parse_seconds, text)
    if seconds < 0 or (seconds == 0 and field != "record_overhead_seconds"):
        raise InputError(
            f"{quote_value(text)} is out of range", field=option, value=text, accepted="more than 0 s"
        )
    return seconds
