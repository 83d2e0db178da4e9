"""Describes a calibration: measured sizes, times and transfers, and their spread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ckptplan.calibration.calibrate import Calibrated
from ckptplan.model.profile import NUMBERS, Source
from ckptplan.model.workload import ACTION_TIMES, WORKSPACES, Calibration, Measured
from ckptplan.report.blocks import Block, Field, Paragraph, Table
from ckptplan.report.formats import View
from ckptplan.report.numbers import format_field
from ckptplan.units import format_share
from ckptplan.wording import Argument


def _show_interval(row: Mapping[str, Any]) -> str | None:
    field, low, high = row["field"], row["low"], row["high"]
    return None if low is None else f"{format_field(field, low)} to {format_field(field, high)}"


_FIELDS = (
    Field("field", ""),
    Field("measured", right=True, show=lambda row: format_field(row["field"], row["value"])),
    Field("interval", "", right=True, priority=1, show=_show_interval),
)
#: Fields of the workload, of the profile and of the operations of a step that are measured.
_WORKLOAD = (
    *("state_bytes", "tape_bytes", "cache_bytes", "resident_bytes", "resident_bytes_per_step", *WORKSPACES),
    *("forward_seconds", "recompute_seconds", "record_overhead_seconds", "backward_seconds"),
    *ACTION_TIMES,
)
_PROFILE = (
    "write_bytes_per_second",
    "read_bytes_per_second",
    "latency_seconds",
    *(field for field in NUMBERS if field.endswith("flops_per_second")),
    "local_bytes_per_second",
    "launch_seconds",
)
_OPERATIONS = ("forward_flops", "backward_flops", "efficiency")


def view_calibration(calibrated: Calibrated) -> View:
    """Return the view of a calibration."""
    rows = list(_list_rows(calibrated))
    return View(
        kind="calibration",
        heading="Calibration",
        title=f"{calibrated.workload.cell}, batch {calibrated.workload.batch}",
        blocks=lambda: _describe(calibrated, rows),
        document=lambda: _make_document(calibrated),
        rows=lambda: rows,
    )


def _describe(calibrated: Calibrated, rows: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    """Yield sizes, times with their spread and fit, transfers, and how far to trust them."""
    calibration = _calibration_of(calibrated)
    where = f"on {calibration.machine}, {calibration.threads_text}, {calibration.framework}"
    yield Paragraph(f"{where}, {calibration.clock}")
    yield Table.of(_FIELDS, rows)
    # An error bar of more than 100 % would allow negative times.
    uncertainty = Argument("uncertainty", f"{min(calibration.uncertainty, 1) * 100:.2g}%")
    yield Paragraph(
        f"times of steps are known to within {format_share(calibration.uncertainty)}, of messages to within "
        f"{format_share(calibration.transfer_uncertainty)}; error bars of a decision: "
        f"ckptplan sensitivity with both files and {uncertainty}"
    )


def _list_rows(calibrated: Calibrated) -> Iterator[dict[str, Any]]:
    """Yield a row for each number, with the ends of its interval: sizes, times, transfers, peaks."""
    parts: tuple[tuple[object, Sequence[str], Mapping[str, Measured | Source]], ...] = (
        (calibrated.workload, _WORKLOAD, _calibration_of(calibrated).measured),
        (calibrated.profile, _PROFILE, calibrated.profile.sources),
        (calibrated.workload.operations, _OPERATIONS, {}),
    )
    for model, names, intervals in parts:
        for field in names:
            # Calibration in JAX measures no peaks.
            if (value := getattr(model, field, None)) is not None:
                measured = intervals.get(field)
                ends = (None, None) if measured is None else (measured.low, measured.high)
                low, high = (None if end is None else end * value for end in ends)
                yield {"field": field, "value": value, "low": low, "high": high}


def _make_document(calibrated: Calibrated) -> dict[str, Any]:
    """Return the calibration as JSON data."""
    return {
        "workload": calibrated.workload.document(),
        "profile": calibrated.profile.document(),
        "noisy": calibrated.noisy is not None,
        "workspace_residual": calibrated.workspace_residual,
    }


def _calibration_of(calibrated: Calibrated) -> Calibration:
    calibration = calibrated.workload.calibration
    assert calibration is not None  # noqa: S101 - a calibrated workload has one
    return calibration
