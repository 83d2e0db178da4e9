"""``ckptplan profiles list|show|check|new``: hardware profiles."""

from typing import Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.completion import complete_profile
from ckptplan.cli.groups import takes_groups
from ckptplan.cli.help import HelpfulCommand, HelpfulGroup
from ckptplan.cli.new_profile import ProfileNumbers, write_profile
from ckptplan.cli.options import OutputOptions
from ckptplan.cli.output import write_view

app = typer.Typer(cls=HelpfulGroup, help="List, show, check and make hardware profiles.", no_args_is_help=True)


@app.command("list", cls=HelpfulCommand)
@takes_groups
def list_(*, output: OutputOptions) -> None:
    """List the built-in hardware profiles."""
    from ckptplan.report.inputs import view_profiles
    from ckptplan.storage.library import list_names
    from ckptplan.storage.toml_files import load_profile

    profiles = [load_profile(name) for name in list_names("hardware_profiles")]
    write_view(view_profiles(profiles), output)


@app.command("show", cls=HelpfulCommand)
@takes_groups
def show(
    *,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|PATH", help="A built-in name, or a .toml file.", autocompletion=complete_profile
        ),
    ],
    output: OutputOptions,
) -> None:
    """Show every number of a hardware profile, with its source and grade."""
    from ckptplan.report.inputs import view_profile
    from ckptplan.storage.toml_files import load_profile

    profile = load_profile(name)
    write_view(view_profile(profile), output)


@app.command("check", cls=HelpfulCommand)
@takes_groups
def check(
    *,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME|PATH]...",
            help="Profiles; all built-in ones if none.",
            autocompletion=complete_profile,
        ),
    ] = None,
    output: OutputOptions,
) -> None:
    """Check that hardware profiles are complete and valid; exits 2 at the first that is not."""
    from ckptplan.report.inputs import view_checks
    from ckptplan.storage.library import list_names
    from ckptplan.storage.toml_files import load_profile

    profiles = [load_profile(path) for path in paths or list_names("hardware_profiles")]
    write_view(view_checks(profiles), output)


@app.command("new", cls=HelpfulCommand)
@takes_groups
def new(
    *,
    numbers: ProfileNumbers,
    format_: options.FormatOption = "table",
    output: Annotated[
        str,
        typer.Option("-o", "--output", metavar="FILE", help="The profile.", callback=options.named_file),
    ] = "my-machine.toml",
) -> None:
    """Write a profile with a comment on each number, from options or from another profile (--like).

    Without --local-bytes and --like, questions are asked on a terminal.
    """
    write_profile(numbers, output=output, format_=format_)
