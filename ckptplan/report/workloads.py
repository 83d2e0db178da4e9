"""Workloads: lists and single workloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ckptplan.model.workload import Workload
from ckptplan.report.profiles import format_field
from ckptplan.report.view import View
from ckptplan.units import format_bytes, format_count

_TEXTS = ("name", "description", "basis", "network")


def view_workloads(workloads: Sequence[Workload]) -> View:
    """Return a list of workloads for every format."""
    return View(
        kind="workloads",
        table=lambda console: _print_workloads(console, workloads),
        document=lambda: {"workloads": [_make_row(workload) for workload in workloads]},
        rows=lambda: [_make_row(workload) for workload in workloads],
    )


def view_workload(workload: Workload) -> View:
    """Return every number of a workload with its basis, for every format."""
    return View(
        kind="workload",
        table=lambda console: _print_workload(console, workload),
        document=lambda: {
            "workload": {"hash": workload.hash, **workload.model_dump(mode="json", exclude_none=True)}
        },
        rows=lambda: _list_numbers(workload),
    )


def _print_workloads(console: Console, workloads: Sequence[Workload]) -> None:
    """Print a line for each workload."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("name", "T", "state", "tape"):
        table.add_column(heading, no_wrap=True)
    table.add_column("what it is")
    for workload in workloads:
        table.add_row(
            Text(workload.name, style="bold"),
            format_count(workload.steps),
            format_bytes(workload.state_bytes),
            format_bytes(workload.tape_bytes),
            workload.description,
        )
    console.print(table)
    console.print()
    console.print("Every number and how it was obtained: ckptplan workloads show NAME")


def _make_row(workload: Workload) -> dict[str, Any]:
    """Return a workload as a flat row of SI numbers."""
    return {
        "name": workload.name,
        "description": workload.description,
        **workload.numbers(),
        "hash": workload.hash,
    }


def _print_workload(console: Console, workload: Workload) -> None:
    """Print every number of a workload with its basis."""
    text = f": {workload.description}" if workload.description else ""
    console.print(Text.assemble((workload.name, "bold"), text))
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("field", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("basis", no_wrap=True)
    table.add_column("why")
    for row in _list_numbers(workload):
        kind = row.get("basis", "")
        table.add_row(
            row["field"],
            format_field(row["field"], row["value"]),
            Text(kind, style="yellow" if kind == "assumed" else ""),
            row.get("why", ""),
        )
    if workload.network is not None:
        for field, value in dict(workload.network).items():
            table.add_row(f"network.{field}", format_field(field, value), "", "")
    console.print(table)


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
