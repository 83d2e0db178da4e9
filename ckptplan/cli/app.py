"""The application, assembled from its commands."""

import re
from collections.abc import Mapping
from importlib import import_module
from inspect import getdoc
from typing import Annotated

import typer

from ckptplan.cli.command import Command, Group, takes_groups
from ckptplan.version import __version__

#: Each command in the order of the help: its module, its function there, what that imports, and arguments to
#: try; tests run them. Imports come before typer calls the command: deep within typer's calls they take a fifth
#: longer, because CPython's frame stack then crosses the end of a chunk again and again.
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "optimize": ("compare", "optimize", "report.plan", "--T 4096 --profile ipu-mk2 -o plan.json"),
    "compare": (
        "compare",
        "compare",
        "report.plan",
        "--T 3000 --profile ipu-mk2,nvidia-h200 --strategies paper",
    ),
    "pareto": ("studies", "pareto", "studies.pareto", "--T 1024 --at '400 KiB'"),
    "largest": ("studies", "largest", "studies.largest", "T --max-overhead 20%"),
    "sweep": ("sweep", "sweep", "studies.sweep", "--over T=256:16384:x2 --over batch=30,60,120 -o sweep.csv"),
    "sensitivity": ("studies", "sensitivity", "studies.sensitivity", "--T 1024"),
    "calibrate": ("calibrate", "calibrate", "--cell gru --batch 32 --T 256 --quick -o my-gru.toml"),
    "validate": ("validate", "validate", "plan.json"),
    "simulate": ("plans", "simulate", "planning.playback", "plan.json --gantt schedule.png"),
    "schedule": ("plans", "schedule", "planning.playback", "plan.json -o schedule.jsonl"),
    "report": ("plans", "report", "plan.json -o report.html"),
    "paper": ("paper", "paper", "paper.claims", "--figure 3"),
    "profiles list": ("library", "list_profiles", "--format csv"),
    "profiles show": ("library", "show_profile", "nvidia-h200"),
    "profiles check": ("library", "check_profiles", "ipu-mk2 nvidia-h200"),
    "profiles new": ("library", "new_profile", "--like nvidia-h200 --price-per-hour 3.5 -o my-h200.toml"),
    "workloads list": ("library", "list_workloads", "--format csv"),
    "workloads show": ("library", "show_workload", "paper-snn"),
    "workloads new": ("library", "new_workload", "--kind lstm --batch 8 --neurons 64 -o my-lstm.toml"),
    "schema": ("plans", "schema", "plan -o plan.schema.json"),
}
#: What groups of commands are for, and arguments to try.
GROUPS: Mapping[str, tuple[str, str]] = {
    "": (
        "Plan gradient checkpointing for recurrent and spiking networks under a memory limit.",
        "optimize --T 4096 --profile ipu-mk2",
    ),
    "profiles": ("List, show, check and make hardware profiles.", "list"),
    "workloads": ("List, show and make workloads.", "list"),
}


def make_app(*words: str) -> typer.Typer:
    """Return the application with all commands; or with those that begin so, to import only their modules."""
    groups = {name: _make_group(name, *group) for name, group in GROUPS.items()}
    app = groups.pop("")
    app.callback()(_root)
    for path, (module, function, *early, arguments) in COMMANDS.items():
        if path.split()[: len(words)] == list(words):
            if words and early:
                import_module("numpy")
                for one in ("model.plan", *early):
                    import_module(f"ckptplan.{one}")
            owner, _, name = path.rpartition(" ")
            command = getattr(import_module(f"ckptplan.cli.{module}"), function)
            # A terminal breaks paragraphs where it ends.
            told = re.sub(r"(?<!\n)\n(?!\n)", " ", getdoc(command) or "")
            add = groups.get(owner, app).command(
                name, cls=Command, help=told, epilog=_make_epilog(path, arguments)
            )
            add(takes_groups(command))
    for name, group in groups.items():
        if group.registered_commands:
            app.add_typer(group, name=name)
    return app


def _make_epilog(path: str, arguments: str) -> str:
    return f"Example: {' '.join(filter(None, ('ckptplan', path, arguments)))}"


def _make_group(name: str, about: str, arguments: str) -> typer.Typer:
    return typer.Typer(
        help=about,
        epilog=_make_epilog(name, arguments),
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
