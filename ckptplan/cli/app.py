"""The application, assembled from its commands."""

import os
import platform
import re
from collections.abc import Iterator, Mapping
from importlib import import_module, metadata
from inspect import getdoc
from typing import Annotated, Any

import typer

from ckptplan.cli.command import Command, Group, takes_groups
from ckptplan.errors import Infeasible
from ckptplan.version import __version__

#: Each command in the order of the help: its module, and an example, which tests run.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "optimize": ("jobs", "--T 4096 --profile ipu-mk2 -o plan.json"),
    "compare": ("jobs", "--T 3000 --profile ipu-mk2,nvidia-h200 --strategies paper"),
    "pareto": ("jobs", "--T 1024 --at '400 KiB'"),
    "largest": ("jobs", "T --max-overhead 20%"),
    "sweep": ("sweep", "--over T=256:16384:x2 --over batch=30,60,120 -o sweep.csv"),
    "sensitivity": ("jobs", "--T 1024"),
    "calibrate": ("measure", "--cell gru --batch 32 --T 256 --quick -o my-gru.toml"),
    "validate": ("measure", "plan.json"),
    "simulate": ("plans", "plan.json --gantt schedule.png"),
    "schedule": ("plans", "plan.json -o schedule.jsonl"),
    "report": ("plans", "plan.json -o report.html"),
    "paper": ("paper", "--figure 3"),
    "profiles list": ("library", "--format csv"),
    "profiles show": ("library", "nvidia-h200"),
    "profiles check": ("library", "ipu-mk2 nvidia-h200"),
    "profiles new": ("library", "--like nvidia-h200 --price-per-hour 3.5 -o my-h200.toml"),
    "workloads list": ("library", "--format csv"),
    "workloads show": ("library", "paper-snn"),
    "workloads new": ("library", "--kind lstm --batch 8 --neurons 64 -o my-lstm.toml"),
    "schema": ("plans", "plan -o plan.schema.json"),
}
#: Packages whose versions ``--version --verbose`` prints: dependencies, and libraries of networks.
PACKAGES = (
    "jinja2", "matplotlib", "numpy", "pydantic", "rich", "scipy", "tomli-w", "typer",
    "torch", "snntorch", "norse", "spikingjelly", "jax", "jaxlib",
)  # fmt: skip
#: Each group of commands: its help, and example arguments.
GROUPS: Mapping[str, tuple[str, str]] = {
    "": (
        "Plan gradient checkpointing for recurrent and spiking networks under a memory limit.",
        "optimize --T 4096 --profile ipu-mk2",
    ),
    "profiles": ("List, show, check and make hardware profiles.", "list"),
    "workloads": ("List, show and make workloads.", "list"),
}


class _PlanningCommand(Command):
    """A command that writes the page that was asked for, with the reason, if nothing fits."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises Infeasible after the page is written."""
        try:
            return super().invoke(ctx)
        except Infeasible as error:
            if ctx.params.get("html") is not None:
                from ckptplan.cli.output import write_reason

                write_reason(ctx.params["html"], error)
            raise


def make_app(*words: str) -> typer.Typer:
    """Return the application with the commands that begin with ``words``. Only their modules are imported."""
    groups = {name: _make_group(name, *group) for name, group in GROUPS.items()}
    app = groups.pop("")
    app.callback()(_root)
    for path, (module, arguments) in COMMANDS.items():
        if path.split()[: len(words)] == list(words):
            owner, _, name = path.rpartition(" ")
            command = getattr(import_module(f"ckptplan.cli.{module}"), "_".join(reversed(path.split())))
            # Join the lines of paragraphs, which the terminal breaks at its own width.
            about = re.sub(r"(?<!\n)\n(?!\n)", " ", getdoc(command) or "")
            group = groups.get(owner, app)
            add = group.command(name, cls=_PlanningCommand, help=about, epilog=_make_epilog(path, arguments))
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


def _print_version(context: typer.Context, requested: bool) -> None:
    if requested:
        typer.echo(f"ckptplan {__version__}")
        if context.params["verbose"]:
            typer.echo("\n".join(_describe_machine()))
        raise typer.Exit


def _describe_machine() -> Iterator[str]:
    """Yield lines about Python, the system and the installed packages, for bug reports."""
    yield f"Python {platform.python_version()} ({platform.python_implementation()})"
    yield f"{platform.platform()}, {os.cpu_count()} cores"
    for package in PACKAGES:
        try:
            yield f"{package} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            yield f"{package} is not installed"


def _root(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, help="Print the version.")
    ] = False,
    # Eager options are processed first, so the callback of --version can read this one.
    verbose: Annotated[
        bool,
        typer.Option("--verbose", is_eager=True, help="With --version: print what bug reports need."),
    ] = False,
) -> None:
    """Accept the options that precede a command."""
    if verbose and not version:
        raise typer.BadParameter("--verbose is only accepted with --version")
