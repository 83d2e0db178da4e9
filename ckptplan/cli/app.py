"""The application, assembled from its commands."""

from typing import Annotated

import typer

from ckptplan.cli import (
    calibrate,
    compare,
    largest,
    optimize,
    paper,
    pareto,
    profiles,
    schedule,
    schema,
    sensitivity,
    simulate,
    sweep,
    validate,
    workloads,
)
from ckptplan.version import __version__

app = typer.Typer(
    name="ckptplan",
    help="Plan gradient checkpointing for recurrent and spiking networks under a memory limit.",
    epilog="Try: ckptplan optimize --T 4096 --profile ipu-mk2",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"ckptplan {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Accept the options that precede a command."""


app.command("optimize")(optimize.command)
app.command("compare")(compare.command)
app.command("pareto")(pareto.command)
app.command("largest")(largest.command)
app.command("sweep")(sweep.command)
app.command("sensitivity")(sensitivity.command)
app.command("calibrate")(calibrate.command)
app.command("validate")(validate.command)
app.command("simulate")(simulate.command)
app.command("schedule")(schedule.command)
app.command("paper")(paper.command)
app.add_typer(profiles.app, name="profiles")
app.add_typer(workloads.app, name="workloads")
app.command("schema")(schema.command)
