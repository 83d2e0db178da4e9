"""The application, assembled from its commands."""

import re
from collections.abc import Mapping
from importlib import import_module
from inspect import getdoc
from typing import Annotated

import typer

from ckptplan.cli.command import Command, Group, takes_groups
from ckptplan.version import __version__

#: Each command in the order of the help: its module, and its function there.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "optimize": ("compare", "optimize"),
    "compare": ("compare", "compare"),
    "pareto": ("studies", "pareto"),
    "largest": ("studies", "largest"),
    "sweep": ("sweep", "sweep"),
    "sensitivity": ("studies", "sensitivity"),
    "calibrate": ("calibrate", "calibrate"),
    "validate": ("validate", "validate"),
    "simulate": ("plans", "simulate"),
    "schedule": ("plans", "schedule"),
    "report": ("plans", "report"),
    "paper": ("paper", "paper"),
    "profiles list": ("library", "list_profiles"),
    "profiles show": ("library", "show_profile"),
    "profiles check": ("library", "check_profiles"),
    "profiles new": ("starters", "new_profile"),
    "workloads list": ("library", "list_workloads"),
    "workloads show": ("library", "show_workload"),
    "workloads new": ("starters", "new_workload"),
    "schema": ("plans", "schema"),
}
#: What groups of commands are for.
_GROUPS = {
    "": "Plan gradient checkpointing for recurrent and spiking networks under a memory limit.",
    "profiles": "List, show, check and make hardware profiles.",
    "workloads": "List, show and make workloads.",
}
#: One line to try for each command and group, as it is typed; tests run them.
EXAMPLES = {
    "": "ckptplan optimize --T 4096 --profile ipu-mk2",
    "optimize": "ckptplan optimize --T 4096 --profile ipu-mk2 -o plan.json",
    "compare": "ckptplan compare --T 3000 --profile ipu-mk2,nvidia-h200 --strategies paper",
    "pareto": "ckptplan pareto --T 1024 --at '400 KiB'",
    "largest": "ckptplan largest T --max-overhead 20%",
    "sweep": "ckptplan sweep --over T=256:16384:x2 --over batch=30,60,120 -o sweep.csv",
    "sensitivity": "ckptplan sensitivity --T 1024",
    "calibrate": "ckptplan calibrate --cell gru --batch 32 --T 256 --quick -o my-gru.toml",
    "validate": "ckptplan validate plan.json",
    "simulate": "ckptplan simulate plan.json --gantt schedule.png",
    "schedule": "ckptplan schedule plan.json -o schedule.jsonl",
    "report": "ckptplan report plan.json -o report.html",
    "paper": "ckptplan paper --figure 3",
    "profiles": "ckptplan profiles list",
    "profiles list": "ckptplan profiles list --format csv",
    "profiles show": "ckptplan profiles show nvidia-h200",
    "profiles check": "ckptplan profiles check ipu-mk2 nvidia-h200",
    "profiles new": "ckptplan profiles new --like nvidia-h200 --price-per-hour 3.5 -o my-h200.toml",
    "workloads": "ckptplan workloads list",
    "workloads list": "ckptplan workloads list --format csv",
    "workloads show": "ckptplan workloads show paper-snn",
    "workloads new": "ckptplan workloads new --kind lstm --batch 8 --neurons 64 -o my-lstm.toml",
    "schema": "ckptplan schema plan -o plan.schema.json",
}


def make_app(*words: str) -> typer.Typer:
    """Return the application with all commands; or with those that begin so, to import only their modules."""
    groups = {name: _make_group(name) for name in _GROUPS}
    app = groups.pop("")
    app.callback()(_root)
    for path, (module, function) in COMMANDS.items():
        if path.split()[: len(words)] == list(words):
            owner, _, name = path.rpartition(" ")
            command = getattr(import_module(f"ckptplan.cli.{module}"), function)
            # A terminal breaks paragraphs where it ends.
            told = re.sub(r"(?<!\n)\n(?!\n)", " ", getdoc(command) or "")
            add = groups.get(owner, app).command(name, cls=Command, help=told, epilog=_make_epilog(path))
            add(takes_groups(command))
    for name, group in groups.items():
        if group.registered_commands:
            app.add_typer(group, name=name)
    return app


def _make_epilog(path: str) -> str:
    return f"Example: {EXAMPLES[path]}"


def _make_group(name: str) -> typer.Typer:
    return typer.Typer(
        help=_GROUPS[name],
        epilog=_make_epilog(name),
        cls=Group,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


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
