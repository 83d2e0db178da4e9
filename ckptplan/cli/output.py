"""Results to standard output or a file, in any format; notes to standard error."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ckptplan.cli.environment import write_error
from ckptplan.cli.options import DEFAULT_WORKLOAD, OutputOptions, command_line
from ckptplan.cli.wording import as_option
from ckptplan.report.formats import format_named
from ckptplan.version import __version__
from ckptplan.wording import put_on_one_line

if TYPE_CHECKING:
    from rich.console import Console

    from ckptplan.model.plan import Plan
    from ckptplan.report.formats import View

#: For commands without the option --workload.
NO_WORKLOAD = ""


def write_plan(plan: Plan, view: View, output: OutputOptions, *, workload: str | None = NO_WORKLOAD) -> None:
    """Write a plan in the chosen format. If that is a table, it is printed, and the file is the plan as JSON.

    ``workload`` is as in ``write_view``. Raises InputError if the file cannot be written.
    """
    from ckptplan.storage.plans import save_plan

    if output.format == "table" and output.file is not None:
        save_plan(plan, output.file)
        if output.file == "-":
            return
        note(f"plan written to {output.file}")
        output = dataclasses.replace(output, file=None)
    write_view(view, output, workload=workload)


def write_view(view: View, output: OutputOptions, *, workload: str | None = NO_WORKLOAD) -> None:
    """Write a result in the chosen format.

    ``workload`` is what --workload names, for a command that has it: if it names none, the table says which one
    was planned. Raises InputError if the file cannot be written.
    """
    view = with_basis(view, whole=output.basis)
    if workload is None:
        view = _with_default_workload(view)
    kind, document = view.kind, view.document
    if kind is not None:
        view = dataclasses.replace(view, document=lambda: enveloped(kind, document()))
    format_named(output.format).write(view, output.file or "-")


def with_basis(view: View, *, whole: bool) -> View:
    """Return a result whose table ends in the basis of its estimate: a line that counts it, or all of it."""

    def table(console: Console) -> None:
        from ckptplan.report.basis import print_basis

        view.table(console)
        print_basis(console, view.basis(), whole=whole, wording=as_option)

    return dataclasses.replace(view, table=table)


def _with_default_workload(view: View) -> View:
    """Return a result whose table ends in the workload that was planned for want of another."""

    def table(console: Console) -> None:
        from ckptplan.report.columns import wrap_lines

        view.table(console)
        text = (
            f"Workload: {DEFAULT_WORKLOAD}, as none was named; --workload NAME plans another, and "
            "ckptplan workloads list shows them."
        )
        console.print(wrap_lines(text, width=console.width), soft_wrap=True)

    return dataclasses.replace(view, table=table)


def enveloped(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with a head: its kind, and the version and command that made it."""
    from ckptplan.storage.versions import WRITTEN  # loads the models, which --help does without

    return {
        "kind": f"ckptplan.{kind}",
        "schema_version": WRITTEN["result"],
        "version": __version__,
        "command": command_line(),
        **content,
    }


def note(text: str) -> None:
    """Print a line on standard error; ends of lines in names of files are escaped."""
    write_error(put_on_one_line(text))
