"""What a calibration measured: sizes, times, transfers, and their spread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ckptplan.calibration.calibrate import Calibrated
from ckptplan.model.profile import NUMBERS, Source
from ckptplan.model.workload import Calibration, Measured
from ckptplan.report.blocks import Block, Field, Paragraph, Table
from ckptplan.report.fields import format_field
from ckptplan.report.formats import View
from ckptplan.units import format_share
from ckptplan.wording import Argument

_FIELDS = (
    Field("name", title=""),
    Field("measured", right=True),
    Field("interval", title="", right=True, priority=1),
)
#: Fields of the workload, of the profile and of the operations of a step, with their names in the table.
_WORKLOAD = {
    "state_bytes": "state",
    "tape_bytes": "tape of a step",
    "resident_bytes": "parameters",
    "resident_bytes_per_step": "kept for each step",
    "workspace_bytes": "workspace",
    "chunk_workspace_bytes": "more for chunks",
    "forward_seconds": "forward",
    "recompute_seconds": "recompute",
    "record_overhead_seconds": "recording adds",
    "backward_seconds": "backward",
    "advance_seconds": "a run of steps adds",
    "chunk_seconds": "a chunk adds",
    "save_seconds": "saving a state",
    "load_seconds": "loading a state",
}
_PROFILE = {
    "write_bytes_per_second": "write, effective",
    "read_bytes_per_second": "read, effective",
    "latency_seconds": "latency of a message",
    **{field: f"peak in {field.partition('_')[0]}" for field in NUMBERS if field.endswith("flops_per_second")},
    "local_bytes_per_second": "local memory",
    "launch_seconds": "starting a kernel",
}
_OPERATIONS = {
    "forward_flops": "a forward step computes",
    "backward_flops": "a backward step computes",
    "efficiency": "of the roofline reached",
}


def view_calibration(found: Calibrated) -> View:
    """Return what a calibration measured."""
    rows = list(_list_numbers(found))
    columns = ("field", "value", "low", "high")
    return View(
        kind="calibration",
        blocks=lambda: _tell(found, rows),
        document=lambda: _make_document(found),
        rows=lambda: [{name: row[name] for name in columns} for row in rows],
    )


def _tell(found: Calibrated, rows: list[dict[str, Any]]) -> Iterator[Block]:
    """Yield sizes, times with their spread and fit, transfers, and how far to trust them."""
    calibration = _of(found)
    yield Paragraph("", head=f"{found.workload.cell}, batch {found.workload.batch}")
    where = f"on {calibration.machine}, {calibration.threads_text}, {calibration.framework}"
    yield Paragraph(f"{where}, {calibration.clock}")
    yield Table.of(_FIELDS, map(_format, rows))
    # More than all of a time is no error bar.
    uncertainty = Argument("uncertainty", f"{min(calibration.uncertainty, 1) * 100:.2g}%")
    yield Paragraph(
        "Forward, recomputed and backward steps are known to within "
        f"{format_share(calibration.uncertainty)} of their times, messages to within "
        f"{format_share(calibration.transfer_uncertainty)}: the farthest end of their intervals. "
        f"Error bars of a decision: ckptplan sensitivity with both files and {uncertainty}"
    )


def _format(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a number as the table shows it."""
    field = row["field"]
    interval = None
    if row["low"] is not None:
        interval = f"{format_field(field, row['low'])} to {format_field(field, row['high'])}"
    return {"name": row["name"], "measured": format_field(field, row["value"]), "interval": interval}


def _list_numbers(found: Calibrated) -> Iterator[dict[str, Any]]:
    """Yield a row for each number, with the ends of its interval: sizes, times, transfers, peaks."""
    workload, profile = found.workload, found.profile
    parts: tuple[tuple[object, Mapping[str, str], Mapping[str, Measured | Source]], ...] = (
        (workload, _WORKLOAD, _of(found).measured),
        (profile, _PROFILE, profile.sources),
        (workload.operations, _OPERATIONS, {}),
    )
    for model, names, intervals in parts:
        for field, name in names.items():
            # Calibration in JAX measures no peaks.
            if (value := getattr(model, field, None)) is not None:
                known = intervals.get(field)
                low, high = (None, None) if known is None else (known.low, known.high)
                yield {
                    "field": field,
                    "name": name,
                    "value": value,
                    "low": None if low is None else low * value,
                    "high": None if high is None else high * value,
                }


def _make_document(found: Calibrated) -> dict[str, Any]:
    """Return the calibration as JSON data."""
    return {
        "workload": found.workload.document(),
        "profile": found.profile.document(),
        "noisy": found.noisy is not None,
        "workspace_residual": found.workspace_residual,
    }


def _of(found: Calibrated) -> Calibration:
    calibration = found.workload.calibration
    assert calibration is not None  # noqa: S101 - a calibrated workload has one
    return calibration
