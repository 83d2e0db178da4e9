"""``ckptplan profiles list|show|check``: hardware profiles."""

from typing import Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.options import Format
from ckptplan.cli.output import emit, enveloped

app = typer.Typer(help="List, show and check hardware profiles.", no_args_is_help=True)


@app.command("list")
def list_(format_: options.FormatOption = Format.table, output: options.Output = None) -> None:
    """List the built-in hardware profiles."""
    from ckptplan.report.profile_table import profile_list, profile_row
    from ckptplan.storage.library import list_names
    from ckptplan.storage.profiles import load_profile

    profiles = [load_profile(name) for name in list_names("hardware_profiles")]
    emit(
        format_=format_,
        output=output,
        table=lambda console: profile_list(console, profiles),
        document=lambda: enveloped("profiles", {"profiles": [profile_row(profile) for profile in profiles]}),
        rows=lambda: [profile_row(profile) for profile in profiles],
    )


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|PATH", help="A built-in name, or a .toml file.")],
    format_: options.FormatOption = Format.table,
    output: options.Output = None,
) -> None:
    """Show every number of a hardware profile, with its source and grade."""
    from ckptplan.report.profile_table import number_rows, profile_document, profile_table
    from ckptplan.storage.profiles import load_profile

    profile = load_profile(name)
    emit(
        format_=format_,
        output=output,
        table=lambda console: profile_table(console, profile),
        document=lambda: enveloped("profile", profile_document(profile)),
        rows=lambda: number_rows(profile),
    )


@app.command("check")
def check(
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME|PATH]...", help="Profiles; all built-in ones if none.")
    ] = None,
    format_: options.FormatOption = Format.table,
    output: options.Output = None,
) -> None:
    """Check that hardware profiles are complete and valid; exits 2 at the first that is not."""
    from ckptplan.report.profile_table import check_list, check_row
    from ckptplan.storage.library import list_names
    from ckptplan.storage.profiles import load_profile

    profiles = [load_profile(path) for path in paths or list_names("hardware_profiles")]
    emit(
        format_=format_,
        output=output,
        table=lambda console: check_list(console, profiles),
        document=lambda: enveloped("check", {"profiles": [check_row(profile) for profile in profiles]}),
        rows=lambda: [check_row(profile) for profile in profiles],
    )
