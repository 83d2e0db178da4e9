"""``ckptplan profiles`` and ``workloads``: built-in files and those of users, listed, shown and checked."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptplan.cli import options
from ckptplan.cli.output import OutputOptions, write_view
from ckptplan.storage.library import list_names


def list_profiles(*, output: OutputOptions) -> None:
    """List the built-in hardware profiles."""
    from ckptplan.report.inputs import view_profiles
    from ckptplan.storage.toml_files import load_profile

    write_view(view_profiles([load_profile(name) for name in list_names("hardware_profiles")]), output)


def show_profile(
    *,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|PATH",
            help="A built-in name, or a .toml file.",
            autocompletion=options.complete_names("hardware_profiles"),
            parser=options.Read,
        ),
    ],
    output: OutputOptions,
) -> None:
    """Show every number of a hardware profile, with its source and grade."""
    from ckptplan.report.inputs import view_profile
    from ckptplan.storage.toml_files import load_profile

    write_view(view_profile(load_profile(name)), output)


def check_profiles(
    *,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME|PATH]...",
            help="Profiles; all built-in ones if none.",
            autocompletion=options.complete_names("hardware_profiles"),
            parser=options.Read,
        ),
    ] = None,
    output: OutputOptions,
) -> None:
    """Check that hardware profiles are complete and valid; exits 2 at the first that is not."""
    from ckptplan.report.inputs import view_checks
    from ckptplan.storage.toml_files import load_profile

    write_view(view_checks([load_profile(path) for path in paths or list_names("hardware_profiles")]), output)


def list_workloads(*, output: OutputOptions) -> None:
    """List the built-in workloads."""
    from ckptplan.report.inputs import view_workloads
    from ckptplan.storage.toml_files import load_workload

    write_view(view_workloads([load_workload(name) for name in list_names("workloads")]), output)


def show_workload(
    *,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|PATH",
            help="A built-in name, or a .toml file.",
            autocompletion=options.complete_names("workloads"),
            parser=options.Read,
        ),
    ],
    output: OutputOptions,
) -> None:
    """Show every number of a workload, and how it was obtained."""
    from ckptplan.report.inputs import view_workload
    from ckptplan.storage.toml_files import load_workload

    write_view(view_workload(load_workload(name)), output)
