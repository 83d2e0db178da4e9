"""The application, assembled from its commands."""

from importlib import import_module
from typing import Annotated

import typer

from ckptplan.cli.help import HelpfulCommand, HelpfulGroup
from ckptplan.version import __version__

#: The modules of the commands, and what they are called there, in the order of the help.
COMMANDS = {
    "optimize": ("compare", "optimize"),
    "compare": ("compare", "command"),
    "pareto": ("pareto", "command"),
    "largest": ("largest", "command"),
    "sweep": ("sweep", "command"),
    "sensitivity": ("sensitivity", "command"),
    "calibrate": ("calibrate", "command"),
    "validate": ("validate", "command"),
    "simulate": ("simulate", "command"),
    "schedule": ("simulate", "write_schedule"),
    "report": ("report", "command"),
    "paper": ("paper", "command"),
    "profiles": ("profiles", "app"),
    "workloads": ("workloads", "app"),
    "schema": ("simulate", "print_schema"),
}


def make_app(command: str | None = None) -> typer.Typer:
    """Return the application with all commands; or with one, so that only its modules are imported."""
    app = typer.Typer(
        name="ckptplan",
        help="Plan gradient checkpointing for recurrent and spiking networks under a memory limit.",
        cls=HelpfulGroup,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in COMMANDS if command is None else (command,):
        module, attribute = COMMANDS[name]
        found = getattr(import_module(f"ckptplan.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name, cls=HelpfulCommand)(found)
    return app


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"ckptplan {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Accept the options that precede a command."""
