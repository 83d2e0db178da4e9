"""Workloads: lists and single workloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ckptplan.model.workload import Workload
from ckptplan.report.aligned import align_bytes, align_counts
from ckptplan.report.columns import Cell, FittedTable, TableColumn, wrap_lines
from ckptplan.report.profiles import format_field
from ckptplan.report.view import View
from ckptplan.wording import Wording

_TEXTS = ("name", "description", "basis", "network")


def view_workloads(workloads: Sequence[Workload], *, wording: Wording = str) -> View:
    """Return a list of workloads for every format."""
    return View(
        kind="workloads",
        table=lambda console: _print_workloads(console, workloads, wording=wording),
        document=lambda: {"workloads": [_make_row(workload) for workload in workloads]},
        rows=lambda: [_make_row(workload) for workload in workloads],
    )


def view_workload(workload: Workload, *, wording: Wording = str) -> View:
    """Return every number of a workload with its basis, for every format."""
    return View(
        kind="workload",
        table=lambda console: _print_workload(console, workload, wording=wording),
        document=lambda: {
            "workload": {"hash": workload.hash, **workload.model_dump(mode="json", exclude_none=True)}
        },
        rows=lambda: _list_numbers(workload),
    )


def _print_workloads(console: Console, workloads: Sequence[Workload], *, wording: Wording) -> None:
    """Print a line for each workload."""
    table = FittedTable(
        (
            TableColumn(title="name"),
            TableColumn(title="T", form=align_counts),
            TableColumn(title="state", form=align_bytes),
            TableColumn(title="tape", form=align_bytes),
            TableColumn(title="what it is", wraps="early"),
        )
    )
    for workload in workloads:
        table.add_row(
            Cell(value=workload.name, style="bold"),
            workload.steps,
            workload.state_bytes,
            workload.tape_bytes,
            workload.description,
        )
    table.print_on(console, wording=wording)
    console.print()
    text = "Every number and how it was obtained: ckptplan workloads show NAME"
    console.print(wrap_lines(text, width=console.width), soft_wrap=True)


def _make_row(workload: Workload) -> dict[str, Any]:
    """Return a workload as a flat row of SI numbers."""
    return {
        "name": workload.name,
        "description": workload.description,
        **workload.numbers(),
        "hash": workload.hash,
    }


def _print_workload(console: Console, workload: Workload, *, wording: Wording) -> None:
    """Print every number of a workload with its basis."""
    text = f": {workload.description}" if workload.description else ""
    title = Text.assemble((workload.name, "bold"), text)
    console.print(wrap_lines(title, width=console.width), soft_wrap=True)
    console.print()
    table = FittedTable(
        (
            TableColumn(title="field"),
            TableColumn(title="value", right=True),
            TableColumn(title="basis"),
            TableColumn(title="why", wraps="early"),
        )
    )
    for row in _list_numbers(workload):
        kind = row.get("basis", "")
        table.add_row(
            row["field"],
            format_field(row["field"], row["value"]),
            Cell(value=kind, style="yellow" if kind == "assumed" else ""),
            row.get("why", ""),
        )
    if workload.network is not None:
        for field, value in workload.network.model_dump().items():
            table.add_row(f"network.{field}", format_field(field, value), "", "")
    table.print_on(console, wording=wording)


def _list_numbers(workload: Workload) -> list[dict[str, Any]]:
    """Return a row for each field."""
    rows: list[dict[str, Any]] = []
    for field in type(workload).model_fields:
        value = getattr(workload, field)
        if field in _TEXTS or value is None:
            continue
        basis = workload.basis.get(field)
        rows.append(
            {"field": field, "value": value, **({"basis": basis.kind, "why": basis.why} if basis else {})}
        )
    return rows
