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
    report,
    schedule,
    schema,
    sensitivity,
    simulate,
    sweep,
    validate,
    workloads,
)
from ckptplan.cli.help import HelpfulCommand, HelpfulGroup
from ckptplan.version import __version__

app = typer.Typer(
    name="ckptplan",
    help="Plan gradient checkpointing for recurrent and spiking networks under a memory limit.",
    cls=HelpfulGroup,
    no_args_is_help=True,
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
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Accept the options that precede a command."""


app.command("optimize", cls=HelpfulCommand)(optimize.command)
app.command("compare", cls=HelpfulCommand)(compare.command)
app.command("pareto", cls=HelpfulCommand)(pareto.command)
app.command("largest", cls=HelpfulCommand)(largest.command)
app.command("sweep", cls=HelpfulCommand)(sweep.command)
app.command("sensitivity", cls=HelpfulCommand)(sensitivity.command)
app.command("calibrate", cls=HelpfulCommand)(calibrate.command)
app.command("validate", cls=HelpfulCommand)(validate.command)
app.command("simulate", cls=HelpfulCommand)(simulate.command)
app.command("schedule", cls=HelpfulCommand)(schedule.command)
app.command("report", cls=HelpfulCommand)(report.command)
app.command("paper", cls=HelpfulCommand)(paper.command)
app.add_typer(profiles.app, name="profiles")
app.add_typer(workloads.app, name="workloads")
app.command("schema", cls=HelpfulCommand)(schema.command)
