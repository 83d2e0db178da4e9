"""Results to standard output or a file, in any format; notes to standard error."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptplan.cli.environment import write_error
from ckptplan.cli.options import DEFAULT_WORKLOAD, OutputOptions, command_line
from ckptplan.report.formats import View, format_named
from ckptplan.version import __version__
from ckptplan.wording import put_on_one_line

if TYPE_CHECKING:
    from ckptplan.model.plan import Plan
    from ckptplan.model.prediction import BasisEntry
    from ckptplan.report.blocks import Block
    from ckptplan.storage.tables import Row


def write_plan(plan: Plan, view: View, output: OutputOptions, *, unnamed: bool = False) -> None:
    """Write a plan in the chosen format. If that is a table, it is printed, and the file is the plan as JSON.

    ``unnamed`` is as in ``write_view``. Raises InputError if the file cannot be written.
    """
    from ckptplan.storage.plans import save_plan

    if output.format == "table" and output.file is not None:
        save_plan(plan, output.file)
        if output.file == "-":
            return
        note(f"plan written to {output.file}")
        output = dataclasses.replace(output, file=None)
    write_view(view, output, unnamed=unnamed)


def write_view(view: View, output: OutputOptions, *, unnamed: bool = False) -> None:
    """Write a result in the chosen format.

    ``unnamed`` says that no workload was named, so that the table tells which one was planned. Raises
    InputError if the file cannot be written.
    """
    result = _Result(view.kind, view, whole_basis=output.basis, unnamed=unnamed)
    format_named(output.format).write(result, output.file or "-")


@dataclass(frozen=True)
class _Result(View):
    """A view as a command writes it: its table ends in the basis, its document begins with what made it."""

    kind: str | None
    view: View
    whole_basis: bool
    unnamed: bool

    def blocks(self) -> Iterator[Block]:
        yield from self.view.blocks()
        yield from list_basis_blocks(self.view.basis(), whole=self.whole_basis)
        if self.unnamed:
            from ckptplan.report.blocks import Paragraph

            yield Paragraph(
                f"Workload: {DEFAULT_WORKLOAD}, as none was named; --workload NAME plans another, and "
                "ckptplan workloads list shows them."
            )

    def document(self) -> Mapping[str, Any]:
        document = self.view.document()
        return document if self.kind is None else enveloped(self.kind, document)

    def rows(self) -> Iterable[Row]:
        return self.view.rows()


def list_basis_blocks(entries: Sequence[BasisEntry], *, whole: bool) -> Iterable[Block]:
    """Return the basis of an estimate: a line that counts it, or all of it."""
    from ckptplan.report.basis import count_basis, explain_basis

    return explain_basis(entries) if whole else count_basis(entries)


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
